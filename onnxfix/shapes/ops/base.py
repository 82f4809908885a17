"""The basis of transfer functions: descriptions of values, operator calls with them, and a cache of both.

A transfer function takes a :class:`Call` and returns descriptions of the call's outputs. It may assume that the call is
valid (no operator fails), and its result must be true in every valid execution. It raises :class:`Unknown` if nothing
is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto, helper

from onnxfix.errors import ModelError
from onnxfix.graph.overlay import Value
from onnxfix.graph.signatures import signature
from onnxfix.shapes.symbols import Dim, as_dim, broadcast, constant, data_symbol, symbol

MAX_RANK = 128
"""Maximum number of axes, more than any backend accepts (ONNX Runtime has no limit; numpy's limit is 64)."""

VALUE_LIMIT = 64
"""Maximum number of elements of a tensor whose value is followed."""

Shape = tuple[Dim, ...]
Elements = np.ndarray[Any, Any]
"""dtype object: Dim for integers and booleans, float (exact in its type) or None (unknown) for floats."""

INTEGERS: dict[int, tuple[int, int]] = {
    TensorProto.INT64: (-(2**63), 2**63 - 1),
    TensorProto.INT32: (-(2**31), 2**31 - 1),
    TensorProto.INT16: (-(2**15), 2**15 - 1),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT64: (0, 2**64 - 1),
    TensorProto.UINT32: (0, 2**32 - 1),
    TensorProto.UINT16: (0, 2**16 - 1),
    TensorProto.UINT8: (0, 255),
    TensorProto.BOOL: (0, 1),
}
"""Integer element types whose values are followed, with their minimum and maximum."""

FLOATS: dict[int, Any] = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}


class Unknown(Exception):
    """Nothing is known about the outputs of this call."""


@dataclass(frozen=True, slots=True, eq=False)
class Info:
    """The description of one value; None means unknown.

    ``kind`` is "tensor", "sequence", "optional", "map" or "sparse"; ``item`` describes a sequence's or optional's
    element; ``fill`` is the value of every element, whatever the size. ``elem`` and ``shape`` are None for all but
    dense and sparse tensors.
    """

    elem: int | None = None
    shape: Shape | None = None
    value: Elements | None = None
    fill: float | None = None
    kind: str = "tensor"
    item: Info | None = None


UNKNOWN = Info()
ABSENT = Info()


@dataclass(slots=True, eq=False)
class Call:
    """One operator call: its attributes, and the descriptions of its inputs."""

    op: str
    inputs: Sequence[Info]
    outputs: Sequence[str]
    attrs: Callable[[str], Any]
    opset: int
    mint: Callable[[str], str] = str
    domain: str = ""

    def attr(self, name: str, default: Any = None) -> Any:
        """The decoded attribute, or ``default``; raises Unknown if it differs from call to call."""
        value = self.attrs(name)
        return default if value is None else value

    def has(self, index: int) -> bool:
        """Whether the optional input is given."""
        return index < len(self.inputs) and self.inputs[index] is not ABSENT

    def info(self, index: int) -> Info:
        """The description of an input; UNKNOWN if it is omitted."""
        return self.inputs[index] if self.has(index) else UNKNOWN

    def shape(self, index: int) -> Shape:
        """An input's shape; raises Unknown if its rank is unknown."""
        shape = self.info(index).shape
        if shape is None:
            raise Unknown
        return shape

    def ints(self, index: int) -> list[Dim] | None:
        """Elements of an integer input, flattened, or None."""
        value = self.info(index).value
        if value is None or self.info(index).elem not in INTEGERS:
            return None
        return [as_dim(item) for item in value.reshape(-1)]

    def static_ints(self, index: int) -> list[int] | None:
        """Elements of an integer input if all are static, else None."""
        dims = self.ints(index)
        values = [dim.value for dim in dims or () if dim.value is not None]
        return values if dims is not None and len(values) == len(dims) else None

    def length(self, index: int) -> int | None:
        """Static length of a vector input that has one element per axis, or None.

        None above ``MAX_RANK``: a declared length may be 2**40, and no tensor has so many axes.
        """
        shape = self.info(index).shape
        length = shape[0].value if shape is not None and len(shape) == 1 else None
        return length if length is not None and length <= MAX_RANK else None

    def fresh(self, output: int, axis: int) -> Dim:
        """The symbol for an unknown dimension of an output."""
        return symbol(self.mint(f"{self.outputs[output]}.{axis}"))

    def fresh_shape(self, output: int, rank: int) -> Shape:
        return tuple(self.fresh(output, axis) for axis in range(rank))

    def named(self, dims: Iterable[Dim | None], start: int = 0) -> Shape:
        """Dimensions of the first output from axis ``start`` on, with a symbol for each that is None."""
        return tuple(self.fresh(0, axis) if d is None else d for axis, d in enumerate(dims, start))

    def fresh_element(self, output: int, index: int, elem: int) -> Dim:
        """The symbol for an unknown integer element of an output."""
        return data_symbol(self.mint(f"{self.outputs[output]}[{index}]"), *INTEGERS[elem])


Transfer = Callable[[Call], "Sequence[Info] | Info"]
TABLE: dict[tuple[str, str], Transfer] = {}
"""(domain, op type) to the operator's transfer function."""


def transfer(*ops: str, domain: str = "") -> Callable[[Transfer], Transfer]:
    """Register a transfer function for these operators, of ``domain`` or, as in ``domain::Op``, of another one."""

    def register(function: Transfer) -> Transfer:
        for op in ops:
            other, found, name = op.rpartition("::")
            TABLE[other if found else domain, name] = function
        return function

    return register


def axis_of(axis: int, rank: int) -> int:
    """A possibly negative axis, normalized; raises Unknown if the call is invalid."""
    if not -rank <= axis < rank:
        raise Unknown
    return axis % rank


def axes_of(axes: Iterable[int], rank: int) -> list[int]:
    """Possibly negative axes, normalized; raises Unknown if the call is invalid."""
    return [axis_of(axis, rank) for axis in axes]


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """The multidirectional broadcast of ``shapes``."""
    first = shapes[0]
    if all(shape is first or shape == first for shape in shapes):
        return first
    rank = max(map(len, shapes))
    size_one = constant(1)
    padded = [(size_one,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(
        dims[0] if all(d is dims[0] for d in dims) else broadcast(*dims) for dims in zip(*padded, strict=True)
    )


def agree(dims: Iterable[Dim]) -> Dim:
    """The simplest of several dimensions that are equal in every valid execution, preferably a static one."""
    return min(dims, key=lambda d: (d.value is None, len(d.terms), d.depth))


def static_shape(shape: Shape | None) -> tuple[int, ...] | None:
    """The shape as integers if all dimensions are static, else None."""
    if shape is None:
        return None
    sizes = tuple(d.value for d in shape if d.value is not None)
    return sizes if len(sizes) == len(shape) else None


def elements(items: Sequence[Any], shape: Sequence[int] | None = None) -> Elements:
    """An object array of ``items``, a vector unless ``shape`` is given."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array if shape is None else array.reshape(tuple(shape))


RANK_LIMIT = 32
"""Maximum number of dimensions of a tensor whose value is followed. numpy supports at most 64."""


def small(shape: Shape | None) -> tuple[int, ...] | None:
    """The static shape of a tensor small enough to be followed by value, or None."""
    sizes = static_shape(shape)
    if sizes is None or len(sizes) > RANK_LIMIT or min(sizes, default=0) < 0:
        return None  # the checker reports a negative size
    count = filled = 1
    for size in sizes:
        count *= size
        filled *= size or 1  # numpy refuses an empty array whose other sizes are too large
    return sizes if 0 <= count <= VALUE_LIMIT and filled < 2**40 else None


def from_array(array: np.ndarray[Any, Any], elem: int) -> Elements | None:
    """A numpy array as elements, or None if its type is not followed by value."""
    if elem in INTEGERS:
        return elements([constant(int(item)) for item in array.reshape(-1)], array.shape)
    if elem in FLOATS:
        return elements([float(item) for item in array.reshape(-1)], array.shape)
    return None


def wrap(value: int, elem: int) -> int:
    """``value`` wrapped to the integer type ``elem`` (two's complement)."""
    lo, hi = INTEGERS[elem]
    return value if lo <= value <= hi else (value - lo) % (hi - lo + 1) + lo


def fits(dim: Dim, elem: int) -> bool:
    """Whether the result of arithmetic in type ``elem`` is ``dim`` itself, not wrapped."""
    lo, hi = INTEGERS[elem]
    if lo <= dim.lo and dim.hi <= hi:
        return True
    # By convention, dimensions and arithmetic on them do not overflow 32 bits (see symbols.py).
    return dim.is_count and hi >= 2**31 - 1 and dim.value is None and (lo < 0 or dim.lo >= 0)


def with_shape(info: Info, shape: Shape | None, value: Elements | None = None) -> Info:
    """A tensor of the same element type as ``info``."""
    return Info(info.elem, shape, value)


NAMED_LIMIT = 16
"""Maximum number of elements of an integer tensor whose unknown elements get names."""


def finished(info: Info, name_element: Callable[[int, int], Dim]) -> Info:
    """``info`` with its shape and value in agreement; ``name_element(flat index, elem)`` makes the missing ones."""
    shape, value, elem = info.shape, info.value, info.elem
    if value is not None and shape is None:
        shape = tuple(constant(size) for size in value.shape)
    sizes = small(shape)
    if sizes is None or elem is None:
        return Info(elem, shape, None, info.fill, info.kind, info.item) if value is not None else info
    if value is not None and value.shape != sizes:
        value = None
    count = int(np.prod(sizes))
    if elem in INTEGERS:
        if value is None and 0 < count <= NAMED_LIMIT:
            value = np.full(sizes, None, dtype=object)
        if value is not None:
            items = [
                name_element(i, elem) if item is None else item for i, item in enumerate(value.reshape(-1))
            ]
            value = elements(items, sizes)
    elif value is not None and all(item is None for item in value.reshape(-1)):
        value = None
    return Info(elem, shape, value, info.fill, info.kind, info.item)


def decoded(attribute: AttributeProto | None) -> Any:
    """The attribute's value, bytes as str; None without one."""
    if attribute is None:
        return None
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.INTS:
        return list(attribute.ints)
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "replace")
    if kind == AttributeProto.TENSOR:
        return attribute.t
    try:
        return helper.get_attribute_value(attribute)
    except ValueError:
        raise Unknown from None


def schema_elem(call: Call, k: int) -> int | None:
    """An output's element type by the operator's schema, or None."""
    known = signature(call.op, call.opset, call.domain)
    output = known.output(k) if known is not None else None
    if known is None or output is None:
        return None
    if not output.variable:
        return next(iter(output.elems)) if len(output.elems) == 1 else None
    index = next((i for i, formal in enumerate(known.inputs) if formal.variable == output.variable), None)
    source = call.info(index) if index is not None else ABSENT
    return source.elem if source.kind == "tensor" else None


LIMIT = 1 << 17
"""Maximum number of descriptions and of answers; beyond it, results are computed again."""

Question = tuple[object, ...]


class Knowledge:
    """Results of one pass."""

    def __init__(self) -> None:
        self.answers: dict[Question, tuple[Info, ...]] = {}
        """Output descriptions by question, for operators that create no symbols."""
        self._infos: dict[Question, Info] = {_key(UNKNOWN): UNKNOWN}

    def learn(self, question: Question, answer: tuple[Info, ...]) -> None:
        """Keep the answer to a question."""
        if len(self.answers) < LIMIT:
            self.answers[question] = answer

    def interned(self, info: Info) -> Info:
        """The only object for descriptions equal to ``info``."""
        if info is ABSENT or len(self._infos) >= LIMIT:
            return info
        return self._infos.setdefault(_key(info), info)


def _key(info: Info) -> Question:
    """A key for equal descriptions. Dimensions are interned and live as long as ``info``, so that their ids are
    keys."""
    shape = None if info.shape is None else tuple(map(id, info.shape))
    value: object = None
    if info.value is not None:
        # repr distinguishes 0.0 from -0.0, and is the same for every NaN.
        items = [repr(item) if isinstance(item, float) else id(item) for item in info.value.reshape(-1)]
        value = (info.value.shape, *items)
    fill = None if info.fill is None else repr(info.fill)
    return (info.elem, shape, value, fill, info.kind, None if info.item is None else _key(info.item))


def initializer(value: Value) -> Info:
    """Type, dimensions and, if it is small and no caller can override it, the value of an initializer."""
    if value.sparse:
        for sparse in getattr(value.scope.proto, "sparse_initializer", ()):
            if sparse.values.name == value.name:
                return Info(sparse.values.data_type, tuple(constant(d) for d in sparse.dims))
        return UNKNOWN
    tensor = value.initializer
    if tensor is None or value.is_input:
        return UNKNOWN
    elem = tensor.data_type or None
    shape = tuple(as_dim(d) for d in tensor.dims)
    elements = None
    if (elem in INTEGERS or elem in FLOATS) and small(shape) is not None:
        try:
            array = value.constant(VALUE_LIMIT * 16)
        except ModelError:
            array = None  # external data that is missing: reported where the weights are read
        if array is not None and elem is not None:
            elements = from_array(array, elem)
    return Info(elem, shape, elements)
