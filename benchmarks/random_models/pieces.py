"""What random models are made of: rules' examples, ONNX's node models, and the graph that they are put into."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)
from onnx_cases import onnx_cases

from onnxfix.files.walk import copied
from onnxfix.rewrite.contexts import Change, rename_own
from onnxfix.rewrite.registry import registry
from onnxfix.rule import NO_MODEL, Fixed, Safety
from onnxfix.testing import model_of

Dims = tuple[int | str | None, ...]
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
    """ONNX's node models, with their own data."""
    found = []
    for case in onnx_cases().values():
        if case.model.ByteSize() > 20_000:
            continue
        names = [info.name for info in case.model.graph.input]
        inputs = next((inputs for inputs, _ in case.data_sets or ()), ())
        found.append(Piece(case.name, "", case.model, feed=dict(zip(names, inputs, strict=False))))
    return found


def rename(graph: GraphProto | FunctionProto, change: Change) -> None:
    """Rename all values of a graph and of the graphs inside it, in place. "" stays."""
    for inner in rename_own(graph, lambda name: change(name) if name else ""):
        rename(inner, change)


def dims_of(info: onnx.ValueInfoProto) -> Dims | None:
    """The sizes that a tensor is declared with: numbers, names, None where neither; None for no rank."""
    shape = info.type.tensor_type.shape
    if not info.type.tensor_type.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in shape.dim)


F = TensorProto.FLOAT


class Value(NamedTuple):
    """A tensor of the main graph: element type and sizes."""

    name: str
    elem: int
    dims: Dims | None


@dataclass
class Body:
    """Nodes that are not yet placed, with the weights and the outputs that are theirs."""

    nodes: list[NodeProto]
    initializers: list[TensorProto]
    outputs: list[ValueInfoProto]

    infos: list[ValueInfoProto] = field(default_factory=list)

    @property
    def produced(self) -> set[str]:
        """Names of what its nodes compute."""
        return {name for node in self.nodes for name in node.output}


class Host:
    """A main graph that grows."""

    def __init__(self, rng: random.Random, opset: int) -> None:
        self.rng, self.opset = rng, opset
        self.imports: dict[str, int] = {"": opset}
        self.ir_version = 0
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.sparse: list[onnx.SparseTensorProto] = []
        self.functions: list[FunctionProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.outputs: dict[str, ValueInfoProto] = {}
        self.values: dict[str, Value] = {}
        self.hints: dict[str, Any] = {}
        self.symbols: list[str] = []
        self.infos: list[ValueInfoProto] = []
        self.annotations: list[onnx.TensorAnnotation] = []
        self._count = 0

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.rng.random() < share

    def fresh(self, stem: str = "v") -> str:
        """A name that nothing has yet."""
        self._count += 1
        return f"{stem}_{self._count}"

    def add_input(self, elem: int, dims: Dims | None, name: str = "") -> str:
        """A new graph input."""
        name = name or self.fresh("in")
        self.inputs.append(helper.make_tensor_value_info(name, elem, dims))
        self.values[name] = Value(name, elem, dims)
        return name

    def constant(self, array: Any) -> str:
        """A new weight, or an equal one that is there already."""
        tensor = numpy_helper.from_array(np.asarray(array))
        for old in self.initializers:
            same = old.raw_data == tensor.raw_data and old.dims == tensor.dims and old.raw_data
            if same and old.data_type == tensor.data_type and self.chance(0.5):
                return str(old.name)
        tensor.name = self.fresh("w")
        self.initializers.append(tensor)
        return str(tensor.name)

    def minus_one(self) -> str:
        """A weight that makes a Reshape flat."""
        return self.constant(np.array([-1], np.int64))

    def node(self, op: str, inputs: Iterable[str], elem: int, dims: Dims | None, **attributes: Any) -> str:
        """A node with one output, which becomes a value."""
        name = self.fresh(op.lower())
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        self.values[name] = Value(name, elem, dims)
        return name

    def set_by(self, since: int, op: str, x: str, elem: int, dims: Dims | None, **given: Any) -> str:
        """A node with the numbers ``given`` as inputs; before the opset ``since`` as attributes."""
        if self.opset >= since:
            return self.node(op, [x, *map(self.constant, given.values())], elem, dims)
        return self.node(op, [x], elem, dims, **{name: array.tolist() for name, array in given.items()})

    def among(self, *elems: int, rank: int | None = None) -> list[Value]:
        """The values of some element types, and of a rank."""
        return [
            one
            for one in self.values.values()
            if (not elems or one.elem in elems)
            and (rank is None or (one.dims is not None and len(one.dims) == rank))
        ]

    def pick(self, *elems: int, rank: int | None = None) -> Value | None:
        """One of those values, more often a late one: chains find more than fans."""
        found = self.among(*elems, rank=rank)
        return self.rng.choice(found[-5:] if self.chance(0.7) else found) if found else None

    def any_float(self) -> Value:
        """A float value; a new input where there is none."""
        found = self.pick(F)
        return found if found is not None else self.values[self.add_input(F, self.some_dims())]

    def some_dims(self) -> Dims:
        """Sizes of a new input: small numbers, and names that inputs share."""
        made: list[int | str] = []
        for _ in range(self.rng.choice((1, 2, 2, 3, 3, 4))):
            if self.chance(0.35):
                if not self.symbols or self.chance(0.3):
                    self.symbols.append(f"N{len(self.symbols)}")
                made.append(self.rng.choice(self.symbols))
            else:
                made.append(self.rng.choice((1, 2, 3, 4, 8)))
        return tuple(made)

    @property
    def names(self) -> set[str]:
        """What the main graph defines."""
        found = {*self.values, *self.outputs, *(info.name for info in self.inputs)}
        return found | {one.name for one in self.initializers} | {one.values.name for one in self.sparse}

    def place(self, body: Body) -> None:
        """Put a body into the main graph. Its outputs become values where they are tensors, else graph outputs."""
        self.nodes += body.nodes
        self.initializers += body.initializers
        self.infos += body.infos
        known = self.names
        for info in body.outputs:
            kind = info.type.tensor_type
            if info.name in known:
                self.outputs[info.name] = copied(info)
            elif info.type.HasField("tensor_type") and kind.elem_type:
                self.values[info.name] = Value(info.name, kind.elem_type, dims_of(info))
            else:
                self.outputs[info.name] = copied(info)


def tensor_info(name: str, elem: int, dims: Dims | None) -> ValueInfoProto:
    """A declaration of a tensor."""
    return helper.make_tensor_value_info(name, elem, dims)


def declared(name: str, kind: TypeProto) -> ValueInfoProto:
    """A declaration of any type."""
    info = ValueInfoProto(name=name)
    info.type.CopyFrom(kind)
    return info
