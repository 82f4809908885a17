"""A Report as text for people and as JSON for programs."""
