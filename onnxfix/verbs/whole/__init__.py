"""Whole-model steps: edits by other tools, run in the sandbox, merged into the original, and refused where the result
is not the same model. The proof judges later what they compute."""
