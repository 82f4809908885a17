"""Children that may crash, hang or run out of memory, what they may not do, and the backends that run models."""
