"""CTL: conditions, loops and sequences."""
