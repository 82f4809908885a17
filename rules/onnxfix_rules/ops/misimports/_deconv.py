"""Shared by the rules about ConvTranspose: which part of the full result ONNX keeps and which part TensorRT keeps.

Along a spatial axis the full result of a transposed convolution has ``(size - 1) * stride + span`` elements, plus
``output_padding`` elements at its end (to which no input contributes). Padding cuts from both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfix.rule import Draft, Model, Node

SAME = ("SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True)
class Deconv:
    """A ConvTranspose's attributes, one entry per spatial axis; a size is None where it is dynamic."""

    sizes: tuple[int | None, ...]
    spans: tuple[int, ...]
    strides: tuple[int, ...]
    output_padding: tuple[int, ...]
    output_shape: tuple[int, ...] | None
    pads: tuple[int, ...] | None
    auto_pad: str
    opset: int

    @property
    def axes(self) -> range:
        """The spatial axes, counted from 0."""
        return range(len(self.spans))

    def full(self, axis: int) -> int | None:
        """Elements of the full result, without ``output_padding``; None where the size is dynamic."""
        size = self.sizes[axis]
        return None if size is None else (size - 1) * self.strides[axis] + self.spans[axis]

    def total(self, axis: int) -> int | None:
        """ONNX's ``total_padding``: how many elements are cut in all; None where it depends on a dynamic size.

        For SAME_* without an ``output_shape`` it does not depend on the size.
        """
        full = self.full(axis)
        if self.output_shape is not None:
            return None if full is None else full + self.output_padding[axis] - self.output_shape[axis]
        if self.auto_pad in SAME:
            return self.spans[axis] - self.strides[axis] + self.output_padding[axis]
        return 0

    def begin(self, total: int) -> int:
        """How much of ``total`` is cut at the start: half of it, rounded up unless it is SAME_UPPER."""
        return total // 2 if self.auto_pad == "SAME_UPPER" else total - total // 2

    @property
    def totals(self) -> tuple[int, ...] | None:
        """What is cut along each axis, where ONNX is unambiguous: known, not negative, and not an odd number before
        opset 11 (where the specification put the odd element at the other end than ONNX Runtime)."""
        found = [self.total(axis) for axis in self.axes]
        known = tuple(t for t in found if t is not None and t >= 0)
        if len(known) < len(found) or (self.opset < 11 and any(t % 2 for t in known)):
            return None
        return known

    def disputed(self, begins: Sequence[int]) -> bool:
        """Whether ONNX's reference evaluator runs this and starts elsewhere: with an ``output_shape`` and no SAME_* it
        uses ``pads`` as given instead of computing them, which fits some sizes."""
        if self.output_shape is None or self.auto_pad in SAME:
            return False
        pads = self.pads or (0,) * (2 * len(self.spans))
        heads, tails = pads[: len(self.spans)], pads[len(self.spans) :]
        fits = all(
            (self.output_shape[i] + heads[i] + tails[i] - self.spans[i]) // self.strides[i] + 1
            == self.sizes[i]
            for i in self.axes
        )
        return fits and tuple(begins) != heads


def deconv(node: Node, model: Model) -> Deconv | None:
    """The ConvTranspose's attributes; None where the kernel shape is unknown or a list is malformed."""
    data, weight = node.input(0), node.input(1)
    shape = None if data is None else model.shapes.shape(data)
    kernel = None if weight is None else model.shapes.static_shape(weight)
    if shape is None or kernel is None or len(shape) != len(kernel) or len(shape) < 3:
        return None
    count = len(shape) - 2
    strides = _ints(node, "strides", 1, count)
    dilations = _ints(node, "dilations", 1, count)
    output_padding = _ints(node, "output_padding", 0, count)
    output_shape = node.attr("output_shape") or None
    pads = node.attr("pads") or None
    if strides is None or dilations is None or output_padding is None:
        return None
    if min(*strides, *dilations) < 1 or min(output_padding) < 0:
        return None
    if (output_shape is not None and len(output_shape) != count) or (
        pads is not None and len(pads) != 2 * count
    ):
        return None
    if 0 in kernel or any(d.value == 0 for d in shape):
        return None
    if tuple(_ints(node, "kernel_shape", 0, count) or ()) not in ((0,) * count, kernel[2:]):
        return None
    return Deconv(
        sizes=tuple(d.value for d in shape[2:]),
        spans=tuple((k - 1) * d + 1 for k, d in zip(kernel[2:], dilations, strict=True)),
        strides=strides,
        output_padding=output_padding,
        output_shape=None if output_shape is None else tuple(output_shape),
        pads=None if pads is None else tuple(pads),
        auto_pad=node.attr("auto_pad", "NOTSET") or "NOTSET",
        opset=node.opset,
    )


def _ints(node: Node, name: str, default: int, count: int) -> tuple[int, ...] | None:
    found = tuple(node.attr(name) or (default,) * count)
    return found if len(found) == count else None


def write_pads(node: Node, found: Deconv, totals: Sequence[int]) -> Draft | None:
    """Explicit ``pads`` instead of ``auto_pad`` and ``output_shape``; None where ONNX implementations disagree."""
    begins = [found.begin(total) for total in totals]
    if found.disputed(begins):
        return None
    draft = Draft(node)
    for name in ("auto_pad", "output_shape"):
        if node.attribute(name) is not None:
            draft.set_attr(node, name, None)
    pads = begins + [total - begin for total, begin in zip(totals, begins, strict=True)]
    draft.set_attr(node, "pads", pads if any(pads) else None)
    return draft
