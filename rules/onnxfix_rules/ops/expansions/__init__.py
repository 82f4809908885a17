"""Operators that the target lacks, decomposed into others."""
