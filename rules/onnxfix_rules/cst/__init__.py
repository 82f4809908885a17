"""CST: casts."""
