"""A diagnosis from end to end: walk through the samples, choose the culprits, and say why and what to do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxfix.diagnosis.bench import Bench, Clock
from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.engines import Engines
from onnxfix.diagnosis.evidence import Collector, Seen
from onnxfix.diagnosis.executed import Execution
from onnxfix.diagnosis.explaining import Explainer
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.lockstep import Lockstep, Row, Walk, beginnings
from onnxfix.diagnosis.records import Against, Culprit, Diagnosis, Marking, NodeError, OutputComparison
from onnxfix.diagnosis.sides import LOW, Prepared
from onnxfix.diagnosis.statistics import compare_output
from onnxfix.diagnosis.store import Held
from onnxfix.place import Place
from onnxfix.verification.compare.tolerance import TOLERANCES, tolerance_for

MOST = 8
"""Suspected nodes that are looked at closely."""
_TABLE = 20
_SHARE = 8.0  # times the measured noise that is no difference
_FLOOR = {"float64": 2.0**-48, "float32": 2.0**-19, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Share of a tensor's scale that another kernel, or another order of sums, may make of it: 32 units in the last place
for float32."""
_SLOW = 8.0  # seconds that the first sample may take for a second one to be tried by default

Say = Callable[[str], None]
Sample = Mapping[str, Any]


@dataclass
class Case:
    """What is diagnosed: the ``truth`` and the other side, on ``samples``: candidates, of which ``count`` that the
    truth accepts are used (``generated``: fewer are enough). ``engines``: the other side are engines."""

    truth: Graph
    prepared: Prepared
    against: Against
    samples: Iterable[Sample]
    count: int
    generated: bool
    explainer: Explainer
    engines: Engines | None = None


@dataclass
class _State:
    walks: list[Walk] = field(default_factory=list)
    feeds: list[dict[str, Held]] = field(default_factory=list)
    rows: dict[str, tuple[int, Row]] = field(default_factory=dict)
    refused: str = ""
    complete: bool = True
    markings: tuple[Marking, ...] = ()
    notes: tuple[str, ...] = ()


def diagnose(case: Case, bench: Bench, base: Diagnosis, clock: Clock, say: Say) -> Diagnosis:
    """Find out where the other side begins to differ. ``base`` has what is known before.

    An interrupt (KeyboardInterrupt) ends the walk; what was found until then is the result, with ``complete`` False.
    """
    began = time.perf_counter()
    state = _State()
    try:
        _walk(case, bench, state, clock, say)
    except KeyboardInterrupt:
        state.complete = False
    if not state.walks:
        why = f"the truth does not run: {state.refused or 'no sample could be made that the model accepts'}"
        why = why if state.complete else "it was interrupted before anything was compared"
        found = replace(base, status="unknown", reason=why, cause="refused" if state.complete else "")
        return replace(found, seconds=time.perf_counter() - began, complete=state.complete)
    try:
        found = _Judge(case, bench, state, say).result(base)
    except KeyboardInterrupt:
        rows = _ranked(state.rows.values())
        table = tuple(_error(case, feed, row) for feed, row in rows[:_TABLE])
        found = replace(base, status="unknown", reason="it was interrupted", table=table)
        state.complete = False
    total = max(len(case.truth.nodes), 1)
    return replace(
        found,
        samples=len(state.walks),
        nodes=total,
        compared=len(state.rows),
        runs=round(bench.nodes / total, 2),
        seconds=time.perf_counter() - began,
        complete=state.complete,
        markings=state.markings,
        notes=(*found.notes, *state.notes, *case.prepared.notes),
    )


def _walk(case: Case, bench: Bench, state: _State, clock: Clock, say: Say) -> None:
    """Walk through samples until enough of them ran."""
    for values in case.samples:
        began = time.perf_counter()
        feed = bench.hold(values)
        walk = _sample(case, bench, state, feed, clock, say)
        if walk.failed:
            state.refused = walk.failed
            continue
        state.walks.append(walk)
        state.feeds.append(feed)
        for name, row in walk.rows.items():
            old = state.rows.get(name)
            if old is None or _excess(row) > _excess(old[1]):
                state.rows[name] = (len(state.walks) - 1, row)
        state.complete = state.complete and walk.complete
        slow = case.generated and time.perf_counter() - began > _SLOW
        if len(state.walks) >= case.count or slow or not state.complete:
            return


def _sample(
    case: Case, bench: Bench, state: _State, feed: Mapping[str, Held], clock: Clock, say: Say
) -> Walk:
    """Walk through one sample, as far as it is not interrupted."""
    side, label = case.prepared.side, f"sample {len(state.walks) + 1}"
    if case.engines is not None:
        execution = Execution(bench, case.truth, side, case.engines, clock, say, is_beyond)
        try:
            return execution.run(feed, case.prepared.feed(feed))
        finally:
            state.markings += tuple(execution.markings)
            state.notes += tuple(note for note in execution.notes if note not in state.notes)
    lockstep = Lockstep(bench, case.truth, side, clock=clock)
    try:
        return lockstep.run(
            feed, case.prepared.feed(feed), lambda done, total: say(f"{label}: node {done} of {total}")
        )
    except KeyboardInterrupt:
        state.complete = False
        return lockstep.walk


# ------------------------------------------------------------------------------------------------------- judging


def allowed(row: Row) -> float:
    """How far a tensor may be from the truth by rounding alone, in its own unit."""
    scale = row.own.scale if row.own is not None else 0.0
    return max(_SHARE * row.noise, _FLOOR.get(row.dtype, 0.0) * scale)


def _excess(row: Row) -> float:
    """The own error as a multiple of what rounding may make of it."""
    if row.own is None:
        return 0.0
    if row.own.shape or row.own.special > row.unstable:
        return math.inf
    limit = allowed(row)
    largest = row.own.largest / limit if limit else (math.inf if row.own.largest else 0.0)
    return max(largest, _typical_excess(row))


def _typical_excess(row: Row) -> float:
    """The same for the quantiles of all elements: where a few elements are unstable, or much larger than all others,
    the largest difference says nothing of the rest."""
    typical = row.own.typical if row.own is not None else None
    if typical is None:
        return 0.0
    found = [0.0]
    noises = row.typical_noise or (0.0,) * len(typical.off)
    for off, size, noise in zip(typical.off, typical.size, noises, strict=True):
        limit = max(_SHARE * noise, _FLOOR.get(row.dtype, 0.0) * size)
        if off:
            found.append(off / limit if limit else math.inf)
    return max(found)


def is_beyond(row: Row) -> bool:
    """Whether the region computes something else than the truth, beyond rounding."""
    return _excess(row) > 1.0


def _ranked(rows: Iterable[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """Rows by their own error, the worst of each node."""
    best: dict[int, tuple[int, Row]] = {}
    for feed, row in rows:
        if row.own is None:
            continue
        old = best.get(row.number)
        if old is None or _size(row) > _size(old[1]):
            best[row.number] = (feed, row)
    return sorted(best.values(), key=lambda one: (-_size(one[1]), one[1].number))


def _size(row: Row) -> float:
    return row.own.relative if row.own is not None else 0.0


def _error(case: Case, feed: int, row: Row, effect: float | None = None) -> NodeError:
    own = row.own
    labels = (
        [_label(case.prepared.side.graph.nodes[n]) for n in row.region.nodes]
        if row.region is not None
        else []
    )
    return NodeError(
        place=place(case.truth, row.number, row.name),
        own_error=own.relative if own is not None else 0.0,
        own_abs=own.largest if own is not None else 0.0,
        noise=row.noise / own.scale if own is not None and own.scale else 0.0,
        input_error=row.before,
        output_error=row.whole.relative if row.whole is not None else None,
        effect=effect,
        shape=row.shape,
        dtype=row.dtype,
        low=own.low if own is not None else 0.0,
        high=own.high if own is not None else 0.0,
        nonfinite=own.special if own is not None else 0,
        nodes=tuple(labels),
        feed=feed,
    )


def place(graph: Graph, number: int, output: str) -> Place:
    """The place of a node of the main graph."""
    node = graph.nodes[number]
    return Place((), node.name, node.op_type, output, number)


def _label(node: NodeProto) -> str:
    return node.name or f"{node.op_type} {next((name for name in node.output if name), '')}"


class _Judge:
    """Makes the diagnosis of what was walked."""

    def __init__(self, case: Case, bench: Bench, state: _State, say: Say) -> None:
        self.case, self.bench, self.state, self.say = case, bench, state, say
        self.low = LOW.get(case.against, "")

    def result(self, base: Diagnosis) -> Diagnosis:
        outputs = self._outputs()
        wrong = [one for one in outputs if self._is_wrong(one)]
        ranked = _ranked(self.state.rows.values())
        suspects = [one for one in ranked if is_beyond(one[1])]
        if self.low:
            suspects = (suspects or ranked[:MOST]) if wrong else []
        suspects = suspects[:MOST]
        begins = self._beginnings() if suspects else ()
        self.say("looking at the worst nodes")
        seen = self._seen(suspects, outputs)
        seen.sort(key=lambda one: (-self._worth(one[1]), -_size(one[1].row), one[1].row.number))
        culprits = tuple(self._culprit(feed, one) for feed, one in seen)
        strange = sorted(ranked, key=lambda one: (-_excess(one[1]), one[1].number))
        table = tuple(_error(self.case, feed, row) for feed, row in strange[:_TABLE] if _size(row) > 0)
        stopped = next((walk.stopped for walk in self.state.walks if walk.stopped), "")
        found = replace(
            base,
            outputs=outputs,
            culprits=culprits,
            begins=begins,
            table=table,
            keep_fp32=self.case.explainer.keep_fp32(culprits) if self.low else (),
            notes=(*base.notes, *([f"the other side's own run stopped: {stopped}"] if stopped else [])),
        )
        return self._concluded(found, wrong)

    def _concluded(self, found: Diagnosis, wrong: Sequence[OutputComparison]) -> Diagnosis:
        if found.culprits:
            worst = found.culprits[0]
            return replace(found, status="differ", reason=f"{worst.error.place.text}: {worst.reason}")
        if wrong:
            text = f"output {wrong[0].name} differs, and no node alone shows why"
            return replace(found, status="unexplained", reason=text)
        stopped = [walk for walk in self.state.walks if walk.stopped]
        if stopped and not found.outputs:
            return replace(found, status="unknown", reason=stopped[0].stopped, cause="refused")
        if all(one.same for one in found.outputs):
            return replace(found, status="agree", reason="all outputs are bit-identical")
        share = max((one.max_abs / one.scale if one.scale else one.max_abs) for one in found.outputs)
        tolerance = rounded_up(share)
        text = f"the outputs differ by rounding only: a tolerance of {tolerance:.1g} (of each output's scale) is right"
        return replace(found, status="rounding", reason=text, tolerance=tolerance)

    # ------------------------------------------------------------------------------------------- outputs

    def _outputs(self) -> tuple[OutputComparison, ...]:
        """The model's outputs over all samples."""
        walks = [walk for walk in self.state.walks if walk.other]
        names = [name for name in self.case.truth.outputs if all(name in walk.other for walk in walks)]
        if not walks:
            return ()
        pairs = {
            name: [(walk.truth[name].load(), walk.other[name].load()) for walk in walks if name in walk.truth]
            for name in names
        }
        found = [compare_output(name, pairs[name]) for name in names]
        if all(one.same for one in found):
            return tuple(found)
        noise = self._noise(names)
        return tuple(replace(one, noise=noise.get(one.name, 0.0)) for one in found)

    def _noise(self, names: Sequence[str]) -> dict[str, float]:
        """How far the truth's outputs move with its inputs, over all samples."""
        found: dict[str, float] = {}
        for walk, feed in zip(self.state.walks, self.state.feeds, strict=True):
            made = [name for name in names if name in self.case.truth.producer]
            part, inputs = self.case.truth.part(range(len(self.case.truth.nodes)), made, feed)
            given = {name: feed[name] for name in inputs if name in feed}
            reply = self.bench.run(
                part, given, of=self.case.truth, moved=self.case.prepared.side.unit, seed=3
            )
            for name, held in reply.values.items():
                far = compare_output(name, [(walk.truth[name].load(), held.load())]).max_abs
                found[name] = max(found.get(name, 0.0), far)
        return found

    def _is_wrong(self, one: OutputComparison) -> bool:
        """Whether an output differs by more than rounding explains."""
        if one.differs:
            return True
        special = (one.truth_nonfinite.nan, one.truth_nonfinite.inf) != (
            one.other_nonfinite.nan,
            one.other_nonfinite.inf,
        )
        if special:
            return True
        dtype = self.low if self.low and one.dtype in TOLERANCES else one.dtype
        tolerance = tolerance_for(dtype, one.noise)
        return one.max_abs > (tolerance.rtol + tolerance.atol) * one.scale + tolerance.noise

    # ---------------------------------------------------------------------------------------- culprits

    def _beginnings(self) -> tuple[NodeError, ...]:
        """The first tensors that differ in the other side's own run, beyond noise."""
        off = {name for name, (_, row) in self.state.rows.items() if _whole_beyond(row)}
        names = beginnings({name: row for name, (_, row) in self.state.rows.items()}, self.case.truth, off)
        return tuple(_error(self.case, *self.state.rows[name]) for name in names[:MOST])

    def _seen(
        self, suspects: Sequence[tuple[int, Row]], outputs: Sequence[OutputComparison]
    ) -> list[tuple[int, Seen]]:
        """The values around suspects, and what each alone does to the outputs."""
        found: list[tuple[int, Seen]] = []
        measure = len(suspects) > 1 and any(not one.same for one in outputs)
        for feed in dict.fromkeys(number for number, _ in suspects):
            walk, values = self.state.walks[feed], self.state.feeds[feed]
            collector = Collector(self.bench, self.case.truth, self.case.prepared.side, values)
            theirs = self.case.prepared.feed(values)
            for one in collector.seen([row for number, row in suspects if number == feed], theirs):
                effect = self._effect(collector, one, walk) if measure else None
                found.append((feed, replace(one, effect=effect)))
        return found

    def _effect(self, collector: Collector, seen: Seen, walk: Walk) -> float | None:
        """The largest error in an output, as a share of its scale, that this node alone causes."""
        own = {name: value for name, value in seen.own.items() if isinstance(value, np.ndarray)}
        if not own:
            return None
        found = collector.effect(own, list(walk.truth))
        shares = [distance(walk.truth[name].load(), held.load()).relative for name, held in found.items()]
        return max(shares, default=None)

    def _worth(self, seen: Seen) -> float:
        return seen.effect if seen.effect is not None else _size(seen.row)

    def _culprit(self, feed: int, seen: Seen) -> Culprit:
        error = _error(self.case, feed, seen.row, seen.effect)
        return self.case.explainer.culprit(error, seen)


def _whole_beyond(row: Row) -> bool:
    if row.whole is None:
        return False
    limit = max(_SHARE * row.noise, 8 * _FLOOR.get(row.dtype, 0.0) * row.whole.scale)
    return not math.isfinite(row.whole.relative) or row.whole.largest > limit


def rounded_up(share: float) -> float:
    """Twice a share, rounded up to one digit: a tolerance that it passes with some room."""
    if share <= 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(2 * share))
    return math.ceil(2 * share / unit - 1e-9) * unit
