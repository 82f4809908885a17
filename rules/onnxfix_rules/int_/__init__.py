"""INT: integer tensors, and the subgraphs that compute shapes with them."""
