"""What a model is run with: which sizes it accepts, and the feeds of a proof."""
