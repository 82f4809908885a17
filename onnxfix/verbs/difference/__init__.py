"""What differs between two models, part by part."""
