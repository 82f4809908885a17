"""What half precision makes of each tensor, and of each node alone on the inputs that it has in float32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.lockstep import Lockstep
from onnxfix.diagnosis.rows import Side
from onnxfix.files import walk
from onnxfix.files.tensors import to_array
from onnxfix.lowering.bodies import entered, read_inside
from onnxfix.lowering.lowered import LOW_TYPES, Low, Lowerable, lowerable, with_casts
from onnxfix.proof.compare.tolerance import wide

Array = npt.NDArray[Any]
_LARGEST = 1 << 40


@dataclass(frozen=True)
class Tensor:
    """What was measured of a float32 tensor over ``samples``: the largest magnitude, the largest distance to a whole
    number (``fraction``) and to the rounded value (``rounding``), how many elements there are, how many are not 0, and
    how many still are not 0 when rounded. ``shape`` is that of the first sample."""

    highest: float = 0.0
    fraction: float = 0.0
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

    @property
    def whole(self) -> bool:
        """Whether all elements are whole numbers."""
        return self.fraction == 0.0

    def joined(self, other: Tensor) -> Tensor:
        """Both samples as one."""
        ours, theirs = astuple(self), astuple(other)
        figures = *map(_greater, ours[:3], theirs[:3]), *map(add, ours[3:-1], theirs[3:-1])
        return Tensor(*figures, shape=self.shape)


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
        return Own(*map(add, astuple(self), astuple(other)))


def _greater(one: float, other: float) -> float:
    return float(np.fmax(one, other)) if np.isfinite(one) and np.isfinite(other) else float("inf")


def measure_tensor(values: Array, to: Low) -> Tensor:
    """Measure a float32 tensor. Infinities are what masks are made of: they are left out, as NaN is."""
    finite = np.isfinite(values)
    with np.errstate(all="ignore"):
        low = values.astype(LOW_TYPES[to]).astype(np.float32)
        gaps = np.abs(values - low)
        fractions = values - np.floor(values)
    highest, fraction, rounding = (
        float(one.max(initial=0.0, where=finite)) for one in (np.abs(values), fractions, gaps)
    )
    nonzero, left = (int(np.count_nonzero(one[finite])) for one in (values, low))
    return Tensor(highest, fraction, rounding, values.size, nonzero, left, shape=values.shape)


def measure_own(truth: Array, other: Array) -> Own:
    """Measure an output of a node in the low type against that in float32, where that is finite."""
    if truth.dtype != np.float32:
        differing = truth.size if truth.shape != other.shape else np.count_nonzero(truth != other)
        return Own(choices=truth.size, changed=int(differing))
    finite = np.isfinite(truth)
    true = wide(truth[finite])
    with np.errstate(all="ignore"):
        gap = np.abs(wide(other[finite]) - true)
        return Own(float(np.sum(true**2)), float(np.sum(gap**2)))


def measure(
    bench: Bench, graph: Graph, able: Lowerable, feeds: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Tensor], dict[int, Own], set[int], str]:
    """Walk through the model on each of ``feeds``: the measurements by tensor and by node, the nodes inside of others
    that no feed runs, and why the model does not run ("")."""
    unseen, inside, samples = set[int](), read_inside(graph), list[dict[str, Any]]()
    tensors: dict[str, Tensor] = {}
    nodes: dict[int, Own] = {}
    low = Graph(
        with_casts(graph.proto, able, able.slots, apart=True),
        graph.folder,
        graph.mapped,
        untensored=graph.untensored,
    )
    folder = Path(graph.folder) if graph.folder else None
    side = Side(low, {name: name for name in (*graph.producer, *graph.inputs)})

    def look(values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if name in able.floats:
                found = measure_tensor(value, able.to)
                tensors[name] = tensors[name].joined(found) if name in tensors else found
            if name in inside:
                samples[-1][name] = value

    def compare(name: str, truth: Any, other: Any) -> None:
        index = graph.producer[name]
        if index in able.slots and isinstance(truth, np.ndarray):
            nodes[index] = nodes.get(index, Own()).joined(measure_own(truth, other))

    for feed in feeds:
        samples.append({})
        look(feed)
        done = Lockstep(bench, graph, side, look=look, compare=compare).run(feed, feed)
        if done.failed:
            return tensors, nodes, unseen, done.failed
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
    look({name: array for name, array in arrays.items() if array is not None})
    return tensors, nodes, unseen, ""
