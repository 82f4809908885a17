"""A check that executes ONNX models: load both in the sandbox, run them on feeds, and compare the outputs."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import Kind
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.signature import Assignment
from onnxfix.proof import copies, cuda, extents
from onnxfix.proof.compare.compare import agreement, difference, different
from onnxfix.proof.copies import CUT_OFF
from onnxfix.proof.pair import Pair, Progress, describe_judges
from onnxfix.proof.remote import Ran
from onnxfix.proof.request import ENOUGH, MILDER, REMOTE, SEARCH, Budget, Request, Trial, too_large
from onnxfix.proof.verdict import LeftOut, RungResult, Side
from onnxfix.runtime import backends, deadline
from onnxfix.runtime.allowance import THOROUGH

_DEATHS = 3
_BEYOND = (
    "on values chosen to overflow half precision the original overflows, and the new model does not agree with it in "
    "higher precision"
)
_BRIEF = 3.0  # the same if no sizes satisfy the operators, or if ONNX Runtime will search as well


def run_check(request: Request, name: str) -> RungResult:
    """Run the check ``name``: "reference", "ort-cpu", "ort-cuda" or "ort-trt".

    On a GPU, ``request.exact`` adds feeds for a claim of identical bits, but does not require identical bits: CUDA
    chooses kernels by shape, so that even an exact rewrite may change the last bits.
    """
    reason = backends.missing(name)
    if reason is not None:
        return RungResult(name, "skipped", reason, cause=backends.cause_missing(name))
    if name == "reference" and (reason := too_large(request)) is not None:
        return RungResult(name, "skipped", reason)
    absent = cuda.unavailable(request.worker, request.step, name) if name in backends.ON_GPU else None
    if absent is not None:
        return RungResult(name, "skipped", absent.reason, cause=absent.cause)
    with tempfile.TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        result = _Check(request, name, folder).result()
        if result.status != "failed" and not result.stopped:
            same, random = copies.share_noise(request, folder)
            again = _Check(same, name, folder).result() if random else result
            result = replace(again, random=random) if again.judged else result
    if request.worker.pid is not None:  # what comes next needs the memory
        request.worker.call(f"{REMOTE}:unload", timeout=request.step)
    return cuda.add_notes(request, result) if name == "ort-cuda" else result


class _Check:
    def __init__(self, request: Request, name: str, folder: str) -> None:
        self.request, self.name, self.gpu = request, name, name in backends.ON_GPU
        self.seen = Progress(name)
        self.deadline = time.monotonic() + request.total
        self.pair = Pair(request, name, self.seen, folder)
        # The effort does not limit the evaluator, which has its own time limit.
        self.budget = Budget(request.known, THOROUGH if name == "reference" else request.effort)
        self.endless = math.inf  # elements of the smallest feed on which the original took too long
        self.patience = math.inf  # the time at which to stop if no feed has counted

    def result(self) -> RungResult:
        late = False
        try:
            self._load()
            if self.name == "reference" and backends.missing("ort-cpu") is None:
                self.patience = time.monotonic() + _BRIEF
            if self.seen.verdict is None:
                self._run_made() if self.request.given is None else self._run_given()
        except UsageError as error:  # no input can be made for this model
            self.seen.notes.append(str(error))
        except deadline.Expired:  # what ran until then counts
            late = True
        if self.seen.verdict is not None:
            return self.seen.verdict
        allowed = self.request.allowed
        within = "within half precision's tolerance" if self.request.forgiven else "within tolerance"
        within = within if allowed is None else f"within {allowed.words}"
        return self.seen.conclude(late or time.monotonic() > self.deadline, within)

    def _load(self) -> None:
        outcome, ran = self.pair.load()
        self.budget.loaded(ran.seconds)
        decide = self.seen.decide
        if ran.starved and self.pair.save_memory():
            self._load()
        elif ran.stage == "original":
            reason = f"the original cannot be loaded: {ran.error}"
            decide("skipped", reason, ran.cause, stopped="original", said=ran.said)
        elif ran.stage == "fixed" and outcome.status == "timeout" and self.name == "reference":
            decide("skipped", f"the new model takes too long to load: {ran.error}", "timeout")
        elif ran.stage and ran.unsupported:
            decide("skipped", f"the new model cannot be loaded here: {ran.error}", ran.cause)
        elif missing := self._describe_missing_kernel(ran):
            decide("skipped", missing)
        elif ran.starved:
            decide(*self.pair.judge_memory(ran, None), "memory")
        elif ran.stage and (why := self.pair.explain_misfit()):
            decide("skipped", f"the original does not run on the fixed sizes and values either: {why}")
        elif ran.stage:
            decide("failed", f"the original loads, the new model does not: {ran.error}", ran.cause)
        elif self.gpu and cuda.on_cpu_alone(ran.places):
            decide("skipped", cuda.describe_places(ran.places, self.name))
        elif self.gpu:
            self.seen.placed = (cuda.describe_places(ran.places, self.name),)
            if self.name == "ort-trt":
                self.seen.placed += (f"loading both models took {ran.seconds:.1f} s",)

    def _describe_missing_kernel(self, ran: Ran) -> str:
        """Say that this backend lacks an operator of the fixed model, if another check has compared the model; else "".
        Without such a check, the gap is a failure: the fix is withdrawn, so that the other fixes can be proven."""
        shown = self.request.shown
        lacks = ran.stage == "fixed" and ran.no_kernel and shown
        return f"the new model, which {shown} has compared, has no kernel here: {ran.error}" if lacks else ""

    # -- which feeds run

    def _run_given(self) -> None:
        only = {number for number, _ in self.request.only}
        for trial in self.request.trials():
            if not only or trial.given in only:
                self._try(trial)
                if self._over():
                    return

    def _run_made(self) -> None:
        known, seed = self.request.known, self.request.seed
        if self.request.only:
            self._run_feeds(feed for _, feed in self.request.only if feed is not None)
            return
        sweep = plan.assignments(known, self.request.shapes)
        # ONNX Runtime's CPU provider cannot judge overflow in half precision, and CUDA's kernels have their own
        # accumulators. So only the evaluator runs on magnitudes that the model may never meet.
        large = bool(self.request.half) and self.name == "reference"
        feeds = plan.feeds(known, sweep, seed, self.request.exact, large=large)
        left = self._run_planned(feeds)
        if not self._over():
            self._run_quantized(plan.wide(known, sweep), seed + len(feeds))
        if not self._over():
            limit = _BRIEF if known.search.in_vain and not self.seen.counted() else SEARCH
            self.deadline = min(self.deadline, time.monotonic() + limit)
            self._run_hardest(feeds, left)
            if not self.seen.counted():
                self._run_milder(feeds)
            if len(sweep) > 1:
                self._run_grown(len({tuple(feed.assignment.items()) for feed in left}))
        self._leave_out(left)

    def _run_planned(self, feeds: list[Feed]) -> list[Feed]:
        """Run the feeds that the budget allows, the most informative first; returns the remaining feeds.

        Each run refines the predicted cost of larger feeds, so feeds that seemed too expensive are considered again.
        An effort with ``essential`` always runs the second shape: at the first shape, whose sizes are 1, many errors
        do not show. If the budget has no room for the hardest values, the last item of its batch holds them."""
        left, hard = list(feeds), plan.hardest(feeds)
        second = feeds[1] if len(feeds) > 1 and feeds[1].assignment != feeds[0].assignment else None
        needed = second if self.request.effort.essential else None
        while not self._over():
            if not (allowed := [one for one in left if one is needed or self.budget.allows(one.assignment)]):
                return left
            feed = allowed[0]
            if not self.budget.allows(*(one.assignment for one in left)):
                tried = [one.feed.assignment for one in self.seen.feeds if one.feed is not None]
                feed = min(allowed, key=lambda one: one.assignment in tried and one.kind != hard)
            seconds = self.budget.remaining([one.assignment for one in allowed])
            about = f", about {seconds:.0f} s left" if seconds >= 1 else ""
            done = len(feeds) - len(left)
            total = done + len(allowed)
            self.request.tell(done / total, f"feed {done + 1} of {total}{about}")
            left.remove(feed)
            self._run_feed(self._with_hardest(feed, hard) if feed is needed else feed)
        return []

    def _with_hardest(self, feed: Feed, hard: Kind) -> Feed:
        """The second shape's feed, with the hardest values in its last item if a separate run is too expensive.

        Only if bits are compared: within a tolerance, large values would hide errors of small values.
        """
        known, ran = self.request.known, self.seen.ran()
        cheap = not ran or self.budget.allows(feed.assignment, ran[0].assignment)
        if cheap or hard != "extreme" or not plan.has_batch(known, feed.assignment, self.request.shapes):
            return feed
        return replace(feed, last=hard)

    def _leave_out(self, feeds: list[Feed]) -> None:
        """Record feeds that the budget does not allow."""
        for feed in feeds:
            self.seen.left_out.append(LeftOut(feed.label, feed, self.budget.predicted(feed.assignment)))

    def _run_quantized(self, sizes: Assignment, seed: int) -> None:
        """Run values around the limits of the model's quantizers, at a shape that the model accepts."""
        accepted = [feed.assignment for feed in self.seen.ran()]
        if accepted and sizes not in accepted:
            sizes = self.budget.largest(accepted)
        reach = extents.reach(self.request, self.request.original, sizes)
        if reach.missed:
            self.seen.notes.append(reach.missed)
        feeds = plan.quantized(self.request.known, sizes, seed, reach.gain)
        if self.request.effort.essential or self.budget.allows(sizes):
            self._run_feeds(feeds)
        else:
            self._leave_out(feeds)

    def _run_hardest(self, feeds: list[Feed], left: list[Feed]) -> None:
        """Run the hardest values at another shape if the planned shape is rejected or too expensive."""
        ran, hard, request = self.seen.ran(), plan.hardest(feeds), self.request
        planned = [feed for feed in (feeds if hard == "extreme" else left) if feed.kind == hard]
        if not planned or not ran or any(hard in feed.kinds() for feed in ran):
            return
        tried = [feed.assignment for feed in ran]
        mixed = feeds[min(2, len(feeds) - 1)].assignment
        fewer = plan.thrifty(request.known, mixed, request.shapes) if left else {}
        most = max(map(self.budget.predicted, tried))
        for sizes in filter(None, (fewer, self.budget.largest(tried))):
            possible = request.effort.essential or self.budget.allows(sizes)
            possible = possible and self.budget.predicted(sizes) <= most
            if possible and self._run_feeds([replace(planned[0], assignment=sizes)]):
                return

    def _run_milder(self, feeds: list[Feed]) -> None:
        """The original accepts none of the planned feeds: run milder values at the first three shapes, and at shapes
        with a size of 0, which cost nothing."""
        for feed in [*feeds[:3], *(one for one in feeds[3:] if 0 in one.assignment.values())]:
            for kind in MILDER:
                if self._over() or self._run_feed(Feed(feed.assignment, kind, feed.seed)):
                    break
        if self.seen.counted() and not self._over():
            self._run_feeds(Feed(one.assignment, "small", one.seed + 7) for one in feeds[:1])

    def _run_grown(self, spared: int) -> None:
        """If the model accepts too few of the planned shapes, look for more. ``spared`` counts the planned shapes that
        the budget left out."""
        seed = self.request.seed + 101
        for turn, assignment in enumerate(plan.grown(self.request.known, self.request.shapes)):
            if len(self.seen.sizes()) + spared >= ENOUGH or self._over():
                return
            if not self.seen.counted() or self.budget.allows(assignment):
                ran = self._run_feed(Feed(assignment, "normal", seed + turn))
                if not ran and not self._over():
                    self._run_feed(Feed(assignment, "small", seed + turn))

    def _run_feeds(self, feeds: Iterable[Feed]) -> bool:
        """Run feeds; returns whether the last of them counted."""
        counted = False
        for feed in feeds:
            if self._over():
                break
            counted = self._run_feed(feed)
        return counted

    def _run_feed(self, feed: Feed) -> bool:
        if plan.elements(self.request.known, feed.assignment) >= self.endless:
            return False  # a feed of this size, or a smaller one, took too long
        try:
            values = feed.values(self.request.known)
        except MemoryError:
            return False
        return self._try(Trial(feed.label, feed, values))

    def _over(self) -> bool:
        now, too_many = time.monotonic(), self.seen.deaths >= _DEATHS
        in_vain = now > self.patience and bool(self.seen.feeds) and not self.seen.counted()
        return self.seen.verdict is not None or too_many or in_vain or now > self.deadline

    # -- what one run shows

    def _try(self, trial: Trial) -> bool:
        """Run both models and record the result; returns whether it counted."""
        request, seen = self.request, self.seen
        if seen.generation != request.worker.generation or request.worker.pid is None:
            self._load()  # the child died of the last feed
            if seen.verdict is not None:
                return False
        outcome, ran = self.pair.run(trial.values)
        if ran.starved and self.pair.save_memory():
            return self._try(trial)
        if ran.stage == "original":
            seen.deaths += not outcome.ok or ran.broken or ran.starved
            if outcome.status == "timeout" and trial.feed is not None:
                # If no feed of this size ran before, assume that the size is the cause.
                known, size = request.known, plan.elements(request.known, trial.feed.assignment)
                if all(plan.elements(known, one.assignment) < size for one in seen.ran()):
                    self.endless = min(self.endless, size)
            return self._skip(trial, ran, f"the original fails: {ran.error}")
        late = outcome.status == "timeout" and self.name == "reference"
        if ran.stage == "fixed" and (late or ran.unsupported):
            # A timeout of the evaluator, or a gap of the backend, says nothing about the model.
            return self._skip(trial, ran, f"the new model: {ran.error}")
        if missing := self._describe_missing_kernel(ran):
            return self._skip(trial, ran, missing)
        if ran.starved:
            status, reason = self.pair.judge_memory(ran, trial.values)
            if status == "failed":
                return self._fail(trial, ran, reason)
            seen.deaths += 1
            return self._skip(trial, ran, reason)
        if not ran.stage and trial.feed is not None:
            self.budget.ran(trial.feed.assignment, ran.seconds)
        seen.excluded.update(ran.unstable)
        seen.wobble.extend(ran.wobble)
        if ran.stage:
            return self._fail(trial, ran, f"the original runs, the new model does not: {ran.error}")
        return self._judge(trial, ran)

    def _judge(self, trial: Trial, ran: Ran) -> bool:
        """Record the result of one run of both models; returns whether it counts."""
        feed, request = trial.feed, self.request
        cut_off = self.name == "ort-cpu" and bool(different(ran.metrics)) and self.pair.cuts_off()
        if cut_off and (again := self.pair.by_unsigned(trial.values)) is not None:
            ran, cut_off = replace(ran, metrics=again.metrics), False
        if different(ran.metrics) and (request.half or request.precise):
            ran = self.pair.by_twin(ran) if request.half else self.pair.by_noise(ran)
        wrong = different(ran.metrics)
        if not wrong and (misdeclared := request.misdeclared(ran.metrics)):
            return self._fail(trial, ran, misdeclared)
        reason = "" if ran.metrics else "no output is the same in two runs"
        if wrong and feed is not None and feed.kind == "large" and ran.beyond:
            # The feed is meant to overflow, and the original did: infinities prove nothing about the fix.
            reason = reason if any(one.worse for one in wrong) else _BEYOND
        if wrong and feed is not None and self.gpu and all(cuda.overflows(metric, feed) for metric in wrong):
            reason = cuda.OVERFLOWS
        if wrong and cut_off and request.shown:
            reason = CUT_OFF
        if reason:
            self.seen.feeds.append(trial.result("not counted", reason, ran.metrics))
        elif wrong:
            self._fail(trial, ran, difference(wrong[0]))
        else:
            judges = describe_judges(ran.metrics, self.seen.precision)
            self.seen.feeds.append(trial.result(agreement(ran.metrics), judges, ran.metrics))
        return not reason

    def _skip(self, trial: Trial, ran: Ran, reason: str) -> bool:
        """Record a feed on which one of the models did not run: it proves nothing."""
        stopped: Side = "original" if ran.stage == "original" else "fixed"
        cause = ran.cause or "refused"
        result = trial.result("not counted", reason, stopped=stopped, said=ran.said, cause=cause)
        self.seen.feeds.append(result)
        return False

    def _fail(self, trial: Trial, ran: Ran, reason: str) -> bool:
        self.seen.feeds.append(trial.result("different", reason, ran.metrics, cause=ran.cause))
        self.seen.decide("failed", f"{reason} [{trial.label}]", ran.cause)
        return True
