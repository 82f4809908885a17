"""OPS077: chosen boxes of several classes, and their order."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule
from onnxfix.shapes.symbols import is_one, unknown
from onnxfix_rules.ops.misimports import _boxes


@rule("OPS077", ops=["NonMaxSuppression"], severity=Severity.WARNING, hazards=[61])
def nms_of_several_classes(node: Node, model: Model) -> Iterator[Match]:
    """A NonMaxSuppression over several classes: TensorRT gives its rows in another order.

    ## Why it matters
    ONNX Runtime and ONNX's reference evaluator give one class of an image after the other, each by falling scores.
    TensorRT gives the boxes of an image by falling scores whatever their classes: `SelectedIndices` are "sorted in
    order of increasing batchIndex and then in order of decreasing score within each batchIndex" (INMSLayer). The parser
    of TensorRT-RTX 1.7.1 puts nothing behind the layer that would sort them (measured by reading the imported network).
    The same boxes are chosen. It matters where something takes the first rows, or rows by their number; not where they
    are sorted, or looked up by their batch and class. ONNX's text does not name an order.

    A warning; information where the number of classes is not known.

    TensorRT-RTX itself has no kernel for the layer and refuses it; what is said here is documented for TensorRT from
    8.5 on, and was never run.

    ## Fix
    None: the order of ONNX Runtime would take a sort of as many rows as there are, which TopK does for 3840 at most.

    ## References
    - https://docs.nvidia.com/deeplearning/tensorrt/api/c_api/classnvinfer1_1_1_i_n_m_s_layer.html
    - https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html
    """
    scores = _boxes.scores_of(node, model)
    if scores is None:
        return
    classes, _ = _boxes.sizes_of(scores, model)
    one = unknown() if classes is None else is_one(classes)
    if one.yes:
        return
    number = f"{classes} classes" if one.no else "any number of classes"
    yield Match(
        f"NonMaxSuppression over {number}: the rows of ONNX Runtime go by class and then by score, those of TensorRT "
        "by score alone",
        node=node,
        severity=Severity.WARNING if one.no else Severity.INFO,
    )


_CALL = "y = NonMaxSuppression(b, s, m, i, t)"


nms_of_several_classes.examples = [
    Flagged("two classes", f"{_boxes.START} <{_boxes.LIMIT}> {{ {_CALL} }}"),
    Flagged(
        "an unknown number of classes, and thresholds that come at run time",
        f"""g (float[N,B,4] b, float[N,C,B] s, int64 m, float i, float t) => (int64[R,3] y) {{ {_CALL} }}""",
    ),
    Flagged(
        "in a local function, where the number of classes is not known",
        f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            {_boxes.START} <{_boxes.LIMIT}> {{ y = my.F(b, s, m, i, t) }}
            <domain: "my", opset_import: ["" : 18]> F (b, s, m, i, t) => (y) {{ {_CALL} }}""",
    ),
    Silent("one class", f"{_boxes.ALONE} <{_boxes.LIMIT}> {{ {_CALL} }}"),
    *_boxes.left_alone("y = NonMaxSuppression(b, s, m)"),
]
