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
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    StringStringEntryProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from onnxfix.errors import decoded
from onnxfix.files import lazy, saving, tensors, walk
from onnxfix.lowering.quantized import IR_VERSION, SCALES
from onnxfix.proof.compare.tolerance import Allowed
from onnxfix.shapes import dimnames
from onnxfix.verbs.difference.pairs import serialize_without

if TYPE_CHECKING:
    from onnxfix.inputs.specialize import ResolvedSpecialization

_BODY = ("node", "initializer", "sparse_initializer", "value_info")
_GRAPH_PARTS = (*_BODY, "input", "output")
_BUDGET = "onnxfix.precision_budget"
"""The key in ``ModelProto.metadata_props``; the value is the budget and the SHA-256 of the original's file."""
_LARGEST_BUDGET = 0.1
"""The largest budget that is believed, as a share of an output's scale: whoever edits a model can record any."""


def interface_changes(
    original: ModelProto, fixed: ModelProto, special: ResolvedSpecialization | None = None
) -> list[str]:
    """Changes that a caller of the model would notice, one line each; empty where the contract holds.

    Inputs and outputs keep name, order, type (an output may get one that it lacks), shape, dimension names and default;
    operator set imports, IR version, metadata and all else outside the graph's body are unchanged. The changes of
    ``special`` are there: a constant input is removed (or kept, and not read), and fixed dimensions have their sizes.
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
                for a, b in zip(*(map(walk.clear_negative, infos) for infos in (old, new)), strict=True)
                if not _is_as_requested(a, b, kind == "input", special)
            ]
    found += _default_changes(original.graph, fixed.graph, removed)
    if special is not None and special.keep:
        read = {name for node in fixed.graph.node for name in walk.reads(node)}
        found += [f"input {name!r} is still read" for name in special.values if name in read]
    apart = ("graph", "functions", "metadata_props", *_raised(original, fixed))
    found += [f"model field {name!r} changed" for name in _different_fields(original, fixed, apart)]
    if not _alike(_metadata(original), _metadata(fixed)):
        found.append("model field 'metadata_props' changed")
    found += [
        f"graph field {n!r} changed" for n in _different_fields(original.graph, fixed.graph, _GRAPH_PARTS)
    ]
    for before, after in zip(original.functions, fixed.functions, strict=False):
        skip = ("node", "value_info")
        found += [f"function {before.name!r}: {n!r} changed" for n in _different_fields(before, after, skip)]
    inlined = _has_budget(fixed) and not fixed.functions
    if len(original.functions) != len(fixed.functions) and not inlined:
        found.append("the number of local functions changed")
    return found


def _raised(original: ModelProto, fixed: ModelProto) -> tuple[str, ...]:
    """The fields that change where the import of ONNX's operators is raised: from before 7, which no TensorRT takes, to
    7; by ``precision`` also from before 19, which has no scales in half precision, to 19."""
    for newest in (7, *[SCALES] * _has_budget(fixed)):
        raised = [
            (one.domain, max(one.version, newest * (one.domain in ("", "ai.onnx") and one.version > 0)))
            for one in original.opset_import
        ]
        if raised == [(one.domain, one.version) for one in fixed.opset_import]:
            newer = newest == SCALES and fixed.ir_version == max(original.ir_version, IR_VERSION)
            return ("opset_import", *["ir_version"] * newer)
    return ()


def _has_budget(model: ModelProto) -> bool:
    """Whether ``precision`` wrote the model, which also inlines local functions."""
    return any(decoded(entry.key).startswith(_BUDGET) for entry in model.metadata_props)


def _metadata(model: ModelProto) -> list[StringStringEntryProto]:
    """The model's metadata, without what onnxfix records of the files that hold its weights."""
    return [
        entry for entry in model.metadata_props if not decoded(entry.key).startswith((saving.KEY, _BUDGET))
    ]


def _is_as_requested(
    before: ValueInfoProto, after: ValueInfoProto, is_input: bool, special: ResolvedSpecialization | None
) -> bool:
    """Whether a declaration is the one before with the sizes of ``special``, for an output also with those that follow
    from them. ``special`` names a graph input's unnamed dimensions, and may give a rank to an input that has none."""
    expected = walk.copied(before)
    tensor = find_tensor_type(expected.type)
    if tensor is None or special is None:
        return before == after or not (is_input or before.HasField("type"))
    name = before.name
    if is_input and not tensor.HasField("shape"):
        for _ in range(special.sizes.get(f"{name}.rank", 0)):
            tensor.shape.dim.add()
        if f"{name}.rank" in special.sizes:
            tensor.shape.SetInParent()
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.WhichOneof("value") == "dim_value":
            continue
        symbol = dimnames.own(dim.dim_param) or (f"{name}.{axis}" if is_input else "")
        size = dimnames.replace(symbol, special.sizes)
        if not is_input and not isinstance(size, int):
            follows = special.output_size(name, axis)
            size = size if follows is None else follows
        if isinstance(size, int):
            dim.dim_value = size
        elif size != symbol:
            dim.dim_param = size
    return expected == after


def find_tensor_type(kind: TypeProto) -> Any:
    """The tensor type of a type, or of the elements of its sequence or optional; None where there is none."""
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
    found = walk.copied(tensor)
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
    if _fields(UnknownFieldSet(first)) != _fields(UnknownFieldSet(second)):
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


def _fields(unknown: Any) -> list[Any]:
    """Number, wire type and content of each field; that of a group (wire type 3) is such a list. No texts: of groups
    in groups, each level would double the backslashes of the one below."""
    fields = [unknown[index] for index in range(len(unknown))]
    return [
        (one.field_number, one.wire_type, _fields(one.data) if one.wire_type == 3 else one.data)
        for one in fields
    ]


def untouched_changes(original: ModelProto, fixed: ModelProto, touched: Set[str]) -> list[str]:
    """Nodes, initializers and declarations that differ although no fix named one of their values.

    ``touched`` are value names, as ``FixRun.touched`` gives them.
    """
    before, after = _count_contents(original), _count_contents(fixed)
    known = {names for kind, names, _ in before if kind == "initializer"}
    more = () if before == after else (*(before - after), *(after - before))
    return [
        f"{kind} of {', '.join(names) or 'no name'} changed although no fix touched it"
        for kind, names, _ in more
        if touched.isdisjoint(names) and (kind != "initializer" or names in known)
    ]


_Content = tuple[str, tuple[str, ...], bytes]
"""Node, initializer or value_info; the values that it defines or declares; its bytes, or a digest of them."""


def _count_contents(model: ModelProto) -> Counter[_Content]:
    """Every node, initializer and value_info of every scope.

    A node with subgraphs counts without them: their nodes are counted on their own. Initializers, sparse ones too,
    count by a digest, for they may be large.
    """
    counts: Counter[_Content] = Counter()
    pending: list[GraphProto | FunctionProto] = [model.graph, *model.functions]
    while pending:
        scope = pending.pop()
        for node in scope.node:
            graphs = walk.subgraphs(node)
            pending += graphs
            content = _without_bodies(node, graphs) if graphs else node.SerializeToString(deterministic=True)
            counts["node", tuple(node.output[:]), content] += 1  # iterating over a list is faster
        for info in getattr(scope, "value_info", ()):
            counts["value_info", (info.name,), info.SerializeToString(deterministic=True)] += 1
        for tensor in getattr(scope, "initializer", ()):
            counts["initializer", (tensor.name,), tensors.digest(tensor)] += 1
        for sparse in getattr(scope, "sparse_initializer", ()):
            digests = b"sparse" + tensors.digest(sparse.values) + tensors.digest(sparse.indices)
            counts["initializer", (sparse.values.name,), digests + repr(list(sparse.dims)).encode()] += 1
    return counts


def _without_bodies(node: NodeProto, graphs: Iterable[GraphProto]) -> bytes:
    """The bytes of a node without the contents of its subgraphs."""
    parts = [
        serialize_without(node, "attribute"),
        *(serialize_without(one, "g", "graphs") for one in node.attribute),
    ]
    # Inputs and outputs of a branch are not in its nodes: without them, swapped branches would compare equal.
    return repr([*parts, *(serialize_without(graph, *_BODY) for graph in graphs)]).encode()


def record_budget(proto: ModelProto, original: Path, budget: float) -> None:
    """Record the budget in the mixed-precision model of the file ``original``, in place of one recorded before."""
    saving.set_metadata(proto, _BUDGET, {"": f"{budget!r} sha256:{saving.digest(original)}"})


def recorded_budget(proto: ModelProto, original: Path) -> Allowed | None:
    """What outputs of the model may differ by from those of the file ``original``, as it says itself; None where it
    says nothing of that file."""
    for entry in proto.metadata_props:
        budget, _, found = (
            decoded(entry.value).partition(" sha256:") if decoded(entry.key) == _BUDGET else ("", "", "")
        )
        if found and found == saving.digest(original):
            with suppress(ValueError):
                share = float(budget)
                return Allowed(share=share) if 0 < share <= _LARGEST_BUDGET else None
    return None
