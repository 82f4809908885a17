"""Pairs that the values of a run contradict."""

from __future__ import annotations

from onnxfix.diagnosis.pairing import Pairs, following
from onnxfix.diagnosis.views import Classes, View

_APART = 1e-3
"""Share of a tensor's scale from which on values of two runs differ."""
_ROUNDING = 1e-5
"""Share up to which they differ by rounding."""


def refuted(a: View, b: View, pairs: Pairs, classes: Classes) -> int:
    """Take back pairs that the values contradict; returns how many.

    Those whose values differ while all that is computed from them is equal: a real difference would go on. One that
    later nodes hide entirely has no effect on the outputs; it stays only where names agree, or all but weights.
    """
    off = {theirs: pairs.error(theirs, ours) for theirs, ours in pairs.to_a.items()}
    wrong = []
    for theirs, ours in pairs.to_a.items():
        far = off[theirs]
        if theirs in pairs.fixed or theirs == ours or far is None or far <= _APART:
            continue
        after = [off.get(one) for one in following(b, pairs.to_a, theirs)]
        vanishes = bool(after) and all(one is not None and one <= _ROUNDING for one in after)
        if vanishes and not _but_for_weights(a, b, ours, theirs, classes):
            wrong.append(theirs)
    for theirs in wrong:
        pairs.ban(theirs)
    return len(wrong)


def _but_for_weights(a: View, b: View, ours: str, theirs: str, classes: Classes) -> bool:
    """Whether two tensors are computed by the same operator in the same way from paired values, weights aside."""
    if theirs not in b.at or ours not in a.at:
        return False
    one, other = a.at[ours][0], b.at[theirs][0]
    same = sorted(classes.sources(a, one)) == sorted(classes.sources(b, other))
    return same and a.manner(one) == b.manner(other)
