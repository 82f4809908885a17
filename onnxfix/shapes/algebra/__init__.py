"""The parts of :mod:`onnxfix.shapes.symbols`: import from there."""
