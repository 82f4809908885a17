"""Windows with gaps, summed by a Conv of ones: TensorRT's pooling has no gaps, its convolutions have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfix.rule import Draft, Node, Value

LIMIT = 1 << 20
"""Elements of the weights, and of the counts."""


@dataclass(frozen=True)
class Window:
    """The window along one dimension; ``size`` of the input is None where it is not known."""

    size: int | None
    kernel: int
    gap: int
    step: int
    begin: int
    end: int
    ceil: bool

    @property
    def reach(self) -> int:
        return self.gap * (self.kernel - 1) + 1

    def results(self, size: int) -> int:
        """How many windows there are; those that start behind the input are none."""
        room = size + self.begin + self.end - self.reach
        count = (-(-room // self.step) if self.ceil else room // self.step) + 1
        if self.ceil and (count - 1) * self.step >= size + self.begin:
            count -= 1
        return count

    def needed(self, size: int) -> int:
        """Padding at the end that a Conv needs for as many windows."""
        return max((self.results(size) - 1) * self.step + self.reach - size - self.begin, 0)

    @property
    def padding(self) -> int:
        """What a Conv has to pad at the end."""
        return self.needed(self.size) if self.ceil and self.size is not None else self.end

    def counts(self, size: int, padding: bool) -> np.ndarray[Any, Any]:
        """How many elements each window has, with those in the padding or without."""
        starts = np.arange(self.results(size))[:, None] * self.step - self.begin
        places = starts + np.arange(self.kernel) * self.gap
        low, high = (-self.begin, size + self.end) if padding else (0, size)
        return np.asarray(((places >= low) & (places < high)).sum(axis=1))


def summed(draft: Draft, data: Value | str, windows: Sequence[Window], channels: int, dtype: Any) -> str:
    """The sum of each window, of each channel, as the name of a value."""
    kernel = [window.kernel for window in windows]
    return draft.add(
        "Conv",
        [data, draft.constant(np.ones((channels, 1, *kernel), dtype), "ones")],
        kernel_shape=kernel,
        dilations=[window.gap for window in windows],
        strides=[window.step for window in windows],
        pads=[*(w.begin for w in windows), *(w.padding for w in windows)],
        group=channels,
    )


def windows_of(node: Node, sizes: list[int | None]) -> list[Window] | None:
    """The windows of a pooling; None where its padding depends on the size, or a dimension is missing."""
    kernel, gaps, count = node.attr("kernel_shape"), node.attr("dilations"), len(sizes)
    pads, steps = node.attr("pads", [0] * 2 * count), node.attr("strides", [1] * count)
    if not count or node.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    if not len(kernel) == len(gaps) == len(steps) == count or len(pads) != 2 * count or min(pads) < 0:
        return None
    if min(*kernel, *gaps, *steps) < 1:
        return None
    ceil = bool(node.attr("ceil_mode", 0))
    found = [
        Window(sizes[i], kernel[i], gaps[i], steps[i], pads[i], pads[count + i], ceil) for i in range(count)
    ]
    return found if all(w.size is None or w.results(w.size) > 0 for w in found) else None


def counts_of(windows: list[Window], padding: bool) -> np.ndarray[Any, Any] | None:
    """What to divide by; None where a size is not known that it depends on, or it is 0 somewhere."""
    whole = math.prod(w.kernel for w in windows)
    inside = not any(w.ceil for w in windows) and (padding or not any(w.begin or w.end for w in windows))
    if inside:
        return np.array(whole)
    sizes = [w.size for w in windows if w.size is not None]
    if (
        len(sizes) < len(windows)
        or math.prod(w.results(s) for w, s in zip(windows, sizes, strict=True)) > LIMIT
    ):
        return None
    lines = [w.counts(s, padding) for w, s in zip(windows, sizes, strict=True)]
    total = np.ones((), np.int64)
    for line in lines:
        total = np.multiply.outer(total, line)
    return total[None, None] if total.all() else None
