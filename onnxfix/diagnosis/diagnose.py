"""A diagnosis from end to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnx import NodeProto

from onnxfix.causes import Cause
from onnxfix.diagnosis.bench import Bench, Clock, drop
from onnxfix.diagnosis.descend import Inner, descended
from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.engines import Engines, Execution
from onnxfix.diagnosis.evidence import Collector
from onnxfix.diagnosis.explaining import Explainer
from onnxfix.diagnosis.facts import Evidence
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.lockstep import Lockstep, beginnings
from onnxfix.diagnosis.outputs import Outputs
from onnxfix.diagnosis.records import (
    Against,
    Culprit,
    DepthError,
    Diagnosis,
    Marking,
    NodeError,
    OutputComparison,
)
from onnxfix.diagnosis.rows import (
    Row,
    Walk,
    excess,
    is_beyond,
    is_beyond_whole,
    own_size,
    ranked_rows,
    rounded_up,
)
from onnxfix.diagnosis.sides import LOW, Prepared
from onnxfix.diagnosis.store import Held
from onnxfix.place import Place
from onnxfix.verification.compare.tolerance import Allowed

SECTIONS = 1000
"""Sections of a model, at most."""


def depths(rows: Iterable[Row], graph: Graph) -> tuple[DepthError, ...]:
    """Of each section of the model the node with the largest error, in the order of computation."""
    step = max(1, -(-len(graph.nodes) // SECTIONS))
    worst: dict[int, Row] = {}
    for row in rows:
        if row.own is None and row.whole is None:
            continue
        old = worst.get(row.number // step)
        if old is None or _size(row) > _size(old):
            worst[row.number // step] = row
    return tuple(_depth(graph, row) for _, row in sorted(worst.items()))


def _size(row: Row) -> tuple[float, float]:
    """The error at a node's output, then its own."""
    whole, own = (one.relative if one is not None else 0.0 for one in (row.whole, row.own))
    return whole, own


def _depth(graph: Graph, row: Row) -> DepthError:
    own, whole = (one.relative if one is not None else None for one in (row.own, row.whole))
    return DepthError(row.number, row.name, graph.nodes[row.number].op_type, own, whole)


MOST = 8
"""Suspected nodes that are looked at closely."""
_TABLE = 20
_SLOW = 8.0  # seconds that the first sample may take for a second one to be tried by default

Say = Callable[[str], None]
Sample = Mapping[str, Any]


@dataclass
class Case:
    """What is diagnosed: the ``truth`` and the other side, on ``samples``: candidates, of which ``count`` that the
    truth accepts are used (``generated``: fewer are enough). ``engines``: the other side are engines. ``allowed``: what
    outputs may differ by, in the place of the tolerance of their types."""

    truth: Graph
    prepared: Prepared
    against: Against
    samples: Iterable[Sample]
    count: int
    generated: bool
    explainer: Explainer
    engines: Engines | None = None
    allowed: Allowed | None = None


@dataclass
class _State:
    walks: list[Walk] = field(default_factory=list)
    feeds: list[dict[str, Held]] = field(default_factory=list)
    rows: dict[str, tuple[int, Row]] = field(default_factory=dict)
    refused: str = ""
    cause: Cause = ""
    complete: bool = True
    interrupted: bool = False
    markings: tuple[Marking, ...] = ()
    notes: tuple[str, ...] = ()


def diagnose(case: Case, bench: Bench, base: Diagnosis, clock: Clock, say: Say) -> Diagnosis:
    """Find out where the other side begins to differ. ``base`` has what is known before.

    An interrupt (KeyboardInterrupt) ends the walk; what was found until then is the result, with ``complete`` False,
    and nothing is run any more to explain it.
    """
    began = time.perf_counter()
    state = _State()
    try:
        _walk(case, bench, state, clock, say)
    except KeyboardInterrupt:
        state.interrupted = True
    found = _judged(case, bench, state, base, say)
    total = max(len(case.truth.nodes), 1)
    return replace(
        found,
        samples=len(state.walks),
        nodes=total,
        compared=len(state.rows),
        runs=round(bench.runs, 2),
        seconds=time.perf_counter() - began,
        complete=state.complete and not state.interrupted,
        interrupted=state.interrupted,
        markings=state.markings,
        notes=(*found.notes, *state.notes, *case.prepared.notes),
    )


def _judged(case: Case, bench: Bench, state: _State, base: Diagnosis, say: Say) -> Diagnosis:
    if not state.walks:
        if state.interrupted or not state.complete:
            how = "it was interrupted" if state.interrupted else "time ran out"
            return replace(base, status="unknown", reason=f"{how} before anything was compared")
        why = state.refused or "no sample could be made that the model accepts"
        return replace(
            base, status="unknown", reason=f"the truth does not run: {why}", cause=state.cause or "refused"
        )
    if not state.interrupted:
        try:
            return _Judge(case, bench, state, say).result(base)
        except KeyboardInterrupt:
            state.interrupted = True
    return _Judge(case, bench, state, say).result(base)


def _walk(case: Case, bench: Bench, state: _State, clock: Clock, say: Say) -> None:
    """Walk through samples until enough of them ran."""
    for number, values in enumerate(case.samples):
        if clock.over or state.interrupted:
            state.complete = False
            return
        began = time.perf_counter()
        feed = bench.hold(values)
        walk = _sample(case, bench, state, feed, clock, say)
        if walk.failed:
            state.refused, state.cause = walk.failed, walk.cause
            if not case.generated:
                state.notes += (f"sample {number + 1}: the truth does not run: {walk.failed}",)
            drop(list(feed.values()))
            continue
        state.walks.append(walk)
        state.feeds.append({**feed, **walk.drawn})
        for name, row in walk.rows.items():
            old = state.rows.get(name)
            if old is None or excess(row) > excess(old[1]):
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
    their_feed = case.prepared.feed(feed)
    if case.engines is not None:
        execution = Execution(bench, case.truth, side, case.engines, clock, say, is_beyond)
        try:
            execution.run(feed, their_feed)
        except KeyboardInterrupt:
            state.interrupted = True
        state.markings += tuple(execution.markings)
        state.notes += tuple(note for note in execution.notes if note not in state.notes)
        return execution.walk
    lockstep = Lockstep(bench, case.truth, side, clock=clock)
    try:
        lockstep.run(feed, their_feed, lambda done, total: say(f"{label}: node {done} of {total}"))
    except KeyboardInterrupt:
        state.interrupted = True
    return lockstep.walk


# ------------------------------------------------------------------------------------------------------- judging


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


def _places(culprits: Iterable[Culprit]) -> Iterable[Place]:
    return dict.fromkeys(one.error.place for one in culprits)


def place(graph: Graph, number: int, output: str) -> Place:
    """The place of a node of the main graph, or of the function that it was inlined from."""
    node = graph.nodes[number]
    return graph.origins.get(output) or Place((), node.name, node.op_type, output, number)


def _label(node: NodeProto) -> str:
    return node.name or f"{node.op_type} {next((name for name in node.output if name), '')}"


class _Judge:
    """Makes the diagnosis of what was walked."""

    def __init__(self, case: Case, bench: Bench, state: _State, say: Say) -> None:
        self.case, self.bench, self.state, self.say = case, bench, state, say
        self.low = LOW.get(case.against, "")

    def result(self, base: Diagnosis) -> Diagnosis:
        case, state = self.case, self.state
        side, run = case.prepared.side, not state.interrupted
        judge = Outputs(self.bench, case.truth, side, case.against, case.allowed, run)
        outputs, wrong = judge.judge(state.walks, state.feeds)
        ranked = ranked_rows(self.state.rows.values())
        suspects = [one for one in ranked if is_beyond(one[1])]
        if self.low:
            suspects = (suspects or ranked[:MOST]) if wrong else []
        suspects = suspects[:MOST]
        begins = self._beginnings() if suspects else ()
        self.say("looking at the worst nodes")
        seen = self._seen(suspects, outputs)
        seen.sort(key=lambda one: (-self._worth(one[1]), -own_size(one[1].row), one[1].row.number))
        named = [culprit for feed, one in seen for culprit in self._culprits(feed, one)]
        # Of several that read what a missing node should compute, the worst stands for that node.
        culprits = tuple({one.error.place: one for one in reversed(named)}[place] for place in _places(named))
        strange = sorted(ranked, key=lambda one: (-excess(one[1]), one[1].number))
        table = tuple(_error(self.case, feed, row) for feed, row in strange[:_TABLE] if own_size(row) > 0)
        found = replace(
            base,
            outputs=outputs,
            culprits=culprits,
            begins=begins,
            table=table,
            depths=depths((row for _, row in self.state.rows.values()), self.case.truth),
            keep_fp32=self.case.explainer.keep_fp32(culprits) if self.low else (),
            notes=(*base.notes, *self._notes()),
        )
        return self._concluded(found, wrong)

    def _notes(self) -> tuple[str, ...]:
        """What could not be run on the other side."""
        graph, notes = self.case.prepared.side.graph, []
        stopped = next((walk for walk in self.state.walks if walk.stopped), None)
        if stopped is not None:
            where = f" at {_label(graph.nodes[stopped.at])}" if stopped.at is not None else ""
            notes.append(f"the other side's own run stopped{where}: {stopped.stopped}")
        refused = {name: why for walk in self.state.walks for name, why in walk.refused.items()}
        if refused:
            name, why = next(iter(refused.items()))
            notes.append(
                f"{len(refused)} tensors that the other side does not compute alone, such as {name}: {why}"
            )
        return tuple(notes)

    def _concluded(self, found: Diagnosis, wrong: Sequence[OutputComparison]) -> Diagnosis:
        state = self.state
        # TensorRT's network is also judged by its weights, bit by bit.
        misread = self.case.against == "trt-network" and any(one.cause == "weight" for one in found.culprits)
        unjudged = not found.outputs  # it ended before the walk reached one
        if found.culprits and (wrong or misread or unjudged):
            worst = found.culprits[0]
            return replace(found, status="differ", reason=f"{worst.error.place.text}: {worst.reason}")
        if wrong:
            text = f"output {wrong[0].name} differs, and {self._left()}"
            if state.interrupted or not state.complete:
                text = f"output {wrong[0].name} differs; the search for the node was not finished"
            return replace(found, status="unexplained", reason=text)
        stopped = next((walk for walk in state.walks if walk.stopped), None)
        if stopped is not None:
            return replace(found, status="unknown", reason=stopped.stopped, cause="refused")
        if state.interrupted or (not state.complete and not found.outputs):
            how = "it was interrupted" if state.interrupted else "time ran out"
            text = f"{how}; no difference was found in {len(state.rows)} tensors"
            cause: Cause = "" if state.interrupted else "timeout"
            return replace(found, status="unknown", reason=text, cause=cause)
        if not found.outputs:
            return replace(found, status="unknown", reason="the other side computes no output of the model")
        if all(one.same for one in found.outputs):
            return replace(found, status="agree", reason="all outputs are bit-identical")
        share = max((one.max_abs / one.scale if one.scale else one.max_abs) for one in found.outputs)
        tolerance = rounded_up(share)
        text = f"the outputs differ by rounding only: a tolerance of {tolerance:.1g} (of each output's scale) is right"
        return replace(found, status="rounding", reason=text, tolerance=tolerance)

    def _left(self) -> str:
        """What is known where no node's own error shows why."""
        walk = next((one for one in self.state.walks if len(one.left) > 1), None)
        if walk is None:
            return "no node alone shows why"
        nodes, left = self.case.prepared.side.graph.nodes, walk.left
        apart = (
            "not all of which build apart" if walk.refused else "that compute right in engines of their own"
        )
        return (
            f"no node alone shows why: it begins among {len(left)} nodes, from {_label(nodes[left[0]])} to "
            f"{_label(nodes[left[-1]])}, {apart}"
        )

    # ---------------------------------------------------------------------------------------- culprits

    def _beginnings(self) -> tuple[NodeError, ...]:
        """The first tensors that differ in the other side's own run, beyond noise."""
        off = {name for name, (_, row) in self.state.rows.items() if is_beyond_whole(row)}
        names = beginnings({name: row for name, (_, row) in self.state.rows.items()}, self.case.truth, off)
        return tuple(_error(self.case, *self.state.rows[name]) for name in names[:MOST])

    def _seen(
        self, suspects: Sequence[tuple[int, Row]], outputs: Sequence[OutputComparison]
    ) -> list[tuple[int, Evidence]]:
        """The values around suspects, and what each alone does to the outputs."""
        found: list[tuple[int, Evidence]] = []
        measure = len(suspects) > 1 and any(not one.same for one in outputs)
        for feed in dict.fromkeys(number for number, _ in suspects):
            walk, values = self.state.walks[feed], self.state.feeds[feed]
            rows = [row for number, row in suspects if number == feed]
            collector = Collector(
                self.bench, self.case.truth, self.case.prepared.side, values, self.case.against
            )
            if self.state.interrupted:
                found += [(feed, collector.bare(row)) for row in rows]
                continue
            theirs = self.case.prepared.feed(values)
            for one in collector.gather(rows, theirs, list(walk.truth) if measure else (), walk.types):
                effect = self._effect(collector, one, walk) if measure else None
                found.append((feed, replace(one, effect=effect)))
        return found

    def _effect(self, collector: Collector, evidence: Evidence, walk: Walk) -> float | None:
        """The largest error in an output, as a share of its scale, that this node alone causes."""
        if not evidence.own:
            return None
        found = collector.effect(evidence.own, list(walk.truth))
        shares = [distance(walk.truth[name].load(), held.load()).relative for name, held in found.items()]
        return max(shares, default=None)

    def _worth(self, evidence: Evidence) -> float:
        return evidence.effect if evidence.effect is not None else own_size(evidence.row)

    def _culprits(self, feed: int, evidence: Evidence) -> list[Culprit]:
        """The culprit, or those inside of it."""
        error = _error(self.case, feed, evidence.row, evidence.effect)
        culprit = self.case.explainer.culprit(error, evidence)
        if self.state.interrupted or self.case.engines is not None:
            return [culprit]
        return descended(
            evidence, culprit, self.case.truth, self.case.prepared.side, self.bench, self._inside
        )

    def _inside(self, inner: Inner) -> Sequence[Culprit]:
        """The culprits in a graph inside of a node."""
        explainer = replace(self.case.explainer, truth=inner.truth, other=inner.prepared.side.graph)
        case = Case(inner.truth, inner.prepared, self.case.against, [inner.feed], 1, False, explainer)
        base = Diagnosis("", case.against, "", "unknown")
        found = diagnose(case, self.bench, base, Clock(None), self.say)
        self.state.interrupted = self.state.interrupted or found.interrupted
        return found.culprits
