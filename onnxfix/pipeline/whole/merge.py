"""Merging a graph that a tool wrote with the original: what the tool loses or rewrites on its own is restored.

``faithful`` is the original as the tool writes it when it changes nothing. Where the tool's result equals that, the
original's own bytes are kept; where it differs, the change was intended and is kept. For a tool that cannot do so it is
None: then the original's bytes replace whatever is equal to them in meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onnxfix import walk
from onnxfix.errors import ModelError
from onnxfix.files import lazy, tensors

M = TypeVar("M")


def same(first: Any, second: Any) -> bool:
    """Whether two messages are equal field by field, to the bit."""
    return bool(first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True))


def graph_nodes(
    original: GraphProto | FunctionProto,
    result: GraphProto | FunctionProto,
    faithful: GraphProto | FunctionProto | None,
    base_dir: Path | None,
) -> list[NodeProto]:
    """The result's nodes in its order; those equal to an original node are that node, byte for byte."""
    old, kept = _by_outputs(original.node), _by_outputs(faithful.node) if faithful is not None else None
    found = []
    for node in result.node:
        before = old.get(_key(node))
        if before is None:
            found.append(node)
        elif kept is not None and (twin := kept.get(_key(node))) is not None:
            found.append(before if same(twin, node) else _touched(before, node, twin, base_dir))
        else:
            found.append(_touched(before, node, None, base_dir))
    return found if faithful is not None else _in_old_order(found, original.node)


def _in_old_order(nodes: list[NodeProto], original: Iterable[NodeProto]) -> list[NodeProto]:
    """The nodes in their old order, as far as dependencies allow; a new one stays behind its neighbor.

    onnxsim returns Constant nodes in another order each time, and a second run must change nothing.
    """
    places = {_key(node): place for place, node in enumerate(original)}
    rank, last = [], -1
    for node in nodes:
        last = places.get(_key(node), last)
        rank.append(last)
    return [nodes[number] for number in walk.order(nodes, rank)]


def _key(node: NodeProto) -> tuple[str, ...]:
    """A node's identity, its outputs: names of values are unique in a graph, names of nodes need not be."""
    return tuple(node.output)


def _by_outputs(nodes: Iterable[NodeProto]) -> dict[tuple[str, ...], NodeProto]:
    return {_key(node): node for node in nodes if any(node.output)}


def _touched(before: NodeProto, node: NodeProto, twin: NodeProto | None, base_dir: Path | None) -> NodeProto:
    """A node that may have changed, with what the tool lost of the original one."""
    if (before.domain, before.op_type) != (node.domain, node.op_type):
        return node
    merged = NodeProto()
    merged.CopyFrom(before)
    merged.input[:] = node.input
    if _trimmed(before.input) == _trimmed(node.input):
        merged.input[:] = before.input
    del merged.attribute[:]
    merged.attribute.extend(_attributes(before, node, twin, base_dir))
    if twin is None or node.name == twin.name:
        return merged
    merged.name = node.name  # renamed on purpose
    return merged


def _trimmed(names: Iterable[str]) -> list[str]:
    found = list(names)
    while found and not found[-1]:
        found.pop()
    return found


def _attributes(
    before: NodeProto, node: NodeProto, twin: NodeProto | None, base_dir: Path | None
) -> Iterator[AttributeProto]:
    """The node's attributes in the original's order, new ones last."""
    new = {attribute.name: attribute for attribute in node.attribute}
    kept = {attribute.name: attribute for attribute in twin.attribute} if twin is not None else {}
    for old in before.attribute:
        now, faithful = new.pop(old.name, None), kept.get(old.name)
        if now is None:
            if twin is not None and faithful is None:
                yield old  # of a kind that the tool does not support
        elif faithful is not None and same(faithful, now):
            yield old
        else:
            yield _attribute(old, now, faithful, base_dir)
    yield from new.values()


def _attribute(
    old: AttributeProto, now: AttributeProto, faithful: AttributeProto | None, base_dir: Path | None
) -> AttributeProto:
    if old.type != now.type:
        return now
    if old.HasField("t") and now.HasField("t"):
        return old if same_tensor(old.t, now.t, base_dir) else now
    if old.HasField("g") and now.HasField("g"):
        merged = AttributeProto()
        merged.CopyFrom(old)
        twin = faithful.g if faithful is not None and faithful.HasField("g") else None
        body(merged.g, old.g, now.g, twin, base_dir)
        return merged
    plain = AttributeProto()
    plain.CopyFrom(old)
    plain.doc_string = now.doc_string
    return old if same(plain, now) else now


def body(
    merged: GraphProto,
    original: GraphProto,
    result: GraphProto,
    faithful: GraphProto | None,
    base_dir: Path | None,
) -> None:
    """Make ``merged``, a copy of ``original``, the subgraph of a node as in the result."""
    for name in ("input", "output"):
        old, new = getattr(original, name), getattr(result, name)
        kept = getattr(faithful, name) if faithful is not None else None
        fill(merged, name, [*declarations(old, new, kept)])
    fill(merged, "node", graph_nodes(original, result, faithful, base_dir))
    fill(merged, "initializer", initializers(original, result, faithful, base_dir))
    fill(merged, "sparse_initializer", sparse(original, result, faithful))
    fill(
        merged,
        "value_info",
        value_infos(original, result, faithful, walk.defined(original) - walk.defined(merged)),
    )


def fill(graph: GraphProto, name: str, items: Sequence[Any]) -> None:
    """Set a repeated field of the graph to copies of these messages."""
    container = getattr(graph, name)
    copies = [_copy(item) for item in items]
    del container[:]
    container.extend(copies)


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def declarations(
    original: Iterable[ValueInfoProto],
    result: Iterable[ValueInfoProto],
    faithful: Iterable[ValueInfoProto] | None,
) -> Iterator[ValueInfoProto]:
    """Inputs or outputs in the result's order, declared as in the original unless the change was intended."""
    old = {info.name: info for info in original}
    kept = {info.name: info for info in faithful} if faithful is not None else None
    for info in result:
        before = old.get(info.name)
        if before is None:
            yield info
        elif kept is None:
            yield before if agree(before.type, info.type) else info
        else:
            twin = kept.get(info.name)
            yield before if twin is not None and same(twin, info) else info


def agree(first: TypeProto, second: TypeProto) -> bool:
    """Whether two declarations are compatible: what both of them state is the same."""
    kinds = first.WhichOneof("value"), second.WhichOneof("value")
    if None in kinds or kinds[0] != kinds[1]:
        return None in kinds
    if kinds[0] != "tensor_type":
        return True
    one, other = first.tensor_type, second.tensor_type
    if one.elem_type and other.elem_type and one.elem_type != other.elem_type:
        return False
    if not (one.HasField("shape") and other.HasField("shape")):
        return True
    if len(one.shape.dim) != len(other.shape.dim):
        return False
    pairs = zip(one.shape.dim, other.shape.dim, strict=True)
    return not any(
        a.HasField("dim_value") and b.HasField("dim_value") and a.dim_value != b.dim_value for a, b in pairs
    )


def initializers(
    original: GraphProto, result: GraphProto, faithful: GraphProto | None, base_dir: Path | None
) -> list[TensorProto]:
    """The result's weights: unchanged ones as they were stored (external where they were), in the same order."""
    return _listed(
        original.initializer,
        result.initializer,
        faithful.initializer if faithful is not None else None,
        lambda tensor: tensor.name,
        lambda old, new: same_tensor(old, new, base_dir),
        _defined(result),
    )


def sparse(original: GraphProto, result: GraphProto, faithful: GraphProto | None) -> list[Any]:
    """Sparse weights. One that is still read and that the tool lost is restored."""
    found = _listed(
        original.sparse_initializer,
        result.sparse_initializer,
        faithful.sparse_initializer if faithful is not None else None,
        lambda tensor: tensor.values.name,
        same,
        _defined(result),
    )
    names = {tensor.values.name for tensor in found} | _defined(result)
    needed = {name for node in result.node for name in node.input} - names
    return found + [tensor for tensor in original.sparse_initializer if tensor.values.name in needed]


def _listed(
    original: Sequence[M],
    result: Sequence[M],
    faithful: Sequence[M] | None,
    name: Callable[[M], str],
    equal: Callable[[M, M], bool],
    defined: set[str],
) -> list[M]:
    """Named items: the original's that are left, in its order, then the new ones.

    Items that the tool drops even when it changes nothing are restored, unless the result reuses their names.
    """
    new = {name(item): item for item in result}
    kept = {name(item) for item in faithful} if faithful is not None else None
    found = []
    for item in original:
        now = new.pop(name(item), None)
        if now is not None:
            found.append(item if equal(item, now) else now)
        elif kept is not None and name(item) not in kept and name(item) not in defined:
            found.append(item)
    return found + list(new.values())


def _defined(graph: GraphProto) -> set[str]:
    """Names that the nodes and weights of a graph define."""
    names = {output for node in graph.node for output in node.output}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    return names - {""}


def value_infos(
    original: GraphProto, result: GraphProto, faithful: GraphProto | None, removed: set[str]
) -> list[ValueInfoProto]:
    """Declarations of inner values: the original's, except for ``removed`` values, and intended new ones.

    Declarations that a tool inferred are left out: the original does not have them.
    """
    new = {info.name: info for info in result.value_info}
    kept = {info.name: info for info in faithful.value_info} if faithful is not None else {}
    found = []
    for info in original.value_info:
        now, twin = new.pop(info.name, None), kept.get(info.name)
        if info.name in removed:
            continue
        if now is None:
            if faithful is None or twin is None:
                found.append(info)
        elif twin is not None and not same(twin, now):
            found.append(now)
        else:
            found.append(info if faithful is not None or agree(info.type, now.type) else now)
    if faithful is not None:
        wanted = (i for i in new.values() if i.name not in kept or not same(kept[i.name], i))
        found += [info for info in wanted if info.name not in removed]
    return found


def same_tensor(old: TensorProto, new: TensorProto, base_dir: Path | None) -> bool:
    """Whether two tensors have the same bits, however they are stored."""
    if old.data_type != new.data_type or list(old.dims) != list(new.dims):
        return False
    if same(old, new):
        return True
    if old.data_type == TensorProto.STRING:
        return list(old.string_data) == list(new.string_data)
    first, second = _bits(old, base_dir), _bits(new, base_dir)
    return first is not None and first == second


def _bits(tensor: TensorProto, base_dir: Path | None) -> bytes | None:
    """The tensor's elements as bytes; None where they cannot be read."""
    try:
        if tensors.is_external(tensor):
            if base_dir is None:
                return None
            tensor = tensors.embedded(tensor, base_dir)
        tensor = lazy.with_payload(tensor)
    except (ModelError, OSError):
        return None
    if tensor.HasField("raw_data"):
        return tensor.raw_data[: tensors.nbytes(tensor)]
    array = tensors.to_array(tensor, None, tensors.nbytes(tensor))
    # Elements of less than a byte are unpacked here, unlike in raw data: those are compared as stored only.
    return array.tobytes() if array is not None and array.nbytes == tensors.nbytes(tensor) else None
