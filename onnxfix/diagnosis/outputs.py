"""The model's outputs on both sides, judged as the proof judges them on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Values
from onnxfix.diagnosis.graph import Graph, upstream
from onnxfix.diagnosis.records import Against, OutputComparison
from onnxfix.diagnosis.rows import Side, Walk
from onnxfix.diagnosis.sides import LOW
from onnxfix.diagnosis.statistics import compare_output
from onnxfix.proof.compare.compare import Metrics, Terms, compare_outputs, different, moved_by
from onnxfix.proof.compare.tolerance import SHARE, Allowed
from onnxfix.proof.compare.twin import half_type
from onnxfix.proof.readback.values import aligned
from onnxfix.proof.request import REMOTE
from onnxfix.runtime.backends import reference


@dataclass(frozen=True, eq=False)
class Outputs:
    """Compares outputs. ``allowed`` is what they may differ by, in the place of the tolerance of their types. Of
    engines, ``Walk.off`` has what is wrong. ``run``: whether models may run for it."""

    bench: Bench
    truth: Graph
    side: Side
    against: Against
    allowed: Allowed | None
    run: bool = True

    def judge(
        self, walks: Sequence[Walk], feeds: Sequence[Values]
    ) -> tuple[tuple[OutputComparison, ...], list[OutputComparison]]:
        """The outputs over all samples, and those that differ by more than rounding explains."""
        pairs = [
            {name: (value, walk.other[name]) for name, value in walk.truth.items() if name in walk.other}
            for walk in walks
        ]
        names = [name for name in self.truth.outputs if any(name in one for one in pairs)]
        found = {name: compare_output(name, [one[name] for one in pairs if name in one]) for name in names}
        unlike = [name for name, one in found.items() if not one.same]
        wrong = set[str]()
        for walk, feed, values in zip(walks, feeds, pairs, strict=True):
            moved = self._moved(walk, feed, unlike) if unlike and self.run else {}
            found |= {
                name: replace(found[name], noise=max(far, found[name].noise)) for name, far in moved.items()
            }
            wrong |= set(walk.off) if self.against == "trt-gpu" else self._wrong(feed, values, moved)
        return tuple(found.values()), [one for name, one in found.items() if name in wrong]

    def _moved(self, walk: Walk, feed: Values, names: Sequence[str]) -> dict[str, float]:
        """How far the truth's outputs move with its inputs."""
        truth = self.truth
        made = [name for name in names if name in walk.truth and name not in feed]
        made = [name for name in made if not truth.is_constant(name)]
        numbers = upstream(truth, made, frozenset(feed))
        reply = self.bench.run_part(truth, numbers, made, feed, moved=self.side.unit)
        return {name: moved_by(name, walk.truth[name], value) for name, value in reply.values.items()}

    def _wrong(
        self, feed: Values, pairs: Mapping[str, tuple[Any, Any]], moved: Mapping[str, float]
    ) -> set[str]:
        """The outputs that the proof calls wrong on one sample."""
        half, between = half_type(self.truth.proto), self.against == "model"
        coarse = LOW.get(self.against, "") or half * (self.against == "trt-network")
        terms = Terms(coarse=coarse, allowed=self.allowed)
        both = {name: pair if between else aligned(*pair) for name, pair in pairs.items()}
        truth, other = ({name: values[side] for name, values in both.items()} for side in (0, 1))
        slack = {name: SHARE * far for name, far in moved.items()}
        wrong = different(compare_outputs(both, truth, other, terms, slack=slack))
        if wrong and between and self.truth.path and self.side.graph.path and self.run:
            wrong = self._proven(feed, half, wrong)
        return {one.output for one in wrong}

    def _proven(self, feed: Values, half: str, wrong: list[Metrics]) -> list[Metrics]:
        """Those that the proof calls wrong once it has run two models in higher precision too; what is known where it
        cannot run them. Half precision is a matter of the reference evaluator."""
        models = self.truth.proto, self.side.graph.proto
        backend = "reference" if any(map(half_type, models)) else "ort-cpu"
        elements = sum(map(np.size, feed.values()))
        if backend == "reference" and any(reference.infeasible(one, elements) for one in models):
            return wrong
        folder = self.bench.path()
        folder.mkdir()
        outcome = self.bench.worker.call(
            f"{REMOTE}:pair", timeout=self.bench.timeout, backend=backend, original=str(self.truth.path),
            fixed=str(self.side.graph.path), feed=dict(feed), folder=str(folder), half=half,
            terms=Terms(allowed=self.allowed),
        )  # fmt: skip
        metrics = different(outcome.value.metrics) if outcome.ok and not outcome.value.stage else wrong
        return wrong if any(one.kind == "absent" for one in metrics) else metrics
