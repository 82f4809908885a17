"""Windows of a pooling that rounds up (``ceil_mode``): which of them ONNX has, and which TensorRT has.

Letters as in NvInfer.h's PaddingMode: along an axis of I elements with B padded before and A after, windows of K
elements start at every S-th place. Rounding up there are ceil((I + B + A - K) / S) + 1 of them, for TensorRT all; for
ONNX a last one is none that starts in the padding at the end, at I + B or behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnxfix.rule import Dim, Draft, Model, Node
from onnxfix.shapes.symbols import NO, Answer, at_least, mod, symbol


@dataclass(frozen=True)
class Axis:
    """The windows along one spatial axis, of ``size`` elements."""

    size: Dim
    kernel: int
    step: int
    begin: int
    end: int

    @property
    def _rest(self) -> Dim:
        """How far the last window of rounding up reaches beyond the padded input."""
        return mod(self.kernel - self.end - self.size - self.begin, self.step)

    @property
    def in_padding(self) -> Answer:
        """Whether the last window of rounding up starts in the padding at the end."""
        return at_least(self._rest, self.kernel - self.end)

    @property
    def beyond(self) -> Answer:
        """Whether a window that ONNX has reaches beyond the padded input: none does where the last one is dropped."""
        if self.kernel - self.end == 1:
            return NO  # any that did would start in the padding
        return at_least(self._rest, 1) & ~self.in_padding

    @property
    def some(self) -> Answer:
        """Whether there is a window, or less than a stride is missing for one: ONNX Runtime cuts off the fraction of
        a negative quotient, and has a window by rounding down where rounding up gives none."""
        return at_least(self.size, self.kernel - self.begin - self.end - self.step + 1)

    @property
    def padding(self) -> int:
        """The padding at the end with which rounding down gives ONNX's windows. Always less than the window.

        Where the size is not known: if K - A < S, ONNX has the windows that start before I + B, ceil((I + B) / S) of
        them, which are floor((I + B + A' - K) / S) + 1 with A' = K - 1. Otherwise none is ever dropped, and
        A' = A + S - 1 makes the quotient round up. The lesser of the two is the right one.
        """
        size = self.size.value
        if size is None:
            return min(self.end + self.step - 1, self.kernel - 1)
        filled = size + self.begin
        last = -(-(filled + self.end - self.kernel) // self.step) * self.step
        if last >= filled:
            last -= self.step
        return max(last + self.kernel - filled, 0)


@dataclass(frozen=True)
class Pool:
    """A pooling that rounds up. ``valid``: by ``auto_pad``, with which readers disagree about rounding up."""

    axes: tuple[Axis, ...]
    valid: bool

    @property
    def in_padding(self) -> Answer:
        """Whether TensorRT has windows along some axis that ONNX has not."""
        return _any(axis.in_padding for axis in self.axes)

    @property
    def beyond(self) -> Answer:
        """Whether windows reach beyond the padded input."""
        return _any(axis.beyond for axis in self.axes)

    @property
    def some(self) -> bool:
        """Whether there are certainly windows along every axis of an image that is not empty."""
        return all(axis.kernel - axis.begin - axis.end <= axis.step or axis.some.yes for axis in self.axes)

    def draft(self, node: Node) -> Draft:
        """The same windows by rounding down, with the padding written out."""
        draft = Draft(node)
        draft.set_attr(node, "ceil_mode", None)
        if not self.valid:
            pads = [*(axis.begin for axis in self.axes), *(axis.padding for axis in self.axes)]
            if any(pads) or node.attribute("pads") is not None:
                draft.set_attr(node, "pads", pads if any(pads) else None)
        return draft

    def where(self, answers: Sequence[Answer]) -> str:
        """The axes for which the answer is not no, as text."""
        found = [
            f"axis {number} (size {axis.size}, kernel {axis.kernel}, stride {axis.step})"
            for number, (axis, answer) in enumerate(zip(self.axes, answers, strict=True), 2)
            if not answer.no
        ]
        return " and ".join(found)


def rounded_up(node: Node, model: Model, first_opset: int) -> Pool | None:
    """The windows of a pooling with ``ceil_mode``; None without it, where it is malformed or nothing is in it, with
    SAME_*, which rounds in its own way, and with gaps, which TensorRT refuses.

    ``first_opset`` is the one that brought the attribute: before, TensorRT does not read it either.
    """
    data, auto = node.input(0), node.attr("auto_pad", "NOTSET")
    if node.opset < first_opset or not node.attr("ceil_mode", 0) or data is None or auto[:4] == "SAME":
        return None
    kernel = node.attr("kernel_shape", [])
    # Inside of a local function shapes are not known, and the attribute says how many sizes there are.
    shape = model.shapes.shape(data) or [symbol(f"{data.name}.{axis}") for axis in range(len(kernel) + 2)]
    count = len(shape) - 2
    steps, gaps = node.attr("strides") or [1] * count, node.attr("dilations") or [1] * count
    pads = node.attr("pads") or [0] * 2 * count
    if count < 1 or not len(kernel) == len(steps) == len(gaps) == count or len(pads) != 2 * count:
        return None
    axes = tuple(map(Axis, shape[2:], kernel, steps, pads[:count], pads[count:]))
    if set(gaps) != {1} or (auto == "VALID" and any(pads)) or not all(map(_sound, axes)):
        return None
    return Pool(axes, auto == "VALID")


def _sound(axis: Axis) -> bool:
    """Whether there are windows, and less padding than window, as ONNX Runtime and TensorRT want it."""
    if (
        min(axis.kernel, axis.step) < 1
        or not 0 <= min(axis.begin, axis.end) <= max(axis.begin, axis.end) < axis.kernel
    ):
        return False
    size = axis.size.value
    return size is None or (size > 0 and size + axis.begin + axis.end >= axis.kernel)


def _any(answers: Iterable[Answer]) -> Answer:
    found = NO
    for answer in answers:
        found = found | answer
    return found
