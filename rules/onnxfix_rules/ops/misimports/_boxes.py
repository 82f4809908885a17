"""Shared by the rules about NonMaxSuppression: which targets have a layer for it, and its sizes."""

from __future__ import annotations

from onnx import TensorProto

from onnxfix.rule import Dim, Model, Node, Silent, Value, target_of

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
