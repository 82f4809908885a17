"""RSH: what Reshape's 0, -1 and ``allowzero`` ask for, fixed sizes, and Squeeze without axes."""
