"""Broadcasting: operands whose shapes meet by implicit repetition."""
