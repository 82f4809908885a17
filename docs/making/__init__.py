"""Pages that docs/make.py writes from data, one module a page."""
