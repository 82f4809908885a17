"""Broadcasting: operands of different shapes that are repeated implicitly."""
