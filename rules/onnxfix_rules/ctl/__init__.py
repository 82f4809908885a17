"""CTL: loops and branches."""
