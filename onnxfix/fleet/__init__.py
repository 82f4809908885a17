"""Working through several models: here, in worker processes, or on a Ray cluster; one code path for all three."""
