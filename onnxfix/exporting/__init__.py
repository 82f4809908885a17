"""From PyTorch to a repaired ONNX file, proven against the module's own outputs.

``subject`` is what the proof needs of a module, ``judge`` the proof (the rung ``pytorch``), ``cases`` the inputs that
it tries. ``pytorch`` alone knows torch, and imports it when it is called. ``verb`` puts them together.
"""
