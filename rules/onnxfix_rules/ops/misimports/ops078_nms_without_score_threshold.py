"""OPS078: NonMaxSuppression without a score threshold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, Value, rule
from onnxfix_rules.ops.misimports import _boxes

_PRESERVING = (
    "Concat", "Expand", "Gather", "Identity", "Mul", "ReduceMax", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
)  # fmt: skip
_NODE_LIMIT = 32
"""Maximum number of nodes to follow from the scores to their source."""


@rule("OPS078", ops=["NonMaxSuppression"], safety=Safety.NUMERIC, severity=Severity.WARNING, hazards=[16])
def nms_without_score_threshold(node: Node, model: Model) -> Iterator[Match]:
    """A NonMaxSuppression without `score_threshold`: TensorRT drops boxes whose score is not above 0.

    ## Why it matters
    ONNX has no default for the threshold and selects among all boxes. TensorRT's layer has one: the threshold "is the
    value that a box score must exceed in order to be selected … an optional input with default 0.0" (INMSLayer). The
    parser leaves the input unset: measured with TensorRT-RTX 1.7.1 by reading the imported network. So boxes whose
    scores are logits or logarithms are lost.

    A warning, because it depends on the data; information where the scores come from Sigmoid or Softmax, of which only
    those that are exactly 0 are dropped.

    TensorRT-RTX itself has no kernel for the layer and rejects it; the behavior described here is documented for
    TensorRT from 8.5 on, and was never run.

    ## Fix
    Use minus infinity as the threshold. The same boxes where scores are finite; minus infinity and NaN, which are above
    nothing, would be selected without a threshold, so the fix requires `--numeric-fixes`. The parser imports the value
    unchanged (measured).

    ## References
    - https://docs.nvidia.com/deeplearning/tensorrt/api/c_api/classnvinfer1_1_1_i_n_m_s_layer.html
    - https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html
    """
    scores = _boxes.scores_of(node, model)
    if scores is None or node.input(4) is not None:
        return
    draft = Draft(node)
    for index in range(len(node.inputs), 4):
        draft.set_input(node, index, None)
    draft.set_input(node, 4, draft.constant(np.array(-np.inf, np.float32), "threshold"))
    are_probabilities = _are_probabilities(scores)
    yield Match(
        "NonMaxSuppression without a score_threshold: ONNX selects among all boxes, TensorRT among those with a score "
        f"above 0{'; of probabilities it drops only those that are exactly 0' if are_probabilities else ''}",
        node=node,
        severity=Severity.INFO if are_probabilities else Severity.WARNING,
        fix=Fix("set the threshold to minus infinity", draft.edits, Safety.NUMERIC),
    )


def _are_probabilities(scores: Value) -> bool:
    """Whether the scores are certainly products of Sigmoid and Softmax outputs."""
    pending, seen = [scores], 0
    while pending:
        producer = pending.pop().producer
        seen += 1
        if producer is None or not producer.is_onnx or seen > _NODE_LIMIT:
            return False
        if producer.op_type in ("Sigmoid", "Softmax"):
            continue
        if producer.op_type not in _PRESERVING:
            return False
        read = producer.inputs if producer.op_type in ("Concat", "Mul") else producer.inputs[:1]
        pending.extend(value for value in read if value is not None)
    return True


_M, _I = "int64 m = {3}", "float i = {0.5}"


nms_without_score_threshold.examples = [
    Fixed(
        "with iou_threshold",
        before=f"{_boxes.ALONE} <{_M}, {_I}> {{ y = NonMaxSuppression(b, s, m, i) }}",
        after=f"{_boxes.ALONE} <{_M}, {_I}, float t = {{-inf}}> {{ y = NonMaxSuppression(b, s, m, i, t) }}",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "without iou_threshold; boxes are centers and sizes",
        before=f"{_boxes.START} <{_M}> {{ y = NonMaxSuppression<center_point_box = 1>(b, s, m) }}",
        after=f"""{_boxes.START} <{_M}, float t = {{-inf}}> {{
            y = NonMaxSuppression<center_point_box = 1>(b, s, m, , t) }}""",
        safety=Safety.NUMERIC,
        opset=11,
    ),
    Fixed(
        "an empty name for the threshold",
        before=f"{_boxes.ALONE} <{_M}, {_I}> {{ y = NonMaxSuppression(b, s, m, i, ) }}",
        after=f"{_boxes.ALONE} <{_M}, {_I}, float t = {{-inf}}> {{ y = NonMaxSuppression(b, s, m, i, t) }}",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Flagged(
        "without --numeric-fixes: reported only",
        f"{_boxes.ALONE} <{_M}> {{ y = NonMaxSuppression(b, s, m) }}",
    ),
    Fixed(
        "in a local function, with a dynamic number of boxes",
        before=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[N,6,4] b, float[N,1,6] s, int64 m) => (int64[R,3] y) <{_I}> {{ y = my.F(b, s, m, i) }}
            <domain: "my", opset_import: ["" : 18]> F (b, s, m, i) => (y) {{ y = NonMaxSuppression(b, s, m, i) }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[N,6,4] b, float[N,1,6] s, int64 m) => (int64[R,3] y) <{_I}> {{ y = my.F(b, s, m, i) }}
            <domain: "my", opset_import: ["" : 18]> F (b, s, m, i) => (y) {{
                t = Constant<value = float {{-inf}}>()  y = NonMaxSuppression(b, s, m, i, t) }}""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "scores that are products of probabilities: only those of 0 are dropped",
        f"""g (float[N,6,4] b, float[N,6,2] a, float[N,6,1] o) => (int64[R,3] y) <{_M}> {{
            p = Sigmoid(a)  q = Softmax<axis = 1>(o)  r = Mul(p, q)  s = Transpose<perm = [0,2,1]>(r)
            y = NonMaxSuppression(b, s, m) }}""",
    ),
    Silent(
        "a threshold of any value",
        f"""{_boxes.ALONE} <{_M}, {_I}, float t = {{-1}}> {{ y = NonMaxSuppression(b, s, m, i, t) }}""",
    ),
    Silent(
        "a threshold that is not constant",
        f"""g (float[N,6,4] b, float[N,1,6] s, float t) => (int64[R,3] y) <{_M}, {_I}> {{
            y = NonMaxSuppression(b, s, m, i, t) }}""",
    ),
    *_boxes.silent_examples("y = NonMaxSuppression(b, s, m)"),
]
