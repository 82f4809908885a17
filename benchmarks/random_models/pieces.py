"""What random models are made of: the examples of all rules, ONNX's node models, and names made anew.

An example is what a rule matches, so that models that contain some are rich in what fixes change, and fixes meet.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from onnxfix.registry import registry
from onnxfix.rule import NO_MODEL, Fixed, Safety
from onnxfix.testing import model_of

Dims = tuple[int | str | None, ...]
Change = Callable[[str], str]
NEWEST = int(onnx.defs.onnx_opset_version())
OLDEST = 7


@dataclass(frozen=True)
class Piece:
    """A small model. ``feed`` are values for its inputs that it is known to accept; ``fixed``: its rule has a fix."""

    label: str
    code: str
    proto: ModelProto
    safety: Safety = Safety.EXACT
    target: str | None = None
    feed: dict[str, Any] = field(default_factory=dict)
    fixed: bool = False

    @functools.cached_property
    def opset(self) -> int:
        """The version of ONNX's operator set that it imports."""
        return next((one.version for one in self.proto.opset_import if one.domain in ("", "ai.onnx")), 18)

    def accepted(self, opset: int) -> bool:
        """Whether onnx.checker accepts the piece in an opset."""
        key = (self.label, opset)
        if key not in _ACCEPTED:
            copy = copied(self.proto)
            for owner in (copy, *copy.functions):
                for entry in owner.opset_import:
                    if entry.domain in ("", "ai.onnx"):
                        entry.version = opset
            copy.ir_version = max(copy.ir_version, least_ir(opset))
            _ACCEPTED[key] = not refused(copy)
        return _ACCEPTED[key]


_ACCEPTED: dict[tuple[str, int], bool] = {}


def refused(model: ModelProto) -> str:
    """What onnx.checker says of a model with its full check; "" where it accepts it."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # its C++ code raises more than its own classes
        return " ".join(str(error).split())[:300] or type(error).__name__
    return ""


@functools.cache
def least_ir(opset: int) -> int:
    """The IR version with which an opset came."""
    return int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)]))


def copied(message: Any) -> Any:
    """A copy of a protobuf message."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


@functools.cache
def examples() -> dict[str, list[Piece]]:
    """The models that a rule reports, by code. Rules about what other tools say have none."""
    found: dict[str, list[Piece]] = {}
    for rule in registry().rules:
        if rule.per in NO_MODEL:
            continue
        for number, example in enumerate(rule.examples):
            proto = model_of(example) if example.found else None
            if proto is None or any(function.domain in ("", "ai.onnx") for function in proto.functions):
                continue  # who is called, the function or the operator of its name, is for runtimes to say
            if proto.ByteSize() < 100_000:  # the others are about limits of sizes, and slow to copy
                label = f"{rule.code}-{number} {example.why}"
                piece = Piece(
                    label, rule.code, proto, example.safety, example.target, fixed=isinstance(example, Fixed)
                )
                found.setdefault(rule.code, []).append(piece)
    return found


@functools.cache
def node_models() -> list[Piece]:
    """ONNX's node models, which cover all operators and types, with their own data. Making them takes 6 s."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    found = []
    for case in cases:
        if case.model is None or case.model.ByteSize() > 20_000:
            continue
        names = [info.name for info in case.model.graph.input]
        inputs = next((inputs for inputs, _ in case.data_sets or ()), ())
        found.append(Piece(case.name, "", case.model, feed=dict(zip(names, inputs, strict=False))))
    return found


def nodes_of(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and those of the graphs in them."""
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from nodes_of(graph.node)


def graphs_of(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node has as attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def rename(graph: GraphProto | FunctionProto, change: Change) -> None:
    """Rename all values of a graph and of the graphs inside it, in place. "" stays."""

    def new(name: str) -> str:
        return change(name) if name else ""

    if isinstance(graph, GraphProto):
        for info in (*graph.input, *graph.output):
            info.name = new(info.name)
        for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
            tensor.name = new(tensor.name)
        for annotation in graph.quantization_annotation:
            annotation.tensor_name = new(annotation.tensor_name)
            for entry in annotation.quant_parameter_tensor_names:
                entry.value = new(entry.value)
    else:
        graph.input[:] = map(new, graph.input)
        graph.output[:] = map(new, graph.output)
    for info in graph.value_info:
        info.name = new(info.name)
    for node in graph.node:
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
        for inner in graphs_of(node):
            rename(inner, change)


def dims_of(info: onnx.ValueInfoProto) -> Dims | None:
    """The sizes that a tensor is declared with: numbers, names, None where neither; None for no rank."""
    shape = info.type.tensor_type.shape
    if not info.type.tensor_type.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in shape.dim)
