"""The kinds of layers as ONNX nodes, by families: ``onnxfix.tensorrt.lift.emit`` has the table."""
