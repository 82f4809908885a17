"""NonMaxSuppression: the order of its rows, its score threshold, and how many boxes it considers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
    Dim,
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    rule,
    target_of,
)
from onnxfix.shapes.symbols import at_least, dim_max, is_one, unknown

START = "g (float[N,6,4] b, float[N,2,6] s) => (int64[R,3] y)"
ALONE = "g (float[N,6,4] b, float[N,1,6] s) => (int64[R,3] y)"
LIMIT = "int64 m = {3}, float i = {0.5}, float t = {0.25}"


def silent_examples(call: str) -> list[Silent]:
    """Silent examples shared by the rules about the layer. ``call``: a node that computes y from b and s."""
    return [
        Silent(
            "TensorRT-RTX has no kernel for the layer and rejects it",
            f"{START} <int64 m = {{3}}> {{ {call} }}",
            target="rtx",
        ),
        Silent(
            "TensorRT before 8.5 uses a plugin instead of the layer",
            f"{START} <int64 m = {{3}}> {{ {call} }}",
            target="trt8.4",
        ),
        Silent("max_output_boxes_per_class is 0, the default", f"{START} {{ y = NonMaxSuppression(b, s) }}"),
    ]


def scores_of(node: Node, model: Model) -> Value | None:
    """The scores of a NonMaxSuppression; None where the target has no INMSLayer or no boxes are requested."""
    target = target_of(model)
    # TensorRT-RTX's builder has no kernel for the layer; before 8.5 a plugin with other behavior was used.
    if (target.package == "tensorrt" and target.oldest < (8, 5)) or target.accepts(
        "NonMaxSuppression", TensorProto.FLOAT
    ) is not True:
        return None
    limit, scores = node.input(2), node.input(1)
    constant = None if limit is None else limit.constant()
    if limit is None or (constant is not None and not constant.any()):
        return None
    return scores


def sizes_of(scores: Value, model: Model) -> tuple[Dim | None, Dim | None]:
    """The numbers of classes and of boxes; None where unknown."""
    shape = model.shapes.shape(scores)
    return (shape[1], shape[2]) if shape is not None and len(shape) == 3 else (None, None)


@rule("OPS077", ops=["NonMaxSuppression"], hazards=[16])
def nms_of_several_classes(node: Node, model: Model) -> Iterator[Match]:
    """A NonMaxSuppression over several classes: TensorRT returns its rows in another order.

    ## Why it matters
    ONNX Runtime and ONNX's reference evaluator return the boxes of an image class by class, each by decreasing score.
    TensorRT returns the boxes of an image by decreasing score whatever their classes: `SelectedIndices` are "sorted in
    order of increasing batchIndex and then in order of decreasing score within each batchIndex" (INMSLayer). The parser
    of TensorRT-RTX 1.7.1 adds nothing after the layer that would sort them (measured by reading the imported network).
    The same boxes are selected. It matters where the model uses the first rows, or rows by index; not where they are
    sorted, or looked up by batch and class. ONNX does not define an order.

    A warning; information where the number of classes is unknown.

    TensorRT-RTX itself has no kernel for the layer and rejects it; the behavior described here is documented for
    TensorRT from 8.5 on, and was never run.

    ## Fix
    None: restoring ONNX Runtime's order would require sorting all rows, and TopK is limited to 3840.

    ## References
    - https://docs.nvidia.com/deeplearning/tensorrt/api/c_api/classnvinfer1_1_1_i_n_m_s_layer.html
    - https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html
    """
    scores = scores_of(node, model)
    if scores is None:
        return
    classes, _ = sizes_of(scores, model)
    is_single = unknown() if classes is None else is_one(classes)
    if is_single.yes:
        return
    count = f"{classes} classes" if is_single.no else "an unknown number of classes"
    yield Match(
        f"NonMaxSuppression over {count}: ONNX Runtime orders the rows by class and then by score, TensorRT by "
        "score alone",
        node=node,
        severity=Severity.WARNING if is_single.no else Severity.INFO,
    )


_CALL = "y = NonMaxSuppression(b, s, m, i, t)"


def _in_function(inputs: str) -> str:
    return f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            {inputs} <{LIMIT}> {{ y = my.F(b, s, m, i, t) }}
            <domain: "my", opset_import: ["" : 18]> F (b, s, m, i, t) => (y) {{ {_CALL} }}"""


nms_of_several_classes.examples = [
    Flagged("two classes", f"{START} <{LIMIT}> {{ {_CALL} }}"),
    Flagged(
        "an unknown number of classes, and thresholds that are not constant",
        f"""g (float[N,B,4] b, float[N,C,B] s, int64 m, float i, float t) => (int64[R,3] y) {{ {_CALL} }}""",
    ),
    Flagged("in a local function, where the number of classes is unknown", _in_function(START)),
    Silent("one class", f"{ALONE} <{LIMIT}> {{ {_CALL} }}"),
    *silent_examples("y = NonMaxSuppression(b, s, m)"),
]


_PRESERVING = (
    "Concat", "Expand", "Gather", "Identity", "Mul", "ReduceMax", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
)  # fmt: skip
_NODE_LIMIT = 32
"""Maximum number of nodes to follow from the scores to their source."""


@rule("OPS078", ops=["NonMaxSuppression"], safety=Safety.NUMERIC, hazards=[16])
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
    Use minus infinity as the threshold, of shape [1], since ONNX's reference implementation fails on a scalar. The same
    boxes where scores are finite; minus infinity and NaN, which are above nothing, would be selected without a
    threshold, so the fix requires `--numeric-fixes`. The parser imports the value unchanged (measured).

    ## References
    - https://docs.nvidia.com/deeplearning/tensorrt/api/c_api/classnvinfer1_1_1_i_n_m_s_layer.html
    - https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html
    """
    scores = scores_of(node, model)
    if scores is None or node.input(4) is not None:
        return
    draft = Draft(node)
    for index in range(len(node.inputs), 4):
        draft.set_input(node, index, None)
    draft.set_input(node, 4, draft.constant(np.array([-np.inf], np.float32), "threshold"))
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
        before=f"{ALONE} <{_M}, {_I}> {{ y = NonMaxSuppression(b, s, m, i) }}",
        after=f"{ALONE} <{_M}, {_I}, float[1] t = {{-inf}}> {{ y = NonMaxSuppression(b, s, m, i, t) }}",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "without iou_threshold; boxes are centers and sizes",
        before=f"{START} <{_M}> {{ y = NonMaxSuppression<center_point_box = 1>(b, s, m) }}",
        after=f"""{START} <{_M}, float[1] t = {{-inf}}> {{
            y = NonMaxSuppression<center_point_box = 1>(b, s, m, , t) }}""",
        safety=Safety.NUMERIC,
        opset=11,
    ),
    Flagged("without --numeric-fixes: reported only", f"{ALONE} <{_M}> {{ y = NonMaxSuppression(b, s, m) }}"),
    Fixed(
        "in a local function, with a dynamic number of boxes",
        before=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[N,6,4] b, float[N,1,6] s, int64 m) => (int64[R,3] y) <{_I}> {{ y = my.F(b, s, m, i) }}
            <domain: "my", opset_import: ["" : 18]> F (b, s, m, i) => (y) {{ y = NonMaxSuppression(b, s, m, i) }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[N,6,4] b, float[N,1,6] s, int64 m) => (int64[R,3] y) <{_I}> {{ y = my.F(b, s, m, i) }}
            <domain: "my", opset_import: ["" : 18]> F (b, s, m, i) => (y) {{
                t = Constant<value = float[1] {{-inf}}>()  y = NonMaxSuppression(b, s, m, i, t) }}""",
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
        f"""{ALONE} <{_M}, {_I}, float t = {{-1}}> {{ y = NonMaxSuppression(b, s, m, i, t) }}""",
    ),
    Silent(
        "a threshold that is not constant",
        f"""g (float[N,6,4] b, float[N,1,6] s, float t) => (int64[R,3] y) <{_M}, {_I}> {{
            y = NonMaxSuppression(b, s, m, i, t) }}""",
    ),
    *silent_examples("y = NonMaxSuppression(b, s, m)"),
]


_LIMIT = 5000
"""topk_box_limit's default and maximum; 2000 on devices of compute capability 5.3 and 6.2."""


@rule("OPS079", ops=["NonMaxSuppression"], hazards=[16])
def nms_of_many_boxes(node: Node, model: Model) -> Iterator[Match]:
    """A NonMaxSuppression over more than 5000 scores per image: TensorRT considers only the 5000 highest.

    ## Why it matters
    "Per batch item, boxes are initially sorted by their scores without regard to class. Only boxes up to a maximum of
    the TopK limit are considered for selection" (INMSLayer). The parser leaves the limit at its default, which is also
    the maximum: `topk_box_limit = 5000`, measured with TensorRT-RTX 1.7.1 by reading the imported network; 2000 on some
    devices. Boxes times classes count, among those above the score threshold. ONNX has no such limit: a class with low
    scores may lose all its boxes. A detector with 8400 boxes and 80 classes has 672000 scores, so only the threshold
    keeps the number below the limit.

    A warning, because it depends on the data; information where the number of scores is unknown.

    TensorRT-RTX itself has no kernel for the layer and rejects it; the behavior described here is documented for
    TensorRT from 8.5 on, and was never run.

    ## Fix
    None. A higher `score_threshold` keeps the number down; with one call per class the limit applies to each class.

    ## References
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/NMS.html
    """
    scores = scores_of(node, model)
    if scores is None:
        return
    classes, boxes = sizes_of(scores, model)
    # Without a class there is nothing to select; with one there are as many scores as boxes.
    exceeds = unknown()
    if classes is not None and boxes is not None:
        exceeds = at_least(dim_max(classes, 1) * boxes, _LIMIT + 1)
    if exceeds.no:
        return
    scores_text = (
        f"{boxes} boxes times {classes} classes" if exceeds.yes else "possibly more than 5000 scores"
    )
    message = f"NonMaxSuppression over {scores_text} per image: TensorRT considers only the {_LIMIT} highest"
    yield Match(message, node=node, severity=Severity.WARNING if exceeds.yes else Severity.INFO)


_MANY = "g (float[N,2600,4] b, float[N,2,2600] s) => (int64[R,3] y)"
_FEW = "g (float[N,2500,4] b, float[N,2,2500] s) => (int64[R,3] y)"


nms_of_many_boxes.examples = [
    Flagged("5200 scores per image", f"{_MANY} <{LIMIT}> {{ {_CALL} }}"),
    Flagged("no score threshold", f"{_MANY} <{LIMIT}> {{ y = NonMaxSuppression(b, s, m) }}"),
    Flagged(
        "an unknown number of boxes, each with two scores",
        f"g (float[1,B,4] b, float[1,2,B] s) => (int64[R,3] y) <{LIMIT}> {{ {_CALL} }}",
    ),
    Flagged(
        "8400 boxes, with at least one score each",
        f"g (float[1,8400,4] b, float[1,C,8400] s) => (int64[R,3] y) <{LIMIT}> {{ {_CALL} }}",
    ),
    Flagged("in a local function, where no size is known", _in_function(_FEW)),
    Silent("5000 scores per image, and many images", f"{_FEW} <{LIMIT}> {{ {_CALL} }}"),
    *silent_examples("y = NonMaxSuppression(b, s, m)"),
]
