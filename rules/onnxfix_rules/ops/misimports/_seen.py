"""The keys that each query of an Attention may attend to, as a boolean mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfix.rule import Dim, Draft, Value, is_small

_LIMIT = 1 << 16
"""Maximum number of elements of a mask that is stored as a constant; larger ones are computed."""


@dataclass(frozen=True)
class Seen:
    """What may restrict the keys. ``queries`` and ``keys`` are the sequence lengths, None where even the rank is
    unknown; ``limits`` names the restrictions that TensorRT ignores and that have an effect."""

    queries: Dim | None
    keys: Dim | None
    axis: int
    lengths: Value | None
    causal: bool
    left: int
    right: int
    limits: tuple[str, ...]


def mask(draft: Draft, found: Seen, query: Value, key: Value, rows: Dim | None) -> str:
    """The mask, as the name of a value: [queries, keys], with lengths [batch, 1, queries, keys].

    ``rows`` is the second-to-last dimension of the mask that it will be combined with. ONNX Runtime requires a row for
    each query, although ONNX lets masks broadcast.
    """
    return _constant(draft, found) or _computed(draft, found, query, key, rows)


def _constant(draft: Draft, found: Seen) -> str:
    """The mask as a constant, where it is known and small; else ""."""
    assert found.queries is not None
    assert found.keys is not None
    queries, keys = found.queries.value, found.keys.value
    if found.lengths is not None or queries is None:
        return ""
    if keys is None or max(queries, 1) * max(keys, 1) > _LIMIT:
        return ""
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    allowed = np.ones((queries, keys), dtype=np.bool_)
    if found.causal:
        allowed &= j <= i
    if found.left >= 0:
        allowed &= j >= i - found.left
    if found.right >= 0:
        allowed &= j <= i + found.right
    return draft.constant(allowed, "mask")


def _computed(draft: Draft, found: Seen, query: Value, key: Value, rows: Dim | None) -> str:
    """The mask, computed by nodes."""
    builder = _Builder(draft, found, query, key)
    keys = builder.keys()
    parts = []
    lengths = None if found.lengths is None else builder.lengths(found.lengths)
    bounded = found.causal or found.left >= 0 or found.right >= 0
    positions = builder.positions(lengths) if bounded else ""
    excludes_padding = found.causal or found.right == 0  # then no padding key is visible anyway
    if lengths is not None and not excludes_padding:
        parts.append(draft.add("Less", [keys, lengths]))
    if found.causal:
        parts.append(draft.add("LessOrEqual", [keys, positions]))
    if found.left >= 0:
        first = builder.shifted("Sub", positions, found.left)
        parts.append(draft.add("GreaterOrEqual", [keys, first]))
    if found.right >= 0 and not found.causal:
        parts.append(draft.add("LessOrEqual", [keys, builder.shifted("Add", positions, found.right)]))
    if not bounded and rows is not found.queries:
        parts.append(builder.column())
    allowed = parts[0]
    for part in parts[1:]:
        allowed = draft.add("And", [allowed, part])
    return allowed


class _Builder:
    """Builds the integer tensors that a mask is computed from."""

    def __init__(self, draft: Draft, found: Seen, query: Value, key: Value) -> None:
        self.draft, self.found, self.query, self.key = draft, found, query, key
        self._scalars: dict[int, str] = {}

    def scalar(self, value: int) -> str:
        """A scalar, created once for each value."""
        if value not in self._scalars:
            self._scalars[value] = self.draft.integers(value, "number")
        return self._scalars[value]

    def ints(self, values: Any, hint: str) -> str:
        return self.draft.constant(np.asarray(values, dtype=np.int64), hint)

    def size(self, value: Value) -> str:
        axis = self.found.axis
        length = self.draft.add("Shape", [value], hint="size", start=axis, end=axis + 1)
        return self.draft.add("Squeeze", [length], hint="size")

    def run(self, size: str) -> str:
        return self.draft.add("Range", [self.scalar(0), size, self.scalar(1)])

    def keys(self) -> str:
        """The index of each key: [keys]."""
        known = self.found.keys
        assert known is not None
        if known.value is not None and is_small(known.value):
            return self.ints(np.arange(known.value), "keys")
        return self.run(self.size(self.key))

    def lengths(self, lengths: Value) -> str:
        """[batch, 1, 1, 1]."""
        return self.draft.add("Unsqueeze", [lengths, self.ints([1, 2, 3], "axes")], hint="lengths")

    def positions(self, lengths: str | None) -> str:
        """The position of each query among the keys: [queries, 1]; counted from the end of the lengths if given."""
        known = self.found.queries
        assert known is not None
        if known.value is not None and is_small(known.value):
            start = 0 if lengths is None else -known.value
            column = self.ints(np.arange(known.value).reshape(-1, 1) + start, "queries")
            return column if lengths is None else self.draft.add("Add", [lengths, column])
        size = self.size(self.query)
        column = self.indices(size)
        if lengths is None:
            return column
        return self.draft.add("Add", [self.draft.add("Sub", [lengths, size]), column])

    def indices(self, size: str) -> str:
        """0 to ``size`` - 1: [queries, 1]."""
        return self.draft.add("Unsqueeze", [self.run(size), self.ints([1], "column")], hint="queries")

    def column(self) -> str:
        """True for each query: [queries, 1]."""
        known = self.found.queries
        assert known is not None
        if known.value is not None and is_small(known.value):
            return self.draft.constant(np.ones((known.value, 1), dtype=np.bool_), "queries")
        indices = self.indices(self.size(self.query))
        return self.draft.add("Equal", [indices, indices])

    def shifted(self, op_type: str, positions: str, by: int) -> str:
        return positions if by == 0 else self.draft.add(op_type, [positions, self.scalar(by)])
