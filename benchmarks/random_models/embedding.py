"""Puts a piece into a host: with names of its own, its inputs wired to values that fit, its sizes made symbolic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import FunctionProto, ModelProto, TensorProto, ValueInfoProto

from onnxfix.files import walk
from onnxfix.files.walk import copied
from random_models import nesting
from random_models.pieces import Body, Dims, Host, Piece, Value, declared, dims_of, rename, tensor_info

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


def embed(host: Host, piece: Piece, places: list[str], *, wired: bool = True, twice: bool = False) -> bool:
    """Add a piece to the host. ``places`` are what it is put into, the innermost first ("If", "Loop", "Scan",
    "Function"); ``wired``: its inputs may be values of the host. False where its imports do not fit the host's."""
    imports = {
        one.domain: one.version for one in piece.proto.opset_import if one.domain not in ("", "ai.onnx")
    }
    if any(host.imports.get(domain, version) != version for domain, version in imports.items()):
        return False
    host.imports.update(imports)
    host.ir_version = max(host.ir_version, piece.proto.ir_version if piece.proto.functions else 0)
    proto = copied(piece.proto)
    _own_functions(host, proto)
    mark = host.fresh("")
    rename(proto.graph, lambda name: name + mark)
    symbols = _Sizes(host, mark)
    sizes = _opened(host, proto) if host.chance(0.25) and not places and wired else 0
    found = {name + mark: value for name, value in piece.feed.items()}
    change = _wire(host, proto, symbols, found if not sizes else {}, wired)
    rename(proto.graph, lambda name: change.get(name, name))
    body = Body(
        list(proto.graph.node),
        _own_initializers(host, proto),
        [_sized(info, symbols) for info in proto.graph.output],
        [] if sizes else [_sized(info, symbols) for info in proto.graph.value_info],
    )
    host.annotations += proto.graph.quantization_annotation
    if twice:  # equal nodes on equal inputs
        host.place(_again(host, body))
    if not places and host.chance(0.5):  # else what it returns without computing it is an output as it is
        body = nesting.through_identities(host, body)
    for place in places:
        body = nesting.PLACES[place](host, body)
    host.place(body)
    return True


class _Sizes:
    """What the symbols of a piece are in the host."""

    def __init__(self, host: Host, mark: str) -> None:
        self.host, self.mark = host, mark
        self.bound: dict[str, int | str | None] = {}

    def of(self, dims: Dims | None) -> Dims | None:
        """Sizes in the host; a symbol that was not bound gets a name of its own."""
        if dims is None:
            return None
        return tuple(self.bound.setdefault(d, d + self.mark) if isinstance(d, str) and d.isidentifier() else d
                     if not isinstance(d, str) else None for d in dims)  # fmt: skip

    def fits(self, dims: Dims | None, other: Dims | None) -> bool:
        """Whether a value of the sizes ``other`` may be fed where ``dims`` are declared; binds symbols if so."""
        if dims is None or other is None or len(dims) != len(other):
            return dims is None
        bound = dict(self.bound)
        for dim, size in zip(dims, other, strict=True):
            if size == 0:  # with nothing in it, operators take what does not fit
                return False
            if dim is None:
                continue
            if isinstance(dim, int):
                if dim != size:
                    return False
            elif not dim.isidentifier() or size is None or bound.setdefault(dim, size) != size:
                return False
        self.bound = bound
        return True


def _sized(info: ValueInfoProto, symbols: _Sizes) -> ValueInfoProto:
    kind = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        return info
    return tensor_info(info.name, kind.elem_type, symbols.of(dims_of(info)))


def _wire(
    host: Host, proto: ModelProto, symbols: _Sizes, feed: Mapping[str, Any], wired: bool
) -> dict[str, str]:
    """Give each input of the piece a value or an input of the host. Returns the names that change."""
    defaults = {tensor.name: tensor for tensor in proto.graph.initializer}
    change: dict[str, str] = {}
    for info in proto.graph.input:
        kind = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not kind.elem_type:
            host.inputs.append(declared(info.name, info.type))
            continue
        if info.name in defaults:
            host.inputs.append(_sized(info, symbols))
            host.initializers.append(defaults[info.name])
            continue
        wanted = dims_of(info)
        value = _fitting(host, kind.elem_type, wanted, symbols) if wired else None
        if value is not None:
            change[info.name] = value.name
            continue
        dims = symbols.of(wanted)
        host.add_input(kind.elem_type, dims, info.name)
        if info.name in feed:
            host.hints[info.name] = feed[info.name]
        if wired and kind.elem_type == TensorProto.FLOAT and dims is not None and host.chance(0.4):
            change[info.name] = _moved(host, host.values[info.name])
    kept = [
        tensor for tensor in proto.graph.initializer if tensor.name not in {one.name for one in host.inputs}
    ]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    return change


def _fitting(host: Host, elem: int, dims: Dims | None, symbols: _Sizes) -> Value | None:
    """A value of the host that may be an input of the piece. Integers may be indices: they seldom are."""
    if not host.chance(0.7 if elem in _FLOATS else 0.15):
        return None
    found = host.among(elem)
    host.rng.shuffle(found)
    return next((one for one in found[:12] if symbols.fits(dims, one.dims)), None)


def _moved(host: Host, value: Value) -> str:
    """The value plus one number that an earlier value gives, so that pieces meet whatever their sizes."""
    others = [one for one in host.among(TensorProto.FLOAT) if one.name != value.name]
    if not others:
        return host.node("Neg", [value.name], value.elem, value.dims)
    number = host.node("ReduceMax", [host.rng.choice(others).name], value.elem, (), keepdims=0)
    return host.node("Add", [value.name, number], value.elem, value.dims)


def _opened(host: Host, proto: ModelProto) -> int:
    """Replace one size of the piece's inputs by a name. Returns the size that it was, 0 where there is none."""
    defaults = {tensor.name for tensor in proto.graph.initializer}
    infos = [
        one for one in proto.graph.input if one.type.HasField("tensor_type") and one.name not in defaults
    ]
    sizes = {
        (axis, d) for info in infos for axis, d in enumerate(dims_of(info) or ()) if isinstance(d, int) and d
    }
    if not sizes or any(
        walk.subgraphs(node) for node in proto.graph.node
    ):  # bodies declare sizes of their own
        return 0
    axis, size = host.rng.choice(sorted(sizes))
    name = host.fresh("D")
    for info in infos:
        for at, dim in enumerate(info.type.tensor_type.shape.dim):
            if at == axis and dim.dim_value == size:
                dim.dim_param = name
    for info in proto.graph.output:
        for dim in info.type.tensor_type.shape.dim:
            dim.ClearField("dim_value")
    return size


def _own_initializers(host: Host, proto: ModelProto) -> list[TensorProto]:
    """The weights of a piece; sparse ones go to the main graph at once."""
    host.sparse += proto.graph.sparse_initializer
    return list(proto.graph.initializer)


def _own_functions(host: Host, proto: ModelProto) -> None:
    """Add the functions of a piece to the host's. One whose name is another's there gets a new name."""
    new: dict[tuple[str, str], str] = {}
    for function in proto.functions:
        same = [one for one in host.functions if (one.domain, one.name) == (function.domain, function.name)]
        if same and not (_as_bytes(same[0]) == _as_bytes(function) and host.chance(0.5)):
            new[function.domain, function.name] = host.fresh(function.name)
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        for node in walk.nodes(nodes):
            node.op_type = new.get((node.domain, node.op_type), node.op_type)
    known = {(one.domain, one.name) for one in host.functions}
    for function in proto.functions:
        function.name = new.get((function.domain, function.name), function.name)
        if (function.domain, function.name) not in known:
            host.functions.append(function)


def _as_bytes(function: FunctionProto) -> bytes:
    return bytes(function.SerializeToString(deterministic=True))


def _again(host: Host, body: Body) -> Body:
    """The same nodes once more, with other names for what they compute and for their weights."""
    mark = host.fresh("")
    own = body.produced | {tensor.name for tensor in body.initializers}
    inner = {name for node in walk.nodes(body.nodes) for name in node.output}
    graph = copied(nesting.graph_of("again", [], body))
    rename(graph, lambda name: name + mark if name in own or name in inner else name)
    outputs = [info for info in graph.output if info.name.endswith(mark)]
    return Body(list(graph.node), list(graph.initializer), outputs)
