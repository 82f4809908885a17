"""The model in memory: bytes, overlay, symbolic shapes."""
