"""How each edit changes the protobuf and the overlay, with its undo; ``transaction`` runs them."""
