"""From a model to a proven one: fix, verify, withdraw, write."""
