"""Compares a model with the network that was read back: names, element types and shapes, and what both computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from onnxfix.files import dtypes, walk
from onnxfix.inputs.feeds.flow import dims_of
from onnxfix.place import Place
from onnxfix.proof.compare.compare import Metrics, Terms, compare, compare_outputs, different, moved_by
from onnxfix.proof.compare.tolerance import SHARE
from onnxfix.tensorrt.lift.records import ONNX_TYPES, Lifted, NetTensor
from onnxfix.tensorrt.reading import Kind, Misread, Subject

if TYPE_CHECKING:
    import numpy.typing as npt

Values = Mapping[str, Any]
"""Tensors by name."""

#: A quarter of a unit in float32's last place, of 1: where terms of that size cancel out, what is left is rounding, and
#: nothing shows it where a model has no floating-point input.
_FLOOR = 2.0**-25
_SLIGHT = 1e-2  # of an output's largest value: less may be an approximation


def judge(
    expected: Values,
    network: Values,
    pairs: Sequence[tuple[str, str]],
    coarse: str,
    noise: Mapping[str, float] | None = None,
) -> tuple[Metrics, ...]:
    """Compare pairs of names, the model's and the network's. The metrics are called by the former."""
    both = {name: aligned(expected[name], network[other]) for name, other in pairs if other in network}
    wanted, found = ({name: values[side] for name, values in both.items()} for side in (0, 1))
    slack = {name: SHARE * far for name, far in (noise or {}).items()}
    names, terms = [name for name, _ in pairs], Terms(coarse=coarse)
    return compare_outputs(names, wanted, found, terms, side="the network", slack=slack)


def measure_noise(values: Values, moved: Values, names: Sequence[str]) -> dict[str, float]:
    """How far tensors move at most where the inputs are ``moved``: the greatest distance between finite values; of
    floats at least ``_FLOOR``."""
    return {name: moved_by(name, values[name], moved[name], _FLOOR) for name in names}


def chooses_alike(data: tuple[Any, Any], chosen: tuple[Any, Any], *, axis: int, coarse: str) -> bool:
    """Whether model and network chose other elements of the ``data`` that are the same up to rounding; ``chosen`` are
    the indices. Each slice along the axis is judged by itself: the order of elements that are equal, and that TensorRT
    computes to the bit, is no rounding."""
    (values, theirs), sides = data, [*chosen]
    if not values.ndim or any(not one.size for one in sides):
        return False
    size = values.shape[axis]
    if not all(-size <= one.min() and one.max() < size for one in sides):
        return False
    sides = [one if one.ndim == values.ndim else np.expand_dims(one, axis) for one in sides]
    indices = [np.moveaxis(one.astype(np.int64) % size, axis, -1) for one in sides]
    values, theirs = np.moveaxis(values, axis, -1), np.moveaxis(theirs, axis, -1)
    slices = indices[0].shape[:-1] == values.shape[:-1]
    if not slices or indices[0].shape != indices[1].shape or values.shape != theirs.shape:
        return False
    values, theirs = aligned(values, theirs)
    for ours, other, scores, network in zip(
        *(one.reshape(-1, one.shape[-1]) for one in (*indices, values, theirs)), strict=True
    ):
        if np.array_equal(ours, other):
            continue
        a, b = scores[ours], scores[other]
        moved = (scores != network)[np.union1d(ours, other)].any() or (a != b).any()
        alike = not np.isnan(a).any() and not different(compare("", a, b, exact=False, coarse=coarse))
        if len({*other.tolist()}) < other.size or not moved or not alike:
            return False
    return True


def aligned(wanted: Any, value: Any) -> tuple[Any, Any]:
    """Both in one type, where TensorRT's differs from ONNX's, since types are compared separately. Floats in the
    narrower of the two, integers in the wider, both as float64 where only one is a float."""
    if not isinstance(wanted, np.ndarray) or not isinstance(value, np.ndarray) or wanted.dtype == value.dtype:
        return wanted, value
    kinds = [_kind(one.dtype) for one in (wanted, value)]
    if "" in kinds:
        return wanted, value
    common: npt.DTypeLike = np.float64 if "float" in kinds else np.int64
    if kinds == ["float", "float"]:
        common = min(wanted.dtype, value.dtype, key=lambda dtype: dtype.itemsize)
    with np.errstate(all="ignore"):
        return wanted.astype(common), value.astype(common)


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "b" or "int" in dtype.name:
        return "int"
    return "float" if "float" in dtype.name else ""


def find_undefined(values: Values) -> frozenset[str]:
    """The tensors that are only NaN and infinity, which would hide any difference."""
    floats = (
        name
        for name, value in values.items()
        if isinstance(value, np.ndarray) and _kind(value.dtype) == "float" and value.size
    )
    return frozenset(name for name in floats if not np.isfinite(values[name]).any())


def is_lost(metric: Metrics) -> bool:
    """Whether only NaN or infinity are at different positions, and every number agrees."""
    return metric.kind == "special" and not metric.beyond


def is_overflow(metric: Metrics) -> bool:
    """Whether only the model is not finite where they differ, and every number agrees."""
    return is_lost(metric) and not metric.worse


def is_slight(metric: Metrics) -> bool:
    """Whether it may be an approximation."""
    return metric.at is not None and metric.kind != "special" and 0.0 < metric.relative <= _SLIGHT


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
