"""TRT: findings from TensorRT's own parser, builder and engine."""
