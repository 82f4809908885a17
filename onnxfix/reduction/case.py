"""A case: a model with the real values of its inputs, and functions that make smaller cases from its parts. What a
reduction looks for and what it found are frozen records whose fields are written as JSON.

All weights stay in the model's files (``files.lazy``), also external data, so that a part costs no more than its own
bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from onnxfix.files import lazy, loading, tensors, walk
from onnxfix.inputs.feeds.flow import DRAWS
from onnxfix.place import NOWHERE, Place
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.interrupts import INTERRUPTED
from onnxfix.shown import Shown

SMALL = 64
"""Most elements of an integer tensor of rank 0 or 1 that counts as a shape, as axes or as indices."""


@dataclass(frozen=True)
class Case:
    """A model with the values of its inputs (as far as they are known).

    ``cut`` are the computed tensors that became inputs or initializers, by name. ``keep`` holds the files that the
    weights are in.
    """

    model: ModelProto
    inputs: Mapping[str, Any]
    cut: Mapping[str, Any] = field(default_factory=dict)
    keep: tuple[object, ...] = ()

    @property
    def count(self) -> int:
        """How many nodes there are, at any depth and in local functions."""
        return sum(1 for _ in walk.model_nodes(self.model))

    @property
    def outputs(self) -> list[str]:
        """The names of the model's outputs."""
        return [info.name for info in self.model.graph.output]

    def copy(self) -> ModelProto:
        """A private copy of the model, free to be changed."""
        model = walk.copied(self.model)
        return model

    def with_model(self, model: ModelProto, **changes: Any) -> Case:
        """The case with another model, and with values only for inputs of that model."""
        names = {info.name for info in model.graph.input}
        inputs = changes.pop("inputs", self.inputs)
        return replace(self, model=model, inputs={n: v for n, v in inputs.items() if n in names}, **changes)


def case_of(loaded: loading.Loaded, inputs: Mapping[str, Any]) -> Case:
    """The whole model as a case. Inputs with a default value become plain initializers.

    Raises:
        ModelError: external data is not where it should be.
    """
    model = walk.copied(loaded.proto)
    sources: dict[Path, lazy.Source] = {}
    for tensor in walk.model_tensors(model):
        if tensors.is_external(tensor) and loaded.base_dir is not None:
            tensors.refer(tensor, loaded.base_dir, sources)
    defaults = {tensor.name for tensor in model.graph.initializer}
    plain = [info for info in model.graph.input if info.name not in defaults]
    refill(model.graph.input, plain)
    model.ClearField("training_info")
    given = {info.name: inputs[info.name] for info in plain if info.name in inputs}
    return Case(model, given, keep=(loaded, *sources.values()))


def refill(field_: Any, items: Sequence[Any]) -> None:
    """Replace the content of a repeated field."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field_[:]
    field_.extend(copies)


# ------------------------------------------------------------------------------------------------------- the graph


def producers(graph: GraphProto) -> dict[str, int]:
    """The position of the node that computes each value of the main graph."""
    return {name: number for number, node in enumerate(graph.node) for name in node.output if name}


def fixed_values(graph: GraphProto) -> set[str]:
    """The values that depend on no input: initializers, and results of nodes that read only such values."""
    inputs = {info.name for info in graph.input}
    fixed = {tensor.name for tensor in graph.initializer}
    fixed.update(sparse.values.name for sparse in graph.sparse_initializer)
    known = fixed | inputs | set(producers(graph))
    for node in graph.node:
        draws = any(inner.op_type in DRAWS for inner in walk.nodes([node]))
        if not draws and all(name in fixed for name in walk.reads(node) if name in known):
            fixed.update(name for name in node.output if name)
    return fixed


def upstream(graph: GraphProto, names: Iterable[str], stops: Collection[str] = ()) -> set[int]:
    """Positions of the nodes that these values depend on, no further up than ``stops``."""
    made = {name: number for name, number in producers(graph).items() if name not in stops}
    by_name = {name: graph.node[number] for name, number in made.items()}
    return {made[name] for name in walk.ancestors(by_name, names) if name in made}


def called(model: ModelProto, nodes: Iterable[NodeProto]) -> list[FunctionProto]:
    """The local functions that these nodes call, directly or not, in stored order."""
    known = {(walk.domain_of(one.domain), one.name, one.overload): one for one in model.functions}
    reached: set[tuple[str, str, str]] = set()
    pending = list(nodes) if known else []
    while pending:
        for node in walk.nodes([pending.pop()]):
            key = walk.domain_of(node.domain), node.op_type, node.overload
            if key in known and key not in reached:
                reached.add(key)
                pending.extend(known[key].node)
    return [function for key, function in known.items() if key in reached]


# ----------------------------------------------------------------------------------------------------------- parts


def part(
    model: ModelProto, kept: Collection[int], outputs: Sequence[ValueInfoProto], extra: Collection[str] = ()
) -> ModelProto:
    """A model with only the nodes at the positions ``kept`` of the main graph, and these outputs. It keeps the inputs
    and initializers that the nodes read or ``extra`` names. The caller must add all other values that nodes read."""
    graph = model.graph
    nodes = [node for number, node in enumerate(graph.node) if number in kept]
    read = {name for node in nodes for name in walk.reads(node)} | set(extra)
    read.update(info.name for info in outputs)
    made = {name for node in nodes for name in node.output}
    result = ModelProto()
    for name in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        if model.HasField(name):
            setattr(result, name, getattr(model, name))
    result.opset_import.extend(model.opset_import)
    result.functions.extend(called(model, nodes))
    new = result.graph
    new.name = graph.name or "reduced"
    new.node.extend(nodes)
    new.initializer.extend(one for one in graph.initializer if one.name in read)
    new.sparse_initializer.extend(one for one in graph.sparse_initializer if one.values.name in read)
    new.input.extend(info for info in graph.input if info.name in read)
    new.output.extend(outputs)
    new.value_info.extend(info for info in graph.value_info if info.name in made)
    quantized = (one for one in graph.quantization_annotation if one.tensor_name in made | read)
    new.quantization_annotation.extend(quantized)
    return result


def info_of(name: str, value: Any) -> ValueInfoProto:
    """The declaration of a tensor with the type and shape of ``value``; only its name if ``value`` is not an array."""
    if not isinstance(value, np.ndarray):
        return ValueInfoProto(name=name)
    strings = value.dtype.kind in "OUS"
    elem = TensorProto.STRING if strings else helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, elem, value.shape)


def tensor_of(name: str, value: np.ndarray[Any, Any]) -> TensorProto:
    """An initializer with this value."""
    return numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)


def array_of(tensor: TensorProto) -> np.ndarray[Any, Any] | None:
    """The value of an initializer; None if numpy lacks its type."""
    return tensors.to_array(tensor, None, 1 << 40)


def makes_shapes(value: Any) -> bool:
    """Whether ``value`` is a small integer tensor, like shapes, axes and indices."""
    small = isinstance(value, np.ndarray) and value.ndim <= 1 and value.size <= SMALL
    return small and value.dtype.kind in "iu"


def reads_of(node: NodeProto) -> set[str]:
    """The names that a node and the nodes inside it read."""
    return {name for name in walk.reads(node) if name}


#: What fails. "refused": TensorRT or ONNX Runtime takes no such model. "crash", "timeout": how its process ended.
#: "misread": the network that TensorRT imports computes something else. "error": it fails when it is run.
#: "differs": it computes something else than the truth. "exit": a command ends with this exit code.
Kind = Literal["refused", "crash", "timeout", "misread", "error", "differs", "exit"]
#: "reduced": a folder was written. "passes": nothing fails. "unknown": it could not be found out, see ``reason``.
Status = Literal["reduced", "passes", "unknown"]
#: What differs in an output where a shape further up does, after a broadcast: both count as one.
_COMPUTED = {"values", "shape"}


@dataclass(frozen=True)
class Failure:
    """Why a model fails, and where.

    ``detail`` is what differs ("values", "shape", ...) or the stage at which TensorRT stopped. ``code`` is the tool's
    own number or name of the error, ``source`` where in the tool's source it was raised, ``form`` the tool's message
    without names and numbers; each "" where there is none. ``text`` is for people and never compared.
    """

    kind: Kind
    detail: str = ""
    place: Place = NOWHERE
    op_type: str = ""
    code: str = ""
    source: str = ""
    form: str = ""
    text: str = ""

    @property
    def cause(self) -> tuple[str, ...]:
        """What two failures for the same reason have in common, besides the place."""
        return self.kind, self.detail, self.op_type, self.code, self.source, self.form

    def same(self, other: Failure) -> bool:
        """Whether ``other``, of a part of the model, is this failure: the same cause at the same place.

        Where this one names no place, the cause decides, and where outputs differ too: every part has outputs of its
        own, and all of them lead to the one that differs in the whole model.
        """
        if self.kind == "differs":
            alike = self.detail == other.detail or {self.detail, other.detail} <= _COMPUTED
            return other.kind == self.kind and alike
        return self.cause == other.cause and self.place.label in ("", other.place.label)

    def inside(self, other: Failure, labels: Collection[str]) -> bool:
        """Whether ``other`` is this failure at one of the nodes that were inside the node of this one, by the names of
        their outputs: some tools only name the outer node."""
        same = replace(other, op_type=self.op_type).cause == self.cause
        return same and bool(self.place.label) and other.place.label in labels


@dataclass(frozen=True)
class Seen:
    """The result of a check: all ``failures`` that it found (none: the model passes), or why it is ``unknown``."""

    failures: tuple[Failure, ...] = ()
    unknown: str = ""
    cause: Cause = ""


@dataclass(frozen=True)
class Step:
    """One change that kept the failure: which kind, and the nodes that were left after it."""

    what: str
    nodes: int


@dataclass(frozen=True, repr=False)
class Reduction(Shown):
    """The result of ``reduce``.

    ``folder`` is what was written ("" for nothing). ``nodes_before`` and ``nodes_after`` count nodes at any depth,
    those of local functions included. ``tries`` counts the parts that were checked, ``steps`` are those that kept the
    failure. ``complete`` is False where an interrupt (``interrupted``) or the time limit ended the search.
    ``environment`` names the versions of what was involved. ``command`` reproduces the failure in the folder.
    """

    path: str
    check: str
    status: Status
    reason: str = ""
    cause: Cause = ""
    folder: str = ""
    failure: Failure | None = None
    nodes_before: int = 0
    nodes_after: int = 0
    bytes_after: int = 0
    operators: tuple[str, ...] = ()
    tries: int = 0
    steps: tuple[Step, ...] = ()
    complete: bool = True
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: reduced. 1: nothing fails. 3: the check could not be run. 130: interrupted."""
        if self.interrupted:
            return INTERRUPTED
        return {"reduced": 0, "passes": 1, "unknown": 3}[self.status]

    def _facts(self) -> dict[str, object]:
        facts = {"path": self.path, "check": self.check, "status": self.status}
        nodes = {"nodes_before": self.nodes_before, "nodes_after": self.nodes_after, "folder": self.folder}
        return {**facts, **(nodes if self.folder else {"reason": self.reason})}
