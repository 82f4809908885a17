"""From PyTorch to a proven ONNX file."""
