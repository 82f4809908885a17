"""Whether two sets of outputs agree: tolerances, rounding noise, and higher-precision references."""
