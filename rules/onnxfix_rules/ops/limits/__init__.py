"""Operators, forms and types that the target refuses or restricts."""
