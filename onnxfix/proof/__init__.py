"""Proof that a fixed model still is the same model: inputs, comparison, and the checks."""
