"""GRA: graph hygiene."""
