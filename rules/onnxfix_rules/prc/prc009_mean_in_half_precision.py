"""PRC009: means and pools over many elements in half precision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule

from ._common import FLOAT, HALF, producer, type_of
from ._norm import axes_of

MANY = 128
"""This many elements of 512, the largest value that AutoCast keeps in half precision, sum to 65536."""


@rule(
    "PRC009",
    ops=["AveragePool", "GlobalAveragePool", "GlobalLpPool", "LpPool", "ReduceMean"],
    safety=Safety.NUMERIC,
    severity=Severity.INFO,
    hazards=[42],
    types=[HALF],
)
def mean_in_half_precision(node: Node, model: Model) -> Iterator[Match]:
    """A mean or pool over many elements in half precision, whose sum may exceed 65504.

    ## Why it matters
    The mean of 256 elements of 300 is 300, their sum 76800. `onnx.reference`, which sums in the tensor's type, then
    gives infinity for ReduceMean. TensorRT-RTX 1.7.1 builds such models without a warning; the accumulation type of
    its kernels is not documented. Reported from 128 elements on: 128 times 512, the largest value that NVIDIA's
    AutoCast leaves in half precision by default, is the first such sum beyond 65504. The means of a norm are covered
    by PRC001.

    ## Fix
    float32 between two Casts. NUMERIC: rounding; where the sum overflowed, a finite value replaces infinity, which
    verification judges by the original in higher precision.

    ## References
    - NVIDIA/TensorRT issues 3136, 4328; NVIDIA ModelOpt, AutoCast (`data_max`)
    """
    data, output = node.require(0), node.require_output()
    if len(node.outputs) != 1 or type_of(data, model) != HALF:
        return
    count = _count(node, model)
    if count is not None and count < MANY:
        return
    if node.op_type == "ReduceMean" and _of_norm(node):
        return
    attributes: dict[str, Any] = {a.name: node.attr(a.name) for a in node.proto.attribute}
    draft = Draft(node)
    wide = draft.add("Cast", [data], hint="wide", to=FLOAT)
    result = draft.add(node.op_type, [wide, *node.inputs[1:]], **attributes)
    draft.remove(node)
    draft.add("Cast", [result], output=output.name, to=HALF)
    many = "an unknown number of" if count is None else f"{count:,}"
    yield Match(
        f"{node.op_type} in half precision over {many} elements: their sum may exceed 65504",
        node=node,
        fix=Fix("compute in float32 between Casts", draft.edits, Safety.NUMERIC),
    )


def _count(node: Node, model: Model) -> int | None:
    """Number of elements in one sum; None if unknown, 0 without a sum or if not understood."""
    data = node.input(0)
    shape = None if data is None else model.shapes.shape(data)
    if node.op_type in ("AveragePool", "LpPool"):
        return int(math.prod(node.attr("kernel_shape", [])))
    if node.op_type == "ReduceMean":
        axes = axes_of(node, model)
        if axes == ():
            return 0
        if shape is not None and any(not -len(shape) <= axis < len(shape) for axis in axes or ()):
            return 0
        sizes = shape if shape is None or axes is None else [shape[axis] for axis in axes]
    else:
        sizes = None if shape is None else shape[2:]
    known = [None] if sizes is None else [dim.value for dim in sizes]
    return None if None in known else math.prod(size for size in known if size is not None)


def _of_norm(node: Node) -> bool:
    """Whether it looks like a norm's mean: it is subtracted, or it averages squares and is added to something."""
    output, data = node.output(), node.input(0)
    readers = [use.node for use in output.uses if use.node.is_onnx] if output is not None else []
    square = producer(data, "Pow", "Mul")
    return any(one.op_type == "Sub" or (one.op_type == "Add" and square is not None) for one in readers)


_IMAGE = "g (float16[N,2,16,16] x) => (float16[N,2,1,1] y)"
_ROW = "g (float16[N,256] x) => (float16[N,1] y)"


def _fixed(why: str, before: str, after: str, opset: int = 17) -> Fixed:
    return Fixed(why, before, after, safety=Safety.NUMERIC, opset=opset, ir_version=8)


def _silent(why: str, before: str, runs: bool = True) -> Silent:
    return Silent(why, before, opset=17, ir_version=8, runs=runs)


mean_in_half_precision.examples = [
    _fixed(
        "a global average",
        f"{_IMAGE} {{ y = GlobalAveragePool(x) }}",
        f"{_IMAGE} {{ w = Cast<to=FLOAT>(x)  p = GlobalAveragePool(w)  y = Cast<to=FLOAT16>(p) }}",
    ),
    _fixed(
        "a global average of unknown size",
        "g (float16[1,2,H,W] x) => (float16[1,2,1,1] y) { y = GlobalAveragePool(x) }",
        "g (float16[1,2,H,W] x) => (float16[1,2,1,1] y)"
        " { w = Cast<to=FLOAT>(x)  p = GlobalAveragePool(w)  y = Cast<to=FLOAT16>(p) }",
    ),
    _fixed(
        "an average over large windows",
        f"{_IMAGE} {{ y = AveragePool<kernel_shape=[16,16]>(x) }}",
        f"{_IMAGE} {{ w = Cast<to=FLOAT>(x)  p = AveragePool<kernel_shape=[16,16]>(w)  y = Cast<to=FLOAT16>(p) }}",
    ),
    _fixed(
        "a mean, axes as an attribute",
        f"{_ROW} {{ y = ReduceMean<axes=[1]>(x) }}",
        f"{_ROW} {{ w = Cast<to=FLOAT>(x)  p = ReduceMean<axes=[1]>(w)  y = Cast<to=FLOAT16>(p) }}",
    ),
    _fixed(
        "a mean, axes as an input",
        f"{_ROW} <int64[1] k = {{-1}}> {{ y = ReduceMean(x, k) }}",
        f"{_ROW} <int64[1] k = {{-1}}> {{ w = Cast<to=FLOAT>(x)  p = ReduceMean(w, k)  y = Cast<to=FLOAT16>(p) }}",
        opset=18,
    ),
    Fixed(
        "a root of a sum of squares",
        f"{_IMAGE} {{ y = GlobalLpPool(x) }}",
        f"{_IMAGE} {{ w = Cast<to=FLOAT>(x)  p = GlobalLpPool(w)  y = Cast<to=FLOAT16>(p) }}",
        safety=Safety.NUMERIC,
        opset=17,
        ir_version=8,
        runs=False,  # neither backend supports GlobalLpPool in half precision
    ),
    _silent(
        "an average over small windows",
        "g (float16[N,2,16,16] x) => (float16[N,2,8,8] y)"
        " { y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x) }",
    ),
    _silent("a mean of few elements", f"{_ROW} {{ y = ReduceMean<axes=[1]>(x) }}".replace("256", "127")),
    _silent(
        "the mean of a norm is covered by PRC001",
        "g (float16[N,256] x) => (float16[N,256] y) { m = ReduceMean<axes=[1]>(x)  y = Sub(x, m) }",
    ),
    _silent(
        "the mean of a norm's squares is covered by PRC001",
        f"{_ROW} <float16 e = {{f16(0.001)}}> {{ q = Mul(x, x)  v = ReduceMean<axes=[1]>(q)  a = Add(v, e)"
        "  y = Sqrt(a) }",
    ),
    _silent(
        "a maximum",
        f"{_IMAGE} {{ y = GlobalMaxPool(x) }}",
    ),
    _silent("in float32", f"{_ROW} {{ y = ReduceMean<axes=[1]>(x) }}".replace("float16", "float")),
    _silent(
        "in bfloat16", f"{_ROW} {{ y = ReduceMean<axes=[1]>(x) }}".replace("float16", "bfloat16"), runs=False
    ),
    Silent(
        "axes that are not constant",
        "g (float16[N,256] x, int64[1] k) => (float16[N,1] y) { y = ReduceMean(x, k) }",
        opset=18,
        ir_version=8,
    ),
    Silent(
        "without axes, and no reduction",
        "g (float16[N,256] x) => (float16[N,256] y) { y = ReduceMean<noop_with_empty_axes=1>(x) }",
        opset=18,
        ir_version=8,
    ),
]
