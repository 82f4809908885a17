"""The graph into which pieces are put: values with their types and sizes, weights, functions, fresh names."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from random_models.pieces import Dims, copied, dims_of

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

    def import_domain(self, domain: str, version: int) -> bool:
        """Import a domain; False where another version of it is imported."""
        return self.imports.setdefault(domain, version) == version


def tensor_info(name: str, elem: int, dims: Dims | None) -> ValueInfoProto:
    """A declaration of a tensor."""
    return helper.make_tensor_value_info(name, elem, dims)


def declared(name: str, kind: TypeProto) -> ValueInfoProto:
    """A declaration of any type."""
    info = ValueInfoProto(name=name)
    info.type.CopyFrom(kind)
    return info
