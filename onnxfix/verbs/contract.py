"""The post-condition of every apply: the interface is unchanged, and so is whatever no fix touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    StringStringEntryProto,
    TensorProto,
    ValueInfoProto,
)

from onnxfix.errors import decoded
from onnxfix.files import lazy, sharing, tensors, walk
from onnxfix.proof.compare.tolerance import Allowed
from onnxfix.shapes import dimnames

if TYPE_CHECKING:
    from onnxfix.inputs.specialize.specialization import ResolvedSpecialization

_BODY = ("node", "initializer", "sparse_initializer", "value_info")
_GROUP = 3  # the wire type of a group, whose data are fields
_GRAPH_PARTS = (*_BODY, "input", "output")
_BUDGET = "onnxfix.precision_budget"
"""The key in ``ModelProto.metadata_props``; the value is the budget and the SHA-256 of the original's file."""
_LARGEST_BUDGET = 0.1
"""The largest budget that is believed, as a share of an output's scale: whoever edits a model can record any."""


def interface_changes(
    original: ModelProto, fixed: ModelProto, special: ResolvedSpecialization | None = None
) -> list[str]:
    """Changes that a caller of the model would notice, one line each; empty where the contract holds.

    Inputs and outputs keep name, order, type, shape, symbolic dimensions and default; operator set imports, IR version,
    metadata and everything else outside the graph's body are unchanged. The changes of ``special`` must all be there:
    an input that became constant is removed (or kept, and nothing reads it), and fixed dimensions have their sizes.
    """
    found = []
    removed = special.without if special is not None else ()
    for kind in ("input", "output"):
        old, new = getattr(original.graph, kind), getattr(fixed.graph, kind)
        old = [info for info in old if kind == "output" or info.name not in removed]
        if [info.name for info in old] != [info.name for info in new]:
            found.append(
                f"the graph's {kind}s are {[i.name for i in new]} instead of {[i.name for i in old]}"
            )
        else:
            found += [
                f"{kind} {a.name!r} is declared differently"
                for a, b in zip(old, new, strict=True)
                if not (a == b if special is None else _as_asked(a, b, kind == "input", special))
            ]
    found += _default_changes(original.graph, fixed.graph, removed)
    if special is not None and special.keep:
        read = {name for node in fixed.graph.node for name in walk.reads(node)}
        found += [f"input {name!r} is still read" for name in special.values if name in read]
    apart = ("graph", "functions", "metadata_props")
    found += [f"model field {name!r} changed" for name in _different_fields(original, fixed, apart)]
    if not _alike(_metadata(original), _metadata(fixed)):
        found.append("model field 'metadata_props' changed")
    found += [
        f"graph field {n!r} changed" for n in _different_fields(original.graph, fixed.graph, _GRAPH_PARTS)
    ]
    for before, after in zip(original.functions, fixed.functions, strict=False):
        skip = ("node", "value_info")
        found += [f"function {before.name!r}: {n!r} changed" for n in _different_fields(before, after, skip)]
    if len(original.functions) != len(fixed.functions):
        found.append("the number of local functions changed")
    return found


def _metadata(model: ModelProto) -> list[StringStringEntryProto]:
    """The model's metadata, without what onnxfix records of the files that hold its weights."""
    return [
        entry for entry in model.metadata_props if not decoded(entry.key).startswith((sharing.KEY, _BUDGET))
    ]


def _as_asked(
    before: ValueInfoProto, after: ValueInfoProto, is_input: bool, special: ResolvedSpecialization
) -> bool:
    """Whether two declarations differ only in the sizes of ``special``, for an output also in those that follow from
    them. ``special`` names a graph input's unnamed dimensions, and may give a rank to an input that has none."""
    was, now = ValueInfoProto(), ValueInfoProto()
    was.CopyFrom(before)
    now.CopyFrom(after)
    old, new = _tensor_of(was), _tensor_of(now)
    if old is None or new is None:
        return was == now
    rank = special.sizes.get(f"{was.name}.rank") if is_input and not old.HasField("shape") else None
    if rank is not None:
        old.shape.SetInParent()
        for _ in range(rank):
            old.shape.dim.add()
    for axis, (one, other) in enumerate(zip(old.shape.dim, new.shape.dim, strict=False)):
        open_size = one.WhichOneof("value") != "dim_value" or one.dim_value < 0
        name = dimnames.own(one.dim_param) or (f"{was.name}.{axis}" if is_input else "")
        wanted = dimnames.replace(name, special.sizes) if open_size and name else name
        if open_size and not is_input and not isinstance(wanted, int):
            follows = special.output_size(was.name, axis)
            wanted = wanted if follows is None else follows
        if wanted == name:
            continue
        if other.WhichOneof("value") != ("dim_value" if isinstance(wanted, int) else "dim_param"):
            return False
        if (other.dim_value if isinstance(wanted, int) else other.dim_param) != wanted:
            return False
        for field in ("dim_value", "dim_param"):
            one.ClearField(field)
            other.ClearField(field)
    return was == now


def _tensor_of(info: ValueInfoProto) -> Any:
    """The tensor type of a declaration, or of the elements of its sequence or optional; None where there is none."""
    kind = info.type
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        kind = getattr(kind, kind.WhichOneof("value")).elem_type
    which = kind.WhichOneof("value")
    return getattr(kind, which) if which in ("tensor_type", "sparse_tensor_type") else None


def _default_changes(original: GraphProto, fixed: GraphProto, removed: Sequence[str]) -> Iterator[str]:
    """Initializers that a caller may override must still be there, with the same bytes, but for removed inputs."""
    old, new = _defaults(original), _defaults(fixed)
    for name in removed:
        old.pop(name, None)
    for name, tensor in old.items():
        after = new.pop(name, None)
        if type(after) is not type(tensor) or not _alike(_undeclared(tensor), _undeclared(after)):
            yield f"the default of input {name!r} was changed or removed"
    for name in new:
        yield f"input {name!r} has a default that it did not have"


def _undeclared(tensor: Any) -> Any:
    """A tensor that does not say that its data are in the model: onnx.load says so of what it has read."""
    if (
        not isinstance(tensor, TensorProto)
        or not tensor.HasField("data_location")
        or tensors.is_external(tensor)
    ):
        return tensor
    found = TensorProto()
    found.CopyFrom(tensor)
    found.ClearField("data_location")
    return found


def _defaults(graph: GraphProto) -> dict[str, TensorProto | SparseTensorProto]:
    """The initializers, sparse ones too, of the graph's inputs."""
    inputs = {info.name for info in graph.input}
    dense = {tensor.name: tensor for tensor in graph.initializer if tensor.name in inputs}
    return dense | {
        sparse.values.name: sparse for sparse in graph.sparse_initializer if sparse.values.name in inputs
    }


def _different_fields(first: Any, second: Any, skip: Iterable[str]) -> list[str]:
    """Names of the message fields, unknown ones included, in which two messages differ."""
    skipped = set(skip)
    old = {field.name: value for field, value in first.ListFields() if field.name not in skipped}
    new = {field.name: value for field, value in second.ListFields() if field.name not in skipped}
    different = [
        name
        for name in sorted({*old, *new})
        if name not in old or name not in new or not _alike(old[name], new[name])
    ]
    if _unknown(first) != _unknown(second):
        different.append("unknown fields")
    return different


def _alike(first: Any, second: Any) -> bool:
    """Whether two values of a field are equal, wherever the bytes of their tensors are stored."""
    if first == second:
        return True
    if isinstance(first, TensorProto):
        return lazy.same(first, second)
    if isinstance(first, Message):
        return not _different_fields(first, second, ())
    if isinstance(first, (bool, int, float, str, bytes)):
        return False
    return len(first) == len(second) and all(map(_alike, first, second))


def _unknown(message: Any) -> list[Any]:
    return _fields(UnknownFieldSet(message))


def _fields(unknown: Any) -> list[Any]:
    """Number, wire type and content of each field; a group's content is such a list. No texts: of groups in groups,
    each level would double the backslashes of the one below."""
    fields = [unknown[index] for index in range(len(unknown))]
    return [
        (one.field_number, one.wire_type, _fields(one.data) if one.wire_type == _GROUP else one.data)
        for one in fields
    ]


def untouched_changes(original: ModelProto, fixed: ModelProto, touched: Set[str]) -> list[str]:
    """Nodes, initializers and declarations that differ although no fix named one of their values.

    ``touched`` are value names, as ``FixRun.touched`` gives them.
    """
    found = []
    before, after = _Bodies(original), _Bodies(fixed)
    known = {name for name, _ in before.initializers}
    for kind, old, new in (
        ("node", before.nodes, after.nodes),
        ("initializer", before.initializers, after.initializers),
        ("value_info", before.infos, after.infos),
    ):
        for item in _different(old, new):
            names = _names(kind, item)
            added = kind == "initializer" and names[0] not in known
            if not added and touched.isdisjoint(names):
                found.append(f"{kind} of {', '.join(names) or 'no name'} changed although no fix touched it")
    return found


def _different(old: Counter[Any], new: Counter[Any]) -> list[Any]:
    """Items that one has more often than the other."""
    if old == new:
        return []
    more = [item for item, count in old.items() if count > new.get(item, 0)]
    return more + [item for item, count in new.items() if count > old.get(item, 0)]


def _names(kind: str, item: Any) -> Sequence[str]:
    """The values that an item of ``_Bodies`` defines or declares."""
    if isinstance(item, tuple):
        names: tuple[str, ...] = item[0] if kind == "node" else item[:1]
        return names
    return NodeProto.FromString(item).output if kind == "node" else [ValueInfoProto.FromString(item).name]


class _Bodies:
    """Every node, initializer and value_info of every scope, counted by its bytes, names included.

    A node with subgraphs counts without them, as ``(outputs, parts)``: their nodes are counted on their own.
    Initializers, sparse ones too, count as ``(name, digest)``, for they may be large.
    """

    def __init__(self, model: ModelProto) -> None:
        self.nodes: Counter[_Key] = Counter()
        self.initializers: Counter[tuple[str, bytes]] = Counter()
        self.infos: Counter[bytes] = Counter()
        pending: list[GraphProto | FunctionProto] = [model.graph, *model.functions]
        while pending:
            scope = pending.pop()
            holders = [node for node in scope.node if any(map(_holds_graph, node.attribute))]
            pending.extend(graph for node in holders for graph in walk.subgraphs(node))
            if holders:
                self.nodes.update(map(_key, scope.node))
            else:
                self.nodes.update(node.SerializeToString(deterministic=True) for node in scope.node)
            self.infos.update(
                info.SerializeToString(deterministic=True) for info in getattr(scope, "value_info", ())
            )
            if isinstance(scope, GraphProto):
                self.initializers.update((t.name, tensors.digest(t)) for t in scope.initializer)
                self.initializers.update(map(_sparse, scope.sparse_initializer))


def _sparse(tensor: SparseTensorProto) -> tuple[str, bytes]:
    values, indices = tensors.digest(tensor.values), tensors.digest(tensor.indices)
    return tensor.values.name, b"sparse" + values + indices + repr(list(tensor.dims)).encode()


def _holds_graph(attribute: AttributeProto) -> bool:
    return bool(walk.attribute_graphs(attribute))


_Key = bytes | tuple[tuple[str, ...], tuple[bytes, ...]]


def _key(node: NodeProto) -> _Key:
    if not any(map(_holds_graph, node.attribute)):
        return bytes(node.SerializeToString(deterministic=True))
    parts = [_without(node, "attribute"), *(_without(one, "g", "graphs") for one in node.attribute)]
    # Inputs and outputs of a branch are not in its nodes: without them, swapped branches would compare equal.
    parts += [_without(graph, *_BODY) for graph in walk.subgraphs(node)]
    return tuple(node.output), tuple(parts)


def _without(message: Any, *skip: str) -> bytes:
    """The message's bytes without some fields, which are not copied: they may have thousands of nodes."""
    copy = type(message)()
    damaged = []
    for field, value in message.ListFields():
        if field.name in skip:
            continue
        if isinstance(value, bytes) and field.type == field.TYPE_STRING:
            damaged.append((field.name, value))  # no UTF-8: it can be read and not be set
        elif isinstance(value, (bool, int, float, str, bytes)):
            setattr(copy, field.name, value)
        else:
            getattr(copy, field.name).MergeFrom(value)
    return bytes(copy.SerializeToString(deterministic=True)) + repr((_unknown(message), damaged)).encode()


# ------------------------------------------------------------------------- the error budget of mixed precision


def record_budget(proto: ModelProto, original: Path, budget: float) -> None:
    """Record the budget in the mixed-precision model of the file ``original``, in place of one recorded before."""
    sharing.set_metadata(proto, _BUDGET, {"": f"{budget!r} sha256:{sharing.digest(original)}"})


def recorded_budget(proto: ModelProto, original: Path) -> Allowed | None:
    """What outputs of the model may differ by from those of the file ``original``, as it says itself; None where it
    says nothing of that file."""
    for entry in proto.metadata_props:
        budget, _, found = (
            decoded(entry.value).partition(" sha256:") if decoded(entry.key) == _BUDGET else ("", "", "")
        )
        if found and found == sharing.digest(original):
            with suppress(ValueError):
                share = float(budget)
                return Allowed(share=share) if 0 < share <= _LARGEST_BUDGET else None
    return None
