"""A few figures of a tensor's values, by which it is recognized in another run without being stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Values
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.lockstep import Watch, walk_alone

SAMPLES = 32
"""Elements of which the values are kept."""
_SMALL = 64
_ENOUGH = 4
"""Different values from which on equal values are evidence: masks of ones are everywhere."""


@dataclass(frozen=True)
class Fingerprint:
    """``kind`` is "f" for numbers with a fraction, "i" for integers, "b" for truths. ``mean``, ``norm`` (root mean
    square) and ``scale`` (largest magnitude) are of the finite elements; ``odd`` counts the others. ``samples`` are
    up to 32 elements spread evenly over the tensor, ``small`` all elements of an integer tensor of up to 64."""

    kind: str
    shape: tuple[int, ...]
    mean: float
    norm: float
    scale: float
    odd: int
    samples: tuple[float, ...]
    small: tuple[int, ...] | None = None

    @property
    def telling(self) -> bool:
        """Whether another tensor with these values is likely to be the same one."""
        return self.kind == "f" and len(set(self.samples)) >= _ENOUGH


#: Computes fingerprints of tensors of A and of B, by name, from one run of each on the same feed. Tensors without
#: one (strings, sequences, not computed) are left out.
Probe = Callable[[Sequence[str], Sequence[str]], tuple[Mapping[str, Fingerprint], Mapping[str, Fingerprint]]]


def fingerprint(value: Any) -> Fingerprint | None:
    """The fingerprint of an array of numbers or truths; None for anything else."""
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OUSc":
        return None
    kind = {"b": "b", "i": "i", "u": "i"}.get(value.dtype.kind, "f")
    flat = value.reshape(-1)
    with np.errstate(all="ignore"):
        finite = flat.astype(np.float64)
        finite = finite[np.isfinite(finite)]
        mean, norm = (float(one.mean()) if one.size else 0.0 for one in (finite, np.square(finite)))
    scale, odd = float(np.abs(finite).max(initial=0.0)), flat.size - finite.size
    small = tuple(int(one) for one in flat) if kind != "f" and flat.size <= _SMALL else None
    count = min(flat.size, SAMPLES)
    where = [number * (flat.size - 1) // max(count - 1, 1) for number in range(count)]
    samples = tuple(float(flat[at]) for at in where)
    return Fingerprint(kind, value.shape, mean, math.sqrt(norm), scale, odd, samples, small)


def error(one: Fingerprint | None, other: Fingerprint | None) -> float | None:
    """How far two tensors are from each other, as a share of their scale; infinite where shapes or the kinds of
    elements differ. None where a fingerprint is missing.

    An element's scale is the lower quartile of all, not the largest: beside a mask's -3e38 all others are nothing.
    """
    if one is None or other is None:
        return None
    if one.shape != other.shape or one.kind != other.kind:
        return math.inf
    scale = max(one.scale, other.scale) or 1.0
    found = max(abs(one.mean - other.mean), abs(one.norm - other.norm), abs(one.scale - other.scale)) / scale
    usual = max(_usual(one.samples), _usual(other.samples))
    for x, y in zip(one.samples, other.samples, strict=True):
        if x != y and not (math.isnan(x) and math.isnan(y)):
            near = math.isfinite(x) and math.isfinite(y)
            found = max(found, abs(x - y) / max(abs(x), abs(y), usual)) if near else math.inf
    return found


def _usual(samples: Sequence[float]) -> float:
    """The lower quartile of magnitudes that are not 0."""
    sizes = sorted(abs(value) for value in samples if value and math.isfinite(value))
    return sizes[len(sizes) // 4] if sizes else 0.0


_TRIES = 4

Feeds = Callable[[Values], Values]


def probe(a: Graph, b: Graph, theirs: Feeds, bench: Bench, samples: Iterable[Mapping[str, Any]]) -> Probe:
    """A probe on the first of ``samples`` (values of A's inputs) that A accepts. ``theirs`` makes B's feed of A's."""

    def run(
        ours: Sequence[str], others: Sequence[str]
    ) -> tuple[Mapping[str, Fingerprint], Mapping[str, Fingerprint]]:
        for _, feed in zip(range(_TRIES), samples, strict=False):
            found = fingerprints(a, feed, bench, ours)
            if all(name in found for name in a.outputs if name in ours) and found:
                return found, fingerprints(b, theirs(feed), bench, others)
        return {}, {}

    return run


@dataclass
class _Prints(Watch):
    """Takes the fingerprints of the tensors that are ``asked``."""

    asked: frozenset[str]
    found: dict[str, Fingerprint] = field(default_factory=dict)

    def look(self, values: Values) -> None:
        for name, value in values.items():
            seen = fingerprint(value) if name in self.asked else None
            if seen is not None:
                self.found[name] = seen


def fingerprints(graph: Graph, feed: Values, bench: Bench, wanted: Sequence[str]) -> dict[str, Fingerprint]:
    """The fingerprints of a model's tensors in a run, up to where it fails.

    Raises:
        Fault: the sandbox's own code failed.
    """
    watch = _Prints(frozenset(wanted))
    watch.look(feed)
    walked = walk_alone(bench, graph, feed, watch).watch
    return walked.found if isinstance(walked, _Prints) else {}
