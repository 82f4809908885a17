"""Reshape and shape rules: what Reshape's 0, -1 and ``allowzero`` ask for, baked-in sizes, and Squeeze without axes."""
