"""Runs two models once and keeps a few figures of every tensor, for matching."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnxfix.diagnosis.bench import Bench, drop
from onnxfix.diagnosis.fingerprints import Fingerprint, Probe, fingerprint
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.store import Held

_FIRST, _MOST = 32, 400  # nodes of a part
_BYTES = 96 << 20  # of outputs of a part
_TRIES = 4

Feeds = Callable[[Mapping[str, Held]], Mapping[str, Held]]


def probe(a: Graph, b: Graph, theirs: Feeds, bench: Bench, samples: Iterable[Mapping[str, Any]]) -> Probe:
    """A probe on the first of ``samples`` (values of A's inputs) that A accepts. ``theirs`` makes B's feed of A's."""

    def run(
        ours: Sequence[str], others: Sequence[str]
    ) -> tuple[Mapping[str, Fingerprint], Mapping[str, Fingerprint]]:
        for _, values in zip(range(_TRIES), samples, strict=False):
            feed = bench.hold(values)
            found = fingerprints(a, feed, bench, ours)
            if all(name in found for name in a.outputs if name in ours) and found:
                return found, fingerprints(b, theirs(feed), bench, others)
            drop(list(feed.values()))
        return {}, {}

    return run


def fingerprints(
    graph: Graph, feed: Mapping[str, Held], bench: Bench, wanted: Sequence[str]
) -> dict[str, Fingerprint]:
    """The fingerprints of a model's tensors in a run, up to where it fails. Values are dropped when nothing needs them.

    Raises:
        Fault: the sandbox's own code failed.
    """
    asked = set(wanted)
    values = dict(feed)
    found = dict(_printed(values, asked))
    start, count, total = 0, _FIRST, len(graph.nodes)
    while start < total:
        end = min(start + count, total)
        numbers = [n for n in range(start, end) if graph.nodes[n].op_type != "Constant"]
        made = [name for n in numbers for name in graph.nodes[n].output if name]
        part, inputs = graph.part(numbers, made, values)
        if any(name not in values for name in inputs):
            break
        reply = bench.run(part, {name: values[name] for name in inputs}, of=graph) if made else None
        if reply is not None:
            if reply.error:
                break
            found.update(_printed(reply.values, asked))
            values.update(reply.values)
        size = sum(held.nbytes for held in reply.values.values()) if reply is not None else 0
        start, count = end, max(8, min(_MOST, count * 4, int(count * _BYTES / max(size, 1))))
        for name in [name for name in values if graph.last_use.get(name, -1) < end and name not in feed]:
            values.pop(name).drop()
    drop([held for name, held in values.items() if name not in feed])
    return found


def _printed(values: Mapping[str, Held], asked: set[str]) -> Iterator[tuple[str, Fingerprint]]:
    for name, held in values.items():
        seen = fingerprint(held.load()) if name in asked and held.is_tensor else None
        if seen is not None:
            yield name, seen
