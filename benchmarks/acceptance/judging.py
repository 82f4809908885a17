"""Pure comparisons: outputs against ONNX's expected ones, interfaces, and whether two graphs are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto, helper

from onnxfix.files import walk
from onnxfix.verbs.contract import find_tensor_type

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
    pairs = enumerate(zip(expected, found, strict=True))
    every = (_miss(f"output {i}", a, b, rtol, atol) for i, (a, b) in pairs)
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
    kinds = {type(None): "an empty optional", dict: "a map", list: "a sequence", tuple: "a sequence"}
    return kinds.get(type(value), "a tensor")


def _dtype(array: np.ndarray[Any, Any]) -> str:
    return "string" if array.dtype.kind in "OUS" else array.dtype.name


def _arrays(
    name: str, expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any], rtol: float, atol: float
) -> Miss | None:
    if _dtype(expected) != _dtype(found):
        return Miss("structure", f"{name} has type {_dtype(found)} instead of {_dtype(expected)}")
    if expected.shape != found.shape:
        return Miss("structure", f"{name} has shape {found.shape} instead of {expected.shape}")
    if _dtype(expected) == "string":
        same = np.array([_text(a) == _text(b) for a, b in zip(expected.flat, found.flat, strict=True)], bool)
    elif expected.dtype.kind != "c" and "float" not in expected.dtype.name:  # ml_dtypes has floats of its own
        same = np.asarray(expected == found).reshape(-1)
    else:
        wide = np.complex128 if expected.dtype.kind == "c" else np.float64
        a, b = (one.reshape(-1).astype(wide).view(np.float64) for one in (expected, found))
        with np.errstate(all="ignore"):  # an infinity is close to nothing but itself
            same = np.isclose(b, a, rtol, atol, equal_nan=True)
        same = same.reshape(-1, 2 if wide is np.complex128 else 1).all(axis=1)
    if same.all():
        return None
    at = int(np.argmin(same))
    shown = f"{expected.reshape(-1)[at]} expected, {found.reshape(-1)[at]} found"
    return Miss("values", f"{name}: {int((~same).sum())} of {same.size} elements, {shown}")


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


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
    (before, shape), (after, other) = _without_shape(old.type), _without_shape(new.type)
    if before != after:
        yield f"type: {kind} {old.name} is {' '.join(str(after).split())} instead of {' '.join(str(before).split())}"
    elif shape != other:
        yield f"shape: {kind} {old.name} is {other} instead of {shape}"


def _without_shape(type_: TypeProto) -> tuple[TypeProto, str]:
    """A type without a shape, and the dimensions as text: sizes, names, "?" for neither, "no shape" for none."""
    copy = TypeProto()
    copy.CopyFrom(type_)
    tensor = find_tensor_type(copy)
    if tensor is None or not tensor.HasField("shape"):
        return copy, "no shape"
    kinds = [(dim, dim.WhichOneof("value")) for dim in tensor.shape.dim]
    shape = str([str(getattr(dim, kind)) if kind else "?" for dim, kind in kinds])
    tensor.ClearField("shape")
    return copy, shape


# ------------------------------------------------------------------------------------------------ same graphs


def same_graph(original: ModelProto, rewritten: ModelProto) -> bool:
    """Whether two models compute by the same nodes, weights, functions and operator sets, whatever else changed.

    Names of nodes, documentation, metadata, declared shapes of inner values and producers do not matter.
    """
    return _bare(original) == _bare(rewritten)


def _bare(model: ModelProto) -> bytes:
    """What a model computes by, in an order of its own."""
    bare = ModelProto(functions=model.functions)
    bare.graph.CopyFrom(model.graph)
    imports = sorted((one.domain or "ai.onnx", one.version) for one in model.opset_import)
    bare.opset_import.extend(helper.make_opsetid(*one) for one in imports)
    inner = [graph for one in bare.functions for node in one.node for graph in walk.subgraphs(node)]
    graphs = [graph for root in (bare.graph, *inner) for graph in walk.graphs(root)]
    for body in (*graphs, *bare.functions):
        fields = ("doc_string", "metadata_props", "value_info", *["name"] * isinstance(body, GraphProto))
        for field in fields:
            body.ClearField(field)
        for node in body.node:
            node.domain = "" if node.domain == "ai.onnx" else node.domain
            for part in (node, *node.attribute):
                part.ClearField("doc_string")
            node.ClearField("name")
            node.ClearField("metadata_props")
            node.attribute.sort(key=lambda one: one.name)
        if isinstance(body, GraphProto):
            body.initializer.sort(key=lambda one: one.name)
            for info in (*body.input, *body.output):
                info.CopyFrom(ValueInfoProto(name=info.name, type=info.type))
    return bytes(bare.SerializeToString(deterministic=True))
