"""What a network declares against what the ONNX model declares: names, element types and shapes, no value computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from onnxfix.files import dtypes, walk
from onnxfix.inputs.feeds.flow import dims_of
from onnxfix.place import Place
from onnxfix.tensorrt.lift.records import Lifted, NetTensor
from onnxfix.tensorrt.lift.types import ONNX_TYPES
from onnxfix.tensorrt.reading import Kind, Misread, Subject

#: ONNX's element type -> TensorRT's name of it.
_NATIVE = {elem: name for name, elem in ONNX_TYPES.items()}
_INTEGERS = frozenset(elem for name, elem in TensorProto.DataType.items() if name.startswith(("INT", "UINT")))
_FLOATS = frozenset(
    elem
    for name, elem in TensorProto.DataType.items()
    if name.startswith(("FLOAT", "BFLOAT")) or name == "DOUBLE"
)


def inputs_of(graph: GraphProto) -> list[ValueInfoProto]:
    """The inputs that have no default: those are constants to TensorRT."""
    defaults = {tensor.name for tensor in graph.initializer}
    return [info for info in graph.input if info.name not in defaults]


def partners(declared: Sequence[str], found: Sequence[str]) -> dict[str, int]:
    """Name of the model -> number of what TensorRT has for it: by name, and what is left by order if as much is left
    on both sides."""
    paired = {name: found.index(name) for name in declared if name in found}
    left = [name for name in declared if name not in paired]
    rest = [number for number in range(len(found)) if number not in paired.values()]
    return {**paired, **dict(zip(left, rest, strict=True))} if len(left) == len(rest) else paired


def interface(model: ModelProto, lifted: Lifted) -> list[Misread]:
    """All differences that show without computing anything.

    A contradicted shape of an output and a wrong type of an inner tensor count as harmless, since no value need hang
    on them; so does float32 in place of float64.
    """
    graph = model.graph
    given = inputs_of(graph)
    read = {name for node in graph.node for name in walk.reads(node)} | {info.name for info in graph.output}
    needed = [info for info in given if info.name in read or any(info.name == t.name for t in lifted.inputs)]
    found = list(_side("input", needed, lifted.inputs))
    found += _side("output", list(graph.output), lifted.outputs)
    ends = {info.name for info in (*graph.input, *graph.output)}
    infos = [info for info in graph.value_info if info.name not in ends]
    # Declared floats that are integers there, and the other way round.
    for info in infos:
        dtype, elem = lifted.types.get(info.name, ""), info.type.tensor_type.elem_type
        if dtype in ONNX_TYPES and {_kind(elem), _kind(ONNX_TYPES[dtype])} == {"float", "integer"}:
            said = f"declared {dtypes.name_of(elem)}"
            found.append(_of("type", "tensor", info.name, said, dtype, harmless=True))
    return found


def _side(end: Subject, declared: Sequence[ValueInfoProto], native: Sequence[NetTensor]) -> Iterator[Misread]:
    paired = partners([info.name for info in declared], [tensor.name for tensor in native])
    for info in declared:
        if info.name not in paired:
            yield _of("name", end, info.name, "there", f"no {end} of that name")
            continue
        tensor = native[paired[info.name]]
        if tensor.name != info.name:
            yield _of("name", end, info.name, f"called {info.name}", f"the name {tensor.name}")
        if info.type.WhichOneof("value") != "tensor_type":
            continue
        elem, dims = info.type.tensor_type.elem_type, dims_of(info.type)
        if elem not in (0, ONNX_TYPES.get(tensor.dtype)):
            double = elem == TensorProto.DOUBLE and tensor.dtype == "FLOAT"
            yield _of("type", end, info.name, dtypes.name_of(elem), tensor.dtype, harmless=double)
        read = f"shape {_text(tensor.dims)}"
        if dims is None and end == "input":
            said = "of a shape that is not declared"
            yield _of("shape", end, info.name, said, read if tensor.dims else "a scalar")
        elif dims is not None and _contradict(dims, tensor.dims):
            yield _of("shape", end, info.name, f"declared {_text(dims)}", read, harmless=end == "output")


def _contradict(dims: Sequence[int | str | None], other: Sequence[int | str]) -> bool:
    """Whether two shapes have another rank, or other sizes where both are known."""
    return len(dims) != len(other) or any(
        isinstance(a, int) and isinstance(b, int) and a >= 0 and b >= 0 and a != b
        for a, b in zip(dims, other, strict=True)
    )


def _of(kind: Kind, end: Subject, name: str, said: str, read: str, *, harmless: bool = False) -> Misread:
    return Misread(kind, Place(output=name), end, said, read, harmless=harmless, name=name)


def _text(dims: Sequence[int | str | None]) -> str:
    return f"[{', '.join('?' if dim in (None, -1) else str(dim) for dim in dims)}]"


def _kind(elem: int) -> str:
    return "integer" if elem in _INTEGERS else "float" if elem in _FLOATS else ""
