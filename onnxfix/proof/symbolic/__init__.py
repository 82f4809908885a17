"""Proof for all input values: both models computed over hashes instead of numbers."""
