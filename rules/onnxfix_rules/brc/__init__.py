"""BRC: broadcasting of operands with different shapes or ranks."""
