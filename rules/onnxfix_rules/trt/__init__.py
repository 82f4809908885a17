"""TRT: messages of TensorRT's own parser and builder."""
