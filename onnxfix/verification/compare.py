"""Compare what two models computed: shape and dtype first, then NaN and Inf positions, then values.

``np.allclose`` broadcasts, so that () passes for (1,), and it takes -0.0 for 0.0: neither happens here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

Agreement = Literal["identical", "within", "different"]


@dataclass(frozen=True)
class Tolerance:
    """``|a - b| <= rtol * |a| + atol * max|a| + noise``, with ``a`` the original's finite values.

    ``rtol`` and ``atol`` have no unit; ``noise`` has the unit of the output.
    """

    rtol: float
    atol: float
    noise: float = 0.0


#: What reordered arithmetic may cost, by element type. Everything else (integers, bool, string) must be equal.
TOLERANCES = {
    "float64": Tolerance(1e-9, 1e-10),
    "float32": Tolerance(1e-4, 1e-5),
    "float16": Tolerance(1e-2, 2e-3),
    "bfloat16": Tolerance(5e-2, 1e-2),
    "complex128": Tolerance(1e-9, 1e-10),
    "complex64": Tolerance(1e-4, 1e-5),
}
_COARSE = Tolerance(0.25, 0.1)  # 8 bits and fewer: one step of the last place
_EXACT = Tolerance(0.0, 0.0)


@dataclass(frozen=True)
class Metrics:
    """How one output (or one element of a sequence, named ``name[i]``) agrees.

    ``mismatches`` counts elements that are not bit-identical (every NaN equals every NaN, -0.0 is not 0.0);
    ``max_abs`` and ``max_rel`` are over pairs of finite values; ``first`` is the index of the first element that
    is out of tolerance, or else not identical, with its two values as text. ``scale`` is the original's largest finite
    magnitude, 0 where nothing differs.
    """

    name: str
    agreement: Agreement
    reason: str = ""
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    elements: int = 0
    mismatches: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    first: tuple[int, ...] | None = None
    values: tuple[str, str] | None = None
    scale: float = 0.0

    @property
    def relative(self) -> float:
        """``max_abs`` as a share of ``scale``: unlike ``max_rel`` it says something where values near 0 differ."""
        return self.max_abs / self.scale if self.scale else math.inf if self.max_abs else 0.0


def largest(metrics: Iterable[Metrics], *, relative: bool = False) -> Metrics | None:
    """The output with the largest error, absolute or as a share of its scale; None where there is no output."""
    return max(metrics, key=lambda one: one.relative if relative else one.max_abs, default=None)


def tolerance_for(dtype: str, noise: float = 0.0, coarse: str = "") -> Tolerance:
    """The tolerance for an element type (numpy's name of it), widened by a measured ``noise``.

    ``coarse`` names a narrower type that the values went through on their way, whose roundings they carry.
    """
    base = TOLERANCES.get(dtype, _COARSE if dtype.startswith("float") else _EXACT)
    if coarse and base != _EXACT:
        other = TOLERANCES[coarse]
        base = Tolerance(max(base.rtol, other.rtol), max(base.atol, other.atol))
    return Tolerance(base.rtol, base.atol, 4.0 * noise) if noise else base


def compare(
    name: str, original: Any, fixed: Any, *, exact: bool, noise: float = 0.0, coarse: str = ""
) -> tuple[Metrics, ...]:
    """Compare two values of an output: arrays, lists (sequences), dicts (maps) or None (an empty optional).

    With ``exact`` every element must be bit-identical; else within ``tolerance_for`` its type.
    """
    if original is None or fixed is None:
        if original is None and fixed is None:
            return (Metrics(name, "identical", dtype="optional"),)
        return (_differ(name, f"is {_kind(original)} in the original, {_kind(fixed)} in the fixed model"),)
    if isinstance(original, (list, tuple)) or isinstance(fixed, (list, tuple)):
        return _compare_sequences(name, original, fixed, exact, noise, coarse)
    if isinstance(original, dict) or isinstance(fixed, dict):
        return _compare_maps(name, original, fixed, exact, noise, coarse)
    return (_compare_arrays(name, np.asarray(original), np.asarray(fixed), exact, noise, coarse),)


def identical(original: Any, fixed: Any) -> bool:
    """Whether two values agree bit for bit."""
    return all(part.agreement == "identical" for part in compare("", original, fixed, exact=True))


def _differ(name: str, reason: str, **more: Any) -> Metrics:
    return Metrics(name, "different", reason, **more)


def _kind(value: Any) -> str:
    if value is None:
        return "an empty optional"
    if isinstance(value, (list, tuple)):
        return f"a sequence of {len(value)}"
    if isinstance(value, dict):
        return f"a map of {len(value)}"
    return "a tensor"


def _compare_sequences(
    name: str, original: Any, fixed: Any, exact: bool, noise: float, coarse: str
) -> tuple[Metrics, ...]:
    both = isinstance(original, (list, tuple)) and isinstance(fixed, (list, tuple))
    if not both or len(original) != len(fixed):
        return (_differ(name, f"is {_kind(original)} in the original, {_kind(fixed)} in the fixed model"),)
    if not original:
        return (Metrics(name, "identical", dtype="sequence", shape=(0,)),)
    pairs = enumerate(zip(original, fixed, strict=True))
    return tuple(
        part
        for i, (a, b) in pairs
        for part in compare(f"{name}[{i}]", a, b, exact=exact, noise=noise, coarse=coarse)
    )


def _compare_maps(
    name: str, original: Any, fixed: Any, exact: bool, noise: float, coarse: str
) -> tuple[Metrics, ...]:
    both = isinstance(original, dict) and isinstance(fixed, dict)
    if not both or original.keys() != fixed.keys():
        return (
            _differ(
                name, f"is {_kind(original)} in the original, {_kind(fixed)} with other keys in the fixed"
            ),
        )
    if not original:
        return (Metrics(name, "identical", dtype="map", shape=(0,)),)
    return tuple(
        part
        for key in original
        for part in compare(
            f"{name}[{key!r}]", original[key], fixed[key], exact=exact, noise=noise, coarse=coarse
        )
    )


def _dtype_name(array: npt.NDArray[Any]) -> str:
    return "string" if array.dtype.kind in "OUS" else array.dtype.name


def _compare_arrays(
    name: str, original: npt.NDArray[Any], fixed: npt.NDArray[Any], exact: bool, noise: float, coarse: str
) -> Metrics:
    dtype, shape = _dtype_name(original), original.shape
    known: dict[str, Any] = {"dtype": dtype, "shape": shape, "elements": original.size}
    if dtype != _dtype_name(fixed):
        return _differ(
            name, f"has type {dtype} in the original, {_dtype_name(fixed)} in the fixed model", **known
        )
    if shape != fixed.shape:
        return _differ(name, f"has shape {shape} in the original, {fixed.shape} in the fixed model", **known)
    unequal = _strings_differ(original, fixed) if dtype == "string" else _bits_differ(original, fixed)
    mismatches = int(np.count_nonzero(unequal))
    if mismatches == 0:
        return Metrics(name, "identical", **known)
    known["mismatches"] = mismatches
    if dtype in ("string", "bool"):
        return _differ(
            name,
            f"{mismatches:,} of {original.size:,} elements differ",
            **known,
            **_first(original, fixed, unequal),
        )
    return _judge(name, original, fixed, unequal, exact, noise, coarse, known)


def _strings_differ(original: npt.NDArray[Any], fixed: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    def text(value: Any) -> str:
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)

    pairs = zip(original.reshape(-1), fixed.reshape(-1), strict=True)
    return np.array([text(a) != text(b) for a, b in pairs], bool).reshape(original.shape)


def _parts(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A complex array as its two parts in a last axis of 2; any other as it is."""
    if array.dtype.kind != "c":
        return array
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype).reshape(*array.shape, 2)


def _bits_differ(original: npt.NDArray[Any], fixed: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    a, b = _parts(original), _parts(fixed)
    if "float" in a.dtype.name:
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        unequal = np.ascontiguousarray(a).view(unsigned) != np.ascontiguousarray(b).view(unsigned)
        if unequal.any():
            unequal &= ~(_is_nan(a) & _is_nan(b))
        unequal = unequal.reshape(a.shape)
    else:
        unequal = np.asarray(a != b)
    return np.asarray(unequal.any(axis=-1)) if original.dtype.kind == "c" else unequal


def _is_nan(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.asarray(np.isnan(_wide(array)))


def _wide(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As float64 (complex128), which holds every smaller type; int64 and uint64 lose low bits in metrics only."""
    with np.errstate(all="ignore"):
        return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _first(
    original: npt.NDArray[Any], fixed: npt.NDArray[Any], where: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape))
    return {"first": index, "values": (str(original[index]), str(fixed[index]))}


def _judge(
    name: str,
    original: npt.NDArray[Any],
    fixed: npt.NDArray[Any],
    unequal: npt.NDArray[np.bool_],
    exact: bool,
    noise: float,
    coarse: str,
    known: dict[str, Any],
) -> Metrics:
    a, b = _parts(_wide(original)), _parts(_wide(fixed))
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        distance = np.where(finite, np.abs(a - b), 0.0)
        size = np.where(finite, np.abs(a), 0.0)
        known["max_abs"] = float(distance.max())
        known["max_rel"] = float(np.max(np.divide(distance, size, out=np.zeros_like(size), where=size > 0)))
        known["scale"] = float(size.max())
    total = original.size
    if exact:
        reason = f"{known['mismatches']:,} of {total:,} elements are not bit-identical"
        return _differ(name, reason, **known, **_first(original, fixed, unequal))
    special = ~finite & ~((np.isnan(a) & np.isnan(b)) | (a == b))
    tolerance = tolerance_for(known["dtype"], noise, coarse)
    limit = tolerance.rtol * size + tolerance.atol * float(size.max()) + tolerance.noise
    outside = special | (distance > limit)
    if tolerance == _EXACT:  # integers: float64 does not tell all of them apart
        outside = unequal.reshape(a.shape)
    if original.dtype.kind == "c":
        special, outside = special.any(axis=-1), outside.any(axis=-1)
    if not outside.any():
        return Metrics(name, "within", "", **known, **_first(original, fixed, unequal))
    count = int(np.count_nonzero(outside))
    reason = f"{count:,} of {total:,} elements are out of tolerance"
    if special.any():
        reason = f"NaN or Inf at other places ({int(np.count_nonzero(special)):,} of {total:,} elements)"
        outside = special
    return _differ(name, reason, **known, **_first(original, fixed, outside))
