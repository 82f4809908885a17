"""PRC: half precision that overflows, underflows or mixes with other types."""
