"""Convolution, deconvolution and pooling.

Sizes, paddings and what rounding does to them follow the formulas that NvInfer.h gives of ``PaddingMode``, in its
letters: I input, O output, B and A padding before and after, S stride, F filter, DK the dilated filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import helper

from onnxfix.tensorrt.lift import network
from onnxfix.tensorrt.lift.emit import Emit, lifts
from onnxfix.tensorrt.lift.network import Layer, Unliftable
from onnxfix.tensorrt.lift.records import FLOATS

#: Types of which every value is a float32: what only picks or compares values may do so in float32.
_EXACT = ("FLOAT", "HALF", "BF16", "FP8")


@dataclass(frozen=True)
class _Window:
    """How windows lie on the spatial axes. ``before`` and ``after`` are what the layer pads, ``spare`` what has to be
    added at the end so that rounding down gives what rounding up does. ``same`` is SAME_UPPER or SAME_LOWER where the
    padding depends on lengths that are not known; the three are 0 then."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    spare: tuple[int, ...]
    same: str = ""

    @property
    def ends(self) -> tuple[int, ...]:
        """All padding at the end."""
        return tuple(after + spare for after, spare in zip(self.after, self.spare, strict=True))

    @property
    def fits(self) -> bool:
        """Whether ONNX Runtime's poolings take the padding: it has to be known and less than the window."""
        ends = zip(self.size, self.before, self.ends, strict=True)
        return not self.same and all(before < size and after < size for size, before, after in ends)

    def attributes(self, *, padded: bool = False) -> dict[str, Any]:
        """ONNX's attributes. ``padded``: the input has its padding already."""
        pads = [0] * 2 * len(self.size) if padded else [*self.before, *self.ends]
        return {"kernel_shape": list(self.size), "strides": list(self.stride), "pads": pads}


def _window(layer: Layer, size: Sequence[int], dilation: Sequence[int]) -> _Window:
    """The windows of a convolution or pooling.

    Raises:
        Unliftable: the input has other axes than batch, channel and those of the window.
    """
    x, native = layer.need(0), layer.native
    if x.rank != len(size) + 2:
        raise Unliftable(f"windows of {len(size)} dimensions on an input of {x.rank}")
    stride, mode = tuple(native.stride_nd), layer.word("padding_mode")
    none = (0,) * len(stride)
    fixed = (tuple(size), stride, tuple(dilation))
    assert x.shape is not None
    if mode.startswith("EXPLICIT"):
        before, after = tuple(native.pre_padding), tuple(native.post_padding)
        spare = tuple(map(_spare, x.shape[2:], *fixed, before, after)) if mode.endswith("UP") else none
        return _Window(*fixed, before, after, spare)
    total = [_same(*axis) for axis in zip(x.shape[2:], *fixed, strict=True)]
    if None in total:
        return _Window(*fixed, none, none, none, mode)
    return _Window(*fixed, *_split([one or 0 for one in total], mode), none)


def _spare(length: int, size: int, stride: int, dilation: int, before: int, after: int) -> int:
    """What makes the padded length M one that windows fill: ceil((M - DK) / S) is floor((M + S - 1 - DK) / S), and
    where M is not known S - 1 it is."""
    if length < 0:
        return stride - 1
    return (dilation * (size - 1) + 1 - (length + before + after)) % stride


def _same(length: int, size: int, stride: int, dilation: int) -> int | None:
    """All padding of one axis with SAME; None where it depends on a length that is not known.

    The formula has no lower limit, but a padding that is negative, where the stride exceeds the filter, would cut the
    image, which no framework's SAME does.
    """
    filled = dilation * (size - 1) + 1
    if stride == 1:
        return filled - 1
    return None if length < 0 else max((length - 1) // stride * stride + filled - length, 0)


def _split(total: Sequence[int], mode: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after: SAME_UPPER has the odd element after, SAME_LOWER before."""
    small, large = tuple(one // 2 for one in total), tuple(one - one // 2 for one in total)
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def _pad(e: Emit, value: str, before: Sequence[int], after: Sequence[int], fill: str) -> str:
    """A value with its spatial axes padded by constants; ``fill`` is a scalar."""
    return e.op("Pad", value, e.ints([0, 0, *before, 0, 0, *after]), fill)


def _padded(e: Emit, window: _Window, value: str, fill: str) -> str:
    """A value with all the padding of its windows."""
    if not window.same:
        return _pad(e, value, window.before, window.ends, fill)
    # ONNX's auto_pad means the same, but ONNX Runtime fails or errs where the stride exceeds the window.
    one, two, stride = e.ints([1]), e.ints([2]), e.ints(window.stride)
    filled = e.ints([d * (f - 1) + 1 for f, d in zip(window.size, window.dilation, strict=True)])
    lengths = e.op("Shape", value, start=2)
    last = e.op("Mul", e.op("Div", e.op("Sub", lengths, one), stride), stride)
    total = e.op("Max", e.op("Sub", e.op("Add", last, filled), lengths), e.ints([0]))
    small = e.op("Div", total, two)
    sides = [small, e.op("Sub", total, small)]
    before, after = sides if window.same == "SAME_UPPER" else reversed(sides)
    none = e.ints([0, 0])
    return e.op("Pad", value, e.op("Concat", none, before, none, after, axis=0), fill)


def _in_float(e: Emit, layer: Layer, types: Sequence[str], make: Callable[[list[str]], str]) -> str:
    """What ``make`` computes of the layer's inputs ("" where one is left out), which it gets in float32: ONNX Runtime
    has no kernels for the narrower types, and TensorRT does not say how it accumulates them.

    Raises:
        Unliftable: an input is of another type than ``types``.
    """
    values = []
    for tensor in layer.inputs:
        if tensor is not None and tensor.dtype not in types:
            raise Unliftable(f"how TensorRT computes this in {tensor.dtype} is not documented")
        values.append("" if tensor is None else e.as_type(tensor, "FLOAT"))
    return e.turn(make(values), "FLOAT", layer.outputs[0].dtype)


# -- convolution


def _stored(e: Emit, native: Any, dtype: str, shape: Sequence[int]) -> str:
    """Weights that are stored in a layer, in float32."""
    return e.turn(e.weights(*network.weights_of(native, dtype, shape)), dtype, "FLOAT")


def _parameters(e: Emit, layer: Layer, values: list[str], shape: Sequence[int]) -> list[str]:
    """Kernel and, if there is one, bias: each is an input of the layer or stored in it, and what is stored is empty
    where there is an input. ``shape`` is the kernel's, with one -1 for what the number of weights leaves."""
    native, dtype = layer.native, layer.need(0).dtype
    kernel, bias = [*values, "", ""][1:3]
    if not kernel:
        left = -native.kernel.size // math.prod(shape)
        kernel = _stored(e, native.kernel, dtype, [left if size == -1 else size for size in shape])
    if not bias and native.bias.size:
        bias = _stored(e, native.bias, dtype, [native.bias.size])
    return [kernel, bias] if bias else [kernel]


@lifts("CONVOLUTION")
def _convolution(e: Emit, layer: Layer) -> str:
    native = layer.native
    size, groups = tuple(native.kernel_size_nd), int(native.num_groups)
    window = _window(layer, size, tuple(native.dilation_nd))
    # "GKCRS" is what ONNX has: the filters of one group after the other, each over its group's channels.
    shape = (native.num_output_maps, -1, *size)

    def make(values: list[str]) -> str:
        rest = _parameters(e, layer, values, shape)
        x = _padded(e, window, values[0], e.const(0.0, "FLOAT")) if window.same else values[0]
        return e.op("Conv", x, *rest, group=groups, dilations=list(window.dilation), **window.attributes())

    return _in_float(e, layer, FLOATS, make)


@lifts("DECONVOLUTION")
def _deconvolution(e: Emit, layer: Layer) -> str:
    native, x, mode = layer.native, layer.need(0), layer.word("padding_mode")
    size, stride, dilation = map(tuple, (native.kernel_size_nd, native.stride_nd, native.dilation_nd))
    groups = int(native.num_groups)
    if x.rank != len(size) + 2:
        raise Unliftable(f"a filter of {len(size)} dimensions on an input of {x.rank}")
    if mode.startswith("EXPLICIT"):  # both round alike: O = (I - 1) * S + DK - (B + A)
        before, after = tuple(native.pre_padding), tuple(native.post_padding)
    else:  # P = max(DK - S, 0): no length in it
        total = [max(d * (f - 1) + 1 - s, 0) for f, s, d in zip(size, stride, dilation, strict=True)]
        before, after = _split(total, mode)
    shape = (-1, native.num_output_maps // groups, *size)  # "CKRS", K of one group

    def make(values: list[str]) -> str:
        return e.op(
            "ConvTranspose",
            values[0],
            *_parameters(e, layer, values, shape),
            group=groups,
            dilations=list(dilation),
            kernel_shape=list(size),
            strides=list(stride),
            pads=[*before, *after],
        )

    return _in_float(e, layer, FLOATS, make)


# -- pooling


@lifts("POOLING")
def _pooling(e: Emit, layer: Layer) -> str:
    native, word = layer.native, layer.word("type")
    size = tuple(native.window_size_nd)
    window = _window(layer, size, (1,) * len(size))
    if word == "MAX" and layer.need(0).dtype == "INT8":
        return _largest(e, window, e.of(layer.need(0)), "INT8")
    if word == "MAX":
        return _in_float(e, layer, _EXACT, lambda values: _largest(e, window, values[0], "FLOAT"))
    if word == "AVERAGE":
        inside = bool(native.average_count_excludes_padding)
        return _in_float(e, layer, FLOATS, lambda values: _mean(e, window, values[0], inside))
    raise Unliftable(f"the pooling {word} is not read back")


def _largest(e: Emit, window: _Window, value: str, dtype: str) -> str:
    """The largest element of each window; padding is less than any element."""
    if window.fits:
        return e.op("MaxPool", value, **window.attributes())
    least = e.const(-math.inf if dtype == "FLOAT" else -128, dtype)
    value = _padded(e, window, value, least)
    _empty(e, window)
    return e.op("MaxPool", value, **window.attributes(padded=True))


def _mean(e: Emit, window: _Window, value: str, inside: bool) -> str:
    """The mean of each window: its sum by what it overlaps, the input (``inside``) or the padded input."""
    around, rounded = any((*window.before, *window.after)), any(window.spare)
    if window.fits and (inside or not around or not rounded):
        # What is added to round up never counts; here it is all there is, or there is none of it.
        return e.op(
            "AveragePool", value, count_include_pad=int(not inside and not rounded), **window.attributes()
        )
    _empty(e, window)
    zero = e.const(0.0, "FLOAT")
    sums = e.op("AveragePool", _padded(e, window, value, zero), **window.attributes(padded=True))
    if window.same and not inside:
        return sums
    one = helper.make_tensor("value", 1, [1], [1.0])
    shape = e.op("Concat", e.ints([1, 1]), e.op("Shape", value, start=2), axis=0)
    counted = e.op("ConstantOfShape", shape, value=one)
    if inside:
        counted = _padded(e, window, counted, zero)
    else:
        counted = _pad(e, counted, window.before, window.after, e.const(1.0, "FLOAT"))
        counted = _pad(e, counted, (0,) * len(window.size), window.spare, zero)
    return e.op("Div", sums, e.op("AveragePool", counted, **window.attributes(padded=True)))


def _empty(e: Emit, window: _Window) -> None:
    if not window.same and not window.fits:
        e.note(
            "a pooling window that lies wholly in the padding has the least value as its maximum and 0/0 as its mean "
            "here: TensorRT does not document its result"
        )
