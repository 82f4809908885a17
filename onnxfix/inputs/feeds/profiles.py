"""Optimization profiles from what the user gave: ``--trt-min-shapes``, ``--trt-opt-shapes`` and ``--trt-max-shapes``,
else the inputs or the input shapes that the models are verified with.

The numbers of the options are an input's shape, or its values where TensorRT must know those when it builds (a shape
tensor), as in trtexec. Which inputs are shape tensors only TensorRT knows, after it has parsed the model: both
readings are kept where both are possible, and ``trt.profiles`` takes the right one.
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
#: Element types of a shape tensor, of which TensorRT reports "must have type Int32 or Int64".
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def chosen_profiles(
    options: TrtOptions, known: Signature, shapes: Assignment, feeds: Sequence[Mapping[str, Any]] | None
) -> tuple[tuple[Profile, ...] | None, str]:
    """The profile that a user wants, and in one line where it comes from.

    That is the one of ``options``; else, since nobody wants the two to differ, the one of the user's ``feeds``, or of
    the ``shapes`` (symbol -> size) that the inputs are made with. None where there is nothing of the kind. The line
    is "" for the first and the last.

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
    """The feeds whose inputs have the last one's ranks: one profile cannot cover several ranks."""
    last = {
        name: value.ndim for name, value in feeds[-1].items() if isinstance(value, (np.ndarray, np.generic))
    }
    return [feed for feed in feeds if all(np.ndim(feed[n]) == rank for n, rank in last.items() if n in feed)]


def bound_profile(known: Signature, shapes: Assignment) -> Profile | None:
    """A profile of one size for every symbol of ``shapes``, the rest to be derived; None where no input has one.

    Inputs that these sizes leave nothing open in are given by shape, so that they count as chosen by the user.
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
    """The profile of the options; None where it is derived from the model's symbols.

    An input is given once, for all three, or three times. trtexec takes "only --optShapes or all of --minShapes,
    --optShapes, --maxShapes", and Polygraphy the same inputs in all three: neither guesses the third from two.

    Raises:
        UsageError: a spec cannot be read, names no input or one of another shape, the three are not in order or not
            complete, or they give one symbol two sizes.
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
    # What can only be a shape comes first: what contradicts it is a list of values, or a mistake.
    for name in sorted(triples, key=values.__contains__):
        why = _no_shape(known, {**shapes, name: triples[name]})
        if not why:
            shapes[name] = triples[name]
        elif name not in values:
            raise UsageError(f"TensorRT's optimization profile: {why}")
    return (Profile(shapes, values, strict=True),)


def _triple(name: str, rows: Sequence[Mapping[str, tuple[int, ...]]]) -> Triple:
    given = [row[name] for row in rows if name in row]
    if len(given) == 2:
        lacking = next(flag for flag, row in zip(_FLAGS, rows, strict=True) if name not in row)
        raise UsageError(f"input {name} has no {lacking}: give one of {', '.join(_FLAGS)}, or all three")
    least, usual, most = given * 3 if len(given) == 1 else given
    words = " ≤ ".join("x".join(map(str, row)) or "scalar" for row in (least, usual, most))
    if not len(least) == len(usual) == len(most):
        raise UsageError(f"input {name} is given different ranks: {words}")
    if not all(a <= b <= c for a, b, c in zip(least, usual, most, strict=True)):
        raise UsageError(f"input {name}: min, opt and max shapes are not in order: {words} does not hold")
    return least, usual, most


def _no_shape(known: Signature, shapes: Mapping[str, Triple]) -> str:
    """Why the inputs do not have these shapes, each alone and all at once; "" where they may."""
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
    """Whether the numbers can be the values of a shape tensor: integers, as many as it has elements.

    A list whose length is open may have any number of them; beyond that TensorRT wants to know the shape.
    """
    if one.kind != "tensor" or one.elem not in _INTEGERS or one.default is not None or one.dims is None:
        return False
    sizes = [dim for dim in one.dims if isinstance(dim, int)]
    if len(sizes) < len(one.dims):
        return len(one.dims) == 1
    return math.prod(sizes) == len(triple[0])


def symbols_of(profile: Profile, known: Signature) -> dict[str, Sizes]:
    """The sizes (min, opt, max) that a profile gives to the model's symbols."""
    found: dict[str, Sizes] = dict(profile.symbols)
    for one in known.inputs:
        triple = profile.shapes.get(one.name)
        if triple is not None and one.dims is not None and len(triple[0]) == len(one.dims):
            for dim, least, usual, most in zip(one.dims, *triple, strict=True):
                if isinstance(dim, str):
                    found.setdefault(dim, (least, usual, most))
    return found
