"""Symbolic shapes, element types and small integer values of every value in a model.

Declared value_info and output shapes may be wrong and are never read. Graph input declarations and initializers are
trusted. See :mod:`onnxfix.shapes.symbols` for what a symbolic dimension means.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from onnxfix.graph.overlay import Value
from onnxfix.shapes.ops.base import INTEGERS, UNKNOWN, Info, static_shape
from onnxfix.shapes.propagate import Pass
from onnxfix.shapes.symbols import NO as NEVER
from onnxfix.shapes.symbols import YES, Answer, Dim, as_dim, equal, unknown

if TYPE_CHECKING:
    from onnxfix.model import Model

__all__ = ["Shapes", "SymTensor"]


class SymTensor(NamedTuple):
    """The value of a small integer or boolean tensor: ``data`` in row-major order, each a symbolic integer."""

    shape: tuple[int, ...]
    data: tuple[Dim, ...]

    @property
    def static(self) -> tuple[int, ...] | None:
        """The integers if all are static, else None."""
        items = tuple(d.value for d in self.data if d.value is not None)
        return items if len(items) == len(self.data) else None


class Shapes:
    """Descriptions of the values of ``model`` as it was at construction. All of them are proven."""

    def __init__(self, model: Model) -> None:
        run = Pass(model)
        self._infos = run.run()
        self._symbols = run.symbols
        self._tensors: dict[Info, SymTensor] = {}

    @property
    def symbols(self) -> Mapping[str, tuple[str, int]]:
        """Symbols of graph inputs: name to ``(input, axis)`` of the first occurrence. Other symbols depend on data."""
        return MappingProxyType(self._symbols)

    def info(self, value: Value) -> Info:
        """The description of ``value``."""
        return self._infos.get(value, UNKNOWN)

    @cached_property
    def kinds(self) -> Collection[Info]:
        """The different descriptions of all values: a model has many values, and few kinds of them."""
        return frozenset(self._infos.values())

    def shape(self, value: Value) -> tuple[Dim, ...] | None:
        """The dimensions; None if the rank is unknown, and for sequences, optionals and maps."""
        return self._infos.get(value, UNKNOWN).shape

    def rank(self, value: Value) -> int | None:
        """The number of dimensions, or None."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def static_shape(self, value: Value) -> tuple[int, ...] | None:
        """The dimensions as integers if all are static, else None."""
        return static_shape(self.shape(value))

    def elem_type(self, value: Value) -> int | None:
        """The element type (TensorProto.DataType) of a tensor; None if unknown, and for other kinds of values."""
        return self._infos.get(value, UNKNOWN).elem

    def item(self, value: Value) -> Info | None:
        """The description of a sequence's or optional's element, or None."""
        return self.info(value).item

    def value(self, value: Value) -> SymTensor | None:
        """The value of a small integer or boolean tensor (up to 64 elements), or None."""
        info = self._infos.get(value, UNKNOWN)
        if info.value is None or info.elem not in INTEGERS or info.kind != "tensor":
            return None
        found = self._tensors.get(info)
        if found is None:
            found = SymTensor(info.value.shape, tuple(as_dim(item) for item in info.value.reshape(-1)))
            self._tensors[info] = found
        return found

    def same_shape(self, a: Value, b: Value) -> Answer:
        """Whether both have the same rank and dimensions."""
        left, right = self.shape(a), self.shape(b)
        if left is None or right is None:
            return unknown()
        if len(left) != len(right):
            return NEVER
        answer = YES
        for one, other in zip(left, right, strict=True):
            answer = answer & equal(one, other)
        return answer

    def broadcasts(self, a: Value, b: Value) -> Answer:
        """Whether an element-wise operator on both repeats or extends one of them: their shapes differ."""
        return ~self.same_shape(a, b)
