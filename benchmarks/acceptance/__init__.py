"""What TensorRT builds of ONNX's node models, as they are and after onnxfix and its peers."""
