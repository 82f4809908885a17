"""A float32 model in mixed precision: which nodes may compute in half precision, and the Casts that say so."""
