"""What onnxfix and its peers cost on models of any size, whether their results are right, and how cost grows."""
