"""What a walk through two sides measures of each tensor, and whether that is more than rounding explains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnx import ModelProto

from onnxfix.diagnosis.bench import Bench, Run
from onnxfix.diagnosis.child import Kind, Reply, Values, in_type, kind_of
from onnxfix.diagnosis.distance import Distance, distance
from onnxfix.diagnosis.graph import Graph, Region, declared_types
from onnxfix.runtime.causes import Cause


@dataclass(frozen=True)
class Row:
    """What one tensor of the truth shows: ``own`` distance of the region that computes it, ``noise`` (absolute) that
    rounding explains, with its quantiles ``typical_noise`` (``distance.LEVELS``; none for few elements) and the number
    of elements that rounding makes finite or not (``unstable``), distance ``whole`` in the other side's own run, and
    the largest relative distance ``before`` among the region's inputs there. None: not measured. ``feed``
    counts the samples from 0."""

    name: str
    number: int
    own: Distance | None = None
    noise: float = 0.0
    typical_noise: tuple[float, ...] = ()
    unstable: int = 0
    whole: Distance | None = None
    before: float | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    region: Region | None = None
    kernels: float = 0.0
    feed: int = 0


@dataclass(frozen=True)
class Side:
    """The other side: its graph, its tensors and inputs by the truth's names (``pairs``, ``inputs``: its name -> the
    truth's), the ``backend`` that runs it (or ``runner``, where it is none of ONNX Runtime's), and the share ``unit``
    of a value that one rounding of it amounts to. ``kernels`` is the share of a tensor's scale that its kernels for one
    node may cost. ``name`` and ``notes`` are for people. ``engines``: of TensorRT, where these are the other side."""

    graph: Graph
    pairs: Mapping[str, str]
    backend: str = "ort-cpu"
    unit: float = 1e-7
    runner: Run | None = None
    kernels: float = 0.0
    inputs: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    notes: tuple[str, ...] = ()
    engines: Any = None

    def feed(self, feed: Values) -> dict[str, Any]:
        """The inputs of the other side by its own names, in its own types."""
        types = declared_types(self.graph)
        pairs = self.inputs.items()
        return {theirs: in_type(feed[ours], types.get(theirs, "")) for theirs, ours in pairs if ours in feed}

    def run(self, bench: Bench, part: ModelProto, feed: Values) -> Reply:
        """Run a part of its graph."""
        if self.runner is not None:
            return self.runner(part, feed)
        return bench.run(part, feed, of=self.graph, backend=self.backend)


@dataclass
class Walk:
    """The result of a walk. ``truth`` and ``other`` are the two sides' values of the model's outputs.

    ``failed`` is why the truth stopped, with its ``cause`` (``no_kernel``: a kernel is missing); ``stopped`` why the
    other side's own run did, at the node ``at`` of its graph. ``refused`` are regions that did not run alone, by a
    target, with the reason. ``kinds`` are types and shapes of the truth's tensors, without values; ``types`` are the
    element types of the other side's. ``drawn`` are the truth's values of random operators. Of engines: ``off`` are
    outputs of the whole model that are beyond what kernels may cost, and ``left`` the other side's nodes (by number)
    among which the search for their beginning ended.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    truth: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    failed: str = ""
    cause: Cause = ""
    no_kernel: bool = False
    stopped: str = ""
    at: int | None = None
    refused: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    kinds: dict[str, Kind] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    drawn: dict[str, Any] = field(default_factory=dict)
    off: tuple[str, ...] = ()
    left: tuple[int, ...] = ()


def fitting(value: Any, truth: Any) -> Any:
    """What an engine computes in the truth's type; float64, which TensorRT has not, stays as it is."""
    return value if kind_of(truth).dtype == "float64" else aligned(value, truth)


def aligned(value: Any, like: Any) -> Any:
    """A value in the element type of another, for sides that name types differently (int32 for int64)."""
    return in_type(value, kind_of(like).dtype)


_SHARE = 8.0  # times the measured noise that is no difference
FLOOR = {"float64": 2.0**-48, "float32": 2.0**-19, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Share of a tensor's scale that another kernel, or another order of sums, may make of it: 32 units in the last place
for float32."""


def allowed(row: Row) -> float:
    """How far a tensor may be from the truth by rounding alone, in its own unit."""
    scale = row.own.scale if row.own is not None else 0.0
    return max(_SHARE * row.noise, _floor(row) * scale)


def _floor(row: Row) -> float:
    return max(row.kernels, FLOOR.get(row.dtype, 0.0)) if row.dtype in FLOOR else 0.0


def excess(row: Row) -> float:
    """The own error as a multiple of what rounding may make of it."""
    if row.own is None:
        return 0.0
    if row.own.shape or row.own.special > row.unstable:
        return math.inf
    limit = allowed(row)
    largest = row.own.largest / limit if limit else (math.inf if row.own.largest else 0.0)
    return max(largest, _typical_excess(row))


def _typical_excess(row: Row) -> float:
    """The same for the quantiles of all elements: where a few elements are unstable, or much larger than all others,
    the largest difference says nothing of the rest."""
    typical = row.own.typical if row.own is not None else None
    if row.own is None or typical is None:
        return 0.0
    scale = row.own.scale if row.dtype in FLOOR else 0.0
    found = [0.0]
    noises = row.typical_noise or (0.0,) * len(typical.off)
    for off, size, noise in zip(typical.off, typical.size, noises, strict=True):
        limit = max(_SHARE * noise, FLOOR.get(row.dtype, 0.0) * size, row.kernels * scale)
        if off:
            found.append(off / limit if limit else math.inf)
    return max(found)


def is_beyond(row: Row) -> bool:
    """Whether the region computes something else than the truth, beyond rounding."""
    return excess(row) > 1.0


def is_beyond_whole(row: Row) -> bool:
    """Whether a tensor of the other side's own run is beyond rounding."""
    if row.whole is None:
        return False
    limit = max(_SHARE * row.noise, 8 * _floor(row) * row.whole.scale)
    return not math.isfinite(row.whole.relative) or row.whole.largest > limit


def rounded_up(share: float) -> float:
    """Twice a share, rounded up to one digit: a tolerance that it passes with some room."""
    if share <= 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(2 * share))
    return math.ceil(2 * share / unit - 1e-9) * unit


def ranked_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows by their own error, the worst of each node."""
    best: dict[int, Row] = {}
    for row in rows:
        if row.own is not None and (row.number not in best or own_size(row) > own_size(best[row.number])):
            best[row.number] = row
    return sorted(best.values(), key=lambda row: (-own_size(row), row.number))


def own_size(row: Row) -> float:
    """The own error as a share of the scale; 0 where it was not measured."""
    return row.own.relative if row.own is not None else 0.0


_BOUND = 64  # nodes of the truth that a region stands for
_HALVES = ("float16", "bfloat16")


class Noise:
    """Weighs rows of one chunk. ``values`` are the truth's, ``computed`` the other side's of the same inputs, by the
    truth's names; ``unit`` is the share of a value that one rounding amounts to."""

    def __init__(self, bench: Bench, truth: Graph, unit: float, values: Values, computed: Values) -> None:
        self.bench, self.truth, self.unit, self.values, self.computed = bench, truth, unit, values, computed

    def weigh(self, off: Sequence[Row]) -> list[Row]:
        """The rows with their noise: the truth's nodes from the region's inputs on, these moved. If only the last
        node's inputs moved, a rounding that the truth has before it and the other side has not would count as noise.
        """
        outputs: dict[int, list[Row]] = {}
        for row in off:
            outputs.setdefault(row.number, []).append(row)
        regions = [(self._back(rows), [row.name for row in rows]) for rows in outputs.values()]
        regions = [region for region in regions if region[0]]
        names = [name for numbers, _ in regions for number in numbers for name in self.truth.reads[number]]
        names += [row.name for row in off]
        halves = any(kind_of(self.values[name]).dtype in _HALVES for name in names if name in self.values)
        moves = [*([(0.0, 0)] if halves else []), (self.unit, 0), (self.unit, 1)]
        runs = [
            self.bench.run_apart(self.truth, regions, self.values, moved=moved, seed=seed)
            for moved, seed in moves
        ]
        weighed = []
        for (_, some), replies in zip(regions, zip(*runs, strict=True), strict=True):
            ran = not any(reply.error for reply in replies)
            for row in (row for row in off if row.name in some):
                weighed.append(
                    self._weigh(row, [one.values[row.name] for one in replies], halves) if ran else row
                )
        return weighed

    def _weigh(self, row: Row, values: Sequence[Any], halves: bool) -> Row:
        """A row with its noise. ``values`` are what the truth's nodes compute of moved inputs; with ``halves`` first
        of the inputs as they are: ONNX Runtime may compute a node among others with more digits than alone, in half
        precision."""
        truth, own = self.values[row.name], row.own
        base = values[0] if halves else truth
        computed = self.computed.get(row.name)
        if halves and computed is not None and distance(truth, base).relative > 0:
            own = distance(base, aligned(computed, truth))
        noise = [distance(base, one) for one in values[int(halves) :]]
        quantiles = [one.typical.off for one in noise if one.typical is not None]
        return replace(
            row,
            own=own,
            noise=max(one.largest for one in noise),
            typical_noise=tuple(map(max, *quantiles)) if len(quantiles) > 1 else (*quantiles, ())[0],
            unstable=max(one.special for one in noise),
        )

    def _back(self, rows: Sequence[Row]) -> list[int]:
        """The truth's nodes that compute these outputs of one node from what the region reads; the node alone where
        that does not bound them; none where values that they read are not kept."""
        given = {name for row in rows if row.region is not None for name in row.region.inputs.values()}
        found, stack = {rows[0].number}, [rows[0].number]
        while stack and len(found) <= _BOUND:
            for name in self.truth.reads[stack.pop()]:
                number = self.truth.producer.get(name, -1)
                if name in given or self.truth.is_constant(name) or number in found or number < 0:
                    continue
                found.add(number)
                stack.append(number)
        numbers = sorted(found) if len(found) <= _BOUND else [rows[0].number]
        made = {name for number in numbers for name in self.truth.nodes[number].output}
        read = {name for number in numbers for name in self.truth.reads[number]} - made
        known = all(name in self.values or self.truth.is_constant(name) for name in read)
        return numbers if known and not self.truth.random.intersection(numbers) else []
