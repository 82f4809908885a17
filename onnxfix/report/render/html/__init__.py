"""Pages as HTML: one file that needs nothing else, no network and no other file; and the cells of notebooks."""
