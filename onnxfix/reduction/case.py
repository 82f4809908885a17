"""A case: a model with the real values of its inputs, and functions that make smaller cases from its parts.

All weights stay in the model's files (``files.lazy``), also external data, so that a part costs no more than its own
bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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
from onnxfix.inputs.feeds.operands import DRAWS

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
