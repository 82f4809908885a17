"""Mutants of real exports: which there are, and whether they compute something else at all."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from acceptance.measure import outputs_of
from diagnose import places, planting
from diagnose.copies import Graph
from diagnose.observing import off
from network import mutating
from network.mutating import AMOUNTS, Kind, Mutant
from onnx import ModelProto, TensorProto

from onnxfix.errors import OnnxfixError
from onnxfix.files.walk import copied
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof.compare.tolerance import outside, tolerance_for, wide
from onnxfix.proof.compare.twin import half_type, raised, widened
from onnxfix.runtime.sandbox import Worker

#: Kinds of ``diagnose.places`` that need no run of the model, by their names here.
PLANTED: dict[str, places.Kind] = {
    "scale": "weight scaled",
    "bias": "lost bias",
    "epsilon": "epsilon",
    "pads": "pads",
    "operator": "operator",
    "operands": "operands",
}
KINDS = (*mutating.MAKERS, "perm", *PLANTED)
#: A copy of the model, which nobody may refute.
CONTROL = "none"
#: In float64, outputs that differ by no more than this share of the largest are the same.
SAME = 1e-12
_MOST = 40  # tries for a kind before it is given up
_STEP = 120.0  # seconds


@dataclass(frozen=True)
class Recipe:
    """A mutant: the ``number``-th of a kind that a model bears."""

    model: str
    kind: str
    number: int
    what: str

    @property
    def key(self) -> str:
        """Its name."""
        return f"{self.model}/{self.kind}/{self.number}"


@dataclass(frozen=True)
class Change:
    """What a mutant does to the outputs. ``equivalent`` says why it changes none, "" where it does.

    ``relative`` is the largest difference as a share of the output's largest magnitude, computed in ``precision``;
    ``beyond``: whether an element leaves the tolerance that ``onnxfix verify`` has for the model's types, so that it
    must be caught.
    """

    relative: float
    precision: str
    beyond: bool
    equivalent: str = ""


def make_mutants(model: ModelProto, kind: str, seed: int) -> Iterator[Mutant]:
    """The mutants of a kind, in the order of their numbers."""
    if kind == CONTROL:
        yield Mutant(CONTROL, "a copy", copied(model))
        return
    rng = random.Random(seed)
    if kind in PLANTED:
        mutants = _plant_faults(model, PLANTED[kind], rng)
    elif kind == "perm":
        mutants = (one for one in mutating.axes(model, rng) if one.what.startswith("Transpose"))
    else:
        mutants = mutating.MAKERS[cast(Kind, kind)](model, rng)
    yield from islice(mutants, _MOST)


def _plant_faults(model: ModelProto, kind: places.Kind, rng: random.Random) -> Iterator[Mutant]:
    """The faults of a kind, each in a copy of the model."""
    for site in places.sites(Graph(model), kind, {}, rng):
        planted = planting.plant(model, site)
        if planted is not None:
            yield Mutant(kind, planted.what, planted.other)


class Subject:
    """A model with the inputs that the ladder plans, and what it computes for them."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path, self.model = path, onnx.load(path)
        self._half = half_type(self.model)
        self._runner = stack.enter_context(Worker())
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
        known = signature(path)
        planned = plan.feeds(known, plan.assignments(known, {}), 0, False)
        given = [one.values(known) for one in planned]
        ran = [self._run(self.model, [feed]) for feed in given]
        self.feeds = [feed for feed, one in zip(given, ran, strict=True) if one is not None]
        self.expected = [one[0] for one in ran if one is not None]
        if not self.feeds:
            raise OnnxfixError(f"{path.name}: runs with none of the planned inputs")

    def _run(
        self, model: ModelProto, feeds: Sequence[Mapping[str, Any]], backend: str = "ort-cpu"
    ) -> list[list[Any]] | None:
        """What a model computes; None where it does not run."""
        path = self._folder / "model.onnx"
        onnx.save(model, path)
        ran = outputs_of(self._runner, backend, path, feeds, _STEP)
        return ran.value if ran.ok else None

    def change(self, mutant: ModelProto) -> Change | None:
        """What a mutant does to the outputs; None where it is no valid model, or does not run."""
        try:
            onnx.checker.check_model(mutant)
        except onnx.checker.ValidationError:
            return None
        values = self._run(mutant, self.feeds)
        if values is None:
            return None
        precision, expected, found = "float32, ort-cpu", self.expected, values
        for backend, exact in self.precise:
            other = self._run(*self._double(mutant), backend)
            if other is not None:
                precision, expected, found = f"float64, {backend}", exact, other
                break
        pairs = zip(expected, found, strict=True)
        share = max((off(a, b) for pair in pairs for a, b in zip(*pair, strict=True)), default=0.0)
        why = ""
        if not share > (SAME if precision.startswith("float64") else 0.0):
            most = f" by more than {share:.1g} of its largest magnitude" if share else ""
            why = f"in {precision} no output changes{most}"
        return Change(share, precision, self._beyond(expected, found), why)

    def _beyond(self, expected: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]) -> bool:
        """Whether an element is out of the tolerance of the type that the model itself computes it in."""
        types = self.expected if len(expected) == len(self.expected) else [self.expected[0]] * len(expected)
        for own, one, other in zip(types, expected, found, strict=True):
            for first, a, b in zip(own, one, other, strict=True):
                tolerance = tolerance_for(first.dtype.name, coarse=self._half)
                if a.shape != b.shape or bool(outside(wide(a), wide(b), tolerance)[0].any()):
                    return True
        return False

    @cached_property
    def precise(self) -> list[tuple[str, list[list[Any]]]]:
        """What the original computes in float64, by each backend that runs it so."""
        ran = ((one, self._run(*self._double(self.model), one)) for one in ("ort-cpu", "reference"))
        return [(name, values) for name, values in ran if values is not None]

    def _double(self, model: ModelProto) -> tuple[ModelProto, list[dict[str, Any]]]:
        """A copy with float64 for float32, and its feeds. Half precision stays: a cast to it may be the change."""
        wide = widened(copied(model), TensorProto.DOUBLE, (int(TensorProto.FLOAT),))
        return wide, [raised(dict(self.feeds[n]), TensorProto.DOUBLE, ("float32",)) for n in self._filled()]

    def _filled(self) -> list[int]:
        """The feeds without an empty tensor: onnx.reference does not reshape these, and they hold no values."""
        filled = [n for n, feed in enumerate(self.feeds) if all(np.size(one) for one in feed.values())]
        return filled or list(range(len(self.feeds)))

    def pick(self, kind: str, seed: int, turn: int) -> tuple[Recipe, Change, bytes] | None:
        """The first mutant of a kind that runs, from the ``turn``-th amount on where there are amounts."""
        first = turn % len(AMOUNTS) if kind == "weight" else 0
        for number, mutant in enumerate(make_mutants(self.model, kind, seed)):
            if number >= first and (change := self.change(mutant.model)) is not None:
                recipe = Recipe(self.path.stem, kind, number, mutant.what)
                return recipe, change, mutant.model.SerializeToString()
        return None
