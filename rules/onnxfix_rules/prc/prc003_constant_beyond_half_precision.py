"""PRC003: a constant that is infinite in half precision."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Silent, Use, Value, rule
from onnxfix.targets.documented import names

from ._common import DOUBLE, FLOAT, HALF, HIGHEST, NUMPY, producer, type_of

_MASKS = ("Where", "Add", "Mul", "Sub")
_PASSES = names("Add Where Sub Cast Expand Identity Reshape Slice Squeeze Transpose Unsqueeze")
_BOUNDS = names("Clip Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Max Min TopK")
_STEPS = 24
"""Most nodes searched between a mask and its Softmax."""
_SMALL = 1 << 10
_LARGEST = 1 << 24


@rule("PRC003", ops=(*_MASKS, "Cast"), safety=Safety.UNSAFE, hazards=[41], types=[HALF])
def constant_beyond_half_precision(node: Node, model: Model) -> Iterator[Match]:
    """A constant that is infinite in half precision: an attention mask, or a value beyond 65504.

    ## Why it matters
    Masks contain -inf or float32's lowest value, -3.4e38, which a Cast to float16 turns into -inf (ONNX: Cast
    overflows to infinity). A fully masked row is then NaN after the Softmax, and a mask that is multiplied by -inf is
    NaN where it is 0. TensorRT-RTX 1.7.1 parses and builds all of these forms without a warning. TensorRT's own
    weight conversion saturates instead (`Detected finite FP32 values which would overflow in FP16 and converted them
    to the closest finite FP16 value`, a text in its library), so results of a weakly typed build may change with a
    strongly typed one.

    ## Fix
    For masks that a Softmax reads, write -65504, half precision's lowest value. Partially masked rows keep their
    values as long as the scores are small compared to 65504; fully masked rows become uniform instead of NaN. UNSAFE
    for that reason.

    Other values beyond 65504 are reported if a Cast makes them infinite. Bounds of Clip, Max, Min and TopK and
    operands of comparisons are not reported: infinity is equivalent there.

    ## References
    - NVIDIA/TensorRT issues 1500, 2118, 2466, 3921, 4748
    """
    if node.op_type == "Cast":
        yield from _cast(node, model)
        return
    elem = type_of(node.output(), model)
    first = 1 if node.op_type == "Where" else 0
    operands = [(i, value) for i, value in enumerate(node.inputs) if i >= first and value is not None]
    if elem not in (HALF, FLOAT, DOUBLE) or not any(_constant(value) for _, value in operands):
        return
    if not _masks(node, elem, model):
        return
    for index, value in operands:
        array = _infinite(value, elem)
        if array is None:
            continue
        message = (
            f"{value.name!r} masks a Softmax and is infinite in half precision: fully masked rows become NaN"
        )
        if array.nbytes > _SMALL and value.use_count > 1:
            yield Match(f"{message}; too large to be stored a second time", node=node, reads=(value,))
            continue
        draft = Draft(node)
        highest = array.dtype.type(HIGHEST)
        draft.set_input(node, index, draft.constant(np.clip(array, -highest, highest), "mask"))
        yield Match(message, node=node, fix=Fix("use -65504", draft.edits, Safety.UNSAFE), reads=(value,))
        return


def _cast(node: Node, model: Model) -> Iterator[Match]:
    """A finite constant that this Cast makes infinite and that is neither a mask nor a bound."""
    source, output = node.input(0), node.output()
    if node.attr("to") != HALF or source is None or output is None or not source.is_constant:
        return
    array = source.constant()
    if array is None or array.dtype not in (np.float32, np.float64):
        return
    lost = np.isfinite(array) & np.isinf(_half(array))
    if lost.any() and any(not _is_bound(use, model) for use in output.uses):
        number = float(array[lost].reshape(-1)[0])
        yield Match(f"the constant {number:g} is infinite in half precision", node=node, reads=(source,))


def _is_bound(use: Use, model: Model) -> bool:
    node = use.node
    if not node.is_onnx:
        return False
    if node.op_type in _MASKS and type_of(node.output(), model) == HALF and _masks(node, HALF, model):
        return True  # reported by the other branch
    return node.op_type in _BOUNDS


def _constant(value: Value) -> bool:
    cast = producer(value, "Cast")
    source = value if cast is None else cast.input(0)
    return source is not None and source.is_constant


def _infinite(value: Value, elem: int) -> np.ndarray[Any, Any] | None:
    """The constant in type ``elem`` if half precision makes a value infinite, else None."""
    cast = producer(value, "Cast")
    source = value if cast is None else cast.input(0)
    array = None if source is None else source.constant(_LARGEST)
    if array is None or array.dtype not in (np.float16, np.float32, np.float64):
        return None
    if cast is not None and cast.attr("to") != elem:
        return None
    if not np.isinf(_half(array)).any():
        return None
    with np.errstate(over="ignore"):
        return array.astype(NUMPY[elem])


def _half(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def _masks(node: Node, elem: int, model: Model) -> bool:
    """Whether a half-precision Softmax reads ``node``'s result; float32 must be cast first, and by all readers."""
    value = node.output()
    if value is None:
        return False
    if elem != HALF:
        casts = [use.node for use in value.uses]
        if not value.replaceable or not all(_to_half(one) for one in casts):
            return False
    left = [value]
    seen: set[Node] = set()
    while left and len(seen) < _STEPS:
        for use in left.pop().uses[:_STEPS]:
            reader = use.node
            if reader in seen or not reader.is_onnx:
                continue
            seen.add(reader)
            result = reader.output()
            if reader.op_type == "Softmax":
                return type_of(reader.input(0), model) == HALF
            if (
                result is not None
                and reader.op_type in _PASSES
                and (reader.op_type != "Cast" or _to_half(reader))
            ):
                left.append(result)
    return False


def _to_half(node: Node) -> bool:
    return node.is_onnx and node.op_type == "Cast" and node.attr("to") == HALF


_IO = "g (float16[N,4] x, bool[N,4] c) => (float16[N,4] y)"
_LOW, _INF = "float16 k = {f16(-6.55e+04)}", "float16 i = {f16(-inf)}"  # -65504 and -inf by their bits


_fixed = partial(Fixed, safety=Safety.UNSAFE, opset=17, ir_version=8, runs=False)
_flagged = partial(Flagged, safety=Safety.UNSAFE, opset=17, ir_version=8)
_silent = partial(Silent, opset=17)
constant_beyond_half_precision.examples = [
    _fixed(
        "-inf in an attention mask",
        f"{_IO} <{_INF}> {{ w = Where(c, x, i)  y = Softmax<axis=-1>(w) }}",
        f"{_IO} <{_LOW}> {{ w = Where(c, x, k)  y = Softmax<axis=-1>(w) }}",
    ),
    _fixed(
        "float32's lowest value, cast",
        f"{_IO} <float i = {{-3.4e38}}> {{ h = Cast<to=FLOAT16>(i)  w = Where(c, x, h)  y = Softmax<axis=-1>(w) }}",
        f"{_IO} <{_LOW}> {{ w = Where(c, x, k)  y = Softmax<axis=-1>(w) }}",
    ),
    _fixed(
        "a mask times infinity: 0 * inf is NaN",
        "g (float16[N,4] x, float16[N,4] c) => (float16[N,4] y) <float i = {-3.4e38}>"
        " { h = Cast<to=FLOAT16>(i)  m = Mul(c, h)  a = Add(x, m)  y = Softmax<axis=-1>(a) }",
        f"g (float16[N,4] x, float16[N,4] c) => (float16[N,4] y) <{_LOW}>"
        " { m = Mul(c, k)  a = Add(x, m)  y = Softmax<axis=-1>(a) }",
    ),
    _fixed(
        "a mask computed in float32 and cast",
        f"{_IO} <float i = {{-3.4e38}}, float z = {{0}}> {{ w = Where(c, z, i)  h = Cast<to=FLOAT16>(w)  a = Add(x, h)"
        "  y = Softmax<axis=-1>(a) }",
        f"{_IO} <float i = {{-65504}}, float z = {{0}}> {{ w = Where(c, z, i)  h = Cast<to=FLOAT16>(w)  a = Add(x, h)"
        "  y = Softmax<axis=-1>(a) }",
    ),
    _fixed(
        "an added constant mask, after shape changes",
        "g (float16[2,4] x) => (float16[1,2,4] y)"
        " <float16[2,4] i = {f16(0.0, -inf, 0.0, 0.0, 0.0, 0.0, -inf, 0.0)}, int64[1] n = {0}>"
        " { a = Add(x, i)  u = Unsqueeze(a, n)  y = Softmax<axis=-1>(u) }",
        "g (float16[2,4] x) => (float16[1,2,4] y)"
        " <float16[2,4] i = {f16(0.0, -6.55e+04, 0.0, 0.0, 0.0, 0.0, -6.55e+04, 0.0)}, int64[1] n = {0}>"
        " { a = Add(x, i)  u = Unsqueeze(a, n)  y = Softmax<axis=-1>(u) }",
    ),
    _flagged(
        "a value beyond 65504 that is not a mask",
        f"{_IO} <float i = {{100000}}> {{ h = Cast<to=FLOAT16>(i)  y = Div(x, h) }}",
    ),
    _flagged(
        "a large mask with other readers would have to be stored twice",
        f"g (float16[2,512] x) => (float16[2,512] y, float16[2,512] z)"
        f" <float16[2,512] i = {{{', '.join(['64512', '0'] * 512)}}}>"
        " { a = Add(x, i)  y = Softmax<axis=-1>(a)  z = Neg(i) }",
    ),
    Silent(
        "half precision's lowest value", f"{_IO} <{_LOW}> {{ w = Where(c, x, k)  y = Softmax<axis=-1>(w) }}"
    ),
    Silent("-inf without a Softmax may be intended", f"{_IO} <{_INF}> {{ w = Where(c, x, i)  y = Neg(w) }}"),
    Silent(
        "a bound of Clip, Max or Min may be infinite",
        f"{_IO} <float i = {{100000}}> {{ h = Cast<to=FLOAT16>(i)  y = Min(x, h) }}",
    ),
    Silent(
        "infinity in Clip, Max, Min and a comparison",
        f"{_IO} <float16 i = {{64512}}, float16 j = {{31744}}> {{ a = Clip(x, i, j)  b = Max(a, i)  d = Min(b, j)"
        "  e = Equal(d, i)  y = Where(e, x, d) }",
    ),
    Silent(
        "infinity as the initial value of a maximum or TopK",
        "g (float16[N,4] x) => (float16[N,1] y) <float16 i = {64512}, float16[1,1] j = {64512}, int64[1] n = {1},"
        " int64[4] m = {0, 0, 0, 2}> { p = Pad(x, m, i)  h, q = TopK(p, n)  k = ReduceMax<axes=[1]>(p)"
        "  y = Max(h, k, j) }",
    ),
    Silent(
        "a test for infinity",
        f"g (float16[N,4] x) => (bool[N,4] y) <{_INF}> {{ a = Max(x, i)  f = Cast<to=FLOAT>(a)  y = IsInf(f) }}",
    ),
    _fixed(
        "a fully masked row",
        "g (float16[2,4] x) => (float16[2,4] y) <float16[2,4] i = {f16(-inf, -inf, -inf, -inf, 0.0, 0.0, 0.0, 0.0)}>"
        " { a = Add(x, i)  y = Softmax<axis=-1>(a) }",
        "g (float16[2,4] x) => (float16[2,4] y) <float16[2,4] i = {64511, 64511, 64511, 64511, 0, 0, 0, 0}>"
        " { a = Add(x, i)  y = Softmax<axis=-1>(a) }",
    ),
    Silent(
        "a comparison with infinity",
        f"g (float16[N,4] x) => (bool[N,4] y) <{_INF}> {{ y = Equal(x, i) }}",
        runs=False,
    ),
    Silent(
        "a value that is rounded to 65504",
        f"{_IO} <float i = {{65519}}> {{ h = Cast<to=FLOAT16>(i)  y = Div(x, h) }}",
    ),
    Silent(
        "an infinity that is cast",
        f"{_IO} <double i = {{1e308}}> {{ h = Cast<to=FLOAT>(i)  y = Cast<to=FLOAT16>(x) }}",
    ),
    Silent(
        "in float32 throughout",
        "g (float[N,4] x, bool[N,4] c) => (float[N,4] y) <float i = {-3.4e38}>"
        " { w = Where(c, x, i)  y = Softmax<axis=-1>(w) }",
    ),
    Silent(
        "a mask with a float32 reader as well",
        "g (float16[N,4] x, bool[N,4] c) => (float16[N,4] y, float[N,4] q) <float i = {-3.4e38}, float z = {0}>"
        " { w = Where(c, z, i)  q = Neg(w)  h = Cast<to=FLOAT16>(w)  a = Add(x, h)  y = Softmax<axis=-1>(a) }",
    ),
    Silent(
        "it may be overridden",
        f"g (float16[N,4] x, bool[N,4] c, float16 i) => (float16[N,4] y) <{_INF}>"
        " { w = Where(c, x, i)  y = Softmax<axis=-1>(w) }",
        runs=False,
    ),
    Flagged(
        "+inf beyond 65504 in a mask",
        """g (float16[N,4] x, float16[N,4] c) => (float16[N,4] y) <float i = {999999995904}> { h =
            Cast<to=FLOAT16>(i) m = Mul(c, h) a = Sub(x, m) y = Softmax<axis=-1>(a) }""",
        opset=17,
    ),
    _silent(
        "-1e4, which half precision represents",
        """g (float16[N,4] x, bool[N,4] c) => (float16[N,4] y) <float i = {-10000}> { h = Cast<to=FLOAT16>(i) w =
            Where(c, x, h) y = Softmax<axis=-1>(w) }""",
    ),
    _silent(
        "-inf in Clip",
        """g (float16[N,4] x) => (float16[N,4] y) <float i = {-100000}, float16 hi = {f16(1.0)}> { h =
            Cast<to=FLOAT16>(i) y = Clip(x, h, hi) }""",
    ),
    _silent(
        "-inf as the initial value of a ReduceMax",
        """g (float16[N,4] x) => (float16[N,1] y) <float16 i = {f16(-inf)}, float16[1,1] j = {f16(-inf)}> { c = Max(x,
            i) y = ReduceMax<axes=[1]>(c) }""",
    ),
    _silent(
        "TopK of masked scores",
        """g (float16[N,4] x, bool[N,4] c) => (float16[N,2] y, int64[N,2] z) <float16 i = {f16(-inf)}, int64[1] k =
            {2}> { w = Where(c, x, i) y, z = TopK(w, k) }""",
    ),
    _silent(
        "a non-constant IsInf operand beside an infinity",
        """g (float16[N,4] x) => (bool[N,4] y) <float16 i = {f16(-inf)}> { a = Max(x, i) y = IsInf(a) }""",
    ),
]
