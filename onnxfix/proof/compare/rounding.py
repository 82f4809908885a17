"""How far float32 itself may be off: what the original computes in float64, and with inputs that move by one rounding.

Where scores are near 1e9, a softmax in float32 is decided by rounding, and the original is no more right than a fixed
model that adds in another order. Neither is a tolerance that is wide enough for it: it would excuse a wrong weight
elsewhere. So both are held to float64, element by element, on the very feed on which they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfix.proof.compare.tolerance import Tolerance, outside, wide

if TYPE_CHECKING:
    import numpy.typing as npt

#: How far inputs are moved to see what a model's own rounding amounts to: about one unit in float32's last place.
RELATIVE = 1e-7
MOVES = 8
"""Times that inputs are moved. Measured on ONNX's Attention models: four are enough for nearly all of them."""
SHARE = 4.0
"""How many times as far from the truth another model may be as the original is, on one of these inputs."""


@dataclass(frozen=True)
class Precise:
    """What is known of one output beyond float32.

    ``value`` and ``fixed`` are what the original and the fixed model compute in float64 on this feed; ``moved`` what
    the original itself computes with its inputs moved by about one unit in the last place.
    """

    value: Any
    fixed: Any
    moved: tuple[Any, ...]

    def at(self, key: Any) -> Precise | None:
        """The same for an element of a sequence or a map; None where they have another structure."""
        try:
            return replace(
                self,
                value=self.value[key],
                fixed=self.fixed[key],
                moved=tuple(one[key] for one in self.moved),
            )
        except (IndexError, KeyError, TypeError):
            return None


def excused(
    original: npt.NDArray[Any], fixed: npt.NDArray[Any], precise: Precise, base: Tolerance
) -> npt.NDArray[np.bool_]:
    """Where floats of the fixed model may differ from the original's.

    Both must compute the same in float64, within ``base``; and the fixed model may be four times as far from that as
    the original is, with its inputs as they are or moved. What is not finite in float64 is excused where the fixed
    model has that infinity and the original the greatest number of its type instead.
    """
    known = _fitting(original, precise)
    if known is None or original.dtype.kind == "c":
        return np.zeros(original.shape, bool)
    exact, other, runs = known
    a, b = wide(original), wide(fixed)
    same = ~outside(exact, other, base)[0]
    with np.errstate(all="ignore"):
        off = [np.abs(wide(one) - exact) for one in (original, *runs)]
        noise = np.max([np.where(np.isfinite(one), one, 0.0) for one in off], axis=0)
        size = np.where(np.isfinite(exact), np.abs(exact), 0.0)
        limit = base.rtol * size + base.atol * float(size.max(initial=0.0)) + base.absolute + SHARE * noise
        near = np.isfinite(a) & np.isfinite(b) & np.isfinite(exact) & (np.abs(b - exact) <= limit)
    # the greatest and the least number of a type stand for infinity in some kernels
    end = np.finfo(original.dtype).max if original.dtype.kind == "f" else np.nan
    saturated = (np.abs(original) == end) & np.isinf(exact) & (b == exact) & (a * exact > 0)
    return np.asarray(same & (near | saturated))


def chosen(original: npt.NDArray[Any], fixed: npt.NDArray[Any], precise: Precise) -> npt.NDArray[np.bool_]:
    """Where integers or truths of the fixed model may differ from the original's: both give the same in float64, and
    the original gives what the fixed model does once its inputs move."""
    known = _fitting(original, precise)
    if known is None:
        return np.zeros(original.shape, bool)
    exact, other, runs = known
    return np.asarray((exact == other) & np.any([one == fixed for one in (original, *runs)], axis=0))


def _fitting(
    original: npt.NDArray[Any], precise: Precise
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], list[npt.NDArray[Any]]] | None:
    """The original and the fixed model in float64, and the runs with moved inputs; None of another shape or kind."""
    exact, other = np.asarray(precise.value), np.asarray(precise.fixed)
    runs = [np.asarray(one) for one in precise.moved]
    if any(one.shape != original.shape for one in (exact, other, *runs)):
        return None
    floats = "float" in original.dtype.name
    if floats != ("float" in exact.dtype.name) or exact.dtype != other.dtype:
        return None
    return (wide(exact), wide(other), runs) if floats else (exact, other, runs)


def shaken(feed: Mapping[str, Any], seed: int = 0, relative: float = RELATIVE) -> dict[str, Any]:
    """The feed with every floating-point element moved by ``relative`` up or down, at random; in half precision by one
    unit in the last place."""
    rng = np.random.default_rng(seed)
    return {name: _shaken(value, rng, relative) for name, value in feed.items()}


def _shaken(value: Any, rng: np.random.Generator, relative: float) -> Any:
    dtype = getattr(value, "dtype", np.dtype(bool)).name
    if dtype not in ("float64", "float32", "float16", "bfloat16"):
        return value
    signs = np.asarray(rng.integers(0, 2, value.shape) * 2 - 1)
    if value.dtype.itemsize > 2:
        # never a scalar, which no session takes
        return np.asarray(value * (1.0 + relative * signs), value.dtype)
    bits = np.ascontiguousarray(value).reshape(-1).view(np.uint16)
    exponent = 0x7C00 if dtype == "float16" else 0x7F80
    finite = bits & exponent != exponent
    whole = (bits & 0x7FFF != 0) & finite  # one step down from 0 would be NaN
    edge = (bits & 0x7FFF) == exponent - 1  # and one up from the greatest number infinity
    step = np.where(whole, np.where(edge, -1, signs.reshape(-1)), 0)
    return (bits.astype(np.int32) + step).astype(np.uint16).view(value.dtype).reshape(value.shape)
