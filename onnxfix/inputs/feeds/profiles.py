"""Optimization profiles from ``--trt-min-shapes``, ``--trt-opt-shapes`` and ``--trt-max-shapes``; without these, from
the inputs or input shapes that the models are verified with.

The numbers in an option are an input's shape, as in trtexec. For a shape tensor, whose values TensorRT must know when
it builds, they are the values. Only TensorRT knows which inputs are shape tensors, after it has parsed the model: if
both readings are possible, both are kept, and ``tensorrt.profiles`` chooses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.signature import Assignment, Input, Signature
from onnxfix.tensorrt.records import Profile, Sizes, Triple, TrtOptions

_FLAGS = ("--trt-min-shapes", "--trt-opt-shapes", "--trt-max-shapes")
_LARGEST = 2**31 - 1
#: Element types of a shape tensor. TensorRT rejects other types: "must have type Int32 or Int64".
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def chosen_profiles(
    options: TrtOptions, known: Signature, shapes: Assignment, feeds: Sequence[Mapping[str, Any]] | None
) -> tuple[tuple[Profile, ...] | None, str]:
    """The profile that the user chose, and a line that says where it comes from.

    The profile of ``options`` comes first. Without it, a profile covers the inputs of the verification: the user's
    ``feeds``, or the ``shapes`` (symbol -> size) of generated inputs. None if the user gave none of these. The line
    is "" for None, and for the profile of ``options``.

    Raises:
        UsageError: as for ``given_profiles``.
    """
    given = given_profiles(options, known)
    if given is not None:
        return given, ""
    if feeds:
        alike = of_one_rank(feeds)
        most = f"the {len(feeds)} inputs" if len(feeds) > 1 else "the inputs"
        covered = most if len(alike) == len(feeds) else f"{len(alike)} of {most}, which have different ranks,"
        return (Profile.of_feeds(alike),), f"the optimization profile covers {covered} that were given"
    profile = bound_profile(known, shapes)
    if profile is None:
        return None, ""
    sizes = ", ".join(f"{name}={size}" for name, (size, _, _) in profile.symbols.items())
    rest = "; other sizes are derived" if set(known.symbols) - set(profile.symbols) else ""
    return (profile,), f"the optimization profile has the sizes of the given input shapes: {sizes}{rest}"


def of_one_rank(feeds: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The feeds whose inputs have the ranks of the last feed: a profile cannot cover several ranks."""
    last = {
        name: value.ndim for name, value in feeds[-1].items() if isinstance(value, (np.ndarray, np.generic))
    }
    return [feed for feed in feeds if all(np.ndim(feed[n]) == rank for n, rank in last.items() if n in feed)]


def bound_profile(known: Signature, shapes: Assignment) -> Profile | None:
    """A profile with a fixed size for each symbol in ``shapes``; None if no input has such a symbol.

    Other sizes are derived later. An input whose sizes are then all known is given by shape: the user chose it.
    """
    named = {dim for one in known.inputs for dim in one.dims or ()} | set(known.symbols)
    bound = {name: size for name, size in shapes.items() if name in named}
    if not bound:
        return None
    whole: dict[str, Triple] = {}
    for one in known.inputs:
        sizes = [known.size(dim, bound) for dim in one.dims or ()]
        shape = tuple(size for size in sizes if size is not None)
        if one.default is None and one.kind == "tensor" and shape != one.dims and len(shape) == len(sizes):
            whole[one.name] = (shape,) * 3
    return Profile(whole, symbols={name: (size,) * 3 for name, size in bound.items()})


def given_profiles(options: TrtOptions, known: Signature) -> tuple[Profile, ...] | None:
    """The profile that the three options give; None if they are not set.

    An input is in one of the options, for all three, or in each of them. trtexec takes "only --optShapes or all of
    --minShapes, --optShapes, --maxShapes", and Polygraphy takes the same inputs in all three: neither derives a third.

    Raises:
        UsageError: a spec cannot be read, names an unknown input or contradicts an input's shape; the three shapes are
            not in order or not complete; or they give a symbol two sizes.
    """
    specs = (options.min_shapes, options.opt_shapes, options.max_shapes)
    if not any(specs):
        return None
    rows = []
    for flag, spec in zip(_FLAGS, specs, strict=True):
        try:
            rows.append(plan.parse_shapes(spec, known.names, signed=True))
        except UsageError as error:
            raise UsageError(f"{flag}: {error}") from None
    triples = {name: _triple(name, rows) for name in known.names if any(name in row for row in rows)}
    values = {name: triple for name, triple in triples.items() if _may_be_values(known[name], triple)}
    shapes: dict[str, Triple] = {}
    # Triples that can only be shapes come first: a later one that contradicts them is a list of values, or an error.
    for name in sorted(triples, key=values.__contains__):
        why = _explain_conflict(known, {**shapes, name: triples[name]})
        if not why:
            shapes[name] = triples[name]
        elif name not in values:
            raise UsageError(f"TensorRT's optimization profile: {why}")
    return (Profile(shapes, values, strict=True),)


def _triple(name: str, rows: Sequence[Mapping[str, tuple[int, ...]]]) -> Triple:
    given = [row[name] for row in rows if name in row]
    if len(given) == 2:
        missing = next(flag for flag, row in zip(_FLAGS, rows, strict=True) if name not in row)
        raise UsageError(f"input {name} has no {missing}: give one of {', '.join(_FLAGS)}, or all three")
    least, usual, most = given * 3 if len(given) == 1 else given
    words = " ≤ ".join("x".join(map(str, row)) or "scalar" for row in (least, usual, most))
    if not len(least) == len(usual) == len(most):
        raise UsageError(f"input {name} is given different ranks: {words}")
    if not all(a <= b <= c for a, b, c in zip(least, usual, most, strict=True)):
        raise UsageError(f"input {name}: min, opt and max shapes are not in order: {words} does not hold")
    return least, usual, most


def _explain_conflict(known: Signature, shapes: Mapping[str, Triple]) -> str:
    """Why the inputs cannot have these shapes, each alone or all together; "" if they can."""
    for name, triple in shapes.items():
        if known[name].default is not None:
            return f"input {name} has a default value, which TensorRT builds into the engine"
        if not all(0 <= size <= _LARGEST for row in triple for size in row):
            return f"sizes of input {name} must be from 0 to {_LARGEST}"
    for column in range(3):
        try:
            plan.bind_shapes(known, {name: triple[column] for name, triple in shapes.items()})
        except UsageError as error:
            return str(error)
    return ""


def _may_be_values(one: Input, triple: Triple) -> bool:
    """Whether the numbers can be the values of a shape tensor: the input holds integers, and as many of them.

    A list of unknown length takes any number of values. For a higher rank, TensorRT must know the shape.
    """
    if one.kind != "tensor" or one.elem not in _INTEGERS or one.default is not None or one.dims is None:
        return False
    sizes = [dim for dim in one.dims if isinstance(dim, int)]
    if len(sizes) < len(one.dims):
        return len(one.dims) == 1
    return math.prod(sizes) == len(triple[0])


def symbols_of(profile: Profile, known: Signature) -> dict[str, Sizes]:
    """The sizes (min, opt, max) that a profile gives to the model's symbols."""
    symbols: dict[str, Sizes] = dict(profile.symbols)
    for one in known.inputs:
        triple = profile.shapes.get(one.name)
        if triple is not None and one.dims is not None and len(triple[0]) == len(one.dims):
            for dim, least, usual, most in zip(one.dims, *triple, strict=True):
                if isinstance(dim, str):
                    symbols.setdefault(dim, (least, usual, most))
    return symbols
