"""The original and the fixed model in the sandbox's child, and what a check that runs them has seen.

They are loaded so that they fit into its memory. A model that does not fit is never a difference, and rarely a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfix.errors import UsageError
from onnxfix.files import walk
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.proof import cuda
from onnxfix.proof.compare.compare import Metrics, different, largest
from onnxfix.proof.copies import UNSIGNED, product
from onnxfix.proof.remote import Ran, less, ran_of
from onnxfix.proof.request import REMOTE
from onnxfix.proof.verdict import FeedResult, LeftOut, RungResult, Side, Status
from onnxfix.runtime import backends
from onnxfix.runtime.backends import ort_weights
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.sandbox import Outcome, Worker

if TYPE_CHECKING:
    from onnxfix.proof.request import Request

_TRIED = 3  # feeds until a model counts as accepting none
_TWIN = "the original leaves half precision's range; judged by the original in"
_NOISE = "decided by rounding in the original too; in float64 both models compute the same"


@dataclass
class Progress:
    """What the check ``name`` has seen so far."""

    name: str
    feeds: list[FeedResult] = field(default_factory=list)
    excluded: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    verdict: RungResult | None = None  # set as soon as the check is decided
    wobble: list[Metrics] = field(default_factory=list)  # how the original differs from itself
    placed: tuple[str, ...] = ()  # on the GPU: which nodes ran there
    deaths: int = 0  # of the child, by the original: a few end the check
    generation: int = -1  # of the worker's child that holds the models
    precision: str = ""  # of the twin, where one was asked
    beyond: str = ""  # the first value that the original cannot hold in half precision
    left_out: list[LeftOut] = field(default_factory=list)

    def counted(self) -> list[FeedResult]:
        return [one for one in self.feeds if one.status != "not counted"]

    def ran(self) -> list[Feed]:
        """The generated feeds that counted."""
        return [one.feed for one in self.counted() if one.feed is not None]

    def sizes(self) -> set[tuple[tuple[str, int], ...]]:
        """The distinct assignments that counted and have no dimension of size 0."""
        found = (feed.assignment for feed in self.ran())
        return {tuple(sorted(sizes.items())) for sizes in found if 0 not in sizes.values()}

    def decide(
        self, status: Status, reason: str, cause: Cause = "", *, stopped: Side = "", said: str = ""
    ) -> RungResult:
        """Set the result of the check."""
        self.verdict = RungResult(
            self.name,
            status,
            reason,
            tuple(self.feeds),
            tuple(sorted(self.excluded)),
            (*self.notes, *self.placed),
            cause=cause,
            stopped=stopped,
            said=said,
            left_out=tuple(self.left_out),
        )
        return self.verdict

    def conclude(self, late: bool, within: str) -> RungResult:
        """The result of all feeds; ``late``: the time limit was reached. ``within`` names the tolerance."""
        counted, refused = self.counted(), [one for one in self.feeds if one.status == "not counted"]
        if not counted:
            why = [one.reason for one in refused] or self.notes or ["no run finished within the time limit"]
            return self.decide("skipped", why[0], refused[0].cause if refused else "timeout" if late else "")
        # That a model rejects empty tensors needs no mention.
        news = [one for one in refused if one.feed is None or 0 not in one.feed.assignment.values()]
        metrics = [metric for one in counted for metric in one.metrics]
        if not sum(metric.elements for metric in metrics) and news:
            # The original took empty tensors only: shapes agree, and not one value was compared.
            reason = f"only empty tensors ran, so no value was compared: {news[0].reason}"
            return self.decide("skipped", reason, news[0].cause)
        self._add_notes(news, late)
        how = "identical" if all(one.status == "identical" for one in counted) else within
        reason = f"{how} on {len(counted)} feed{'s' * (len(counted) > 1)}"
        if (shapes := len(self.sizes())) > 1:
            reason += f" over {shapes} shapes"
        if news and all(one.stopped == "original" for one in news):
            reason += f"; the original refused {len(news)} more"
        elif news:
            reason += f"; {len(news)} more do not count"
        if judges := describe_judges(metrics, self.precision):
            reason += f"; {judges}"
        return self.decide("passed", reason)

    def _add_notes(self, news: list[FeedResult], late: bool) -> None:
        if news:
            self.notes.append(f"{len(news)} of {len(self.feeds)} feeds do not count: {news[0].reason}")
        if self.beyond:
            self.notes.append(
                f"in half precision the original's {self.beyond} is not finite; in {self.precision} it is"
            )
        if late:
            self.notes.append("stopped at the time limit")
        if (worst := largest(self.wobble, relative=True)) is not None:
            self.notes.append(f"from run to run the original itself differs by up to {cuda.error_of(worst)}")
        if self.excluded:
            names = ", ".join(sorted(self.excluded))
            self.notes.append(f"not compared, since the original is not deterministic there: {names}")


def describe_judges(metrics: Iterable[Metrics], precision: str) -> str:
    """How many values higher precision had to judge, as text; "" for none."""
    parts, all_metrics = [], list(metrics)
    for counts, why in (
        ([metric.by_twin for metric in all_metrics], f"{_TWIN} {precision}"),
        ([metric.by_noise for metric in all_metrics], _NOISE),
    ):
        total = sum(metric.elements for metric, count in zip(all_metrics, counts, strict=True) if count)
        if total:
            parts.append(f"{sum(counts):,} of {total:,} values: {why}")
    return "; ".join(parts)


class Pair:
    """Both models of ``request`` in the backend of the check ``name``; ``seen`` is its progress, ``folder`` has room
    for copies of the models."""

    def __init__(self, request: Request, name: str, seen: Progress, folder: str) -> None:
        self.request, self.name, self.seen, self.folder = request, name, seen, folder
        weights = ort_weights.weight_bytes(request.known.model)
        self._need_mb = 512 + (4 * weights >> 20)  # what two models need, by rule of thumb
        # Loaded to save memory rather than time:
        self._lean = name == "ort-cpu" and weights >= ort_weights.LARGE
        self._mapped = False  # a session's weights are mapped from its model's file
        self._plain = False  # they must not be

    def load(self) -> tuple[Outcome, Ran]:
        """Have the child load both models."""
        options = self._options()
        shared = {"like": str(self.request.original)} if self._lean else {}
        outcome, ran = self.call(
            "load",
            backend=self.name,
            original=str(self.request.original),
            fixed=str(self.request.fixed),
            options={"guarded": True} if self.name == "ort-cuda" else options,
            fixed_options={**options, **shared},
        )
        self.seen.generation = self.request.worker.generation
        self._mapped = ran.mapped
        return outcome, ran

    def run(self, values: dict[str, Any]) -> tuple[Outcome, Ran]:
        """Have the child run both models on a feed and compare."""
        outcome, ran = self._run(values)
        if self._mapped and different(ran.metrics):
            ran = self._unmapped(values, ran)
        return outcome, ran

    def _run(self, values: dict[str, Any]) -> tuple[Outcome, Ran]:
        request, seen, gpu = self.request, self.seen, self.name in backends.ON_GPU
        return self.call(
            "run",
            feed=values,
            again=request.known.drawn is not None or (gpu and not seen.counted()),
            recheck=self.name == "ort-cpu",
            drawn=request.known.drawn or (),
            terms=replace(request.terms, exact=request.exact and not gpu),
            skip=tuple(seen.excluded),
            repeats=not gpu,
            keep=bool(request.half) or request.precise,
            without=request.without,
            hold=request.networks is not None and self.name == "ort-cpu",
        )

    def _unmapped(self, values: dict[str, Any], mapped: Ran) -> Ran:
        """A run that differs, again with loaded instead of mapped weights; unchanged where these do not fit. Mapped
        weights are not aligned, and the order of some sums depends on that."""
        self._plain = True
        _, ran = self.load()
        if not ran.stage:
            _, ran = self._run(values)
        if ran.stage:
            self.seen.generation, self._plain = -1, False
        return mapped if ran.stage else ran

    def call(self, function: str, **arguments: Any) -> tuple[Outcome, Ran]:
        """Call the child. A child whose device failed or whose memory ran out is ended: every later call in it would
        fail, whatever the model."""
        worker = self.request.worker
        outcome = worker.call(f"{REMOTE}:{function}", timeout=self.request.step, **arguments)
        ran = ran_of(outcome)
        if ran.starved and outcome.ok:
            ran = replace(ran, error=f"{worker.starved('ran out of memory')}: {ran.error}")
        if outcome.status == "crash" and worker.limit_mb is not None and worker.limit_mb < self._need_mb:
            # Not all code checks whether an allocation succeeded.
            error = f"{worker.starved('probably ran out of memory')}: {ran.error}"
            ran = replace(ran, starved=True, error=error, cause="memory")
        if ran.broken or ran.starved:
            worker.close()
        return outcome, ran

    def save_memory(self) -> bool:
        """Whether there is an untried way to use less memory, which is used from now on."""
        possible = self.name == "ort-cpu" and not self._lean
        self._lean = self._lean or possible
        return possible

    def judge_memory(self, ran: Ran, values: dict[str, Any] | None) -> tuple[Status, str]:
        """Status and reason where memory ran out: whether the fixes are to blame.

        Where both need about the same, the limit may lie between them by chance. Where the original fits into half of
        it, and the fixed model not even into all of it, each alone and on the same feed (None: loading only), the fixed
        model needs more than twice as much: a failure.
        """
        limit, request = self.request.worker.limit_mb, self.request
        if (
            limit is not None
            and self._does(request.original, values, limit // 2)
            and not self._does(request.fixed, values, limit, request.without)
        ):
            half = f"the original runs within {limit // 2} MiB, the new model needs more than twice as much"
            return ("failed", f"{half}: {ran.error}")
        return ("skipped", f"the new model: {ran.error}")

    def by_unsigned(self, values: dict[str, Any]) -> Ran | None:
        """The last run judged again with unsigned weights in products of bytes; None where that fails."""
        request, notes = self.request, self.seen.notes
        again = self._judge_again(
            "by_unsigned", fixed=str(request.fixed), feed=values, without=request.without
        )
        if not again.stage and UNSIGNED not in notes:
            notes.append(UNSIGNED)
        return None if again.stage else again

    def by_twin(self, ran: Ran) -> Ran:
        """The last run judged again with the original in higher precision; unchanged where that fails."""
        seen, again = self.seen, self._judge_again("by_twin", half=self.request.half)
        if again.stage:
            seen.notes.append(f"the original could not run in higher precision: {again.error}")
            return ran
        seen.beyond, seen.precision = seen.beyond or again.beyond, again.precision
        return replace(ran, metrics=again.metrics, beyond=again.beyond)

    def by_noise(self, ran: Ran) -> Ran:
        """The last run judged again by how far the original is from itself in float64; unchanged where that fails."""
        again = self._judge_again("by_noise", fixed=str(self.request.fixed))
        if again.stage:
            self.seen.notes.append(f"the original could not run in float64: {again.error}")
            return ran
        return replace(ran, metrics=again.metrics)

    def _judge_again(self, function: str, **more: Any) -> Ran:
        """The last run judged again by what else the sandbox's child computes."""
        skip = (*self.seen.excluded, *(self.request.known.drawn or ()))
        return self.call(function, folder=self.folder, terms=self.request.terms, skip=skip, **more)[1]

    def cuts_off(self) -> bool:
        """Whether ONNX Runtime's CPU provider may cause a difference: it multiplies bytes wrongly on this processor,
        and the original has such a product."""
        if not any(product(node) is not None for node in walk.model_nodes(self.request.known.model)):
            return False
        outcome = self.request.worker.call("onnxfix.runtime.backends.ort:cuts_off", timeout=self.request.step)
        return bool(outcome.ok and outcome.value)

    def explain_misfit(self) -> str:
        """Why the original, alone, rejects inputs of the fixed sizes and values; "" where it accepts them."""
        request = self.request
        if request.special is None:
            return ""
        sweep = plan.assignments(request.known, request.shapes)
        planned = plan.feeds(request.known, sweep, request.seed, exact=False)[:_TRIED]
        how = {"backend": self.name, "path": str(request.original), "options": self._options()}
        try:
            feeds = request.given or [feed.values(request.known) for feed in planned]
        except (UsageError, MemoryError):  # none can be made
            return ""
        reasons = [self.call("alone", feed=feed, **how)[1].error for feed in feeds]
        return reasons[0] if all(reasons) else ""

    def _does(
        self, path: Path, values: dict[str, Any] | None, memory_mb: int, without: Sequence[str] = ()
    ) -> bool:
        """Whether a model, loaded as in the pair, fits into so much memory when nothing else is in the child."""
        with Worker(memory_mb=memory_mb) as worker:
            outcome = worker.call(
                f"{REMOTE}:alone",
                timeout=self.request.step,
                backend=self.name,
                path=str(path),
                feed=less(values, without) if values is not None else None,
                options=self._options(),
            )
        return not ran_of(outcome).stage

    def _options(self) -> dict[str, Any]:
        lean, plain = {"lean": True} if self._lean else {}, {"mapped": False} if self._plain else {}
        return {**lean, **plain}
