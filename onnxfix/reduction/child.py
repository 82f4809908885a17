"""The sandbox's side of a reduction: runs models in ONNX Runtime. Every function is called through the sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from onnxfix import backends
from onnxfix.backends import ort_messages
from onnxfix.causes import NO_MEMORY
from onnxfix.record import record
from onnxfix.sandbox import one_line
from onnxfix.verification.compare.compare import compare, identical
from onnxfix.verification.compare.noise import shaken
from onnxfix.verification.readback.child import aligned

_WORDS = 1500
#: How many times as far as the truth moves by rounding, and how many units in the last place of its largest value, the
#: other side may be off where both run the same kernels.
_WOBBLES, _UNITS = 8.0, 8.0
_MOVES = 3
"""Times that inputs are moved before a difference is called rounding."""


@record
class Ran:
    """The outputs of a model by name, or the ``error``, with ONNX Runtime's ``status`` (FAIL, INVALID_ARGUMENT, ...).
    ``stage`` is "load" or "run". ``lacking``: the backend cannot do this, which proves nothing about the model."""

    values: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    status: str = ""
    stage: str = ""
    lacking: bool = False


def run(path: str, feed: Mapping[str, Any], backend: str = "ort-cpu", moved: int | None = None) -> Ran:
    """Load the model file and run it once. ``moved`` is a seed: every floating-point input is moved by one rounding
    first."""
    stage = "load"
    try:
        session = backends.load(backend, path)
        stage = "run"
        given = {
            name: _typed(value) for name, value in (feed if moved is None else shaken(feed, moved)).items()
        }
        return Ran(dict(zip(session.outputs, session.run(given), strict=True)))
    except Exception as error:
        text = str(error)
        unable = (backends.Unsupported, backends.Broken, MemoryError)
        lacking = isinstance(error, unable) or bool(NO_MEMORY.search(text))
        return Ran({}, one_line(error, _WORDS), ort_messages.status(text), stage, lacking)


def _typed(value: Any) -> Any:
    return np.asarray(value, object) if isinstance(value, np.ndarray) and value.dtype.kind in "US" else value


@record
class Difference:
    """An output that differs, and in what ("values", "special", "shape", "dtype", ...); ``reason`` is for people."""

    output: str
    kind: str
    reason: str


@record
class Compared:
    """What two models computed, and what differs. ``first`` and ``second`` are how each ran."""

    first: Ran
    second: Ran = field(default_factory=Ran)
    differences: tuple[Difference, ...] = ()


def compared(
    path: str,
    other: str,
    feed: Mapping[str, Any],
    feed_other: Mapping[str, Any],
    pairs: Sequence[tuple[str, str]],
    backend: str = "ort-cpu",
) -> Compared:
    """Run the model on the CPU and the other one with ``backend``, and compare outputs by pairs of names.

    Where both run on the CPU they are held to rounding: units in the last place, and what the model itself moves by
    when its inputs are moved, several times: a value that is rounded to fewer bits may fall to the other side by
    chance. With another backend, whose kernels add in another order, they are held to the tolerance of the type.
    """
    first = run(path, feed)
    if first.error:
        return Compared(first)
    second = run(other, feed_other, backend)
    if second.error:
        return Compared(first, second)
    found, unsettled = [], dict(pairs)
    for seed in range(_MOVES if backend == "ort-cpu" else 1):
        here = {name: (first.values.get(name), second.values.get(other)) for name, other in unsettled.items()}
        if all(identical(*pair) for pair in here.values()):
            break
        moved = run(path, feed, moved=seed).values
        for name, (a, b) in here.items():
            differ = _differences(name, a, b, moved.get(name, a), strict=backend == "ort-cpu")
            found += differ
            if differ:
                del unsettled[name]
    return Compared(first, second, tuple(found))


def _differences(name: str, a: Any, b: Any, moved: Any, *, strict: bool) -> list[Difference]:
    if not strict:
        noise = max((one.max_abs for one in compare(name, a, moved, exact=False)), default=0.0)
        metrics = compare(name, *aligned(a, b), exact=False, noise=noise)
        return [Difference(name, one.kind, one.reason) for one in metrics if one.agreement == "different"]
    found = []
    for one in compare(name, a, b, exact=True):
        if one.agreement != "different":
            continue
        if one.kind == "values" and not one.special and _is_rounding(a, b, moved, one.scale):
            continue
        kind = "special" if one.special else one.kind
        far = f", by up to {one.max_abs:.3g} of {one.scale:.3g}" if kind == "values" else ""
        found.append(Difference(name, kind, f"{one.reason}{far}"))
    return found


def _is_rounding(a: Any, b: Any, moved: Any, scale: float) -> bool:
    """Whether two float tensors are no further apart than rounding moves the first: neither at most, nor in the root
    mean square, which does not grow where a few elements that are rounded to fewer bits fall to the other side."""
    import ml_dtypes  # lazy: only where values differ

    if not isinstance(a, np.ndarray) or "float" not in a.dtype.name or np.shape(moved) != a.shape:
        return False
    floor = _UNITS * float(ml_dtypes.finfo(a.dtype).eps) * scale  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        off, noise = (np.abs(np.float64(one) - np.float64(a)) for one in (b, moved))
    off, noise = (one[np.isfinite(one)] for one in (off, noise))
    if not off.size or not noise.size:
        return not off.size
    far = off.max() > _WOBBLES * noise.max() + floor
    spread = np.sqrt(np.mean(off**2)) > _WOBBLES * np.sqrt(np.mean(noise**2)) + floor
    return not (far or spread)
