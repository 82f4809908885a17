"""What half precision makes of each tensor, and of each node alone on the inputs that it has in float32."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Values
from onnxfix.diagnosis.distance import BLOCK
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.iterations import ENTERED, Body, Unknown, is_true, iterations, value_in
from onnxfix.diagnosis.lockstep import Lockstep, Watch
from onnxfix.diagnosis.rows import Side
from onnxfix.errors import ModelError
from onnxfix.files import walk
from onnxfix.files.dtypes import FLOATS
from onnxfix.files.tensors import to_array
from onnxfix.lowering.lowered import ELEMENT, LOW_TYPES, Low, Lowerable, lowerable, with_casts
from onnxfix.proof.compare.tolerance import wide

Array = npt.NDArray[Any]
_LARGEST = 1 << 40


@dataclass(frozen=True)
class Tensor:
    """What was measured of a float32 tensor over ``samples``: the largest magnitude, whether all elements are ``whole``
    numbers, then the largest distance to the rounded value (``rounding``), how many elements there are, how many are
    not 0, and how many still are not 0 when rounded. ``shape`` is that of the first sample."""

    highest: float = 0.0
    whole: bool = True
    rounding: float = 0.0
    count: float = 0.0
    nonzero: float = 0.0
    left: float = 0.0
    samples: float = 1
    shape: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def lost(self) -> float:
        """The share of elements that are not 0 and round to 0."""
        return (self.nonzero - self.left) / self.count if self.count else 0.0

    def joined(self, other: Tensor) -> Tensor:
        """Both samples as one."""
        return Tensor(
            max(self.highest, other.highest),
            self.whole and other.whole,
            max(self.rounding, other.rounding),
            self.count + other.count,
            self.nonzero + other.nonzero,
            self.left + other.left,
            self.samples + other.samples,
            shape=self.shape,
        )


@dataclass(frozen=True)
class Own:
    """What was measured of a node's outputs in the low type, summed over outputs and samples: the sum of squares, and
    that of the error. ``choices`` and ``changed`` count elements that are no floating-point numbers, and those of them
    that differ."""

    power: float = 0.0
    error_power: float = 0.0
    choices: float = 0.0
    changed: float = 0.0

    @property
    def error(self) -> float:
        """The root mean square of the error as a share of that of the values; infinite where it is not finite."""
        if not np.isfinite(self.error_power):
            return float("inf")
        if not self.power or not np.isfinite(self.power):
            return 0.0 if not self.error_power else float("inf")
        return float(np.sqrt(self.error_power / self.power))

    def joined(self, other: Own) -> Own:
        """Both outputs, or both samples, as one."""
        return Own(
            self.power + other.power,
            self.error_power + other.error_power,
            self.choices + other.choices,
            self.changed + other.changed,
        )


def _blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """The arrays in parts, without the elements that are not finite in the first."""
    flat = [one.reshape(-1) for one in arrays]
    for start in range(0, flat[0].size, BLOCK):
        parts = tuple(one[start : start + BLOCK] for one in flat)
        finite = np.isfinite(parts[0])
        yield parts if finite.all() else tuple(one[finite] for one in parts)


def measure_tensor(values: Array, to: Low) -> Tensor:
    """Measure a float32 tensor. Infinities are what masks are made of: they are left out, as NaN is."""
    smallest = np.float32(2.0 ** (FLOATS[ELEMENT[to]].lowest - 1))  # half of the smallest number rounds to 0
    found = Tensor(count=values.size, shape=values.shape)
    for (part,) in _blocks(values):
        sizes = np.abs(part)
        highest = float(sizes.max(initial=0.0))
        whole, rounding = found.whole and bool((part == np.rint(part)).all()), 0.0
        if whole:
            with np.errstate(all="ignore"):
                gaps = np.abs(part - part.astype(LOW_TYPES[to]).astype(np.float32))
            rounding = float(gaps.max(initial=0.0))
        nonzero, left = (int(np.count_nonzero(sizes > least)) for least in (0, smallest))
        found = found.joined(Tensor(highest, whole, rounding, 0, nonzero, left, 0))
    return found


def measure_own(truth: Array, other: Array) -> Own:
    """Measure an output of a node in the low type against that in float32, where that is finite."""
    if truth.dtype != np.float32:
        differing = truth.size if truth.shape != other.shape else np.count_nonzero(truth != other)
        return Own(choices=truth.size, changed=int(differing))
    power = error_power = 0.0
    with np.errstate(all="ignore"):
        for part, low in _blocks(truth, other):
            true = wide(part)
            gap = wide(low) - true
            power, error_power = power + float(np.dot(true, true)), error_power + float(np.dot(gap, gap))
    return Own(power, error_power)


@dataclass
class _Measured(Watch):
    """Measures the tensors ``floats`` and the nodes ``indices``, and keeps the values of ``inside`` in ``sample``."""

    to: Low
    floats: frozenset[str]
    indices: frozenset[int]
    inside: frozenset[str]
    sample: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    nodes: dict[int, Own] = field(default_factory=dict)
    compares = True

    def look(self, values: Values) -> None:
        for name, value in values.items():
            if name in self.floats:
                found = measure_tensor(value, self.to)
                self.tensors[name] = self.tensors[name].joined(found) if name in self.tensors else found
            if name in self.inside:
                self.sample[name] = value

    def compare(self, name: str, number: int, truth: Any, other: Any) -> None:
        if number in self.indices and isinstance(truth, np.ndarray):
            self.nodes[number] = self.nodes.get(number, Own()).joined(measure_own(truth, other))


def measure(
    bench: Bench, graph: Graph, able: Lowerable, feeds: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Tensor], dict[int, Own], set[int], str]:
    """Walk through the model on each of ``feeds``: the measurements by tensor and by node, the nodes inside of others
    that no feed runs, and why the model does not run ("")."""
    unseen, samples = set[int](), list[dict[str, Any]]()
    low = Graph(
        with_casts(graph.proto, able, able.slots, apart=True),
        graph.folder,
        graph.mapped,
        untensored=graph.untensored,
    )
    folder = Path(graph.folder) if graph.folder else None
    side = Side(low, {name: name for name in (*graph.producer, *graph.inputs)})
    watch = _Measured(able.to, able.floats, frozenset(able.slots), frozenset(read_inside(graph)))
    for feed in feeds:
        watch.look(feed)
        lockstep = Lockstep(bench, graph, side, watch)
        done = lockstep.run(feed, feed)
        assert isinstance(lockstep.watch, _Measured)
        watch = lockstep.watch
        if done.failed:
            return watch.tensors, watch.nodes, unseen, done.failed
        samples.append(watch.sample)
        watch.sample = {}
    tensors, nodes = watch.tensors, watch.nodes
    for body in entered(graph, samples, bench):
        if body.model is None:
            unseen.update(body.indices)
            continue
        theirs = lowerable(body.model.proto, able.to, folder, strict=True, inner=True)
        found, own, hidden, _ = measure(bench, body.model, theirs, body.feeds)
        tensors.update((name, one) for name, one in found.items() if name not in tensors)
        nodes.update((body.start + index, one) for index, one in own.items())
        unseen.update(body.start + index for index in hidden)
    stored = walk.graph_nodes(graph.proto.graph)
    read = {stored[index].input[slot] for index, slots in able.slots.items() for slot in slots.inputs}
    constants = {name: graph.constant(name) for name in read - tensors.keys()}
    arrays = {name: to_array(one, folder, _LARGEST) for name, one in constants.items() if one is not None}
    watch.look({name: array for name, array in arrays.items() if array is not None})
    return tensors, nodes, unseen, ""


# ---------------------------------------------- the graphs inside of If, Loop and Scan, on the values that they get

_ITERATIONS = 4
"""Iterations of a loop that are looked at, from the first on."""
_RUNS = 8
"""Runs of a body that are looked at, over all samples."""


@dataclass(frozen=True)
class Entered:
    """A graph inside of a node of the main graph: the ``indices`` of its nodes in ``walk.graph_nodes``, those inside of
    them included; as a model, whose first node has the index ``start``, which may be less by nodes that the model has
    more; and its ``feeds``. Without a model, no sample runs it."""

    indices: range
    model: Graph | None = None
    start: int = 0
    feeds: Sequence[Mapping[str, Any]] = ()


def read_inside(graph: Graph) -> frozenset[str]:
    """The values that ``entered`` needs."""
    numbers = (number for number, node in enumerate(graph.nodes) if node.op_type in ENTERED)
    return frozenset(name for number in numbers for name in graph.reads[number])


def entered(graph: Graph, samples: Sequence[Mapping[str, Any]], bench: Bench) -> Iterator[Entered]:
    """The bodies of the main graph, each with what it gets in the samples. Bodies are left out if that cannot be told:
    one reads a sequence, or does not run by itself."""
    end = len(graph.nodes)
    for number, node in enumerate(graph.nodes):
        for attribute in node.attribute:
            for inner in walk.attribute_graphs(attribute):
                indices = range(end, end + len(walk.graph_nodes(inner)))
                end = indices.stop
                if node.op_type not in ENTERED:
                    continue
                try:
                    yield _enter(graph, number, attribute.name, indices, samples, bench)
                except (Unknown, ModelError, KeyError, IndexError, TypeError, ValueError):
                    continue


def _enter(
    graph: Graph, number: int, name: str, indices: range, samples: Sequence[Mapping[str, Any]], bench: Bench
) -> Entered:
    node, feeds = graph.nodes[number], list[dict[str, Any]]()
    for known in samples:
        is_taken = node.op_type != "If" or is_true(value_in(graph, known, node.input[0])) == (name[0] == "t")
        if is_taken and len(feeds) < _RUNS:
            body = Body(graph, number, known, name)
            some = itertools.islice(iterations(body, bench), _ITERATIONS)
            feeds.extend(body.feed(now.formal) for now in some)
    if not feeds:
        return Entered(indices)
    model = body.model(feeds[0], feeds[0])
    return Entered(indices, model, indices.start + len(body.body.node) - len(model.nodes), feeds)
