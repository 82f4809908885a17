"""What is alike in two graphs (attributes, types and constants), which nodes belong together, and the cause of what
differs: the rule behind it, or the operators that replaced others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto, TypeProto, helper

from onnxfix.errors import decoded
from onnxfix.files import tensors, walk
from onnxfix.files.dtypes import name_of
from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.place import Place
from onnxfix.rewrite.changes.state import marks
from onnxfix.verbs.difference.records import ChangeGroup, ModelChange, Sign

MOST = 16
"""Maximum number of elements of a constant or list that are shown as values."""
_NO_LIMIT = 1 << 62
"""A size in bytes that nothing exceeds: contents of any size are compared, one pair at a time."""
_SLICE_ENDS = {2**63 - 1: "end", -(2**63): "start"}


def same_tensor(first: TensorProto, base: Path | None, second: TensorProto, second_base: Path | None) -> bool:
    """Whether two tensors have the same type, shape and bits, wherever they are stored."""
    if first.data_type != second.data_type or list(first.dims) != list(second.dims):
        return False
    if first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True) and (
        base == second_base or not tensors.is_external(first)
    ):
        return True
    left, right = tensors.to_array(first, base, _NO_LIMIT), tensors.to_array(second, second_base, _NO_LIMIT)
    if left is None or right is None:
        return serialize_without(first, "name", "doc_string") == serialize_without(
            second, "name", "doc_string"
        )
    return same_array(left, right)


def same_array(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.hasobject:
        return bool((left == right).all())
    bits = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (left, right)]
    return bool(np.array_equal(bits[0], bits[1]))


def serialize_without(message: Any, *fields: str) -> bytes:
    """The bytes of a message without some of its fields."""
    copy = walk.copied(message)
    for field in fields:
        copy.ClearField(field)
    return bytes(copy.SerializeToString(deterministic=True))


def tensor_text(tensor: TensorProto, base: Path | None) -> str:
    """Type and values of a small tensor, type and shape of a larger one."""
    if tensors.element_count(tensor.dims) <= MOST:
        array = tensors.to_array(tensor, base, _NO_LIMIT)
        if array is not None:
            return f"{name_of(tensor.data_type)} {array_text(array)}"
    return f"{name_of(tensor.data_type)}[{','.join(map(str, tensor.dims))}]"


def array_text(array: np.ndarray[Any, Any]) -> str:
    """The values of an array."""
    if array.ndim == 0:
        return _number(array.item())
    # Elements of a string array lose its type, so that asarray needs it.
    return f"[{','.join(array_text(np.asarray(part, array.dtype)) for part in array)}]"


def constant_text(value: Value) -> str:
    """The text of a constant, as from ``tensor_text``; "constant" for a sparse one."""
    base = value.scope.model.base_dir
    tensor = tensor_of(value)
    if tensor is not None:
        return tensor_text(tensor, base)
    array = value.constant()
    if array is None or array.size > MOST:
        return "constant" if array is None else f"{array.dtype}[{','.join(map(str, array.shape))}]"
    return f"{array.dtype} {array_text(array)}".replace("object", "string").replace("float32", "float")


def same_constant(first: Value, second: Value) -> bool:
    """Whether two constants have the same type, shape and bits."""
    left, right = tensor_of(first), tensor_of(second)
    if left is not None and right is not None:
        return same_tensor(left, first.scope.model.base_dir, right, second.scope.model.base_dir)
    arrays = first.constant(_NO_LIMIT), second.constant(_NO_LIMIT)
    return arrays[0] is not None and arrays[1] is not None and same_array(arrays[0], arrays[1])


def tensor_of(value: Value) -> TensorProto | None:
    """The tensor that stores a constant; None for a sparse one, and for numbers of a Constant node."""
    if value.initializer is not None:
        return value.initializer
    node = value.producer
    for attribute in node.proto.attribute if node is not None else ():
        if attribute.name == "value" and attribute.HasField("t"):
            return attribute.t
    return None


def same_attribute(first: AttributeProto, second: AttributeProto, nodes: tuple[Node, Node]) -> bool:
    """Whether two attributes of two nodes have the same contents; the insides of graphs are compared elsewhere."""
    if first.type != second.type or first.ref_attr_name != second.ref_attr_name:
        return False
    if first.type == AttributeProto.TENSOR:
        return same_tensor(first.t, nodes[0].model.base_dir, second.t, nodes[1].model.base_dir)
    if first.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return len(first.graphs) == len(second.graphs)
    return serialize_without(first, "doc_string") == serialize_without(second, "doc_string")


def attribute_text(attribute: AttributeProto | None, node: Node) -> str:
    """The text of an attribute's value; "" for a missing attribute."""
    if attribute is None:
        return ""
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    if attribute.type == AttributeProto.TENSOR:
        return tensor_text(attribute.t, node.model.base_dir)
    if attribute.type == AttributeProto.GRAPH:
        return f"graph of {len(attribute.g.node)} nodes"
    if attribute.type not in _PLAIN:
        return AttributeProto.AttributeType.Name(attribute.type).lower().replace("_", " ")
    value = helper.get_attribute_value(attribute)
    if attribute.name in ("to", "dtype") and isinstance(value, int):
        return name_of(value)
    if isinstance(value, (int, float, bytes, str)):
        return _number(value)
    items = list(value)
    return (
        f"[{','.join(map(_number, items[:MOST]))}{f',… {len(items)} elements' if len(items) > MOST else ''}]"
    )


_PLAIN = {getattr(AttributeProto, name) for name in ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS")}


def _number(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return f"{value:.9g}"
    return _SLICE_ENDS.get(value, str(value)) if isinstance(value, int) else str(value)


def type_text(kind: TypeProto) -> str:
    """A declared type, such as ``float[batch,3,224,224]``."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        tensor = kind.tensor_type
        if not tensor.HasField("shape"):
            return f"{name_of(tensor.elem_type)} of any shape"
        dims = (
            dim.dim_param or (str(dim.dim_value) if dim.HasField("dim_value") else "?")
            for dim in tensor.shape.dim
        )
        return f"{name_of(tensor.elem_type)}[{','.join(map(decoded, dims))}]"
    if which in ("sequence_type", "optional_type"):
        inner = getattr(kind, which).elem_type
        return f"{which.removesuffix('_type')}({type_text(inner)})"
    return (which or "untyped").removesuffix("_type")


_CONSTANTS = ("constant", "initializer")
_EXAMPLES = 3
_STEPS = 64
"""Nodes between one that is gone and the next that is left."""


def operator_name(node: Node) -> str:
    """The operator, with its domain where that is not ONNX's."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


class Pairs:
    """The nodes of a graph of one model and of the graph in its place in another, in pairs.

    Nodes belong together by their first output. Those that are left: by name and operator, then by operator, inputs and
    attributes, each where that is unique. ``renamed`` are the outputs of pairs whose names differ, old to new.
    """

    def __init__(self, before: Scope, after: Scope) -> None:
        self.before, self.after = before, after
        self.to: dict[Node, Node] = {}
        self.renamed: dict[str, str] = {}
        self._pair(lambda node: node.first_output)
        self._pair(lambda node: (node.domain, node.op_type, node.name) if node.name else None)
        self._name()
        self._pair(content_of)
        self._name()
        self.back = {new: old for old, new in self.to.items()}

    def _pair(self, key: Callable[[Node], Hashable]) -> None:
        taken = set(self.to.values())
        left = _unique((node for node in self.before.nodes if node not in self.to), key)
        right = _unique((node for node in self.after.nodes if node not in taken), key)
        self.to.update((node, right[one]) for one, node in left.items() if one in right)

    def _name(self) -> None:
        for old, new in self.to.items():
            names = zip(old.proto.output, new.proto.output, strict=False)
            self.renamed.update((one, other) for one, other in names if one != other and one and other)


def _unique(nodes: Iterable[Node], key: Callable[[Node], Hashable]) -> dict[Hashable, Node]:
    """Nodes by a key that no other one has; without those that have none."""
    found: dict[Hashable, Node | None] = {}
    for node in nodes:
        one = key(node)
        if one is not None and one != "":
            found[one] = None if one in found else node
    return {one: node for one, node in found.items() if node is not None}


def content_of(node: Node) -> Hashable:
    """Operator, inputs and attributes: equal for nodes that compute the same."""
    attributes = sorted(one.SerializeToString(deterministic=True) for one in node.proto.attribute)
    return node.domain, node.op_type, tuple(node.proto.input), tuple(attributes)


class Reasons:
    """The rules behind each difference.

    Args:
        applied: code and place of each fix that is known to be in the second model; the marks in its nodes count too.
    """

    def __init__(self, applied: Iterable[tuple[str, Place]] = ()) -> None:
        self._applied: dict[tuple[tuple[str, ...], str], set[str]] = {}
        for code, place in applied:
            self._applied.setdefault((place.graph, place.output), set()).add(code)

    def of_pair(self, old: Node, new: Node) -> tuple[str, ...]:
        """Why a node changed: by its marks, or by the fixes for it, or for what it no longer reads."""
        found = (marks(new) - marks(old)) | self._at(old) | self._at(new)
        if not found:
            reads = set(new.proto.input)
            gone = [one.producer for one in old.inputs if one is not None and one.name not in reads]
            found = {code for node in gone if node is not None for code in self._at(node)}
        return tuple(sorted(found))

    def of_added(self, node: Node, pairs: Pairs) -> tuple[str, ...]:
        """Why a node is new: by its own mark, or by those of the nodes that read it. A fix for the node itself comes
        last: it changed what another fix had made."""
        found = marks(node) or self._near(node.outputs, pairs.back, old=False) or self._at(node)
        return tuple(sorted(found))

    def of_removed(self, node: Node, pairs: Pairs) -> tuple[str, ...]:
        """Why a node is gone: a fix was for it, or changed what read it, or else what it read."""
        found = self._at(node) or self._near(node.outputs, pairs.to, old=True)
        if not found:
            for value in node.inputs:
                producer = value.producer if value is not None else None
                if producer is not None and producer in pairs.to:
                    found |= set(self.of_pair(producer, pairs.to[producer]))
        return tuple(sorted(found))

    def of_value(self, value: Value | None, pairs: Pairs, *, old: bool) -> tuple[str, ...]:
        """Why a constant is new, or gone (``old``): a fix changed what reads it."""
        return tuple(sorted(self._near([value], pairs.to if old else pairs.back, old=old)))

    def _at(self, node: Node) -> set[str]:
        return self._applied.get((node.scope.trail, node.first_output), set())

    def _near(self, values: Iterable[Value | None], twins: dict[Node, Node], *, old: bool) -> set[str]:
        """The rules that touched the nearest nodes downstream, of those that both models have or that a fix names."""
        found: set[str] = set()
        later: set[str] = set()
        edge = [use.node for value in values if value is not None for use in value.uses]
        seen: set[Node] = set()
        while edge and len(seen) < _STEPS:
            node = edge.pop()
            if node in seen:
                continue
            seen.add(node)
            twin = twins.get(node)
            if twin is not None:
                found |= set(self.of_pair(node, twin) if old else self.of_pair(twin, node))
                continue
            own = self._at(node) if old else marks(node)
            found |= own
            later |= self._at(node)
            if not own:
                edge += [use.node for value in node.outputs if value is not None for use in value.uses]
        return found or later


def find_regions(pairs: Pairs, numbers: dict[Node, int]) -> dict[Node, int]:
    """The nodes of a graph that belong together, by a number: connected ones that are gone, those that took their
    place, and the readers of both. A value of the same name ends a region: both graphs compute it. ``numbers`` has the
    regions of the whole model, by a node of each."""
    twins = pairs.to
    replaced = {old for old, new in twins.items() if operator_name(old) != operator_name(new)}
    whole = {*replaced, *(twins[old] for old in replaced)}
    gone = [node for node in pairs.before.nodes if node not in twins or node in whole]
    new = [node for node in pairs.after.nodes if node not in pairs.back or node in whole]
    joined = [node for node in (*gone, *new) if node.op_type != "Constant"]
    above = {node: node for node in joined}

    def first(node: Node) -> Node:
        while above[node] is not node:
            above[node] = node = above[above[node]]
        return node

    def join(one: Node | None, other: Node | None) -> None:
        if one in above and other in above:
            above[first(other)] = first(one)

    for node in joined:
        for producer in _producers(node):
            join(producer if producer not in whole else None, node)
    for old, twin in twins.items():
        join(old, twin)
        for one, other in zip(_producers(old), _producers(twin), strict=False):
            join(one, other)
    regions = {node: numbers.setdefault(first(node), len(numbers)) for node in joined}
    for old, twin in twins.items():  # a reader belongs to one region, and connects it with no other one
        reads = chain(_producers(old), _producers(twin))
        if near := next((node for node in reads if node in above and node not in whole), None):
            regions.setdefault(old, regions[near])
    return regions


def _producers(node: Node) -> list[Node | None]:
    return [value.producer if value is not None else None for value in node.inputs]


def group(changes: Sequence[ModelChange]) -> tuple[ChangeGroup, ...]:
    """The changes of nodes and constants by their cause, the largest group first. Of several rules, the one behind
    most changes counts."""
    often = Counter(code for change in changes for code in change.rules)
    by_region: dict[tuple[str, object], list[int]] = {}
    for number, change in enumerate(changes):
        rule = min(change.rules, key=lambda code: (-often[code], code), default="")
        region: object = (change.region,) if change.region >= 0 else number
        if change.subject == "node" or (rule and change.subject in _CONSTANTS):
            by_region.setdefault((rule, region), []).append(number)
        elif change.subject in _CONSTANTS:
            by_region.setdefault(("", "constants"), []).append(number)
    alike: dict[object, list[list[int]]] = {}
    for (rule, _), numbers in by_region.items():
        alike.setdefault(rule or _kind(changes[number] for number in numbers), []).append(numbers)
    groups = (_sum(kind if isinstance(kind, str) else "", some, changes) for kind, some in alike.items())
    return tuple(sorted(groups, key=lambda one: (-len(one.changes), one.rule)))


def _kind(changes: Iterable[ModelChange]) -> tuple[object, ...]:
    """Equal for regions in which the same happened."""
    counts = Counter(
        (change.sign, *operators_of(change), *(detail.name for detail in change.details))
        for change in changes
        if change.subject == "node"
    )
    return tuple(sorted(counts.items()))


def operators_of(change: ModelChange) -> tuple[str, ...]:
    """The operator of a changed node, or the two of one that became another operator."""
    other = next(((one.before, one.after) for one in change.details if one.name == "operator"), None)
    return other or (change.place.op_type,)


def _sum(rule: str, regions: Sequence[Sequence[int]], changes: Sequence[ModelChange]) -> ChangeGroup:
    numbers = [*chain.from_iterable(regions)]
    counts: dict[Sign, Counter[str]] = {"removed": Counter(), "added": Counter(), "changed": Counter()}
    for change in (changes[number] for number in numbers if changes[number].subject == "node"):
        before, *after = operators_of(change)
        counts["removed" if after else change.sign][before] += 1
        counts["added"].update(after)
    removed, added, changed = (dict(one.most_common()) for one in counts.values())
    nodes = (next((at for at in some if changes[at].subject == "node"), None) for some in regions)
    examples = tuple(at for at in nodes if at is not None)[:_EXAMPLES] or tuple(numbers[:1])
    return ChangeGroup(rule, len(regions), removed, added, changed, tuple(sorted(numbers)), examples)
