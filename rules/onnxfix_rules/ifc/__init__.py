"""IFC: the model's interface, its inputs and outputs."""
