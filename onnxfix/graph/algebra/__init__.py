"""The parts of :mod:`onnxfix.graph.symbols`: import from there."""
