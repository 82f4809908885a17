"""What the rules about NonMaxSuppression share: where TensorRT has its own layer for it, and how much there is."""

from __future__ import annotations

from onnx import TensorProto

from onnxfix.rule import Dim, Model, Node, Silent, Value, target_of

START = "g (float[N,6,4] b, float[N,2,6] s) => (int64[R,3] y)"
ALONE = "g (float[N,6,4] b, float[N,1,6] s) => (int64[R,3] y)"
LIMIT = "int64 m = {3}, float i = {0.5}, float t = {0.25}"


def left_alone(call: str) -> list[Silent]:
    """Examples that no rule about the layer finds. ``call``: a node that makes y of b and s."""
    return [
        Silent(
            "TensorRT-RTX has no kernel for it, and refuses it",
            f"{START} <int64 m = {{3}}> {{ {call} }}",
            target="rtx",
        ),
        Silent(
            "TensorRT before 8.5 has a plugin in place of the layer",
            f"{START} <int64 m = {{3}}> {{ {call} }}",
            target="trt8.4",
        ),
        Silent("no box is asked for, which is the default", f"{START} {{ y = NonMaxSuppression(b, s) }}"),
    ]


def scores_of(node: Node, model: Model) -> Value | None:
    """The scores of a NonMaxSuppression for which the target has INMSLayer; None elsewhere, and where no box is asked
    for."""
    target = target_of(model)
    # TensorRT-RTX's builder has no kernel for the layer; before 8.5 there was a plugin, which behaves otherwise.
    if (target.package == "tensorrt" and target.oldest < (8, 5)) or target.accepts(
        "NonMaxSuppression", TensorProto.FLOAT
    ) is not True:
        return None
    limit, scores = node.input(2), node.input(1)
    number = None if limit is None else limit.constant()
    if limit is None or (number is not None and not number.any()):
        return None
    return scores


def sizes_of(scores: Value, model: Model) -> tuple[Dim | None, Dim | None]:
    """The numbers of classes and of boxes; None where nothing is known."""
    shape = model.shapes.shape(scores)
    return (shape[1], shape[2]) if shape is not None and len(shape) == 3 else (None, None)
