"""A part of a model as a model of its own."""
