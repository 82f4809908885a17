"""Where TensorRT reads ONNX's node models, and every small change of them, as other models."""
