"""CST: casts that change nothing, lose values, or use types that TensorRT lacks."""
