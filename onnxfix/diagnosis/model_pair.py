"""Two models as the two sides: their interfaces, and which tensors belong together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.interface import inputs_of
from onnxfix.diagnosis.lockstep import Side
from onnxfix.diagnosis.matching import match
from onnxfix.diagnosis.probing import probe
from onnxfix.diagnosis.sides import Prepared


def paired(
    truth: Graph, other: Graph, name: str, bench: Bench, samples: Iterable[Mapping[str, Any]]
) -> Prepared:
    """The second model as the other side. Values of the first of ``samples`` that the truth accepts help to match.

    Raises:
        UsageError: the two have not the same interface.
    """
    inputs = inputs_of(truth, other)
    bare = Prepared(Side(other, inputs), inputs, name)
    found = match(truth, other, probe(truth, other, bare.feed, bench, samples))
    return Prepared(Side(other, found.pairs), inputs, name, found.notes)
