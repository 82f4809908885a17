"""A sample of mutations of onnxfix and its rules, and whether the tests notice each."""
