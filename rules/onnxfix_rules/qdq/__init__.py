"""QDQ: quantisation."""
