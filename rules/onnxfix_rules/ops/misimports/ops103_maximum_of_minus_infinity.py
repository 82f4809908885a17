"""OPS103: a maximum over elements that may all be -inf, compared with -inf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule, target_of


@rule("OPS103", ops=["Equal"], safety=Safety.EXACT, severity=Severity.WARNING)
def maximum_of_minus_infinity(node: Node, model: Model) -> Iterator[Match]:
    """A ReduceMax compared with -inf: TensorRT 10.6's maximum of a row of -inf is a finite number.

    ## Why it matters
    Attention asks so for rows whose keys are all masked, which it makes zeros. In TensorRT the comparison is false, and
    the softmax of such a row is NaN, and so is all that is computed from it. Measured with TensorRT 10.6.0 on an H200:
    the maximum of a row of -inf is finite (the lowest number, it seems), and of ONNX's node models four of Attention
    give NaN (rows outside the window, and rows without a key). The imported network is right: no check but `trt-gpu`
    sees it. Other releases were not asked.

    ## Fix
    Compare the elements with -inf, and ask by ReduceMin whether all are. Exact, but for a row of -inf and NaN: ONNX
    Runtime's ReduceMax ignores a NaN that is not the first element.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Attention.html: the function body's BiasRowMax
    """
    target = target_of(model)
    if target.package != "tensorrt" or not (10,) <= target.oldest < (10, 14):
        return
    for value, other in ((node.require(0), node.require(1)), (node.require(1), node.require(0))):
        known, largest = other.constant(), value.producer
        if known is None or largest is None or largest.op_type != "ReduceMax" or known.size != 1:
            continue
        data, rank = largest.require(0), model.shapes.rank(value)
        if rank is None or known.ndim > rank or not np.isneginf(known).all():
            continue
        draft = Draft(node)
        low = draft.constant(np.array(-np.inf, known.dtype), "low")
        equal = draft.cast(draft.add("Equal", [data, low]), TensorProto.FLOAT)
        axes = [one for one in (largest.input(1),) if one is not None]
        defaults: dict[str, Any] = {"keepdims": 1, "axes": [], "noop_with_empty_axes": 0}
        kept = {name: largest.attr(name, what) for name, what in defaults.items() if largest.attribute(name)}
        every = draft.add("ReduceMin", [equal, *axes], **kept)
        half = draft.constant(np.array(0.5, np.float32), "half")
        draft.replace_output(node, draft.add("Greater", [every, half]))
        yield Match(
            f"{target.title} takes the maximum of elements that are all -inf for a finite number",
            node=node,
            fix=Fix("ask whether all elements are -inf", draft.edits),
            reads=(data, other),
        )
        return


_ROWS = "g (float[N,3] x) => (bool[N,1] y)"
_ALL = "l = Equal(x, low)  f = Cast<to = FLOAT>(l)  r = ReduceMin"

maximum_of_minus_infinity.examples = [
    Fixed(
        "whether a row is masked",
        before=f"{_ROWS} <float i = {{-inf}}, int64[1] a = {{1}}> {{ m = ReduceMax(x, a)  y = Equal(m, i) }}",
        after=f"""{_ROWS} <float low = {{-inf}}, int64[1] a = {{1}}, float half = {{0.5}}> {{
            {_ALL}(f, a)  y = Greater(r, half) }}""",
        target="trt10.6",
    ),
    Fixed(
        "the axes are an attribute before opset 18; the constant is the first operand",
        before="""g (float[N,3] x) => (bool[N] y) <float[1] i = {-inf}> {
            m = ReduceMax<axes = [1], keepdims = 0>(x)  y = Equal(i, m) }""",
        after=f"""g (float[N,3] x) => (bool[N] y) <float low = {{-inf}}, float half = {{0.5}}> {{
            {_ALL}<axes = [1], keepdims = 0>(f)  y = Greater(r, half) }}""",
        opset=13,
        target="trt10.6",
    ),
    Silent(
        "TensorRT 11",
        f"{_ROWS} <float i = {{-inf}}, int64[1] a = {{1}}> {{ m = ReduceMax(x, a)  y = Equal(m, i) }}",
    ),
    Silent(
        "another constant",
        f"{_ROWS} <float i = {{-1}}, int64[1] a = {{1}}> {{ m = ReduceMax(x, a)  y = Equal(m, i) }}",
        target="trt10.6",
    ),
    Silent(
        "a constant of a higher rank",
        """g (float[N,3] x) => (bool[1,N,1] y) <float[1,1,1] i = {-inf}, int64[1] a = {1}> {
            m = ReduceMax(x, a)  y = Equal(m, i) }""",
        target="trt10.6",
    ),
]
