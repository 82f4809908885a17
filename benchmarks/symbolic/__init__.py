"""How much the symbolic check proves, and whether it proves what is wrong."""
