"""Fixed sizes and inputs (`--fix-dim`, `--fix-input`, `--static`), resolved against a model."""
