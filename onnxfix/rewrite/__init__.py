"""Rules found, matched and applied: edits as data, the only code that carries them out, and rounds to a fixpoint."""
