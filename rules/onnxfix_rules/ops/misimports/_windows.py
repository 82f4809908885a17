"""The windows of a pooling that rounds up (``ceil_mode``): which of them ONNX has and which TensorRT has.

Letters as in NvInfer.h's PaddingMode: along an axis of I elements with B padded before and A after, windows of K
elements start every S elements. Rounding up gives ceil((I + B + A - K) / S) + 1 windows. TensorRT keeps all of them;
ONNX drops a last one that starts in the padding at the end, at I + B or after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnxfix.rule import Dim, Draft, Model, Node
from onnxfix.shapes.symbols import NO, Answer, at_least, mod, symbol


def declared_alike(node: Node, sizes: Sequence[int | None]) -> bool:
    """Whether no graph declares other spatial sizes for an output of the node than these; None is unknown."""
    for value in node.outputs:
        declared = value.declared if value is not None and value.is_output else None
        dims = declared.tensor_type.shape.dim if declared is not None else []
        pairs = zip(dims[2:], sizes, strict=False)
        if any(dim.HasField("dim_value") and size not in (None, dim.dim_value) for dim, size in pairs):
            return False
    return True


@dataclass(frozen=True)
class Axis:
    """The windows along one spatial axis of ``size`` elements."""

    size: Dim
    kernel: int
    step: int
    begin: int
    end: int

    @property
    def _overhang(self) -> Dim:
        """How far the last window, when rounding up, reaches beyond the padded input."""
        return mod(self.kernel - self.end - self.size - self.begin, self.step)

    @property
    def in_padding(self) -> Answer:
        """Whether the last window, when rounding up, starts in the padding at the end."""
        return at_least(self._overhang, self.kernel - self.end)

    @property
    def beyond(self) -> Answer:
        """Whether a window that ONNX keeps reaches beyond the padded input: none does where the last one is dropped."""
        if self.kernel - self.end == 1:
            return NO  # any such window would start in the padding
        return at_least(self._overhang, 1) & ~self.in_padding

    @property
    def has_windows(self) -> Answer:
        """Whether there is a window, or less than a stride is missing for one. ONNX Runtime truncates a negative
        quotient toward 0, so rounding down gives a window where rounding up gives none."""
        return at_least(self.size, self.kernel - self.begin - self.end - self.step + 1)

    @property
    def padding(self) -> int:
        """The padding at the end with which rounding down gives ONNX's windows. Always less than the window.

        Where the size is dynamic: if K - A < S, ONNX has the windows that start before I + B, ceil((I + B) / S) of
        them, which are floor((I + B + A' - K) / S) + 1 with A' = K - 1. Otherwise none is ever dropped, and A' = A + S
        - 1 makes the quotient round up. The smaller of the two is correct.
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
    """A pooling that rounds up. ``valid``: by ``auto_pad = VALID``, about which implementations disagree when rounding
    up."""

    axes: tuple[Axis, ...]
    valid: bool

    @property
    def in_padding(self) -> Answer:
        """Whether TensorRT has windows along some axis that ONNX does not have."""
        return _any(axis.in_padding for axis in self.axes)

    @property
    def beyond(self) -> Answer:
        """Whether windows reach beyond the padded input."""
        return _any(axis.beyond for axis in self.axes)

    @property
    def has_windows(self) -> bool:
        """Whether there are certainly windows along every axis of a non-empty image."""
        return all(
            axis.kernel - axis.begin - axis.end <= axis.step or axis.has_windows.yes for axis in self.axes
        )

    def draft(self, node: Node) -> Draft:
        """The same windows with rounding down and explicit padding."""
        draft = Draft(node)
        draft.set_attr(node, "ceil_mode", None)
        if not self.valid:
            pads = [*(axis.begin for axis in self.axes), *(axis.padding for axis in self.axes)]
            if any(pads) or node.attribute("pads") is not None:
                draft.set_attr(node, "pads", pads if any(pads) else None)
        return draft

    def sizes(self) -> list[int | None]:
        """The number of ONNX's windows along each axis; None for a dynamic one."""
        found = []
        for axis in self.axes:
            end = axis.end if self.valid else axis.padding
            size = axis.size.value
            found.append(None if size is None else (size + axis.begin + end - axis.kernel) // axis.step + 1)
        return found

    def fits(self, node: Node) -> bool:
        """Whether no graph declares other sizes for its output, as ONNX's shape inference before opset 22 gives them:
        with ONNX's windows onnx.checker refuses the model then."""
        return declared_alike(node, self.sizes())

    def where(self, answers: Sequence[Answer]) -> str:
        """The axes for which the answer is not no, as text."""
        found = [
            f"axis {number} (size {axis.size}, kernel {axis.kernel}, stride {axis.step})"
            for number, (axis, answer) in enumerate(zip(self.axes, answers, strict=True), 2)
            if not answer.no
        ]
        return " and ".join(found)


def rounded_up(node: Node, model: Model, first_opset: int) -> Pool | None:
    """The windows of a pooling with ``ceil_mode``.

    None without ``ceil_mode``; where the node is malformed or the tensor empty; with SAME_*, which rounds in its own
    way; and with dilations, which TensorRT rejects. ``first_opset`` is the one that introduced the attribute: before
    it, TensorRT does not read it either.
    """
    data, auto = node.input(0), node.attr("auto_pad", "NOTSET")
    if node.opset < first_opset or not node.attr("ceil_mode", 0) or data is None or auto[:4] == "SAME":
        return None
    kernel = node.attr("kernel_shape", [])
    # Inside a local function shapes are unknown; kernel_shape gives the number of spatial axes.
    shape = model.shapes.shape(data) or [symbol(f"{data.name}.{axis}") for axis in range(len(kernel) + 2)]
    count = len(shape) - 2
    strides, dilations = node.attr("strides") or [1] * count, node.attr("dilations") or [1] * count
    pads = node.attr("pads") or [0] * 2 * count
    if count < 1 or not len(kernel) == len(strides) == len(dilations) == count or len(pads) != 2 * count:
        return None
    axes = tuple(map(Axis, shape[2:], kernel, strides, pads[:count], pads[count:]))
    if set(dilations) != {1} or (auto == "VALID" and any(pads)) or not all(map(_is_valid, axes)):
        return None
    return Pool(axes, auto == "VALID")


def _is_valid(axis: Axis) -> bool:
    """Whether there are windows, with less padding than kernel, as ONNX Runtime and TensorRT require."""
    if min(axis.kernel, axis.step) < 1:
        return False
    if not 0 <= min(axis.begin, axis.end) <= max(axis.begin, axis.end) < axis.kernel:
        return False
    size = axis.size.value
    return size is None or (size > 0 and size + axis.begin + axis.end >= axis.kernel)


def _any(answers: Iterable[Answer]) -> Answer:
    found = NO
    for answer in answers:
        found = found | answer
    return found
