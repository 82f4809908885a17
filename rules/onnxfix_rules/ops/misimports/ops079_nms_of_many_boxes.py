"""OPS079: NonMaxSuppression over more scores than TensorRT considers."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule
from onnxfix.shapes.symbols import at_least, dim_max, unknown
from onnxfix_rules.ops.misimports import _boxes

_LIMIT = 5000
"""topk_box_limit's default and maximum; 2000 on devices of compute capability 5.3 and 6.2."""


@rule("OPS079", ops=["NonMaxSuppression"], severity=Severity.WARNING, hazards=[16])
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
    scores = _boxes.scores_of(node, model)
    if scores is None:
        return
    classes, boxes = _boxes.sizes_of(scores, model)
    # Without a class there is nothing to select; with one there are as many scores as boxes.
    exceeds = unknown()
    if classes is not None and boxes is not None:
        exceeds = at_least(dim_max(classes, 1) * boxes, _LIMIT + 1)
    if exceeds.no:
        return
    scores_text = (
        f"{boxes} boxes times {classes} classes" if exceeds.yes else "possibly more than 5000 scores"
    )
    yield Match(
        f"NonMaxSuppression over {scores_text} per image: TensorRT considers only the {_LIMIT} highest",
        node=node,
        severity=Severity.WARNING if exceeds.yes else Severity.INFO,
    )


_CALL = "y = NonMaxSuppression(b, s, m, i, t)"
_MANY = "g (float[N,2600,4] b, float[N,2,2600] s) => (int64[R,3] y)"
_FEW = "g (float[N,2500,4] b, float[N,2,2500] s) => (int64[R,3] y)"


nms_of_many_boxes.examples = [
    Flagged("5200 scores per image", f"{_MANY} <{_boxes.LIMIT}> {{ {_CALL} }}"),
    Flagged("no score threshold", f"{_MANY} <{_boxes.LIMIT}> {{ y = NonMaxSuppression(b, s, m) }}"),
    Flagged(
        "an unknown number of boxes, each with two scores",
        f"g (float[1,B,4] b, float[1,2,B] s) => (int64[R,3] y) <{_boxes.LIMIT}> {{ {_CALL} }}",
    ),
    Flagged(
        "8400 boxes, with at least one score each",
        f"g (float[1,8400,4] b, float[1,C,8400] s) => (int64[R,3] y) <{_boxes.LIMIT}> {{ {_CALL} }}",
    ),
    Flagged(
        "in a local function, where no size is known",
        f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            {_FEW} <{_boxes.LIMIT}> {{ y = my.F(b, s, m, i, t) }}
            <domain: "my", opset_import: ["" : 18]> F (b, s, m, i, t) => (y) {{ {_CALL} }}""",
    ),
    Silent("5000 scores per image, and many images", f"{_FEW} <{_boxes.LIMIT}> {{ {_CALL} }}"),
    *_boxes.silent_examples("y = NonMaxSuppression(b, s, m)"),
]
