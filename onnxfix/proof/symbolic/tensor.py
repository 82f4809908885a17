"""A tensor whose elements are known, or are hashes of values that depend on the model's inputs."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from onnx import TensorProto, TypeProto, helper, numpy_helper

from onnxfix.proof.symbolic import hashes
from onnxfix.proof.symbolic.hashes import Words


class Undecided(Exception):
    """Neither proven nor refuted; the text says what stands in the way, ``names`` which tensors must be known for
    that."""

    def __init__(self, reason: str, names: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.names = tuple(names)


class Late(Undecided):
    """The time limit is exceeded."""


UNTIL: ContextVar[float] = ContextVar("until", default=math.inf)
"""The time of the processor at which a proof ends."""


def check_time() -> None:
    """Raise ``Late`` where the time limit is exceeded."""
    if time.process_time() > UNTIL.get():
        raise Late("time limit exceeded")


class Weights:
    """The weights of a model that is in memory."""

    def read(self, proto: TensorProto) -> np.ndarray[Any, Any]:
        """The elements of an initializer."""
        return numpy_helper.to_array(proto)

    def content(self, proto: TensorProto) -> bytes:
        """What tells the elements from others of the same type and shape. Equal elements may be told apart."""
        if proto.HasField("raw_data"):
            return proto.raw_data
        copy = TensorProto()
        copy.CopyFrom(proto)
        copy.ClearField("name")
        copy.ClearField("doc_string")
        return copy.SerializeToString(deterministic=True)


T = TensorProto
_BITS = {T.BOOL: 1, T.UINT2: 2, T.UINT4: 4, T.UINT8: 8, T.UINT16: 16, T.UINT32: 32, T.UINT64: 64}
_SIGNED_BITS = {T.INT2: 2, T.INT4: 4, T.INT8: 8, T.INT16: 16, T.INT32: 32, T.INT64: 64}
INTEGERS: dict[int, tuple[int, int]] = {
    **{kind: (0, (1 << bits) - 1) for kind, bits in _BITS.items()},
    **{kind: (-(1 << bits - 1), (1 << bits - 1) - 1) for kind, bits in _SIGNED_BITS.items()},
}
"""Element types of whole numbers, with the smallest and the largest."""
MANTISSAS: dict[int, int] = {
    **{T.DOUBLE: 53, T.FLOAT: 24, T.FLOAT16: 11, T.BFLOAT16: 8},
    **{T.FLOAT8E4M3FN: 4, T.FLOAT8E4M3FNUZ: 4, T.FLOAT8E5M2: 3, T.FLOAT8E5M2FNUZ: 3, T.FLOAT4E2M1: 2},
}
"""Floating-point element types, with the bits of a mantissa: whole numbers up to ``2 ** bits`` are exact."""
_WITHIN: dict[int, set[int]] = {
    T.DOUBLE: {T.FLOAT, T.FLOAT16, T.BFLOAT16},
    T.FLOAT: {T.FLOAT16, T.BFLOAT16},
    T.FLOAT16: {T.FLOAT8E4M3FN, T.FLOAT8E5M2, T.FLOAT4E2M1},
    T.BFLOAT16: {T.FLOAT8E4M3FN, T.FLOAT8E5M2, T.FLOAT4E2M1},
}


_KEPT, _HASHED = 1 << 20, 3 << 24
"""Elements of a weight up to which its hashes are kept, and up to which there are any."""


def contains(outer: int, inner: int) -> bool:
    """Whether each value of the floating-point type ``inner`` is one of ``outer``."""
    return outer == inner or any(contains(one, inner) for one in _WITHIN.get(outer, ()))


def numpy_type(dtype: int) -> np.dtype[Any]:
    """NumPy's type of an element type of ONNX."""
    kind: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(dtype))
    return kind


@dataclass(frozen=True)
class Tensor:
    """``known`` has the elements where they do not depend on inputs; else ``compute`` computes their hashes, or they
    are atoms by ``atom`` and position. Two tensors of one ``recipe`` are computed in the same way, whatever axes of
    size 1 they begin with, so that their hashes need not be computed.

    ``bounds`` are the smallest and the largest that elements may be, if all are whole numbers without -0.0. ``within``
    is the smallest floating-point type known to have all elements. ``wraps``: the hashes are of numbers that may lie
    outside of the element type's range, in which the values are these numbers wrapped around.
    ``table``: the elements as functions of one integer each, a ``tables.Table``."""

    dtype: int
    shape: tuple[int, ...]
    known: np.ndarray[Any, Any] | None = None
    compute: Callable[[], Words] | None = field(default=None, repr=False)
    recipe: bytes = b""
    atom: str = ""
    bounds: tuple[int, int] | None = None
    within: int = 0
    wraps: bool = False
    table: Any = field(default=None, init=False, repr=False)

    @property
    def words(self) -> Words:
        """The hashes of the elements: shape ``(2, *shape)``. Those of a large weight, 16 bytes an element, are not
        kept."""
        if self.compute is not None or self.size <= _KEPT:
            return self._words
        if self.size > _HASHED:
            raise Undecided(f"{self.size} elements are too many")
        return self._hash()

    @cached_property
    def _words(self) -> Words:
        check_time()
        return self.compute() if self.compute is not None else self._hash()

    def _hash(self) -> Words:
        check_time()
        return hashes.encode(self.known) if self.known is not None else hashes.atoms(self.atom, self.shape)

    @cached_property
    def key(self) -> bytes:
        """What identifies the elements, without the axes of size 1 that they begin with."""
        shape = str(strip(self.shape)).encode()
        if self.known is not None and self.known.dtype != object:
            array = np.ascontiguousarray(self.known).reshape(-1)
            return identify(b"known", str(array.dtype).encode(), shape, array.view(np.uint8).data)
        if self.recipe:
            return self.recipe
        if self.atom:
            return identify(b"atom", self.atom.encode(), shape)
        return identify(b"words", shape, hashes.digest(self.words).tobytes())

    @property
    def is_integer(self) -> bool:
        """Whether the element type has whole numbers only; booleans are 0 and 1."""
        return self.dtype in INTEGERS

    @property
    def is_float(self) -> bool:
        """Whether the element type is a floating-point type."""
        return self.dtype in MANTISSAS

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def settled(self) -> Tensor:
        """The same tensor with hashes of its values, where they were of numbers that may wrap."""
        if not self.wraps:
            return self
        low, high = INTEGERS[self.dtype]
        bits = (high - low + 1).bit_length() - 1
        recipe = identify(b"wrap", str((bits, low)).encode(), self.key)

        def compute() -> Words:
            if not low:
                return hashes.mix(f"wrap {bits}", self.words)
            begin = hashes.encode(np.full((1,) * len(self.shape), -low))
            return hashes.subtract(hashes.mix(f"wrap {bits}", hashes.add(self.words, begin)), begin)

        return Tensor(self.dtype, self.shape, compute=compute, recipe=recipe, bounds=(low, high))

    def same_as(self, other: Tensor) -> bool:
        """Whether both have the same type, shape and hashes."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        one, two = self.settled(), other.settled()
        return one.key == two.key or np.array_equal(one.words, two.words)


def constant(array: np.ndarray[Any, Any], dtype: int = 0) -> Tensor:
    """A tensor of known elements; ``dtype`` is ONNX's element type, 0 for the one of the array."""
    dtype = dtype or helper.np_dtype_to_tensor_dtype(array.dtype)
    bounds: tuple[int, int] | None = None
    within = dtype if dtype in MANTISSAS else 0
    if array.size and dtype in INTEGERS:
        bounds = int(array.min()), int(array.max())
    elif array.size and dtype in MANTISSAS and array.size < 1 << 20:
        numbers = array.astype(np.float64)
        whole = np.isfinite(numbers) & (numbers == np.floor(np.where(np.isfinite(numbers), numbers, 0.5)))
        if np.all(whole & ~((numbers == 0) & np.signbit(numbers))):
            bounds = int(numbers.min()), int(numbers.max())
        for kind in (T.FLOAT, T.FLOAT16):
            with np.errstate(all="ignore"):
                narrow = numbers.astype(numpy_type(kind)).astype(np.float64)
            if contains(dtype, kind) and np.array_equal(narrow, numbers, equal_nan=True):
                within = kind
    return Tensor(dtype, array.shape, array, bounds=bounds, within=within)


def fill(value: float, dtype: int, shape: Sequence[int] = ()) -> Tensor:
    """A tensor of one known number."""
    return constant(np.full(tuple(shape), value, numpy_type(dtype)), dtype)


def atoms(name: str, dtype: int, shape: Sequence[int]) -> Tensor:
    """A tensor of which nothing is known; equal names have equal values."""
    within = dtype if dtype in MANTISSAS else 0
    return Tensor(dtype, tuple(shape), atom=name, bounds=INTEGERS.get(dtype), within=within)


def unknown_sequence(name: str, kind: TypeProto, shapes: Sequence[Any]) -> tuple[Tensor, ...]:
    """A sequence of tensors of which nothing is known but their shapes; also one that is optional."""
    kind = kind.optional_type.elem_type if kind.HasField("optional_type") else kind
    dtype = kind.sequence_type.elem_type.tensor_type.elem_type
    if not dtype:
        raise Undecided(f"{name} is neither a tensor nor a sequence of tensors")
    return tuple(atoms(f"{name} {place}", dtype, shape) for place, shape in enumerate(shapes))


def computed(
    dtype: int,
    shape: Sequence[int],
    recipe: bytes,
    compute: Callable[[], Words],
    bounds: tuple[int, int] | None = None,
    within: int = 0,
) -> Tensor:
    """A tensor of hashes. Numbers of an integer type that ``bounds`` puts outside of its range wrap; without bounds
    an integer may be any of its type."""
    limits = INTEGERS.get(dtype)
    bounds = bounds or limits
    wraps = bool(limits and bounds and (bounds[0] < limits[0] or bounds[1] > limits[1]))
    within = within or (dtype if dtype in MANTISSAS else 0)
    return Tensor(
        dtype, tuple(shape), compute=compute, recipe=recipe, bounds=bounds, within=within, wraps=wraps
    )


def with_table(tensor: Tensor, table: Any) -> Tensor:
    """The same tensor with a ``tables.Table`` of its elements."""
    result = replace(tensor)
    result.__dict__["table"] = table
    return result


def derived(
    dtype: int,
    shape: Sequence[int],
    name: str,
    operands: Sequence[Tensor],
    compute: Callable[[], Words],
    bounds: tuple[int, int] | None = None,
    within: int = 0,
) -> Tensor:
    """As ``computed``, by a function of the operands' hashes that ``name`` and the shapes determine."""
    shapes = str((dtype, tuple(shape), [one.shape for one in operands])).encode()
    recipe = identify(b"derived", name.encode(), shapes, *(one.key for one in operands))
    return computed(dtype, shape, recipe, compute, bounds, within)


def elementwise(
    dtype: int,
    name: str,
    operands: Sequence[Tensor],
    bounds: tuple[int, int] | None = None,
    within: int = 0,
    *,
    ordered: bool = True,
    ring: Callable[[Words, Words], Words] | None = None,
) -> Tensor:
    """A function of the elements of the operands, which are broadcast: a random one, called ``name``, or a sum or
    product by ``ring``."""
    shape = np.broadcast_shapes(*(one.shape for one in operands))
    keys = [one.key for one in operands]
    recipe = identify(name.encode(), str(strip(shape)).encode(), *(keys if ordered else sorted(keys)))

    def compute() -> Words:
        words = [hashes.aligned(one.words, len(shape)) for one in operands]
        if ring is not None:
            return ring(*words)
        return hashes.mix(name, *words) if ordered else hashes.mix_unordered(name, *words)

    return computed(dtype, shape, recipe, compute, bounds, within)


def strip(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without the axes of size 1 that it begins with."""
    first = next((axis for axis, size in enumerate(shape) if size != 1), len(shape))
    return tuple(shape[first:])


def identify(*parts: Any) -> bytes:
    """A digest of parts."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def widest(tensors: Sequence[Tensor]) -> int:
    """The smallest floating-point type known to have the elements of all; 0 where they are no floats."""
    kinds = {one.within for one in tensors}
    return next(
        (kind for kind in kinds if all(contains(kind, one) for one in kinds)),
        tensors[0].dtype if 0 not in kinds else 0,
    )


def hull(tensors: Sequence[Tensor]) -> tuple[int, int] | None:
    """Bounds of the elements of all of the tensors."""
    bounds = [one.bounds for one in tensors if one.size]
    found = [one for one in bounds if one is not None]
    if not found or len(found) < len(bounds):
        return None
    return min(low for low, _ in found), max(high for _, high in found)
