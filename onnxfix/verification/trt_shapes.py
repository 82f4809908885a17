"""Optimisation profiles from the user's ``--trt-min-shapes``, ``--trt-opt-shapes`` and ``--trt-max-shapes``.

The numbers are an input's shape, or its values where TensorRT must know those when it builds (a shape tensor), as in
trtexec. Which inputs are shape tensors only TensorRT knows, after it has parsed the model: both readings are kept
where both are possible, and ``trt_profiles`` takes the right one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx

from onnxfix.backends.trt_types import Profile, Sizes, Triple, TrtOptions
from onnxfix.errors import UsageError
from onnxfix.verification import plan
from onnxfix.verification.signature import Input, Signature

_FLAGS = ("--trt-min-shapes", "--trt-opt-shapes", "--trt-max-shapes")
_LARGEST = 2**31 - 1
#: What a shape tensor holds: "must have type Int32 or Int64" are TensorRT's words.
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def given_profiles(options: TrtOptions, known: Signature) -> tuple[Profile, ...] | None:
    """The profile that the user asked for; None where it is left to the model's symbols.

    An input is given once, for all three, or three times. trtexec takes "only --optShapes or all of --minShapes,
    --optShapes, --maxShapes", and Polygraphy the same inputs in all three: neither guesses the third from two.

    Raises:
        UsageError: a spec cannot be read, names no input or one of another shape, the three are not in order or not
            complete, or they give one symbol two sizes.
    """
    specs = (options.min_shapes, options.opt_shapes, options.max_shapes)
    if not any(specs):
        return None
    rows = [_parsed(flag, spec, known) for flag, spec in zip(_FLAGS, specs, strict=True)]
    triples = {name: _triple(name, rows) for name in known.names if any(name in row for row in rows)}
    values = {name: triple for name, triple in triples.items() if _may_be_values(known[name], triple)}
    shapes: dict[str, Triple] = {}
    # What can only be a shape comes first: what contradicts it is a list of values, or a mistake.
    for name in sorted(triples, key=values.__contains__):
        why = _no_shape(known, {**shapes, name: triples[name]})
        if not why:
            shapes[name] = triples[name]
        elif name not in values:
            raise UsageError(f"TensorRT's optimisation profile: {why}")
    return (Profile(shapes, values, strict=True),)


def _parsed(flag: str, spec: Sequence[str], known: Signature) -> dict[str, tuple[int, ...]]:
    try:
        return plan.parse_shapes(spec, known.names, signed=True)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None


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
            return f"input {name} has a default value, which TensorRT builds in"
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
    found: dict[str, Sizes] = {}
    for one in known.inputs:
        triple = profile.shapes.get(one.name)
        if triple is not None and one.dims is not None and len(triple[0]) == len(one.dims):
            for dim, least, usual, most in zip(one.dims, *triple, strict=True):
                if isinstance(dim, str):
                    found.setdefault(dim, (least, usual, most))
    return found
