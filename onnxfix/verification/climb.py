"""One rung that executes: load both models in the sandbox, run them on feeds, judge what comes back."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnxfix import backends
from onnxfix.backends import reference
from onnxfix.backends.trt_types import TrtOptions
from onnxfix.errors import UsageError
from onnxfix.sandbox import Outcome, Worker
from onnxfix.verification import cuda, plan
from onnxfix.verification.compare import Metrics
from onnxfix.verification.inputs import Kind, make_inputs
from onnxfix.verification.plan import Feed
from onnxfix.verification.remote import Ran, ran_of
from onnxfix.verification.signature import Assignment, Signature
from onnxfix.verification.verdict import FeedResult, RungResult

REMOTE = "onnxfix.verification.remote"
#: Kinds of data to try, one after the other, when the original refuses the one that was planned.
_MILDER: tuple[Kind, ...] = ("small", "ones", "zeros")
_DEATHS = 3
_REFUSED = "the original fails: "
_SEARCH = 60.0  # seconds to look for inputs that the original takes
_ENOUGH = 3  # assignments at which a model of dynamic shape should have been compared


@dataclass(frozen=True)
class Request:
    """All that a rung needs. ``shapes`` are symbols that the user fixed, ``given`` the user's own feeds;
    ``coarse`` names the half-precision type whose roundings a backend may take or leave; ``step`` and ``total``
    are seconds. ``trt`` is what was asked of TensorRT; ``inherit`` forgives the fixed model what the original fails
    as well."""

    original: Path
    fixed: Path
    known: Signature
    worker: Worker
    exact: bool
    seed: int
    noise: dict[str, float]
    shapes: Assignment
    given: list[dict[str, Any]] | None
    coarse: str = ""
    step: float = 60.0
    total: float = 300.0
    trt: TrtOptions = field(default_factory=TrtOptions)
    inherit: bool = False


@dataclass
class _Progress:
    """What a rung has seen so far."""

    feeds: list[FeedResult] = field(default_factory=list)
    excluded: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    verdict: RungResult | None = None  # set as soon as the rung is decided
    wobble: list[Metrics] = field(default_factory=list)  # how the original differs from itself
    placed: tuple[str, ...] = ()  # on the GPU: which nodes ran there
    deaths: int = 0  # of the child, by the original: it is not asked for ever
    generation: int = -1  # of the worker's child that holds the models

    def counted(self) -> list[FeedResult]:
        return [one for one in self.feeds if one.status != "not counted"]

    def sizes(self) -> set[tuple[tuple[str, int], ...]]:
        """The distinct assignments that counted and have no dimension of size 0."""
        found = (one.feed.assignment for one in self.counted() if one.feed is not None)
        return {tuple(sorted(sizes.items())) for sizes in found if 0 not in sizes.values()}


def climb(request: Request, name: str) -> RungResult:
    """Climb the rung ``name``: "reference", "ort-cpu" or "ort-cuda".

    On ort-cuda ``request.exact`` adds the feeds that put a claim of identical bits to the test, and no more: CUDA
    chooses its kernels by shape, so that what is exact on paper may differ there in the last bits.
    """
    reason = backends.missing(name)
    if reason is None and name == "reference":
        reason = _too_large(request)
    if reason is None and name == "ort-cuda":
        reason = cuda.unavailable(request.worker, request.step)
    if reason is not None:
        return RungResult(name, "skipped", reason)
    result = _Climber(request, name).climb()
    return cuda.informed(request, result) if name == "ort-cuda" else result


def _too_large(request: Request) -> str | None:
    sizes = [_elements(request.known, sweep) for sweep in plan.assignments(request.known, request.shapes)[:2]]
    if request.given is not None:
        sizes = [sum(map(plan.size, feed.values())) for feed in request.given]
    return reference.infeasible(request.known.model, min(sizes))


def _elements(known: Signature, assignment: Assignment) -> int:
    sizes = ([known.size(dim, assignment) or 2 for dim in one.dims or ()] for one in known.inputs)
    return sum(math.prod(shape) for shape in sizes)


class _Climber:
    def __init__(self, request: Request, name: str) -> None:
        self.request, self.name, self.gpu = request, name, name == "ort-cuda"
        self.seen = _Progress()
        self.deadline = time.monotonic() + request.total

    def climb(self) -> RungResult:
        self._load()
        if self.seen.verdict is None:
            try:
                self._run_given() if self.request.given is not None else self._run_made()
            except UsageError as error:  # no input can be made for this model
                self.seen.notes.append(str(error))
        return self.seen.verdict or self._conclude()

    # -- loading

    def _load(self) -> None:
        request = self.request
        outcome, ran = self._call(
            "load",
            backend=self.name,
            original=str(request.original),
            fixed=str(request.fixed),
            options={"guarded": True} if self.gpu else {},
        )
        self.seen.generation = request.worker.generation
        if ran.stage == "original":
            self._decide("skipped", f"the original cannot be loaded: {ran.error}")
        elif ran.stage == "fixed" and outcome.status == "timeout" and self.name == "reference":
            self._decide("skipped", f"the fixed model takes too long to load: {ran.error}")
        elif ran.stage and ran.unsupported:
            self._decide("skipped", f"the fixed model cannot be loaded here: {ran.error}")
        elif ran.stage:
            self._decide("failed", f"the original loads, the fixed model does not: {ran.error}")
        elif self.gpu and cuda.on_cpu_alone(ran.places):
            self._decide("skipped", cuda.placed(ran.places))
        elif self.gpu:
            self.seen.placed = (cuda.placed(ran.places),)

    def _call(self, function: str, **arguments: Any) -> tuple[Outcome, Ran]:
        """Call the child. One whose device failed is ended: every later call in it would fail, whatever the model."""
        outcome = self.request.worker.call(f"{REMOTE}:{function}", timeout=self.request.step, **arguments)
        ran = ran_of(outcome)
        if ran.broken:
            self.request.worker.close()
        return outcome, ran

    def _decide(self, status: Any, reason: str) -> None:
        seen = self.seen
        notes = (*seen.notes, *seen.placed)
        self.seen.verdict = RungResult(
            self.name, status, reason, tuple(seen.feeds), tuple(sorted(seen.excluded)), notes
        )

    # -- feeds

    def _run_given(self) -> None:
        for number, values in enumerate(self.request.given or ()):
            self._try(f"inputs {number + 1} of {len(self.request.given or ())}", None, values)
            if self._over():
                return

    def _run_made(self) -> None:
        known, fixed = self.request.known, self.request.shapes
        sweep = plan.assignments(known, fixed)
        feeds = plan.feeds(known, sweep, self.request.seed, self.request.exact)
        self._run_feeds(feeds)
        if self.seen.verdict is not None or self._over():
            return
        self.deadline = min(self.deadline, time.monotonic() + _SEARCH)
        self._run_hardest(feeds)
        if not self.seen.counted():
            self._run_milder(feeds)
        if len(sweep) > 1:
            self._run_grown()

    def _run_hardest(self, feeds: list[Feed]) -> None:
        """The shape that was planned for the hardest values may be one that the original refuses: take another."""
        ran = [one.feed for one in self.seen.counted() if one.feed is not None]
        hardest = [feed for feed in feeds if feed.kind == "extreme"]
        if hardest and ran and not any(feed.kind == "extreme" for feed in ran):
            wide = max(ran, key=lambda feed: sum(feed.assignment.values()))
            self._run_feeds([replace(hardest[0], assignment=wide.assignment)])

    def _run_feeds(self, feeds: Iterable[Feed]) -> bool:
        """Run feeds; returns whether the last of them counted."""
        counted = False
        for feed in feeds:
            if self._over():
                break
            counted = self._run_feed(feed)
        return counted

    def _run_feed(self, feed: Feed) -> bool:
        try:
            values = make_inputs(
                self.request.known, feed.assignment, feed.seed, kind=feed.kind, override=feed.override
            )
        except MemoryError:
            return False
        return self._try(feed.label, feed, values)

    def _run_milder(self, feeds: list[Feed]) -> None:
        """The original ran on none of the planned feeds: other values for the same shapes."""
        for feed in feeds[:3]:
            for kind in _MILDER:
                if self._over() or self._run_feed(Feed(feed.assignment, kind, feed.seed)):
                    break
        if self.seen.counted() and not self._over():
            self._run_feeds(Feed(one.assignment, "small", one.seed + 7) for one in feeds[:1])

    def _run_grown(self) -> None:
        """Too few of the planned shapes ran: look for shapes that this model takes."""
        number = 0
        for group in plan.grown(self.request.known, self.request.shapes):
            if len(self.seen.sizes()) >= _ENOUGH or self._over():
                return
            for place, assignment in enumerate(group):
                number += 1
                ran = self._run_feed(Feed(assignment, "normal", self.request.seed + 100 + number))
                if not ran and not self._over():
                    ran = self._run_feed(Feed(assignment, "small", self.request.seed + 100 + number))
                if (place == 0 and not ran) or self._over():
                    break

    def _over(self) -> bool:
        too_many = self.seen.deaths >= _DEATHS
        return self.seen.verdict is not None or too_many or time.monotonic() > self.deadline

    # -- one feed

    def _try(self, label: str, feed: Feed | None, values: dict[str, Any]) -> bool:
        """Run one feed and record it; returns whether it counted."""
        request, seen = self.request, self.seen
        if seen.generation != request.worker.generation or request.worker.pid is None:
            self._load()  # the last feed cost us the child
            if seen.verdict is not None:
                return False
        outcome, ran = self._call(
            "run",
            feed=values,
            again=request.known.drawn is not None or (self.name != "reference" and not seen.counted()),
            drawn=request.known.drawn or (),
            exact=request.exact and not self.gpu,
            noise=request.noise,
            coarse=request.coarse,
            skip=tuple(seen.excluded),
            repeats=not self.gpu,
        )
        if ran.stage == "original":
            seen.deaths += not outcome.ok or ran.broken
            seen.feeds.append(FeedResult(label, feed, "not counted", f"{_REFUSED}{ran.error}"))
            return False
        late = outcome.status == "timeout" and self.name == "reference"
        if ran.stage == "fixed" and (late or ran.unsupported):
            # The evaluator's time and the GPU's size say nothing about the model: not proven, and not refuted.
            seen.feeds.append(FeedResult(label, feed, "not counted", f"the fixed model: {ran.error}"))
            return False
        seen.excluded.update(ran.unstable)
        seen.wobble.extend(ran.wobble)
        if ran.stage:
            self._fail(label, feed, ran, f"the original runs, the fixed model does not: {ran.error}")
            return True
        return self._judge(label, feed, ran)

    def _judge(self, label: str, feed: Feed | None, ran: Ran) -> bool:
        wrong = [metric for metric in ran.metrics if metric.agreement == "different"]
        if self.gpu and feed is not None and all(cuda.overflows(metric, feed) for metric in wrong) and wrong:
            self.seen.feeds.append(FeedResult(label, feed, "not counted", cuda.OVERFLOWS, ran.metrics))
            return False
        if wrong:
            first = wrong[0]
            reason = (
                f"output {first.name} {first.reason}"
                if not first.elements or not first.mismatches
                else (f"output {first.name}: {first.reason}{_values(first.first, first.values)}")
            )
            self._fail(label, feed, ran, reason)
        elif not ran.metrics:
            self.seen.feeds.append(
                FeedResult(label, feed, "not counted", "no output is the same in two runs")
            )
            return False
        else:
            within = any(metric.agreement == "within" for metric in ran.metrics)
            self.seen.feeds.append(
                FeedResult(label, feed, "within" if within else "identical", "", ran.metrics)
            )
        return True

    def _fail(self, label: str, feed: Feed | None, ran: Ran, reason: str) -> None:
        self.seen.feeds.append(FeedResult(label, feed, "different", reason, ran.metrics))
        self._decide("failed", f"{reason} [{label}]")

    def _conclude(self) -> RungResult:
        seen = self.seen
        counted, refused = seen.counted(), [one for one in seen.feeds if one.status == "not counted"]
        news = [one for one in refused if not _is_empty(one)]
        elements = sum(metric.elements for one in counted for metric in one.metrics)
        if counted and not elements and news:
            # The original took empty tensors only: shapes agree, and not one value was compared.
            self._decide("skipped", f"only empty tensors ran, so no value was compared: {news[0].reason}")
        elif counted:
            self._add_notes(refused)
            how = "identical" if all(one.status == "identical" for one in counted) else "within tolerance"
            shapes = len(seen.sizes())
            over = f" over {shapes} shapes" if shapes > 1 else ""
            original = all(one.reason.startswith(_REFUSED) for one in news)
            more = f"the original refused {len(news)} more" if original else f"{len(news)} more do not count"
            refusals = f"; {more}" if news else ""
            self._decide("passed", f"{how} on {len(counted)} feed{'s' * (len(counted) > 1)}{over}{refusals}")
        else:
            why = [one.reason for one in refused] or seen.notes or ["there was no time for a single run"]
            self._decide("skipped", why[0])
        assert seen.verdict is not None
        return seen.verdict

    def _add_notes(self, refused: list[FeedResult]) -> None:
        seen = self.seen
        news = [one for one in refused if not _is_empty(one)]
        if news:
            seen.notes.append(f"{len(news)} of {len(seen.feeds)} feeds do not count: {news[0].reason}")
        if time.monotonic() > self.deadline:
            seen.notes.append("stopped when the time was up")
        seen.notes.extend(cuda.wobbles(seen.wobble))
        if seen.excluded:
            names = ", ".join(sorted(seen.excluded))
            seen.notes.append(f"not compared, since the original differs from itself: {names}")


def _is_empty(result: FeedResult) -> bool:
    """Whether the feed had a dimension of size 0; that a model takes no empty tensors is no news."""
    return result.feed is not None and 0 in result.feed.assignment.values()


def _values(index: tuple[int, ...] | None, values: tuple[str, str] | None) -> str:
    if index is None or values is None:
        return ""
    return f", first at {list(index)}: {values[0]} against {values[1]}"
