"""Convolutions and pools: windows over the elements of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from onnxfix.proof.symbolic import hashes
from onnxfix.proof.symbolic.calls import Call, operator
from onnxfix.proof.symbolic.elements import add, bounds_of_sums, cast, exact, subtract
from onnxfix.proof.symbolic.hashes import Words
from onnxfix.proof.symbolic.moves import number, pick, reshape
from onnxfix.proof.symbolic.tensor import T, Tensor, derived

_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_ZERO = hashes.encode(np.zeros((1,)))


def _pads(
    call: Call, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """What is added before and after each axis."""
    auto, spatial = call.attributes.get("auto_pad", "NOTSET"), len(sizes)
    if not auto.startswith("SAME"):
        pads = call.attributes.get("pads") if auto == "NOTSET" else None
        pads = pads or [0] * (2 * spatial)
        return list(zip(pads[:spatial], pads[spatial:], strict=True))
    result = []
    for size, far, step in zip(sizes, reach, strides, strict=True):
        needed = max((-(-size // step) - 1) * step + far - size, 0)
        small, large = needed // 2, needed - needed // 2
        result.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return result


def _last(slices: Iterable[slice]) -> Any:
    """An index by slices of the last axes."""
    return (..., *slices)


def slide(call: Call, numbers: _Numbers, kernel: Sequence[int]) -> _Numbers:
    """The numbers under each place of a kernel: shape ``(N, C, *sizes, *kernel)``; 0 where there is padding."""
    spatial = len(kernel)
    strides = call.attributes.get("strides") or [1] * spatial
    dilations = call.attributes.get("dilations") or [1] * spatial
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    pads = _pads(call, numbers.shape[2:], reach, strides)
    if call.attributes.get("ceil_mode"):
        for axis, (before, after) in enumerate(pads):
            room = numbers.shape[2 + axis] + before + after - reach[axis]
            steps = -(-room // strides[axis])
            if (
                steps * strides[axis] < numbers.shape[2 + axis] + before
            ):  # no window begins in the padding at the end
                pads[axis] = before, after + steps * strides[axis] - room
    padded = np.pad(numbers, [(0, 0), (0, 0), *pads])
    if any(size < far for size, far in zip(padded.shape[2:], reach, strict=True)):
        raise call.stuck("its window does not fit")
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(range(2, 2 + spatial)))
    chosen: _Numbers = windows[_last(slice(None, None, step) for step in (*strides, *dilations))]
    return chosen


def _fetch(words: Words, numbers: _Numbers, filler: Words) -> Words:
    """The words of elements by number; ``filler`` for 0."""
    return np.concatenate([filler, words.reshape(2, -1)], axis=1)[:, numbers]


def convolve(call: Call, x: Tensor, weight: Tensor, windows: _Numbers, pad: bool, dtype: int) -> Tensor:
    """Sums of products of windows, shape ``(N, C, *sizes, *kernel)``, and a weight, shape ``(M, C / group,
    *kernel)``.
    ``pad``: what is under no element is zero, else it is no term of the sum."""
    spatial, groups, batch = weight.shape[2:], call.attributes["group"], windows.shape[0]
    sizes, inside = windows.shape[2 : 2 + len(spatial)], weight.shape[1]
    if windows.shape[1] != groups * inside or weight.shape[0] % groups:
        raise call.stuck("its weight does not fit")
    terms = inside * int(np.prod(spatial, dtype=np.int64))
    bounds = bounds_of_sums(x, weight, terms)
    whole = exact(dtype, bounds) or call.as_real
    places = int(np.prod(sizes, dtype=np.int64))

    def compute() -> Words:
        data, kernel, zero = (
            one if whole else hashes.mix("factor", one) for one in (x.words, weight.words, _ZERO)
        )
        rows = _fetch(data, windows, zero if pad else np.zeros((2, 1), np.uint64))
        rows = rows.reshape(2, batch, groups, inside, places, -1).swapaxes(4, 5)
        rows = rows.reshape(2, batch, groups, terms, places)
        sums = hashes.dot(kernel.reshape(2, 1, groups, weight.shape[0] // groups, terms), rows)
        words = sums.reshape(2, batch, weight.shape[0], *sizes)
        return words if whole else hashes.mix(f"sum of products {dtype}", words)

    name = f"{call.name} {sorted(call.attributes.items())} {pad} {whole}"
    shape = (batch, weight.shape[0], *sizes)
    return derived(dtype, shape, name, (x, weight), compute, bounds if whole else None)


def _with_bias(call: Call, result: Tensor) -> Tensor:
    if not call.has(2):
        return result
    bias = call.ring(2)
    return add(result, reshape(bias, [bias.size, *[1] * (len(result.shape) - 2)]), call.as_real)


@operator("Conv")
def _conv(call: Call) -> Tensor:
    x, weight = call.ring(0), call.ring(1)
    return _with_bias(
        call, convolve(call, x, weight, slide(call, number([x])[0], weight.shape[2:]), True, x.dtype)
    )


@operator("ConvInteger")
def _conv_integer(call: Call) -> Tensor:
    x, weight = less_zero_point(call, 0, 0), less_zero_point(call, 1, 0)
    return convolve(call, x, weight, slide(call, number([x])[0], weight.shape[2:]), True, T.INT32)


def less_zero_point(call: Call, index: int, axis: int) -> Tensor:
    """A quantized operand less its zero point, which may be one for each place on an axis."""
    x = cast(call.tensor(index), T.INT32)
    if not call.has(index + 2):
        return x
    zero = call.tensor(index + 2)
    if len(zero.shape) <= 1:
        shape = [1] * len(x.shape)
        shape[axis] = zero.size
        zero = reshape(zero, shape if zero.size > 1 else ())
    return subtract(x, cast(zero, T.INT32))


@operator("ConvTranspose")
def _conv_transpose(call: Call) -> Tensor | None:
    """A convolution of the elements set apart by the strides, with the kernel turned around."""
    x, weight, attributes = call.ring(0), call.ring(1), call.attributes
    spatial, groups, kernel = len(x.shape) - 2, attributes["group"], weight.shape[2:]
    if attributes.get("output_shape") or attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    steps = attributes.get("strides") or [1] * spatial
    far = attributes.get("dilations") or [1] * spatial
    pads = attributes.get("pads") or [0] * (2 * spatial)
    more = attributes.get("output_padding") or [0] * spatial
    sizes = [(size - 1) * step + 1 for size, step in zip(x.shape[2:], steps, strict=True)]
    apart = np.zeros([*x.shape[:2], *sizes], np.int64)
    apart[_last(slice(None, None, step) for step in steps)] = number([x])[0]
    begins = [(size - 1) * step - pad for size, step, pad in zip(kernel, far, pads, strict=False)]
    ends = [
        (size - 1) * step - pad + one
        for size, step, pad, one in zip(kernel, far, pads[spatial:], more, strict=True)
    ]
    apart = np.pad(
        apart, [(0, 0), (0, 0), *((max(a, 0), max(b, 0)) for a, b in zip(begins, ends, strict=True))]
    )
    apart = apart[_last(slice(max(-a, 0), min(b, 0) or None) for a, b in zip(begins, ends, strict=True))]
    reach = tuple((size - 1) * step + 1 for size, step in zip(kernel, far, strict=True))
    windows = np.lib.stride_tricks.sliding_window_view(apart, reach, tuple(range(2, 2 + spatial)))
    windows = windows[_last(slice(None, None, step) for step in far)]
    inside, outputs = x.shape[1] // groups, weight.shape[1]
    numbers = number([weight])[0][_last([slice(None, None, -1)] * spatial)]
    numbers = numbers.reshape(groups, inside, outputs, *kernel).swapaxes(1, 2).reshape(-1, inside, *kernel)
    result = convolve(call, x, pick([weight], numbers), windows, False, x.dtype)
    return _with_bias(call, result)


@operator("MaxPool", "AveragePool")
def _pool(call: Call) -> Tensor | None:
    x, kernel = call.tensor(0), call.attributes["kernel_shape"]
    padding = bool(call.attributes.get("count_include_pad"))
    if sum(map(bool, call.node.output)) > 1 or (padding and call.attributes.get("ceil_mode")):
        return None
    windows = slide(call, number([x])[0], kernel)
    axes = tuple(range(windows.ndim - len(kernel), windows.ndim))
    counts = (np.ones_like(windows) if padding else windows > 0).sum(axes)
    shape = windows.shape[: -len(kernel)]

    def compute() -> Words:
        outside = hashes.mix("member", _ZERO) if padding else np.zeros((2, 1), np.uint64)
        sums = hashes.total(_fetch(hashes.mix("member", x.words), windows, outside), axes).reshape(2, *shape)
        if call.name == "MaxPool":
            return hashes.mix("ReduceMax", sums)
        return hashes.mix(f"average {x.dtype}", sums, hashes.encode(counts))

    bounds, within = (x.bounds if counts.all() else None, x.within) if call.name == "MaxPool" else (None, 0)
    name = f"{call.name} {sorted(call.attributes.items())}"
    return derived(x.dtype, shape, name, [x], compute, bounds, within)
