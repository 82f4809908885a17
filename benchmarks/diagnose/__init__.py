"""Faults planted into models, and whether `onnxfix diagnose` and its peers find them."""
