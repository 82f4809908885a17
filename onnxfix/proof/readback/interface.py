"""Compares the declarations of a network and of the ONNX model: names, element types and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from onnxfix.files import dtypes, walk
from onnxfix.inputs.feeds.flow import dims_of
from onnxfix.place import Place
from onnxfix.tensorrt.lift.records import ONNX_TYPES, Lifted, NetTensor
from onnxfix.tensorrt.reading import Kind, Misread, Subject


def inputs_of(graph: GraphProto) -> list[ValueInfoProto]:
    """The inputs without a default. TensorRT treats inputs with a default as constants."""
    defaults = {tensor.name for tensor in graph.initializer}
    return [info for info in graph.input if info.name not in defaults]


def partners(declared: Sequence[str], native: Sequence[str]) -> dict[str, int]:
    """Name in the model -> index of its partner in ``native``. Pairs equal names first, then the remaining
    names in order if both sides have equally many."""
    paired = {name: native.index(name) for name in declared if name in native}
    unpaired = [name for name in declared if name not in paired]
    free = [number for number in range(len(native)) if number not in paired.values()]
    return {**paired, **dict(zip(unpaired, free, strict=True))} if len(unpaired) == len(free) else paired


def interface(model: ModelProto, lifted: Lifted) -> list[Misread]:
    """All differences between the declarations. No values are computed.

    A contradicting shape of an output and a wrong type of an inner tensor count as harmless, because values
    need not depend on them. So does float32 in place of float64.
    """
    graph = model.graph
    inputs = inputs_of(graph)
    read_names = {name for node in graph.node for name in walk.reads(node)} | {
        info.name for info in graph.output
    }
    needed = [
        info for info in inputs if info.name in read_names or any(info.name == t.name for t in lifted.inputs)
    ]
    misreads = list(_compare_side("input", needed, lifted.inputs))
    misreads += _compare_side("output", list(graph.output), lifted.outputs)
    ends = {info.name for info in (*graph.input, *graph.output)}
    infos = [info for info in graph.value_info if info.name not in ends]
    # Declared floats that are integers in the network, and vice versa.
    for info in infos:
        dtype, elem = lifted.types.get(info.name, ""), info.type.tensor_type.elem_type
        kinds = elem, ONNX_TYPES.get(dtype, 0)
        if any(map(dtypes.is_float, kinds)) and any(map(dtypes.is_integer, kinds)):
            declaration = f"declared {dtypes.name_of(elem)}"
            misreads.append(_misread("type", "tensor", info.name, declaration, dtype, harmless=True))
    return misreads


def _compare_side(
    end: Subject, declared: Sequence[ValueInfoProto], native: Sequence[NetTensor]
) -> Iterator[Misread]:
    paired = partners([info.name for info in declared], [tensor.name for tensor in native])
    for info in declared:
        if info.name not in paired:
            yield _misread("name", end, info.name, "there", f"no {end} of that name")
            continue
        tensor = native[paired[info.name]]
        if tensor.name != info.name:
            yield _misread("name", end, info.name, f"called {info.name}", f"the name {tensor.name}")
        if info.type.WhichOneof("value") != "tensor_type":
            continue
        elem, dims = info.type.tensor_type.elem_type, dims_of(info.type)
        if elem not in (0, ONNX_TYPES.get(tensor.dtype)):
            double = elem == TensorProto.DOUBLE and tensor.dtype == "FLOAT"
            yield _misread("type", end, info.name, dtypes.name_of(elem), tensor.dtype, harmless=double)
        native_shape = f"shape {_text(tensor.dims)}"
        if dims is None and end == "input":
            declaration = "of a shape that is not declared"
            yield _misread("shape", end, info.name, declaration, native_shape if tensor.dims else "a scalar")
        elif dims is not None and _contradict(dims, tensor.dims):
            yield _misread(
                "shape", end, info.name, f"declared {_text(dims)}", native_shape, harmless=end == "output"
            )


def _contradict(dims: Sequence[int | str | None], other: Sequence[int | str]) -> bool:
    """Whether two shapes differ in rank, or in a size that both state."""
    return len(dims) != len(other) or any(
        isinstance(a, int) and isinstance(b, int) and a >= 0 and b >= 0 and a != b
        for a, b in zip(dims, other, strict=True)
    )


def _misread(
    kind: Kind, end: Subject, name: str, declared: str, native: str, *, harmless: bool = False
) -> Misread:
    return Misread(kind, Place(output=name), end, declared, native, harmless=harmless, name=name)


def _text(dims: Sequence[int | str | None]) -> str:
    return f"[{', '.join('?' if dim in (None, -1) else str(dim) for dim in dims)}]"
