"""Random valid models, and whether what onnxfix makes of them keeps what it promises."""
