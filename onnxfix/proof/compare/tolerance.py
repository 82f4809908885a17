"""The tolerance of each element type, and comparisons of arrays within a tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Tolerance:
    """``|a - b| <= rtol * |a| + atol * max|a| + absolute``, with ``a`` the original's finite values.

    ``rtol`` and ``atol`` have no unit; ``absolute`` has the unit of the output.
    """

    rtol: float
    atol: float
    absolute: float = 0.0


@dataclass(frozen=True)
class Allowed:
    """A tolerance that the user gives: ``|a - b| <= rtol * |a| + atol``, ``atol`` in the unit of the output.

    It replaces the tolerance of the element type; a field that is None keeps the type's value. ``share`` is used alone:
    an error budget, as a share of the output's largest magnitude.
    """

    rtol: float | None = None
    atol: float | None = None
    share: float | None = None

    @property
    def words(self) -> str:
        """The tolerance as text."""
        pairs = (("rtol", self.rtol), ("atol", self.atol))
        if self.share is not None:
            return f"precision's budget of {self.share:g}"
        return ", ".join(f"{name} {value:g}" for name, value in pairs if value is not None)


#: Errors that reordered arithmetic may cause, by element type. Everything else (integers, bool, string) must be equal.
TOLERANCES = {
    "float64": Tolerance(1e-9, 1e-10),
    "float32": Tolerance(1e-4, 1e-5),
    "float16": Tolerance(1e-2, 2e-3),
    "bfloat16": Tolerance(5e-2, 1e-2),
    "complex128": Tolerance(1e-9, 1e-10),
    "complex64": Tolerance(1e-4, 1e-5),
}
_COARSE = Tolerance(0.25, 0.1)  # 8 bits and fewer: one step of the last place
EXACT = Tolerance(0.0, 0.0)


def tolerance_for(dtype: str, coarse: str = "", allowed: Allowed | None = None) -> Tolerance:
    """The tolerance for an element type (numpy's name of it).

    ``coarse`` names a narrower type to which the values were rounded before. ``allowed`` replaces the tolerance of both
    types, unless values of this type must be equal.
    """
    base = TOLERANCES.get(dtype, _COARSE if dtype.startswith("float") else EXACT)
    if coarse and base != EXACT:
        other = TOLERANCES[coarse]
        base = Tolerance(max(base.rtol, other.rtol), max(base.atol, other.atol))
    if allowed is not None and allowed.share is not None and base != EXACT:
        return Tolerance(0.0, allowed.share)
    if allowed is not None and base != EXACT:
        own = allowed.atol is not None
        base = Tolerance(
            base.rtol if allowed.rtol is None else allowed.rtol,
            0.0 if own else base.atol,
            absolute=allowed.atol or 0.0,
        )
    return base


def parts(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A complex array with its two parts in a last axis of size 2; other arrays unchanged."""
    if array.dtype.kind != "c":
        return array
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype).reshape(*array.shape, 2)


def wide(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As float64 or complex128, which hold all smaller types. int64 and uint64 lose low bits, but only in metrics."""
    with np.errstate(all="ignore"):
        return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def errors(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> dict[str, float]:
    """The largest distances between pairs of finite values, and the largest finite magnitude in ``a``."""
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        distance = np.where(finite, np.abs(a - b), 0.0)
        size = np.where(finite, np.abs(a), 0.0)
        relative = np.divide(distance, size, out=np.zeros_like(size), where=size > 0)
    return {"max_abs": float(distance.max()), "max_rel": float(relative.max()), "scale": float(size.max())}


def gaps(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Absolute errors, element by element. Errors of 64-bit integers are exact, then rounded up to float64."""
    if a.dtype != b.dtype or a.dtype.kind not in "iu" or a.dtype.itemsize < 8:
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(wide(b) - wide(a)))
    left, right = a.astype(np.uint64), b.astype(np.uint64)
    exact = np.where(a > b, left - right, right - left)
    distance = exact.astype(np.float64)
    # The largest errors round up to 2**64, which is not a uint64.
    too_small = np.minimum(distance, np.nextafter(2.0**64, 0.0)).astype(np.uint64) < exact
    return np.where(too_small & (distance < 2.0**64), np.nextafter(distance, np.inf), distance)


def outside(
    a: npt.NDArray[Any], b: npt.NDArray[Any], tolerance: Tolerance, slack: Any = 0.0
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Two masks: where ``b`` is outside the tolerance of ``a``, widened by ``slack`` (one number, or one per element),
    and where it is outside because of NaN or Inf."""
    distance, limit, special = distances(a, b, tolerance, slack)
    return special | (distance > limit), special


def distances(
    a: npt.NDArray[Any], b: npt.NDArray[Any], tolerance: Tolerance, slack: Any = 0.0
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Element by element: the distance between ``a`` and ``b`` (0 if either is not finite), the allowed distance, and
    whether NaN or Inf in one array are not matched in the other."""
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        distance = np.where(finite, np.abs(a - b), 0.0)
        size = np.where(finite, np.abs(a), 0.0)
        special = ~finite & ~((np.isnan(a) & np.isnan(b)) | (a == b))
        limit = tolerance.rtol * size + tolerance.atol * float(size.max(initial=0.0))
    return distance, limit + tolerance.absolute + slack, special
