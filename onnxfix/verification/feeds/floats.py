"""Floats for an input: plausible ones, the edges of the type, or what its operators demand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from onnxfix.verification.feeds.draw import Array, Draw

if TYPE_CHECKING:
    import numpy.typing as npt

#: What a float has to be for an operator to accept it -> how such floats are drawn.
_DRAWN: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "positive": lambda rng, shape: rng.uniform(0.5, 1.5, shape),
    "share": lambda rng, shape: rng.uniform(0.0, 1.0, shape),
}
#: The same where other floats give NaN, which proves less: only plausible values are drawn so.
_PLAIN: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "probability": lambda rng, shape: rng.uniform(0.01, 0.99, shape),
    "unit": lambda rng, shape: rng.uniform(-0.99, 0.99, shape),
    "above 1": lambda rng, shape: 1.0 + np.exp(rng.standard_normal(shape)),
    "above 0": lambda rng, shape: np.exp(rng.standard_normal(shape)),
    "pixel": lambda rng, shape: rng.integers(0, 256, shape).astype(np.float64),
}


def floats(draw: Draw, dtype: np.dtype[Any]) -> Array:
    """Floats as float64, of the input's shape, that ``dtype`` can hold."""
    strict = draw.role.strict
    if "scales" in strict:
        flat = np.ones(math.prod(draw.shape))
        flat[2:] = 2.0
        return flat
    plain = {"start": 0.0, "limit": 3.0, "one": 1.0, "ratio": 0.5, "low": -1.0, "high": 1.0}
    for sort, value in plain.items():
        if sort in strict:
            return np.full(draw.shape, value)
    limited = draw.limited()
    if limited is not None:
        return limited
    for sort, drawn in _DRAWN.items():
        if sort in strict or (sort == "positive" and dtype.name.startswith("float8_e8m0")):
            return drawn(draw.rng, draw.shape)
    if draw.kind in ("zeros", "ones"):
        return np.full(draw.shape, float(draw.kind == "ones"))
    if draw.kind == "small":
        return draw.rng.uniform(0.0, 1.0, draw.shape)
    if "mask" in draw.name and draw.kind == "normal":
        return draw.mask()
    for sort, drawn in _PLAIN.items():
        if sort in draw.role.strict and draw.kind == "normal":
            return drawn(draw.rng, draw.shape)
    return plain_floats(draw, dtype)


def plain_floats(draw: Draw, dtype: np.dtype[Any]) -> npt.NDArray[np.float64]:
    """The same for an input of which no operator demands anything."""
    values = np.asarray(draw.rng.standard_normal(draw.shape))
    if draw.kind == "large":
        values = np.copysign(np.exp2(draw.rng.uniform(0.0, 11.0, draw.shape)), values)
    if draw.kind in ("edge", "extreme") and values.size:
        flat = values.reshape(-1)
        narrow = dtype.itemsize < 4
        edges = [0.0, -0.0, 1e-3 if narrow else 1e-30, 100.0 if narrow else 1e4, -1.0, 0.5, 2.5]
        if draw.kind == "extreme":
            top = {1: 100.0, 2: 6e4}.get(dtype.itemsize, 3e38)
            edges += [
                top,
                -top,
                3e9 if not narrow else 3e4,
                -3e9 if not narrow else -3e4,
                16777217.0,
                1e-45,
            ]
            edges = [edge for edge in edges if abs(edge) <= top]
        draw.put(flat, edges, 3)
    draw.put_compared(values.reshape(-1), list(draw.role.compared))
    if draw.kind == "quantized":
        top = float(ml_finfo(dtype).max)
        if draw.one.name in draw.known.quantizers.scaled:
            values = np.clip(values * draw.gain, -top, top)
        draw.put_points(values.reshape(-1), draw.points(-top, top))
    if dtype.itemsize == 1:
        values = np.clip(values, -6.0, 6.0)  # float4 ends at 6
    return values


def ml_finfo(dtype: np.dtype[Any]) -> Any:
    """numpy's ``finfo``, also of the types that numpy has no name for, such as bfloat16."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
