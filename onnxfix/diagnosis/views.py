"""A graph as matching looks at it: nodes in one form, contents of constants, and classes of equal computations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from onnxfix.diagnosis.canonical import SHAPED, THROUGH, Content, Role, node_content, role, tensor_content
from onnxfix.diagnosis.fingerprints import Fingerprint
from onnxfix.diagnosis.graph import Graph

SINGLE = THROUGH | {"Cast"}
"""Operators of which one more or less says nothing."""
_SHIFTED = {
    "Gemm": 2,
    "Conv": 2,
    "ConvTranspose": 2,
    "LayerNormalization": 2,
    "BatchNormalization": 2,
    "InstanceNormalization": 2,
    "GroupNormalization": 2,
}
"""Operators that add a weight in the end, and the number of that input."""


class View:
    """One model. ``tensors`` are the computed ones in the order of computation, ``at`` has each one's node and the
    number of the output. ``prints`` are fingerprints of a run."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.prints: Mapping[str, Fingerprint] = {}
        opset = next((one.version for one in graph.proto.opset_import if one.domain in ("", "ai.onnx")), 1)
        self.roles = [role(node, opset, reads) for node, reads in zip(graph.nodes, graph.reads, strict=True)]
        self.at = {
            name: (number, index)
            for number, node in enumerate(graph.nodes)
            if node.op_type != "Constant"
            for index, name in enumerate(node.output)
            if name
        }
        self.tensors = list(self.at)
        self._contents: dict[str, Content | None] = {}

    def role(self, name: str) -> Role | None:
        """The role of a value's node; None for inputs and constants."""
        return self.roles[self.at[name][0]] if name in self.at else None

    def op(self, name: str) -> str:
        """The operator of a value's node; "" for inputs and constants."""
        found = self.role(name)
        return found.op if found is not None else ""

    def source(self, name: str) -> str:
        """The value that this one is a copy of: before Identity, Cast and Dropout."""
        while name in self.at and self.at[name][1] == 0 and self.op(name) in SINGLE:
            name = self.roles[self.at[name][0]].data[0][1]
        return name

    def content(self, name: str) -> Content | None:
        """What a constant contains, also one that is copied or transposed by a node; None for what is computed."""
        if name not in self._contents:
            self._contents[name] = self._content(name)
        return self._contents[name]

    def _content(self, name: str) -> Content | None:
        graph = self.graph
        if name in graph.producer:
            node = graph.nodes[graph.producer[name]]
            if node.op_type == "Constant":
                return node_content(node, graph.folder)
            if node.op_type in SINGLE and node.input:
                return self.content(node.input[0])
            if node.op_type == "Transpose":
                inner = self.content(node.input[0])
                if inner is not None and inner.turned != inner.key:
                    return Content(inner.turned, inner.key, None, inner.marked, inner.size)
            return None
        return tensor_content(graph.weights[name], graph.folder) if name in graph.weights else None

    def is_constant(self, name: str) -> bool:
        """Whether it is a constant, or a copy of one."""
        return self.graph.is_constant(name) or self.content(name) is not None

    def weights(self, number: int) -> Iterator[tuple[int, Content]]:
        """The contents of a node's constant inputs that other tensors are unlikely to have by chance."""
        for index, name in self.roles[number].data:
            found = self.content(name)
            if found is not None and found.marked:
                yield index, found

    def signals(self, number: int) -> list[str]:
        """The values that a node computes on, without constants."""
        return [name for _, name in self.roles[number].data if not self.is_constant(name)]

    def weight_uses(self) -> Iterator[tuple[Any, str]]:
        """Computed values with what makes them recognizable: the weight that their node uses last, and how. A bias is
        added alike by Add, by Gemm, by Conv and by a normalization."""
        for name, (number, index) in self.at.items():
            found = list(self.weights(number))
            if index or not found or self.is_constant(name):
                continue
            one, (slot, content) = self.roles[number], found[-1]
            key = content.turned if dict(one.attributes).get("transB") else content.key
            if one.op == "Add" or _SHIFTED.get(one.op) == slot:
                yield ("sum", content.key), name
            elif one.op == "MatMul" or one.op == "Gemm":
                yield ("product", slot, key), name
            else:
                yield (one.op, None if one.commutative else slot, content.key), name

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """The nodes that read each value, in their subgraphs too."""
        found: dict[str, list[int]] = {}
        for number, names in enumerate(self.graph.reads):
            for name in names:
                found.setdefault(name, []).append(number)
        return found


class Classes:
    """Numbers of classes of equal computations: values with the same number are computed by the same operators from the
    same inputs and constants, in one model or in both. Values that are paired share a number."""

    def __init__(self, a: View, b: View, pairs: Mapping[str, str]) -> None:
        self._first = a
        self._ids: dict[Any, int] = {}
        self.a = self._numbered(a, {})
        self.b = self._numbered(b, {theirs: self.a[ours] for theirs, ours in pairs.items() if ours in self.a})

    def of(self, view: View) -> Mapping[str, int]:
        """The numbers of one model's values."""
        return self.a if view is self._first else self.b

    def sources(self, view: View, number: int) -> list[int]:
        """The classes of the values that a node computes on, before Casts; constants left out."""
        numbers = self.of(view)
        return [numbers[view.source(name)] for name in view.signals(number) if view.source(name) in numbers]

    def _id(self, key: Any) -> int:
        return self._ids.setdefault(key, len(self._ids))

    def _numbered(self, view: View, known: Mapping[str, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        renumbered: dict[int, int] = {}  # the class of a paired value, as its own computation has it
        for name in view.graph.inputs:
            found[name] = known.get(name, self._id(("input", name)))
        for number, node in enumerate(view.graph.nodes):
            if node.op_type == "Constant":
                continue
            for index, name in enumerate(node.output):
                if not name:
                    continue
                own = self._class(view, number, index, name, found)
                if name in known:
                    if known[name] != own:
                        renumbered.setdefault(own, known[name])
                    found[name] = known[name]
                else:
                    found[name] = renumbered.get(own, own)
        return found

    def _value(self, view: View, name: str, found: Mapping[str, int]) -> int:
        if name in found and name in view.graph.varying:
            return found[name]
        content = view.content(name)
        if content is not None:
            return self._id(content.key)
        seen = view.prints.get(name)
        if name not in view.graph.varying and seen is not None and seen.small is not None:
            return self._id(("whole", seen.shape if len(seen.small) != 1 else (), seen.small))
        return found[name] if name in found else self._id(("unknown", id(view), name))

    def _class(self, view: View, number: int, index: int, name: str, found: Mapping[str, int]) -> int:
        one = view.roles[number]
        if one.op in THROUGH and index == 0:
            return self._value(view, one.data[0][1], found)
        if one.op == "Gemm" and not set(dict(one.attributes)) - {"transB"}:
            return self._gemm(view, one, found)
        data = [(slot, self._value(view, value, found)) for slot, value in one.data]
        inputs = tuple(sorted(value for _, value in data)) if one.commutative else tuple(data)
        how = (*_ranked(view, one, name), *self._parameters(view, one, name, found))
        return self._id((one.op, how, inputs, index))

    def _gemm(self, view: View, one: Role, found: Mapping[str, int]) -> int:
        """Gemm as a product and a sum, as other exporters write it."""
        values = dict(one.data)
        weight = view.content(values[1])
        right = self._value(view, values[1], found)
        if dict(one.attributes).get("transB"):
            right = self._id(weight.turned) if weight is not None else self._id(("Transpose", right))
        product = self._id(("MatMul", (), ((0, self._value(view, values[0], found)), (1, right)), 0))
        if 2 not in values:
            return product
        terms = tuple(sorted((product, self._value(view, values[2], found))))
        return self._id(("Add", (), terms, 0))

    def _parameters(self, view: View, one: Role, name: str, found: Mapping[str, int]) -> list[Any]:
        if one.op in SHAPED and name in view.prints:
            return [("shape", view.prints[name].shape)]
        rank = _rank(view, one, name)
        listed: list[Any] = [
            (slot, _listed(value, rank if _has_axes(one.op, slot) else None)) for slot, value in one.fixed
        ]
        for slot, value in one.parameters:
            content, seen = view.content(value), view.prints.get(value)
            small = content.small if content is not None else seen.small if seen is not None else None
            if small is not None:
                listed.append((slot, _listed(small, rank if _has_axes(one.op, slot) else None)))
            else:
                listed.append((slot, self._value(view, value, found)))
        return sorted(listed, key=repr)


def _has_axes(op: str, slot: int) -> bool:
    """Whether this parameter is a list of axes."""
    return (slot == 1 and (op in ("Squeeze", "Unsqueeze") or op.startswith("Reduce"))) or (
        op == "Slice" and slot == 3
    )


def _listed(value: Any, rank: int | None) -> tuple[Any, ...]:
    """A parameter in one form, whether it was an attribute or an input; axes counted from the front."""
    values = value if isinstance(value, tuple) else (value,)
    if rank:
        return tuple(sorted(int(one) % rank for one in values))
    return tuple(float(f"{one:.5g}") if isinstance(one, (int, float)) else one for one in values)


def _rank(view: View, one: Role, name: str) -> int | None:
    source = name if one.op == "Unsqueeze" else one.data[0][1] if one.data else ""
    seen = view.prints.get(source)
    return len(seen.shape) if seen is not None else None


def _ranked(view: View, one: Role, name: str) -> tuple[Any, ...]:
    """The attributes, with an axis counted from the front where the rank is known."""
    rank = _rank(view, one, name)
    if not rank:
        return one.attributes
    return tuple(
        (key, value % rank) if key == "axis" and isinstance(value, int) else (key, value)
        for key, value in one.attributes
    )
