"""Settings from a file: which there is, what it says of each model, and which findings are known or accepted."""
