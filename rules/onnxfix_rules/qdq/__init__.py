"""QDQ: quantization."""
