"""A session of ONNX Runtime in a child."""

from __future__ import annotations

from support.models import model


def opened() -> list[str]:
    """The outputs of a model of one node, after ONNX Runtime loaded it."""
    import onnxruntime  # in the child only

    data = model("g (float[N] x) => (float[N] y) { y = Neg(x) }", 18).SerializeToString()
    return [one.name for one in onnxruntime.InferenceSession(data).get_outputs()]
