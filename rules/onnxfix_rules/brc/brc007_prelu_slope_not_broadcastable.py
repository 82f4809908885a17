"""BRC007: a PRelu whose slope does not broadcast to its data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, equal, rule
from onnxfix_rules.brc._common import text
from onnxfix_rules.brc._slope import cannot_fit, shapes_of


@rule("BRC007", ops=["PRelu"], safety=Safety.UNSAFE, severity=Severity.ERROR, hazards=[21])
def prelu_slope_not_broadcastable(node: Node, model: Model) -> Iterator[Match]:
    """A PRelu whose slope does not broadcast to its data.

    ## Why it matters
    Since opset 7 the slope is aligned with the last dimensions, and the data is never repeated. A slope `[C]` on
    `[N,C,H,W]`, which older exporters write for one number per channel, is no valid ONNX: ONNX Runtime refuses it, and
    TensorRT does too: `slope tensor must be unidirectional broadcastable to input tensor`, measured with TensorRT-RTX
    1.7.1. A slope of a higher rank than the data TensorRT may take, although ONNX Runtime refuses it: a warning.

    ## Fix
    Where the slope is a vector with one number for each channel: `[C,1,1]`. UNSAFE: it is what the exporter meant in
    all likelihood, but the model as it stands means nothing. None elsewhere.

    ## References
    - https://onnx.ai/onnx/operators/onnx__PRelu.html: "shape should be unidirectional broadcastable to the input
      tensor X"
    """
    found = shapes_of(node, model)
    slope = node.require(1)
    if found is None or not cannot_fit(node, model):
        return
    shape, other = found
    fix = None
    count = other[0].value if len(other) == 1 else None
    if count is not None and len(shape) > 2 and equal(shape[1], other[0]).yes:
        draft = Draft(node)
        wanted = [count, *[1] * (len(shape) - 2)]
        array = slope.constant()
        if array is not None:
            draft.set_input(node, 1, draft.constant(array.reshape(wanted), "slope"))
        else:
            sizes = draft.constant(np.array(wanted, np.int64), "shape")
            draft.set_input(node, 1, draft.add("Reshape", [slope, sizes], hint="slope"))
        fix = Fix("make it one number for each channel", draft.edits, Safety.UNSAFE)
    yield Match(
        f"the slope {text(other)} does not broadcast to the data {text(shape)}",
        node=node,
        fix=fix,
        severity=Severity.WARNING if len(other) > len(shape) else None,
        reads=(slope,),
    )


_IMAGE = "g (float[N,2,4,4] x) => (float[N,2,4,4] y)"


prelu_slope_not_broadcastable.examples = [
    Fixed(
        "a slope for each channel, as before opset 7",
        before=f"{_IMAGE} <float[2] s = {{1, 2}}> {{ y = PRelu(x, s) }}",
        after=f"{_IMAGE} <float[2,1,1] s = {{1, 2}}> {{ y = PRelu(x, s) }}",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged("and without leave", f"{_IMAGE} <float[2] s = {{1, 2}}> {{ y = PRelu(x, s) }}", runs=False),
    Fixed(
        "a slope that comes at run time",
        before="g (float[2,3,4] x, float[3] s) => (float[2,3,4] y) { y = PRelu(x, s) }",
        after="""g (float[2,3,4] x, float[3] s) => (float[2,3,4] y) <int64[2] t = {3, 1}> {
            r = Reshape(s, t)  y = PRelu(x, r) }""",
        opset=9,
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "the data would have to be repeated",
        "g (float[1,1,4] x) => (float[1,1,4] y) <float[2,1] s = {1, 2}> { y = PRelu(x, s) }",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "a slope of a higher rank",
        "g (float[4] x) => (float[1,4] y) <float[1,4] s = {1, 2, 3, 4}> { y = PRelu(x, s) }",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Silent(
        "a slope for each channel, in ONNX's way",
        f"{_IMAGE} <float[2,1,1] s = {{1, 2}}> {{ y = PRelu(x, s) }}",
    ),
    Silent(
        "as many channels as columns: ONNX takes it for the columns",
        "g (float[N,4,2,4] x) => (float[N,4,2,4] y) <float[4] s = {1, 2, 3, 4}> { y = PRelu(x, s) }",
    ),
    Silent("one slope", f"{_IMAGE} <float[1] s = {{1}}> {{ y = PRelu(x, s) }}"),
    Silent(
        "it may fit: BRC004",
        "g (float[N,2,H,W] x) => (float[N,2,H,W] y) <float[2] s = {1, 2}> { y = PRelu(x, s) }",
    ),
    Silent(
        "a matrix, whose columns are its channels",
        "g (float[N,2] x) => (float[N,2] y) <float[2] s = {1, 2}> { y = PRelu(x, s) }",
    ),
    Silent(
        "before opset 7 that is what it means",
        f"{_IMAGE} <float[2] s = {{1, 2}}> {{ y = PRelu(x, s) }}",
        opset=6,
        runs=False,
    ),
]
