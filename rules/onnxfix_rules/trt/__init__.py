"""TRT: what TensorRT's own parser and builder said."""
