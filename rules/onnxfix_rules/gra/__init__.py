"""GRA: graph hygiene: what is unused, repeated, constant, unsorted or wrongly declared."""
