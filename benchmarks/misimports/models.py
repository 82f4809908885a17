"""Models that were changed: what was changed, and how a copy of a model is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

#: The largest input of integers or booleans that gets other values.
SMALL = 8


@dataclass(frozen=True)
class Change:
    """What was changed: ``operator`` and ``name`` of the attribute or input, its new ``value``; ``node`` counts the
    nodes as ``nodes`` yields them, -1 where the whole model was changed."""

    kind: str
    operator: str = ""
    name: str = ""
    value: str = ""
    node: int = -1

    def __str__(self) -> str:
        """In few words: ``upper dropped``, ``axis=-1``."""
        if not self.name:
            return self.kind
        return f"{self.name}={self.value}" if self.value else f"{self.name} {self.kind}"


@dataclass(frozen=True)
class Variant:
    """A model with its inputs. ``base`` says of what it is a change; "" for the model as it is."""

    case: str
    base: str
    change: Change
    model: ModelProto
    feed: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """Case, base and change."""
        return " / ".join(one for one in (self.case, self.base, str(self.change)) if one)


def nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes, those of subgraphs after the node that holds them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes(attribute.g)


AS_IS = Change("as it is")
#: The kind of a change to a value of which ONNX does not say what it means.
UNDOCUMENTED = "undocumented value"


def tensor_of(array: Any, name: str, element: int) -> onnx.TensorProto:
    """A tensor of ONNX's type ``element``."""
    if array.dtype.kind in "US":
        return helper.make_tensor(
            name, element, array.shape, [str(one).encode() for one in array.reshape(-1)]
        )
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def copied(model: ModelProto) -> ModelProto:
    """A copy to change."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def retyped(model: ModelProto) -> ModelProto:
    """The model (changed in place) without what it declared of tensors inside and of the sizes of its outputs."""
    del model.graph.value_info[:]
    for info in model.graph.output:
        if info.type.HasField("tensor_type"):
            for dim in info.type.tensor_type.shape.dim:
                dim.Clear()
    return model
