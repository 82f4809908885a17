"""Reducing a model that fails to the smallest part that still fails for the same reason."""
