"""Running on a Ray cluster. Imported only with ``--ray``."""
