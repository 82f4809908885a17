"""TensorRT and TensorRT-RTX: choosing a package, parsing, building, executing, and reading networks back as ONNX."""
