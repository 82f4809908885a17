"""The rules that come with onnxfix; loaded like any other pack."""
