"""Edits of a whole model by other tools: run in the sandbox, merged back into the original, and refused where the
result is not the same model any more. What they compute is judged later, on the verification ladder."""
