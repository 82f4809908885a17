"""Two models as the two sides: their interfaces, and which tensors belong together."""

from __future__ import annotations

from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.lockstep import Side
from onnxfix.diagnosis.sides import Prepared, same_names
from onnxfix.errors import UsageError


def paired(truth: Graph, other: Graph, name: str) -> Prepared:
    """The second model as the other side.

    Raises:
        UsageError: the two have not the same interface.
    """
    inputs = _partners("input", list(truth.inputs), list(other.inputs))
    outputs = _partners("output", truth.outputs, other.outputs)
    pairs = same_names(truth, other)
    pairs.update(inputs)
    for theirs, ours in outputs.items():
        stale = [key for key, value in pairs.items() if value == ours and key != theirs]
        for key in stale:
            del pairs[key]
        pairs[theirs] = ours
    return Prepared(Side(other, pairs), inputs, name)


def _partners(kind: str, ours: list[str], theirs: list[str]) -> dict[str, str]:
    """The second model's inputs or outputs -> the first model's: by name, else by position."""
    if len(ours) != len(theirs):
        raise UsageError(f"the models have not the same interface: {len(ours)} {kind}s and {len(theirs)}")
    if set(ours) == set(theirs):
        return {name: name for name in theirs}
    return dict(zip(theirs, ours, strict=True))
