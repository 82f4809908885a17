"""Which sizes a model takes: what its operators demand of dimensions, and sizes of its inputs that meet that."""
