"""Damaged models for the whole command line, drawn by a seed, and what each run is held to."""
