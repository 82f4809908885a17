"""OPS: operators and types that the target does not take."""
