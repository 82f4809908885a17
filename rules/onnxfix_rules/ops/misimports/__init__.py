"""Operators that the target imports without an error and computes otherwise than ONNX."""
