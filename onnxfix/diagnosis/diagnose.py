"""A diagnosis from end to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnx import NodeProto

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.bodies import Inner, descended
from onnxfix.diagnosis.child import Values
from onnxfix.diagnosis.distance import Distance, distance
from onnxfix.diagnosis.engines import Execution
from onnxfix.diagnosis.evidence import Collector, Evidence
from onnxfix.diagnosis.explain import Explainer
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
    Side,
    Walk,
    excess,
    is_beyond,
    is_beyond_whole,
    own_size,
    ranked_rows,
    rounded_up,
)
from onnxfix.diagnosis.sides import LOW
from onnxfix.place import Place, place_of
from onnxfix.proof.compare.tolerance import Allowed
from onnxfix.runtime.causes import Cause

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
    return tuple(
        DepthError(
            row.number,
            row.name,
            graph.nodes[row.number].op_type,
            row.own.relative if row.own is not None else None,
            row.whole.relative if row.whole is not None else None,
        )
        for _, row in sorted(worst.items())
    )


def _size(row: Row) -> tuple[float, float]:
    """The error at a node's output, then its own."""
    whole, own = (one.relative if one is not None else 0.0 for one in (row.whole, row.own))
    return whole, own


MOST = 8
"""Suspected nodes that are looked at closely."""
_TABLE = 20
_SLOW = 8.0  # seconds that the first sample may take for a second one to be tried by default

Say = Callable[[str], None]
Sample = Mapping[str, Any]


@dataclass
class Case:
    """What is diagnosed: the ``truth`` and the other ``side``, on ``samples``: candidates, of which ``count`` that the
    truth accepts are used (``generated``: fewer are enough). ``allowed``: what outputs may differ by, in the place of
    the tolerance of their types."""

    truth: Graph
    side: Side
    samples: Iterable[Sample]
    count: int
    generated: bool
    explainer: Explainer
    allowed: Allowed | None = None

    @property
    def against(self) -> Against:
        """What kind of other side it is."""
        return self.explainer.against

    def error(self, row: Row, effect: float | None = None) -> NodeError:
        """What was measured of a tensor, for the report."""
        own, numbers = row.own or Distance(), row.region.nodes if row.region is not None else ()
        return NodeError(
            place=place(self.truth, row.number, row.name),
            own_error=own.relative,
            own_abs=own.largest,
            noise=row.noise / own.scale if own.scale else 0.0,
            input_error=row.before,
            output_error=row.whole.relative if row.whole is not None else None,
            effect=effect,
            shape=row.shape,
            dtype=row.dtype,
            low=own.low,
            high=own.high,
            nonfinite=own.special,
            nodes=tuple(_label(self.side.graph.nodes[number]) for number in numbers),
            feed=row.feed,
        )


def place(graph: Graph, number: int, output: str) -> Place:
    """The place of a node of the main graph, or of the function that it was inlined from."""
    node = graph.nodes[number]
    return graph.origins.get(output) or replace(place_of(node, number), output=output)


def _label(node: NodeProto) -> str:
    return node.name or f"{node.op_type} {next((name for name in node.output if name), '')}"


@dataclass
class Survey:
    """What walking through the samples showed: of each sample the walk and the inputs, and of each tensor the row with
    the largest excess. ``refused`` is why the truth takes no sample, with its ``cause``."""

    walks: list[Walk] = field(default_factory=list)
    feeds: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    refused: str = ""
    cause: Cause = ""
    complete: bool = True
    interrupted: bool = False
    markings: tuple[Marking, ...] = ()
    notes: tuple[str, ...] = ()

    def add(self, walk: Walk, feed: Values) -> None:
        """Add a sample that the truth accepts."""
        for name, row in walk.rows.items():
            if name not in self.rows or excess(row) > excess(self.rows[name]):
                self.rows[name] = replace(row, feed=len(self.walks))
        self.walks.append(walk)
        self.feeds.append({**feed, **walk.drawn})
        self.complete = self.complete and walk.complete

    @property
    def stopped(self) -> Walk | None:
        """The first walk in which the other side's own run stopped."""
        return next((walk for walk in self.walks if walk.stopped), None)

    @property
    def ending(self) -> str:
        """Why it ended before all was seen."""
        return "it was interrupted" if self.interrupted else "time ran out"


def diagnose(case: Case, bench: Bench, base: Diagnosis, say: Say) -> Diagnosis:
    """Find out where the other side begins to differ. ``base`` has what is known before.

    An interrupt (KeyboardInterrupt) ends the walk; what was found until then is the result, with ``complete`` False,
    and nothing is run any more to explain it.
    """
    began, survey = time.perf_counter(), Survey()
    diagnosis: Diagnosis | None = None
    try:
        walk_samples(case, bench, survey, say)
        if not survey.interrupted:
            diagnosis = explain_survey(case, bench, survey, base, say)
    except KeyboardInterrupt:
        survey.interrupted = True
    diagnosis = diagnosis or explain_survey(case, bench, survey, base, say)
    return replace(
        diagnosis,
        samples=len(survey.walks),
        nodes=max(len(case.truth.nodes), 1),
        compared=len(survey.rows),
        runs=round(bench.runs, 2),
        seconds=time.perf_counter() - began,
        complete=survey.complete and not survey.interrupted,
        interrupted=survey.interrupted,
        markings=survey.markings,
        notes=(*diagnosis.notes, *survey.notes, *case.side.notes),
    )


def walk_samples(case: Case, bench: Bench, survey: Survey, say: Say) -> None:
    """Walk through samples until enough of them ran."""
    for number, feed in enumerate(case.samples, 1):
        if bench.clock.over or survey.interrupted:
            survey.complete = False
            return
        began = time.perf_counter()
        walk = _walk(case, bench, survey, feed, say)
        if walk.failed:
            survey.refused, survey.cause = walk.failed, walk.cause
            if not case.generated:
                survey.notes += (f"sample {number}: the truth does not run: {walk.failed}",)
            continue
        survey.add(walk, feed)
        slow = case.generated and time.perf_counter() - began > _SLOW
        if len(survey.walks) >= case.count or slow or not survey.complete:
            return


def _walk(case: Case, bench: Bench, survey: Survey, feed: Values, say: Say) -> Walk:
    """Walk through one sample, as far as it is not interrupted."""
    label, their_feed = f"sample {len(survey.walks) + 1}", case.side.feed(feed)
    if case.side.engines is None:
        lockstep = Lockstep(bench, case.truth, case.side)
        try:
            lockstep.run(feed, their_feed, lambda done, total: say(f"{label}: node {done} of {total}"))
        except KeyboardInterrupt:
            survey.interrupted = True
        return lockstep.walk
    execution = Execution(bench, case.truth, case.side, say)
    try:
        execution.run(feed, their_feed)
    except KeyboardInterrupt:
        survey.interrupted = True
    survey.markings += tuple(execution.markings)
    survey.notes += tuple(note for note in execution.notes if note not in survey.notes)
    return execution.walk


# ---------------------------------------------------------------------------------------------------- explaining


def explain_survey(case: Case, bench: Bench, survey: Survey, base: Diagnosis, say: Say) -> Diagnosis:
    """The diagnosis of what was walked through: the outputs, the suspects, the culprits, the conclusion."""
    if not survey.walks:
        if survey.interrupted or not survey.complete:
            return replace(base, status="unknown", reason=f"{survey.ending} before anything was compared")
        why = survey.refused or "no sample could be made that the model accepts"
        text = f"the truth does not run: {why}"
        return replace(base, status="unknown", reason=text, cause=survey.cause or "refused")
    judge = Outputs(bench, case.truth, case.side, case.against, case.allowed, not survey.interrupted)
    outputs, wrong = judge.judge(survey.walks, survey.feeds)
    ranked, low = ranked_rows(survey.rows.values()), case.against in LOW
    suspects = [row for row in ranked if is_beyond(row)]
    if low:
        suspects = (suspects or ranked) if wrong else []
    suspects = suspects[:MOST]
    say("looking at the worst nodes")
    measure = len(suspects) > 1 and any(not one.same for one in outputs)
    culprits = _name_culprits(case, bench, survey, _gather(case, bench, survey, suspects, measure), say)
    # The first tensors that differ in the other side's own run, beyond noise.
    off = {name for name, row in survey.rows.items() if is_beyond_whole(row)}
    begins = tuple(case.error(survey.rows[name]) for name in beginnings(case.truth, off)[:MOST])
    strange = sorted(ranked, key=lambda row: (-excess(row), row.number))[:_TABLE]
    diagnosis = replace(
        base,
        outputs=outputs,
        culprits=culprits,
        begins=begins if suspects else (),
        table=tuple(case.error(row) for row in strange if own_size(row) > 0),
        depths=depths(survey.rows.values(), case.truth),
        keep_fp32=case.explainer.keep_fp32(culprits) if low else (),
        notes=(*base.notes, *_note_gaps(case, survey)),
    )
    return _conclude(case, survey, diagnosis, wrong)


def _gather(
    case: Case, bench: Bench, survey: Survey, suspects: Sequence[Row], measure: bool
) -> list[Evidence]:
    """The values around suspects, the worst first; ``measure``: with what each alone does to the outputs."""
    gathered: list[Evidence] = []
    for feed in dict.fromkeys(row.feed for row in suspects):
        walk, values = survey.walks[feed], survey.feeds[feed]
        rows = [row for row in suspects if row.feed == feed]
        collector = Collector(bench, case.truth, case.side, values, case.against)
        if survey.interrupted:
            gathered += map(collector.bare, rows)
            continue
        outputs = list(walk.truth) if measure else ()
        for one in collector.gather(rows, case.side.feed(values), outputs, walk.types):
            effect = (
                None  # the largest error in an output, as a share of its scale, that this node alone causes
            )
            if measure and one.own:
                moved = collector.effect(one.own, list(walk.truth)).items()
                shares = [distance(walk.truth[name], value).relative for name, value in moved]
                effect = max(shares, default=None)
            gathered.append(replace(one, effect=effect))
    return sorted(
        gathered,
        key=lambda one: (
            -(one.effect if one.effect is not None else own_size(one.row)),
            -own_size(one.row),
            one.row.number,
        ),
    )


def _name_culprits(
    case: Case, bench: Bench, survey: Survey, gathered: Sequence[Evidence], say: Say
) -> tuple[Culprit, ...]:
    """The culprits, those inside of an If, Loop or Scan in the place of that node."""

    def diagnose_inside(inner: Inner) -> Sequence[Culprit]:
        explainer = replace(case.explainer, truth=inner.truth, other=inner.side)
        inside = Case(inner.truth, inner.side, [inner.feed], 1, False, explainer)
        diagnosis = diagnose(inside, bench, Diagnosis("", case.against, "", "unknown"), say)
        survey.interrupted = survey.interrupted or diagnosis.interrupted
        return diagnosis.culprits

    # Of several that read what a missing node should compute, the worst stands for that node.
    named: dict[Place, Culprit] = {}
    for evidence in gathered:
        culprits = [case.explainer.culprit(case.error(evidence.row, evidence.effect), evidence)]
        if not survey.interrupted and case.side.engines is None:
            culprits = descended(evidence, culprits[0], case.truth, case.side, bench, diagnose_inside)
        for culprit in culprits:
            named.setdefault(culprit.error.place, culprit)
    return tuple(named.values())


def _note_gaps(case: Case, survey: Survey) -> Iterator[str]:
    """What could not be run on the other side."""
    stopped = survey.stopped
    if stopped is not None:
        where = f" at {_label(case.side.graph.nodes[stopped.at])}" if stopped.at is not None else ""
        yield f"the other side's own run stopped{where}: {stopped.stopped}"
    refused = {name: why for walk in survey.walks for name, why in walk.refused.items()}
    if refused:
        name, why = next(iter(refused.items()))
        yield f"{len(refused)} tensors that the other side does not compute alone, such as {name}: {why}"


def _conclude(
    case: Case, survey: Survey, diagnosis: Diagnosis, wrong: Sequence[OutputComparison]
) -> Diagnosis:
    # TensorRT's network is also judged by its weights, bit by bit.
    misread = case.against == "trt-network" and any(one.cause == "weight" for one in diagnosis.culprits)
    unjudged = not diagnosis.outputs  # it ended before the walk reached one
    if diagnosis.culprits and (wrong or misread or unjudged):
        worst = diagnosis.culprits[0]
        return replace(diagnosis, status="differ", reason=f"{worst.error.place.text}: {worst.reason}")
    if wrong:
        text = f"output {wrong[0].name} differs, and {_describe_rest(case, survey)}"
        if survey.interrupted or not survey.complete:
            text = f"output {wrong[0].name} differs; the search for the node was not finished"
        return replace(diagnosis, status="unexplained", reason=text)
    if survey.stopped is not None:
        return replace(diagnosis, status="unknown", reason=survey.stopped.stopped, cause="refused")
    if survey.interrupted or (not survey.complete and not diagnosis.outputs):
        text = f"{survey.ending}; no difference was found in {len(survey.rows)} tensors"
        return replace(
            diagnosis, status="unknown", reason=text, cause="" if survey.interrupted else "timeout"
        )
    if not diagnosis.outputs:
        return replace(diagnosis, status="unknown", reason="the other side computes no output of the model")
    if all(one.same for one in diagnosis.outputs):
        return replace(diagnosis, status="agree", reason="all outputs are bit-identical")
    share = max((one.max_abs / one.scale if one.scale else one.max_abs) for one in diagnosis.outputs)
    tolerance = rounded_up(share)
    text = f"the outputs differ by rounding only: a tolerance of {tolerance:.1g} (of each output's scale) is right"
    return replace(diagnosis, status="rounding", reason=text, tolerance=tolerance)


def _describe_rest(case: Case, survey: Survey) -> str:
    """What is known where no node's own error shows why."""
    walk = next((one for one in survey.walks if len(one.left) > 1), None)
    if walk is None:
        return "no node alone shows why"
    first, last = (_label(case.side.graph.nodes[walk.left[end]]) for end in (0, -1))
    apart = "not all of which build apart" if walk.refused else "that compute right in engines of their own"
    return f"no node alone shows why: it begins among {len(walk.left)} nodes, from {first} to {last}, {apart}"
