"""Which sizes a model accepts: what its operators require of dimensions, and input sizes that satisfy that."""
