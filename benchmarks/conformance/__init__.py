"""ONNX's own backend tests on TensorRT, before and after onnxfix."""
