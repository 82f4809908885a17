"""What onnxfix does with many models, recorded, so that a refactoring can be held against it."""
