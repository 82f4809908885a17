"""One call of an operator, and the table of the operators whose meaning is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, OperatorSetIdProto, helper

from onnxfix.files.walk import domain_of
from onnxfix.graph.signatures import schema_of
from onnxfix.proof.symbolic.tensor import T, Tensor, Undecided

Value: TypeAlias = "Tensor | tuple[Value, ...]"
"""A tensor, a sequence of values, or () for an optional that is empty."""
Meaning = Callable[["Call"], "Tensor | Sequence[Value] | Call | None"]
"""What an operator does: its outputs, another call of an unknown meaning that does the same, or None where this meaning
does not apply to the call."""
OPERATORS: dict[str, Meaning] = {}


def operator(*names: str) -> Callable[[Meaning], Meaning]:
    """Enter a function into ``OPERATORS`` as the meaning of some operators."""

    def enter(meaning: Meaning) -> Meaning:
        for name in names:
            OPERATORS[name] = meaning
        return meaning

    return enter


def versions_of(model: ModelProto) -> dict[str, int]:
    """The version of each domain's operator set."""
    return {"": 0, **{domain_of(one.domain): one.version for one in model.opset_import}}


def plain(attribute: AttributeProto) -> Any:
    """An attribute's value; texts are str."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [one.decode("utf-8", "replace") for one in value]
    return value


@cache
def defaults(op_type: str, domain: str, version: int) -> dict[str, Any]:
    """The values of attributes that are left out."""
    schema = schema_of(op_type, version, domain)
    attributes = schema.attributes.items() if schema is not None else ()
    return {name: plain(one.default_value) for name, one in attributes if one.default_value.type}


@dataclass(frozen=True)
class Call:
    """A node with values for its inputs (None: left out). ``version`` is that of its domain's operator set.
    ``as_real``: numbers are taken as real numbers, without rounding."""

    node: NodeProto
    version: int
    inputs: Sequence[Value | None]
    as_real: bool = False

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """All attributes but graphs, with ONNX's defaults."""
        values = dict(defaults(self.node.op_type, domain_of(self.node.domain), self.version))
        for one in self.node.attribute:
            if one.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                values[one.name] = plain(one)
        return values

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.node.op_type

    def stuck(self, reason: str, *inputs: int) -> Undecided:
        """An error that names the node, and the inputs that would have to be known."""
        node, names = self.node, [self.node.input[index] for index in inputs if self.has(index)]
        return Undecided(f"{node.op_type} ({node.output[0] if node.output else node.name}): {reason}", names)

    def has(self, index: int) -> bool:
        """Whether an input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int) -> Tensor:
        """An input that must be a tensor. Its hashes are of its values."""
        return self.ring(index).settled()

    def ring(self, index: int) -> Tensor:
        """As ``tensor``, for what commutes with wrapping around: sums and products."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if not isinstance(value, Tensor):
            raise self.stuck("an input is not a tensor")
        return value

    def known(self, index: int) -> np.ndarray[Any, Any] | None:
        """The elements of an input that is left out (None) or known."""
        if not self.has(index):
            return None
        tensor = self.tensor(index)
        if tensor.known is None:
            name = self.node.input[index]
            raise self.stuck(f"input {index} ({name}) is not known before the model runs", index)
        return tensor.known

    def axis(self, axis: int, rank: int) -> int:
        """The place of an axis that may be counted from the end."""
        if not -rank <= axis < rank:
            raise self.stuck(f"its input has no axis {axis}")
        return axis % rank

    def flag(self, name: str) -> bool:
        """An attribute that is 0 or 1."""
        value = self.attributes.get(name, 0)
        if value not in (0, 1):
            raise self.stuck(f"{name} is {value}")
        return bool(value)

    def integers(self, index: int, attribute: str = "") -> list[int] | None:
        """Integers from an input, or from an attribute of older operator sets; None where there are none."""
        if self.has(index):
            array = self.known(index)
            return [int(one) for one in np.ravel(array)] if array is not None else None
        given = self.attributes.get(attribute)
        return None if given is None else [int(one) for one in given]


def fold(call: Call, arrays: Sequence[np.ndarray[Any, Any] | None]) -> list[Any]:
    """The outputs of a call for known inputs, by ONNX's reference implementation."""
    if call.name == "ScatterND" and call.attributes.get("reduction", "none") == "none":
        data, indices, updates = map(np.asarray, arrays)
        scattered = data.copy()  # the reference implementation takes a step of Python for each index
        scattered[tuple(np.moveaxis(indices, -1, 0))] = updates
        return [scattered]
    node = NodeProto()
    node.CopyFrom(call.node)
    node.name = ""
    del node.input[:], node.output[:]
    node.input.extend("" if one is None else f"i{place}" for place, one in enumerate(arrays))
    node.output.extend("" if not name else f"o{place}" for place, name in enumerate(call.node.output))
    feeds = {f"i{place}": one for place, one in enumerate(arrays) if one is not None}
    kinds = tuple(
        (name, helper.np_dtype_to_tensor_dtype(one.dtype) if one.dtype != object else T.STRING)
        for name, one in feeds.items()
    )
    try:
        with np.errstate(all="ignore"):
            results = iter(_reference(node.SerializeToString(), call.version, kinds).run(None, feeds))
    except Exception as error:
        raise call.stuck(f"ONNX's reference implementation: {type(error).__name__}") from error
    return [next(results) if name else None for name in call.node.output]


@lru_cache(64)
def _reference(data: bytes, version: int, kinds: tuple[tuple[str, int], ...]) -> Any:
    """ONNX's reference implementation of a node, by its bytes."""
    from onnx.reference import ReferenceEvaluator  # lazy: start-up

    node = NodeProto.FromString(data)
    graph = helper.make_graph(
        [node],
        "fold",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    imports = [OperatorSetIdProto(domain=node.domain, version=version)]
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=imports))
