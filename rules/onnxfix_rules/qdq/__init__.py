"""QDQ: quantization types, scales and zero points that TensorRT refuses or reads differently."""
