"""OPS077: NonMaxSuppression over several classes, and the order of its result."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule
from onnxfix.shapes.symbols import is_one, unknown
from onnxfix_rules.ops.misimports import _boxes


@rule("OPS077", ops=["NonMaxSuppression"], severity=Severity.WARNING, hazards=[16])
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
    scores = _boxes.scores_of(node, model)
    if scores is None:
        return
    classes, _ = _boxes.sizes_of(scores, model)
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


nms_of_several_classes.examples = [
    Flagged("two classes", f"{_boxes.START} <{_boxes.LIMIT}> {{ {_CALL} }}"),
    Flagged(
        "an unknown number of classes, and thresholds that are not constant",
        f"""g (float[N,B,4] b, float[N,C,B] s, int64 m, float i, float t) => (int64[R,3] y) {{ {_CALL} }}""",
    ),
    Flagged(
        "in a local function, where the number of classes is unknown",
        f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            {_boxes.START} <{_boxes.LIMIT}> {{ y = my.F(b, s, m, i, t) }}
            <domain: "my", opset_import: ["" : 18]> F (b, s, m, i, t) => (y) {{ {_CALL} }}""",
    ),
    Silent("one class", f"{_boxes.ALONE} <{_boxes.LIMIT}> {{ {_CALL} }}"),
    *_boxes.silent_examples("y = NonMaxSuppression(b, s, m)"),
]
