"""TensorRT's network read back: whether it computes what the model says, on ONNX's node models and on exports."""
