"""Pure comparisons: outputs against ONNX's expected ones, interfaces, and whether two graphs are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

Kind = Literal["structure", "values"]


@dataclass(frozen=True)
class Miss:
    """One way in which a value is not the expected one; "structure" is its kind, element type or shape."""

    kind: Kind
    text: str


# ---------------------------------------------------------------------------------------------------- values


def misses(expected: Sequence[Any], found: Sequence[Any], rtol: float, atol: float) -> list[Miss]:
    """How outputs differ from the expected ones, one each at most; empty where they meet them.

    Shape and element type first, then the positions of NaN and infinities, then
    ``|found - expected| <= atol + rtol * |expected|`` for floating-point numbers and equality for everything else.
    """
    if len(expected) != len(found):
        return [Miss("structure", f"{len(found)} outputs instead of {len(expected)}")]
    every = (
        _miss(f"output {i}", a, b, rtol, atol) for i, (a, b) in enumerate(zip(expected, found, strict=True))
    )
    return [one for one in every if one is not None]


def _miss(name: str, expected: Any, found: Any, rtol: float, atol: float) -> Miss | None:
    kinds = [_kind(expected), _kind(found)]
    if kinds[0] != kinds[1]:
        return Miss("structure", f"{name} is {kinds[1]} instead of {kinds[0]}")
    if expected is None:
        return None
    if isinstance(expected, dict):
        if expected.keys() != found.keys():
            return Miss("values", f"{name} has other keys")
        pairs: Iterable[tuple[str, Any, Any]] = ((f"{name}[{k!r}]", expected[k], found[k]) for k in expected)
    elif isinstance(expected, (list, tuple)):
        if len(expected) != len(found):
            return Miss("structure", f"{name} has {len(found)} elements instead of {len(expected)}")
        pairs = ((f"{name}[{i}]", *both) for i, both in enumerate(zip(expected, found, strict=True)))
    else:
        return _arrays(name, np.asarray(expected), np.asarray(found), rtol, atol)
    return next((m for n, a, b in pairs if (m := _miss(n, a, b, rtol, atol)) is not None), None)


def _kind(value: Any) -> str:
    if value is None:
        return "an empty optional"
    return (
        "a map"
        if isinstance(value, dict)
        else "a sequence"
        if isinstance(value, (list, tuple))
        else "a tensor"
    )


def _dtype(array: np.ndarray[Any, Any]) -> str:
    return "string" if array.dtype.kind in "OUS" else array.dtype.name


def _is_floating(array: np.ndarray[Any, Any]) -> bool:
    """numpy's own floating-point and complex types, and those of ml_dtypes, which numpy calls void."""
    return array.dtype.kind in "fc" or "float" in array.dtype.name


def _arrays(
    name: str, expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any], rtol: float, atol: float
) -> Miss | None:
    if _dtype(expected) != _dtype(found):
        return Miss("structure", f"{name} has type {_dtype(found)} instead of {_dtype(expected)}")
    if expected.shape != found.shape:
        return Miss("structure", f"{name} has shape {found.shape} instead of {expected.shape}")
    if _dtype(expected) == "string":
        wrong = np.array([_text(a) != _text(b) for a, b in zip(expected.flat, found.flat, strict=True)], bool)
    elif not _is_floating(expected):
        wrong = np.asarray(expected != found)
    else:
        a, b = _wide(expected), _wide(found)
        lost = np.isnan(a) != np.isnan(b)
        if lost.any():
            return Miss("values", f"{name} has NaN at other places ({int(lost.sum())} of {lost.size})")
        with np.errstate(all="ignore"):
            close = np.abs(a - b) <= atol + rtol * np.abs(a)
            # An infinity is close to nothing but itself: |inf - 1| <= rtol * inf would hold.
            wrong = ~np.where(np.isfinite(a) & np.isfinite(b), close, (a == b) | np.isnan(a))
        if expected.dtype.kind == "c":
            wrong = wrong.reshape(-1, 2).any(axis=1)
    if not wrong.any():
        return None
    at = int(np.argmax(wrong))
    shown = f"{expected.reshape(-1)[at]} expected, {found.reshape(-1)[at]} found"
    return Miss("values", f"{name}: {int(wrong.sum())} of {wrong.size} elements, {shown}")


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind != "c":
        return array.astype(np.float64)
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype).astype(np.float64)


# ------------------------------------------------------------------------------------------------- interfaces


def interface_changes(original: ModelProto, rewritten: ModelProto) -> list[str]:
    """What a caller would notice: names, order, types, shapes and symbolic sizes of inputs and outputs, and defaults.

    Each line begins with what changed: names, order, type, shape or default.
    """
    found: list[str] = []
    for kind in ("input", "output"):
        old = list(getattr(original.graph, kind))
        new = list(getattr(rewritten.graph, kind))
        before, after = [one.name for one in old], [one.name for one in new]
        if sorted(before) != sorted(after):
            found.append(f"names: {kind}s are {after} instead of {before}")
            continue
        if before != after:
            found.append(f"order: {kind}s are {after} instead of {before}")
        by_name = {one.name: one for one in new}
        for one in old:
            found += _type_changes(kind, one, by_name[one.name])
    defaults = [_defaults(model.graph) for model in (original, rewritten)]
    gone = sorted(defaults[0] - defaults[1])
    return found + [f"default: {name} has none any more" for name in gone]


def _defaults(graph: GraphProto) -> set[str]:
    stored = {tensor.name for tensor in graph.initializer}
    return {one.name for one in graph.input if one.name in stored}


def _type_changes(kind: str, old: ValueInfoProto, new: ValueInfoProto) -> Iterator[str]:
    before, after = _without_shape(old.type), _without_shape(new.type)
    if before != after:
        yield f"type: {kind} {old.name} is {' '.join(str(after).split())} instead of {' '.join(str(before).split())}"
    elif (shapes := (_shape(old.type), _shape(new.type)))[0] != shapes[1]:
        yield f"shape: {kind} {old.name} is {shapes[1]} instead of {shapes[0]}"


def _without_shape(type_: TypeProto) -> TypeProto:
    copy = TypeProto()
    copy.CopyFrom(type_)
    for inner in _tensors(copy):
        inner.ClearField("shape")
    return copy


def _tensors(type_: TypeProto) -> Iterator[Any]:
    """The tensor types in a type."""
    kind = type_.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        yield getattr(type_, kind)
    elif kind == "map_type":
        yield from _tensors(type_.map_type.value_type)
    elif kind in ("sequence_type", "optional_type"):
        yield from _tensors(getattr(type_, kind).elem_type)


def _shape(type_: TypeProto) -> list[str]:
    """Each tensor's dimensions as text: sizes, names, "?" for neither, "no shape" for none."""
    return [
        str([_dim(dim) for dim in inner.shape.dim]) if inner.HasField("shape") else "no shape"
        for inner in _tensors(type_)
    ]


def _dim(dim: Any) -> str:
    kind = dim.WhichOneof("value")
    return str(getattr(dim, kind)) if kind else "?"


# ------------------------------------------------------------------------------------------------ same graphs


def same_graph(original: ModelProto, rewritten: ModelProto) -> bool:
    """Whether two models compute by the same nodes, weights, functions and operator sets, whatever else changed.

    Names of nodes, documentation, metadata, declared shapes of inner values and producers do not matter.
    """
    return bool(_model(original) == _model(rewritten))


def _model(model: ModelProto) -> Any:
    opsets = sorted((one.domain or "ai.onnx", one.version) for one in model.opset_import)
    functions = [
        (f.domain, f.name, f.overload, list(f.input), list(f.output), [_node(n) for n in f.node])
        for f in model.functions
    ]
    return opsets, functions, _graph(model.graph)


def _graph(graph: GraphProto) -> Any:
    weights = sorted((one.name, one.SerializeToString(deterministic=True)) for one in graph.initializer)
    sparse = sorted(one.SerializeToString(deterministic=True) for one in graph.sparse_initializer)
    ends = [
        [(i.name, i.type.SerializeToString(deterministic=True)) for i in e]
        for e in (graph.input, graph.output)
    ]
    return [_node(node) for node in graph.node], weights, sparse, ends


def _node(node: NodeProto) -> Any:
    domain = "" if node.domain == "ai.onnx" else node.domain
    attributes = sorted((one.name, _attribute(one)) for one in node.attribute)
    return node.op_type, domain, node.overload, list(node.input), list(node.output), attributes


def _attribute(attribute: AttributeProto) -> str:
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        graphs = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
        return repr([_graph(graph) for graph in graphs])
    copy = AttributeProto()
    copy.CopyFrom(attribute)
    copy.ClearField("doc_string")
    return repr(copy.SerializeToString(deterministic=True))
