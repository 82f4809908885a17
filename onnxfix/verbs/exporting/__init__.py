"""From PyTorch to a repaired ONNX file, proven against the module's own outputs.

``judge`` is the proof (the check ``pytorch``), ``cases`` what it needs of a module, and the inputs that it tries.
``pytorch`` alone knows torch, and imports it when it is called. ``verb`` puts them together.
"""
