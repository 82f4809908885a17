"""Symbolic shapes: what is known of every value's type, dimensions and small contents."""
