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
from onnxfix.verification.compare.compare import Metrics, compare, different, identical, moved_by
from onnxfix.verification.compare.rounding import SHARE, shaken
from onnxfix.verification.readback.child import aligned

_WORDS = 1500
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
class Compared:
    """What two models computed, and what differs. ``first`` and ``second`` are how each ran."""

    first: Ran
    second: Ran = field(default_factory=Ran)
    differences: tuple[Metrics, ...] = ()


def compared(
    path: str,
    other: str,
    feed: Mapping[str, Any],
    feed_other: Mapping[str, Any],
    pairs: Sequence[tuple[str, str]],
    backend: str = "ort-cpu",
) -> Compared:
    """Run the model on the CPU and the other one with ``backend``, and compare outputs by pairs of names.

    They are held to the tolerance of the type, and to what the model itself moves by when its inputs are moved; where
    both run on the CPU several times: a value that is rounded to fewer bits may fall to the other side by chance.
    """
    first = run(path, feed)
    if first.error:
        return Compared(first)
    second = run(other, feed_other, backend)
    if second.error:
        return Compared(first, second)
    here = {name: aligned(first.values.get(name), second.values.get(other)) for name, other in pairs}
    found: dict[str, list[Metrics]] = {}
    for seed in range(
        0 if all(identical(*pair) for pair in here.values()) else _MOVES if backend == "ort-cpu" else 1
    ):
        moved = run(path, feed, moved=seed).values
        for name, (a, b) in here.items():
            slack = SHARE * moved_by(name, first.values.get(name), moved.get(name, first.values.get(name)))
            found[name] = found.get(name) or different(compare(name, a, b, exact=False, slack=slack))
    return Compared(first, second, tuple(one for some in found.values() for one in some))
