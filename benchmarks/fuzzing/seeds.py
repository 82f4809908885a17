"""The models that are damaged, in groups: the rules' own examples, ONNX's node and other backend models, fixtures, and
a few that hold what those lack.

A model is drawn by a point on a ring of hashed names, so that a new model changes only the numbers that draw it.
"""

from __future__ import annotations

import bisect
import hashlib
import os
import pickle
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from fuzzing.handmade import handmade

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 500_000
"""Larger models are left out: a mutant of one costs as much as a hundred of others."""

Named = Iterator[tuple[str, bytes]]


def _rules() -> Named:
    from onnxfix.registry import registry
    from onnxfix.testing import model_of

    for rule in sorted(registry().choose(), key=lambda one: one.code):
        for place, example in enumerate(rule.examples):
            yield f"{rule.code}-{place}", model_of(example).SerializeToString(deterministic=True)


def _apart(make: Callable[[], Named]) -> Named:
    """What ``make`` gives, made in a fork: a process with much memory takes longer to fork, once for each file."""
    with tempfile.TemporaryFile() as stream:
        pid = os.fork()
        if pid == 0:
            try:
                stream.write(pickle.dumps(list(make())))
                stream.flush()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        stream.seek(0)
        yield from pickle.load(stream)


def _nodes() -> Named:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        if case.model is not None:
            yield case.name, case.model.SerializeToString(deterministic=True)


def _folder(folder: Path) -> Named:
    for path in sorted(folder.rglob("*.onnx")):
        if path.stat().st_size <= MOST_BYTES:
            yield path.relative_to(folder).with_suffix("").as_posix(), path.read_bytes()


GROUPS: dict[str, tuple[float, Callable[[], Named]]] = {
    "rules": (0.42, _rules),
    "node": (0.28, lambda: _apart(_nodes)),
    "handmade": (0.16, handmade),
    "backend": (0.07, lambda: _folder(Path(onnx.__file__).parent / "backend" / "test" / "data")),
    "fixtures": (0.07, lambda: _folder(ROOT / "fixtures")),
}
"""The share of the models that a group gives, and the group's models by name."""
ALL = tuple(GROUPS)
QUICK = ("rules", "handmade")
"""Groups that take half a second to make."""


class Ring:
    """The models of a group. ``models`` are by name."""

    def __init__(self, models: Named) -> None:
        self.models = dict(models)
        self._points = sorted((hashlib.sha256(name.encode()).hexdigest(), name) for name in self.models)

    def draw(self, generator: random.Random) -> tuple[str, bytes]:
        """A model, and its name."""
        point = f"{generator.getrandbits(256):064x}"
        _, name = self._points[bisect.bisect(self._points, (point, "")) % len(self._points)]
        return name, self.models[name]


@cache
def ring(group: str) -> Ring:
    """The models of a group, made once."""
    return Ring(GROUPS[group][1]())


def draw(generator: random.Random, groups: Sequence[str] = ALL) -> tuple[str, bytes]:
    """A model of one of the groups, and its name: "group/model"."""
    group = generator.choices(groups, [GROUPS[one][0] for one in groups])[0]
    name, data = ring(group).draw(generator)
    return f"{group}/{name}", data
