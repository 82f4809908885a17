"""Dilated pooling windows, summed by a Conv of ones: TensorRT has no dilated pooling, but dilated convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfix.rule import Draft, Node, Value

LIMIT = 1 << 20
"""Maximum number of elements of the weights, and of the counts."""


@dataclass(frozen=True)
class Window:
    """The window along one dimension; ``size``, that of the input, is None if unknown."""

    size: int | None
    kernel: int
    dilation: int
    stride: int
    begin: int
    end: int
    ceil: bool

    @property
    def extent(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    def count(self, size: int) -> int:
        """The number of windows; those that start after the input do not count."""
        room = size + self.begin + self.end - self.extent
        count = (-(-room // self.stride) if self.ceil else room // self.stride) + 1
        if self.ceil and (count - 1) * self.stride >= size + self.begin:
            count -= 1
        return count

    def needed(self, size: int) -> int:
        """The padding at the end that a Conv needs for the same number of windows."""
        return max((self.count(size) - 1) * self.stride + self.extent - size - self.begin, 0)

    @property
    def padding(self) -> int:
        """The padding at the end of a Conv."""
        return self.needed(self.size) if self.ceil and self.size is not None else self.end

    def counts(self, size: int, padding: bool) -> np.ndarray[Any, Any]:
        """The number of elements of each window, with or without those in the padding."""
        starts = np.arange(self.count(size))[:, None] * self.stride - self.begin
        indices = starts + np.arange(self.kernel) * self.dilation
        low, high = (-self.begin, size + self.end) if padding else (0, size)
        return np.asarray(((indices >= low) & (indices < high)).sum(axis=1))


def summed(draft: Draft, data: Value | str, windows: Sequence[Window], channels: int, dtype: Any) -> str:
    """Add a Conv that sums each window of each channel; return the name of its output."""
    kernel = [window.kernel for window in windows]
    return draft.add(
        "Conv",
        [data, draft.constant(np.ones((channels, 1, *kernel), dtype), "ones")],
        kernel_shape=kernel,
        dilations=[window.dilation for window in windows],
        strides=[window.stride for window in windows],
        pads=[*(w.begin for w in windows), *(w.padding for w in windows)],
        group=channels,
    )


def windows_of(node: Node, sizes: list[int | None]) -> list[Window] | None:
    """The windows of a pooling; None if its padding depends on an unknown size, or an attribute does not fit."""
    kernel, count = node.attr("kernel_shape"), len(sizes)
    dilations, strides = (node.attr(name) or [1] * count for name in ("dilations", "strides"))
    pads, ceil = node.attr("pads") or [0] * 2 * count, bool(node.attr("ceil_mode", 0))
    if not count or not len(kernel) == len(dilations) == len(strides) == count or len(pads) != 2 * count:
        return None
    if min(*kernel, *dilations, *strides) < 1 or min(pads) < 0:
        return None
    auto = node.attr("auto_pad", "NOTSET")
    if auto != "NOTSET" and (any(pads) or ceil or set(dilations) != {1}):
        return None
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same_pads(sizes, kernel, strides) if auto == "SAME_UPPER" else None
    if pads is None:
        return None
    found = [
        Window(sizes[i], kernel[i], dilations[i], strides[i], pads[i], pads[count + i], ceil)
        for i in range(count)
    ]
    return found if all(w.size is None or w.count(w.size) > 0 for w in found) else None


def _same_pads(
    sizes: Sequence[int | None], kernel: Sequence[int], strides: Sequence[int]
) -> list[int] | None:
    """The padding of SAME_UPPER; None where a size is unknown, or where it is negative, which ONNX Runtime crops.
    SAME_LOWER is left: onnx's evaluator puts its padding at the other end, so that no rewrite could be proven."""
    rooms = []
    for size, length, step in zip(sizes, kernel, strides, strict=True):
        if size is None:
            return None
        rooms.append((-(-size // step) - 1) * step + length - size)
    return (
        [*(room // 2 for room in rooms), *(room - room // 2 for room in rooms)] if min(rooms) >= 0 else None
    )


def counts_of(windows: list[Window], padding: bool) -> np.ndarray[Any, Any] | None:
    """The divisors of an average; None if they depend on an unknown size, or one is 0."""
    full = math.prod(w.kernel for w in windows)
    is_constant = not any(w.ceil for w in windows) and (padding or not any(w.begin or w.end for w in windows))
    if is_constant:
        return np.array(full)
    sizes = [w.size for w in windows if w.size is not None]
    if len(sizes) < len(windows):
        return None
    if math.prod(w.count(s) for w, s in zip(windows, sizes, strict=True)) > LIMIT:
        return None
    axes = [w.counts(s, padding) for w, s in zip(windows, sizes, strict=True)]
    total = np.ones((), np.int64)
    for axis in axes:
        total = np.multiply.outer(total, axis)
    return total[None, None] if total.all() else None
