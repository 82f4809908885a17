"""The whole of a reduction: one case after the other, from large cuts to small ones."""

from __future__ import annotations

from typing import Literal

from onnxfix.reduction import inline, nodes, trim
from onnxfix.reduction.search import OutOfTime, Reducer

Ended = Literal["complete", "interrupted", "out of time"]
_ROUNDS = 4


def reduce(reducer: Reducer) -> Ended:
    """Reduce the reducer's case in place. Returns how the search ended; unless it came to its end, the case is the
    smallest so far."""
    try:
        _search(reducer)
    except KeyboardInterrupt:
        return "interrupted"
    except OutOfTime:
        return "out of time"
    return "complete"


def _search(reducer: Reducer) -> None:
    if not nodes.by_place(reducer):
        nodes.by_outputs(reducer)
    if reducer.alters:
        trim.static(reducer)
    trim.constants(reducer)
    nodes.by_place(reducer)
    for _ in range(_ROUNDS):
        changed = nodes.shrink(reducer)
        if reducer.alters:
            changed |= inline.opened(reducer) or nodes.shrink_inner(reducer)
        if not changed:
            break
    if reducer.alters:
        trim.cleaned(reducer)
        trim.sizes(reducer)
        trim.weights(reducer)
        trim.attributes(reducer)
        nodes.shrink(reducer)
        trim.cleaned(reducer)
    trim.declared(reducer)
