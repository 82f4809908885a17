"""Exports of many architectures, and what onnxfix makes of them with TensorRT's engines."""
