"""Symbolic shapes: inference of every value's type, dimensions and, for small tensors, elements."""
