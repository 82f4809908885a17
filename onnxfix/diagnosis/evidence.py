"""What is known of a node whose result differs, and the figures that explanations are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Values, in_type
from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.findings import Hazard
from onnxfix.diagnosis.graph import Graph, downstream, upstream
from onnxfix.diagnosis.records import Against, NodeError
from onnxfix.diagnosis.rows import Row, Side, aligned
from onnxfix.diagnosis.sides import LOW
from onnxfix.files import walk
from onnxfix.files.dtypes import FLOATS
from onnxfix.files.tensors import to_array
from onnxfix.place import NOWHERE

Array = np.ndarray[Any, Any]

BLOCK = 1 << 20
"""Elements that are compared at a time: tensors may be mapped from disk and larger than memory."""

#: What the other side is called in a sentence.
SIDES: dict[Against, str] = {
    "model": "the second model",
    "ort-cpu": "the optimized model",
    "ort-cuda": "ONNX Runtime on CUDA",
    "fp16": "float16",
    "bf16": "bfloat16",
    "trt-network": "TensorRT's network",
    "trt-gpu": "the engine",
}

_LOW = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


@dataclass(frozen=True)
class Evidence:
    """A node of the truth's model and what computes its outputs on the other side.

    ``node`` is the truth's (its weights may be stand-ins). ``inputs`` are the true tensors that it reads, initializers
    included, by their names in its model. ``truth``, ``own`` and ``moved`` are its outputs by name: the true ones, what
    the other side computes from the true inputs, and the true ones with inputs moved by one rounding (one part in 10^7,
    or one unit of ``low``). ``others`` are the nodes that compute the output on the other side, and ``constants`` the
    initializers that these read, by their names there. ``findings`` are those of onnxfix's rules at this
    node; of two models those that only the second has there.
    ``low`` is the precision of the other side: "float16", "bfloat16", or "" for that of the truth. ``opsets`` and
    ``other_opsets`` are both models' imports; ``names`` leads from tensors of the other side to the truth's,
    and ``types`` are the element types of those that its nodes read. ``row`` is what the walk measured; ``given`` are
    the values that the node and its region read, of a node with graphs inside; ``effect`` is the largest error in an
    output of the model, as a share of its scale, that this node alone causes (None: not measured).
    """

    against: Against
    error: NodeError
    node: NodeProto
    inputs: Mapping[str, Array]
    truth: Mapping[str, Array]
    own: Mapping[str, Array]
    moved: Mapping[str, Array] = field(default_factory=dict)
    others: Sequence[NodeProto] = ()
    constants: Mapping[str, Array] = field(default_factory=dict)
    findings: Sequence[Hazard] = ()
    low: str = ""
    opsets: Mapping[str, int] = field(default_factory=dict)
    other_opsets: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    types: Collection[str] = ()
    row: Row = field(default_factory=lambda: Row("", -1))
    given: Mapping[str, Any] = field(default_factory=dict)
    effect: float | None = None

    @property
    def side(self) -> str:
        """What the other side is called."""
        return SIDES[self.against]

    @property
    def precision(self) -> str:
        """``low``, or the lower precision that Casts, constants or values of the other side show; "" for none."""
        if self.low:
            return self.low
        here = {str(array.dtype) for array in (*self.inputs.values(), *self.truth.values())}
        targets = {
            one.i
            for node in self.others
            if node.op_type == "Cast"
            for one in node.attribute
            if one.name == "to"
        }
        stored = {str(array.dtype) for array in (*self.constants.values(), *self.own.values())} | {
            *self.types
        }
        for name, number in _LOW.items():
            if name not in here and (number in targets or name in stored):
                return name
        return ""


@dataclass(frozen=True)
class Limits:
    """The largest finite value of a low precision, its smallest normal one, the smallest of all, and the relative size
    of one rounding."""

    largest: float
    normal: float
    smallest: float
    unit: float


def limits(low: str) -> Limits:
    """Those of "float16" or "bfloat16"."""
    kind = FLOATS[_LOW[low]]
    normal = 2.0 ** (kind.lowest + kind.precision - 1)
    return Limits(kind.highest, normal, 2.0**kind.lowest, 2.0**-kind.precision)


def unit_of(evidence: Evidence) -> float:
    """By what share of themselves the inputs of ``moved`` were moved."""
    return limits(evidence.low).unit if evidence.low else 1e-7


@dataclass(frozen=True)
class Focus:
    """The element with the largest own error, in the output where that is the largest share of the scale.

    ``error`` is absolute, infinite where one side alone is not finite; ``scale`` is the largest finite magnitude of the
    true output. ``wander`` is how far ``moved`` is from the truth at most, None where that was not computed.
    """

    name: str
    truth: Array
    own: Array
    index: tuple[int, ...]
    true: float
    seen: float
    error: float
    scale: float
    wander: float | None = None

    @property
    def share(self) -> float:
        """The error as a share of the scale."""
        return self.error / self.scale if self.scale else (0.0 if not self.error else float("inf"))

    @property
    def values(self) -> str:
        """``0.5 instead of 0.25 at [0, 3]``, the other side's first."""
        seen, true = number(self.seen), number(self.true)
        if seen == true:
            seen, true = f"{self.seen:.9g}", f"{self.true:.9g}"
        return f"{seen} instead of {true}{at(self.index)}"


def number(value: float) -> str:
    """A value as text, with the digits that float32 has at most."""
    return f"{value:.7g}" if abs(value) < 1e6 and float(value).is_integer() else f"{value:.5g}"


def at(index: Sequence[int]) -> str:
    """`` at [0, 3]``; "" for a scalar."""
    return f" at {[int(i) for i in index]}" if len(index) else ""


def numeric(array: Any) -> bool:
    """Whether it is an array of real numbers, also of the types of ml_dtypes."""
    if not isinstance(array, np.ndarray) or array.dtype.kind in "cOSUMm":
        return False
    return array.dtype.kind in "biuf" or array.dtype.name in ("bfloat16",) or "float" in array.dtype.name


def blocks(*arrays: Array) -> Iterator[tuple[int, list[Array]]]:
    """Arrays of one size as float64, flat and in parts: the first index, and a part of each."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, BLOCK):
        yield start, [np.asarray(one[start : start + BLOCK]).astype(np.float64) for one in flat]


def focus_of(evidence: Evidence) -> Focus | None:
    """The element to explain; None where no output of both sides has the same shape and holds numbers."""
    best: Focus | None = None
    for name, truth in evidence.truth.items():
        own = evidence.own.get(name)
        if (
            own is None
            or not numeric(truth)
            or not numeric(own)
            or truth.shape != own.shape
            or not truth.size
        ):
            continue
        off = distance(truth, own)
        index = tuple(int(i) for i in np.unravel_index(off.at, truth.shape))
        moved = evidence.moved.get(name)
        comparable = moved is not None and numeric(moved) and moved.shape == truth.shape
        wander = distance(truth, moved).error if comparable else None
        found = Focus(
            name, truth, own, index, float(truth[index]), float(own[index]), off.error, off.scale, wander
        )
        best = found if best is None or found.share > best.share else best
    return best


_LIMIT = 1 << 31
"""Bytes of a weight that is compared with another: those of a protobuf."""


class Collector:
    """Runs the truth again, as far as the suspected tensors need it, and keeps the values around them."""

    def __init__(
        self, bench: Bench, truth: Graph, side: Side, feed: Values, against: Against = "model"
    ) -> None:
        self.bench, self.truth, self.side, self.feed, self.against = bench, truth, side, dict(feed), against
        self.known: dict[str, Any] = {}
        self.error = ""  # why the truth did not run, the last time

    def values(self, names: Sequence[str]) -> dict[str, Any]:
        """The truth's values of these tensors. Empty where the truth does not run that far."""
        found = {name: self.feed[name] for name in names if name in self.feed}
        wanted = [name for name in names if name in self.truth.producer and name not in found]
        wanted = [name for name in wanted if not self.truth.is_constant(name)]
        if wanted:
            numbers = upstream(self.truth, wanted, frozenset(self.feed))
            reply = self.bench.run_part(self.truth, numbers, wanted, self.feed)
            found.update(reply.values)
            self.error = reply.error
        return found

    def gather(
        self,
        rows: Sequence[Row],
        theirs: Values,
        outputs: Sequence[str] = (),
        types: Mapping[str, str] | None = None,
    ) -> list[Evidence]:
        """The values around each row's node. ``theirs`` are the other side's inputs, ``types`` the element types of its
        tensors. ``outputs``: the effect on these will be asked for, so that what it needs is kept too."""
        wanted = dict.fromkeys(
            name
            for row in rows
            for name in (
                *self.truth.reads[row.number],
                *(one for one in self.truth.nodes[row.number].output if one),
                *(row.region.inputs.values() if row.region is not None else ()),
                *(self._beside([row.name], outputs) if outputs else ()),
            )
            if not self.truth.is_constant(name)
        )
        known = self.values(list(wanted))
        self.known.update(known)
        return [self._gather(row, known, theirs, types or {}) for row in rows]

    def _beside(self, names: Sequence[str], outputs: Sequence[str]) -> list[str]:
        """What the nodes between these values and the outputs read besides, as far as it is worth keeping."""
        graph = self.truth
        after = downstream(graph, names)
        numbers = [n for n in upstream(graph, outputs, frozenset(names)) if n in after]
        made = {name for number in numbers for name in graph.nodes[number].output}
        read = dict.fromkeys(name for number in numbers for name in graph.reads[number])
        found = [one for one in read if one not in made and one not in names and not graph.is_constant(one)]
        return [one for one in found if one not in graph.untensored]

    def bare(self, row: Row) -> Evidence:
        """What is known of a row without running anything."""
        numbers = row.region.nodes if row.region is not None else ()
        return Evidence(
            self.against,
            NodeError(NOWHERE, 0.0),
            self.truth.nodes[row.number],
            _weights(self.truth, [row.number]),
            {},
            {},
            others=tuple(self.side.graph.nodes[number] for number in numbers),
            constants=_weights(self.side.graph, numbers),
            low=LOW.get(self.against, ""),
            opsets=_opsets(self.truth),
            other_opsets=_opsets(self.side.graph),
            names=row.region.inputs if row.region is not None else {},
            row=row,
        )

    def _gather(self, row: Row, known: Values, theirs: Values, types: Mapping[str, str]) -> Evidence:
        node, region = self.truth.nodes[row.number], row.region
        outputs = [name for name in node.output if name in known]
        own: dict[str, Any] = {}
        if region is not None:  # what the other side computes of the truth's values
            fed = {
                name: in_type(known[ours], types.get(name, ""))
                for name, ours in region.inputs.items()
                if ours in known
            }
            fed.update({name: value for name, value in theirs.items() if name in self.side.graph.inputs})
            asked = [(region.nodes, list(region.targets))]
            run = partial(self.side.run, self.bench)
            (reply,) = self.bench.run_apart(self.side.graph, asked, fed, run=run)
            own = {region.targets[name]: value for name, value in reply.values.items()}
        moved: dict[str, Any] = {}
        if outputs:
            alone = [((row.number,), outputs)]
            (reply,) = self.bench.run_apart(self.truth, alone, known, moved=self.side.unit, seed=1)
            moved = reply.values
        bare = self.bare(row)
        reads = {name: known[name] for name in self.truth.reads[row.number] if name in known}
        given: dict[str, Any] = {}
        if region is not None and walk.subgraphs(node):
            given = reads | {one: known[one] for one in region.inputs.values() if one in known}
        return replace(
            bare,
            inputs={**bare.inputs, **_arrays(reads)},
            truth=_arrays({name: known[name] for name in outputs}),
            own=_arrays(own),
            moved=_arrays(moved),
            types=frozenset(types[name] for name in bare.names if name in types),
            given=given,
        )

    def effect(self, own: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        """The truth's outputs that depend on these tensors, if these had these values."""
        given = {**self.feed, **self.known}
        for name, value in own.items():  # which the other side may have in another type
            given[name] = aligned(value, given.get(name))
        after = downstream(self.truth, list(own))
        made = {name for number in after for name in self.truth.nodes[number].output}
        known = frozenset(name for name in given if name in own or name not in made)
        reached = [name for name in outputs if name in made and name not in own]
        found = {name: given[name] for name in outputs if name in own}
        if not reached:
            return found
        reply = self.bench.run_part(self.truth, upstream(self.truth, reached, known), reached, given)
        return {} if reply.error else {**reply.values, **found}


def _arrays(values: Mapping[str, Any]) -> dict[str, Array]:
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _opsets(graph: Graph) -> dict[str, int]:
    return {one.domain: int(one.version) for one in graph.proto.opset_import}


def _weights(graph: Graph, numbers: Sequence[int]) -> dict[str, Array]:
    """The values of the constants that these nodes read; without those that cannot be read."""
    folder = Path(graph.folder) if graph.folder else None
    names = dict.fromkeys(name for number in numbers for name in graph.reads[number])
    tensors = {name: tensor for name in names if (tensor := graph.constant(name)) is not None}
    return _arrays({name: to_array(tensor, folder, _LIMIT) for name, tensor in tensors.items()})
