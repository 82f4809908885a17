"""Full-size exports: how they are made, and what onnxfix does with them."""
