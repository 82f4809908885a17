"""Where two ways of computing a model begin to differ, why, and what to do about it."""
