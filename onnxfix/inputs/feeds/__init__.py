"""The inputs that models are verified on: their shapes, their values, and files that give them."""
