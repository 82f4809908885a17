"""What the rules about ConvTranspose share: which part of the full result ONNX keeps, and which part TensorRT keeps.

Along a spatial axis the full result of a transposed convolution has ``(size - 1) * stride + span`` elements, as many
as ``output_padding`` says more at its end (nothing is added up there), and padding cuts from both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfix.rule import Draft, Model, Node

SAME = ("SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True)
class Deconv:
    """A ConvTranspose's attributes, one entry per spatial axis; a size is None where it is not static."""

    sizes: tuple[int | None, ...]
    spans: tuple[int, ...]
    strides: tuple[int, ...]
    extra: tuple[int, ...]
    wanted: tuple[int, ...] | None
    pads: tuple[int, ...] | None
    auto_pad: str
    opset: int

    @property
    def axes(self) -> range:
        """The spatial axes, counted from 0."""
        return range(len(self.spans))

    def full(self, axis: int) -> int | None:
        """Elements of the full result, without ``output_padding``; None where the size is not static."""
        size = self.sizes[axis]
        return None if size is None else (size - 1) * self.strides[axis] + self.spans[axis]

    def total(self, axis: int) -> int | None:
        """What ONNX cuts in all, by its equation for ``total_padding``; None where the size would have to be known.

        For SAME_* without an ``output_shape`` it does not depend on the size.
        """
        full = self.full(axis)
        if self.wanted is not None:
            return None if full is None else full + self.extra[axis] - self.wanted[axis]
        if self.auto_pad in SAME:
            return self.spans[axis] - self.strides[axis] + self.extra[axis]
        return 0

    def begin(self, total: int) -> int:
        """How much of ``total`` is cut at the start: half of it, and the odd one unless it is SAME_UPPER."""
        return total // 2 if self.auto_pad == "SAME_UPPER" else total - total // 2

    @property
    def totals(self) -> tuple[int, ...] | None:
        """What is cut along each axis, where ONNX leaves no doubt: it is known, not negative, and no odd one lies
        differently by opset (before 11 the specification had the odd one at the other end than ONNX Runtime)."""
        found = [self.total(axis) for axis in self.axes]
        known = tuple(t for t in found if t is not None and t >= 0)
        if len(known) < len(found) or (self.opset < 11 and any(t % 2 for t in known)):
            return None
        return known

    def disputed(self, begins: Sequence[int]) -> bool:
        """Whether ONNX's reference evaluator runs this and starts elsewhere: with an ``output_shape`` and no SAME_* it
        takes ``pads`` as they stand instead of working them out, which fits some sizes."""
        if self.wanted is None or self.auto_pad in SAME:
            return False
        pads = self.pads or (0,) * (2 * len(self.spans))
        heads, tails = pads[: len(self.spans)], pads[len(self.spans) :]
        fits = all(
            (self.wanted[i] + heads[i] + tails[i] - self.spans[i]) // self.strides[i] + 1 == self.sizes[i]
            for i in self.axes
        )
        return fits and tuple(begins) != heads


def deconv(node: Node, model: Model) -> Deconv | None:
    """The ConvTranspose's attributes; None where the kernel is not known, or a list is malformed."""
    data, weight = node.input(0), node.input(1)
    shape = None if data is None else model.shapes.shape(data)
    kernel = None if weight is None else model.shapes.static_shape(weight)
    if shape is None or kernel is None or len(shape) != len(kernel) or len(shape) < 3:
        return None
    count = len(shape) - 2
    strides = _ints(node, "strides", 1, count)
    dilations = _ints(node, "dilations", 1, count)
    extra = _ints(node, "output_padding", 0, count)
    wanted = node.attr("output_shape") or None
    pads = node.attr("pads") or None
    if (
        strides is None
        or dilations is None
        or extra is None
        or min(*strides, *dilations) < 1
        or min(extra) < 0
    ):
        return None
    if (wanted is not None and len(wanted) != count) or (pads is not None and len(pads) != 2 * count):
        return None
    if (
        0 in kernel
        or any(d.value == 0 for d in shape)
        or tuple(_ints(node, "kernel_shape", 0, count) or ())
        not in (
            (0,) * count,
            kernel[2:],
        )
    ):
        return None
    return Deconv(
        sizes=tuple(d.value for d in shape[2:]),
        spans=tuple((k - 1) * d + 1 for k, d in zip(kernel[2:], dilations, strict=True)),
        strides=strides,
        extra=extra,
        wanted=None if wanted is None else tuple(wanted),
        pads=None if pads is None else tuple(pads),
        auto_pad=node.attr("auto_pad", "NOTSET") or "NOTSET",
        opset=node.opset,
    )


def _ints(node: Node, name: str, default: int, count: int) -> tuple[int, ...] | None:
    found = tuple(node.attr(name) or (default,) * count)
    return found if len(found) == count else None


def write_pads(node: Node, found: Deconv, totals: Sequence[int]) -> Draft | None:
    """The padding written out in place of ``auto_pad`` and ``output_shape``; None where readers differ about it."""
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
