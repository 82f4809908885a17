"""A rung that executes ONNX models: load both in the sandbox, run them on feeds, and compare the outputs."""

# Long because: each way in which a run may end is decided beside the others.
from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from onnxfix import backends, deadline
from onnxfix.causes import Cause
from onnxfix.effort import THOROUGH
from onnxfix.errors import UsageError
from onnxfix.verification import cuda, draws, extents, products, worth
from onnxfix.verification.budget import Budget
from onnxfix.verification.compare.compare import agreement, difference, different
from onnxfix.verification.feeds import plan
from onnxfix.verification.feeds.inputs import Kind
from onnxfix.verification.feeds.plan import Feed
from onnxfix.verification.feeds.signature import Assignment
from onnxfix.verification.pair import Pair
from onnxfix.verification.progress import Progress, judged
from onnxfix.verification.ran import Ran
from onnxfix.verification.request import Request
from onnxfix.verification.verdict import FeedResult, LeftOut, RungResult, Side, Status

#: Kinds of data to try, one after the other, when the original refuses the one that was planned.
_MILDER: tuple[Kind, ...] = ("small", "ones", "zeros")
_DEATHS = 3
_BEYOND = (
    "on values chosen to overflow half precision the original overflows, and the new model does not agree with it in "
    "higher precision"
)
_HALF = "within half precision's tolerance"
_SEARCH = 60.0  # seconds to look for inputs that the original takes
_BRIEF = 3.0  # the same where no sizes satisfy the operators, or where ONNX Runtime will look for them too
_ENOUGH = 3  # assignments at which a model of dynamic shape should have been compared


def climb(request: Request, name: str) -> RungResult:
    """Climb the rung ``name``: "reference", "ort-cpu" or "ort-cuda".

    On ort-cuda ``request.exact`` only adds the feeds that test a claim of identical bits: CUDA chooses its kernels by
    shape, so that an exact rewrite may change the last bits there.
    """
    reason = backends.missing(name)
    if reason is not None:
        return RungResult(name, "skipped", reason, cause=backends.cause_missing(name))
    if name == "reference":
        reason = worth.too_large(request)
    if name == "ort-cuda":
        absent = cuda.unavailable(request.worker, request.step)
        if absent is not None:
            return RungResult(name, "skipped", absent.reason, cause=absent.cause)
    if reason is not None:
        return RungResult(name, "skipped", reason)
    with tempfile.TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        result = _Climber(request, name, folder).climb()
        if result.status != "failed" and not result.stopped:
            same, random = draws.share_noise(request, folder)
            again = _Climber(same, name, folder).climb() if random else result
            result = replace(again, random=random) if again.judged else result
    return cuda.informed(request, result) if name == "ort-cuda" else result


class _Climber:
    def __init__(self, request: Request, name: str, folder: str) -> None:
        self.request, self.name, self.gpu, self.folder = request, name, name == "ort-cuda", folder
        self.seen = Progress()
        self.deadline = time.monotonic() + request.total
        self.pair = Pair(request, name, self.seen)
        # The evaluator, which has a time limit of its own, runs where it is needed.
        self.budget = Budget(request.known, THOROUGH if name == "reference" else request.effort)
        self.given = 0  # which of the user's inputs are tried, from 1
        self.endless = math.inf  # elements of the smallest feed on which the original took too long
        self.patience = math.inf  # when to stop where no feed has counted

    def climb(self) -> RungResult:
        late = False
        try:
            self._run()
        except deadline.Expired:  # what ran until then counts
            late = True
        if self.seen.verdict is not None:
            return self.seen.verdict
        allowed = self.request.allowed
        how = {"within": _HALF} if self.request.forgiven else {}
        how = {"within": f"within {allowed.words}"} if allowed is not None else how
        return self.seen.conclude(self.name, late or time.monotonic() > self.deadline, **how)

    def _run(self) -> None:
        self._load()
        if self.name == "reference" and backends.missing("ort-cpu") is None:
            self.patience = time.monotonic() + _BRIEF
        if self.seen.verdict is None:
            try:
                self._run_given() if self.request.given is not None else self._run_made()
            except UsageError as error:  # no input can be made for this model
                self.seen.notes.append(str(error))

    # -- loading

    def _load(self) -> None:
        outcome, ran = self.pair.load()
        self.budget.loaded(ran.seconds)
        if ran.starved and self.pair.spare():
            self._load()
        elif ran.stage == "original":
            reason = f"the original cannot be loaded: {ran.error}"
            self._decide("skipped", reason, ran.cause, stopped="original", said=ran.said)
        elif ran.stage == "fixed" and outcome.status == "timeout" and self.name == "reference":
            self._decide("skipped", f"the new model takes too long to load: {ran.error}", "timeout")
        elif ran.stage and ran.unsupported:
            self._decide("skipped", f"the new model cannot be loaded here: {ran.error}", ran.cause)
        elif self._lacks_kernel(ran):
            self._decide("skipped", self._no_kernel(ran))
        elif ran.starved:
            found = self.pair.starved(ran, None)
            self._decide(found.status, found.reason, "memory")
        elif ran.stage and (why := self.pair.unfit()):
            self._decide("skipped", f"the original does not run on the fixed sizes and values either: {why}")
        elif ran.stage:
            self._decide("failed", f"the original loads, the new model does not: {ran.error}", ran.cause)
        elif self.gpu and cuda.on_cpu_alone(ran.places):
            self._decide("skipped", cuda.placed(ran.places))
        elif self.gpu:
            self.seen.placed = (cuda.placed(ran.places),)

    def _lacks_kernel(self, ran: Ran) -> bool:
        """Whether this backend lacks an operator of the fixed model, which another rung has shown to compute the same.
        Where no rung has, that is a failure: the fix is withdrawn, and the others can be proven."""
        return ran.stage == "fixed" and ran.no_kernel and bool(self.request.shown)

    def _no_kernel(self, ran: Ran) -> str:
        return f"the new model, which {self.request.shown} has compared, has no kernel here: {ran.error}"

    def _decide(
        self, status: Status, reason: str, cause: Cause = "", *, stopped: Side = "", said: str = ""
    ) -> None:
        self.seen.decide(self.name, status, reason, cause, stopped=stopped, said=said)

    # -- feeds

    def _run_given(self) -> None:
        only = {number for number, _ in self.request.only}
        for number, values in enumerate(self.request.given or ()):
            self.given = number + 1
            if only and self.given not in only:
                continue
            self._try(f"inputs {number + 1} of {len(self.request.given or ())}", None, values)
            if self._over():
                return

    def _run_made(self) -> None:
        known, fixed = self.request.known, self.request.shapes
        if self.request.only:
            self._run_feeds(feed for _, feed in self.request.only if feed is not None)
            return
        sweep = plan.assignments(known, fixed)
        # ONNX Runtime's CPU provider cannot judge overflow in half precision, and CUDA's kernels have accumulators of
        # their own: only the evaluator runs on magnitudes that the model may never meet.
        large = bool(self.request.half) and self.name == "reference"
        feeds = plan.feeds(known, sweep, self.request.seed, self.request.exact, large=large)
        left = self._run_planned(feeds)
        if self.seen.verdict is None and not self._over():
            self._run_quantized(plan.wide(known, sweep), self.request.seed + len(feeds))
        if self.seen.verdict is None and not self._over():
            limit = _BRIEF if known.search.in_vain and not self.seen.counted() else _SEARCH
            self.deadline = min(self.deadline, time.monotonic() + limit)
            self._run_hardest(feeds, left)
            if not self.seen.counted():
                self._run_milder(feeds)
            if len(sweep) > 1:
                self._run_grown(len({tuple(feed.assignment.items()) for feed in left}))
        self._leave_out(left)

    def _run_planned(self, feeds: list[Feed]) -> list[Feed]:
        """Run the feeds that the budget allows, those that tell most first; returns the others.

        What runs shows what larger feeds cost, so that those that seemed too dear have another turn. The second shape
        always runs: at the first, whose sizes are 1, much looks the same. Where the hardest values would have to run
        beyond the budget, it has them in the last item of its batch."""
        left, hard = list(feeds), plan.hardest(feeds)
        second = feeds[1] if len(feeds) > 1 and feeds[1].assignment != feeds[0].assignment else None
        while not self._over():
            needed = second if self.request.effort.essential else None
            if not (allowed := [one for one in left if one is needed or self.budget.allows(one.assignment)]):
                return left
            feed = allowed[0]
            if not self.budget.allows(*(one.assignment for one in left)):
                tried = [one.feed.assignment for one in self.seen.feeds if one.feed is not None]
                feed = min(allowed, key=lambda one: one.assignment in tried and one.kind != hard)
            left.remove(feed)
            self._run_feed(self._with_hardest(feed, hard) if feed is needed else feed)
        return []

    def _with_hardest(self, feed: Feed, hard: Kind) -> Feed:
        """The second shape's feed, which has the hardest values too where another run with these is too dear.

        Only where bits are compared: within a tolerance, large values hide what is wrong with small ones.
        """
        known, ran = self.request.known, [one.feed for one in self.seen.counted() if one.feed is not None]
        cheap = not ran or self.budget.allows(feed.assignment, ran[0].assignment)
        if cheap or hard != "extreme" or not plan.has_batch(known, feed.assignment, self.request.shapes):
            return feed
        return replace(feed, last=hard)

    def _leave_out(self, feeds: list[Feed]) -> None:
        """Record feeds that the budget does not allow."""
        for feed in feeds:
            self.seen.left_out.append(LeftOut(feed.label, feed, self.budget.predicted(feed.assignment)))

    def _run_quantized(self, sizes: Assignment, seed: int) -> None:
        """Values around the limits of the model's quantizers, at a shape that it accepts."""
        known = self.request.known
        ran = [one.feed.assignment for one in self.seen.counted() if one.feed is not None]
        if ran and sizes not in ran:
            sizes = self.budget.largest(ran)
        found = extents.reach(self.request, self.request.original, sizes)
        if found.missed:
            self.seen.notes.append(found.missed)
        feeds = plan.quantized(known, sizes, seed, found.gain)
        if self.request.effort.essential or self.budget.allows(sizes):
            self._run_feeds(feeds)
        else:
            self._leave_out(feeds)

    def _run_hardest(self, feeds: list[Feed], left: list[Feed]) -> None:
        """Run the hardest values at another shape where the original rejects the planned one or that costs too much."""
        ran, hard = [one.feed for one in self.seen.counted() if one.feed is not None], plan.hardest(feeds)
        planned = [feed for feed in (feeds if hard == "extreme" else left) if feed.kind == hard]
        tried = [feed.assignment for feed in ran]
        if not planned or not ran or any(hard in feed.kinds() for feed in ran):
            return
        mixed, request = feeds[min(2, len(feeds) - 1)].assignment, self.request
        fewer = plan.thrifty(request.known, mixed, request.shapes) if left else {}
        dearest = max(map(self.budget.predicted, tried))
        for sizes in filter(None, (fewer, self.budget.largest(tried))):
            possible = request.effort.essential or self.budget.allows(sizes)
            possible = possible and self.budget.predicted(sizes) <= dearest
            if possible and self._run_feeds([replace(planned[0], assignment=sizes)]):
                return

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
            return False  # it would take as long
        try:
            values = feed.values(self.request.known)
        except MemoryError:
            return False
        return self._try(feed.label, feed, values)

    def _run_milder(self, feeds: list[Feed]) -> None:
        """Run other values at the same shapes, where the original accepts none of the planned feeds. Those with a size
        of 0 cost nothing."""
        for feed in [*feeds[:3], *(one for one in feeds[3:] if 0 in one.assignment.values())]:
            for kind in _MILDER:
                if self._over() or self._run_feed(Feed(feed.assignment, kind, feed.seed)):
                    break
        if self.seen.counted() and not self._over():
            self._run_feeds(Feed(one.assignment, "small", one.seed + 7) for one in feeds[:1])

    def _run_grown(self, spared: int) -> None:
        """Look for shapes that the model accepts, where it accepts too few of the planned ones. ``spared`` counts
        shapes that were not tried."""
        number = 0
        for group in plan.grown(self.request.known, self.request.shapes):
            if len(self.seen.sizes()) + spared >= _ENOUGH or self._over():
                return
            for place, assignment in enumerate(group):
                number += 1
                if self.seen.counted() and not self.budget.allows(assignment):
                    break
                ran = self._run_feed(Feed(assignment, "normal", self.request.seed + 100 + number))
                if not ran and not self._over():
                    ran = self._run_feed(Feed(assignment, "small", self.request.seed + 100 + number))
                if (place == 0 and not ran) or self._over():
                    break

    def _over(self) -> bool:
        now, too_many = time.monotonic(), self.seen.deaths >= _DEATHS
        in_vain = now > self.patience and bool(self.seen.feeds) and not self.seen.counted()
        return self.seen.verdict is not None or too_many or in_vain or now > self.deadline

    # -- one feed

    def _try(self, label: str, feed: Feed | None, values: dict[str, Any]) -> bool:
        """Run one feed and record it; returns whether it counted."""
        request, seen = self.request, self.seen
        if seen.generation != request.worker.generation or request.worker.pid is None:
            self._load()  # the child died of the last feed
            if seen.verdict is not None:
                return False
        outcome, ran = self.pair.run(values)
        if ran.starved and self.pair.spare():
            return self._try(label, feed, values)
        if ran.stage == "original":
            seen.deaths += not outcome.ok or ran.broken or ran.starved
            if outcome.status == "timeout" and feed is not None:
                self._note_endless(feed)
            self._uncounted(label, feed, ran, f"the original fails: {ran.error}")
            return False
        late = outcome.status == "timeout" and self.name == "reference"
        if ran.stage == "fixed" and (late or ran.unsupported):
            # The evaluator's time and the GPU's size prove nothing about the model, and refute nothing.
            self._uncounted(label, feed, ran, f"the new model: {ran.error}")
            return False
        if self._lacks_kernel(ran):
            self._uncounted(label, feed, ran, self._no_kernel(ran))
            return False
        if ran.starved:
            found = self.pair.starved(ran, values)
            if found.status == "failed":
                self._fail(label, feed, ran, found.reason)
            else:
                seen.deaths += 1
                self._uncounted(label, feed, ran, found.reason)
            return found.status == "failed"
        if not ran.stage and feed is not None:
            self.budget.ran(feed.assignment, ran.seconds)
        seen.excluded.update(ran.unstable)
        seen.wobble.extend(ran.wobble)
        if ran.stage:
            self._fail(label, feed, ran, f"the original runs, the new model does not: {ran.error}")
            return True
        return self._judge(label, feed, values, ran)

    def _note_endless(self, feed: Feed) -> None:
        """The original took too long on a feed. Where none as large ran, the size is taken to be why."""
        size = plan.elements(self.request.known, feed.assignment)
        ran = [one.feed.assignment for one in self.seen.counted() if one.feed is not None]
        if all(plan.elements(self.request.known, one) < size for one in ran):
            self.endless = min(self.endless, size)

    def _uncounted(self, label: str, feed: Feed | None, ran: Ran, reason: str) -> None:
        """Record a feed on which one of the two did not run, which proves nothing."""
        stopped: Side = "original" if ran.stage == "original" else "fixed"
        self.seen.feeds.append(
            FeedResult(
                label,
                feed,
                "not counted",
                reason,
                stopped=stopped,
                said=ran.said,
                cause=ran.cause or "refused",
                given=self.given,
            )
        )

    def _judge(self, label: str, feed: Feed | None, values: dict[str, Any], ran: Ran) -> bool:
        """Record what one run showed; returns whether it counts."""
        cut_off = self.name == "ort-cpu" and bool(different(ran.metrics)) and products.cut_off(self.request)
        if cut_off and (again := self._by_unsigned(values)) is not None:
            ran, cut_off = replace(ran, metrics=again.metrics), False
        if different(ran.metrics) and (self.request.half or self.request.precise):
            ran = self._by_twin(ran) if self.request.half else self._by_noise(ran)
        wrong = different(ran.metrics)
        if not wrong and (misdeclared := self.request.misdeclared(ran.metrics)):
            self._fail(label, feed, ran, misdeclared)
            return True
        uncounted = "" if ran.metrics else "no output is the same in two runs"
        if (
            wrong
            and feed is not None
            and feed.kind == "large"
            and ran.beyond
            and not any(m.worse for m in wrong)
        ):
            # The feed is to overflow, and the original did: infinities in both prove nothing about the fix.
            uncounted = _BEYOND
        if wrong and feed is not None and self.gpu and all(cuda.overflows(metric, feed) for metric in wrong):
            uncounted = cuda.OVERFLOWS
        if wrong and cut_off and self.request.shown:
            uncounted = products.CUT_OFF
        if uncounted:
            self.seen.feeds.append(
                FeedResult(label, feed, "not counted", uncounted, ran.metrics, given=self.given)
            )
        elif wrong:
            self._fail(label, feed, ran, difference(wrong[0]))
        else:
            beside = judged(ran.metrics, self.seen.precision)
            status = agreement(ran.metrics)
            self.seen.feeds.append(FeedResult(label, feed, status, beside, ran.metrics, given=self.given))
        return not uncounted

    def _again(self, function: str, **more: Any) -> Ran:
        """The last run judged again by what else the sandbox's child computes."""
        request, folder = self.request, self.folder
        skip = (*self.seen.excluded, *(request.known.drawn or ()))
        return self.pair.call(function, folder=folder, terms=request.terms, skip=skip, **more)[1]

    def _by_unsigned(self, values: dict[str, Any]) -> Ran | None:
        """The last run judged again with unsigned weights in products of bytes; None where that fails."""
        request, notes = self.request, self.seen.notes
        again = self._again("by_unsigned", fixed=str(request.fixed), feed=values, without=request.without)
        if not again.stage and products.UNSIGNED not in notes:
            notes.append(products.UNSIGNED)
        return None if again.stage else again

    def _by_twin(self, ran: Ran) -> Ran:
        """The last run judged again with the original in higher precision; unchanged where that fails."""
        seen, again = self.seen, self._again("by_twin", half=self.request.half)
        if again.stage:
            seen.notes.append(f"the original could not run in higher precision: {again.error}")
            return ran
        seen.beyond, seen.precision = seen.beyond or again.beyond, again.precision
        return replace(ran, metrics=again.metrics, beyond=again.beyond)

    def _by_noise(self, ran: Ran) -> Ran:
        """The last run judged again by how far the original is from itself in float64; unchanged where that fails."""
        again = self._again("by_noise", fixed=str(self.request.fixed))
        if again.stage:
            self.seen.notes.append(f"the original could not run in float64: {again.error}")
            return ran
        return replace(ran, metrics=again.metrics)

    def _fail(self, label: str, feed: Feed | None, ran: Ran, reason: str) -> None:
        found = FeedResult(label, feed, "different", reason, ran.metrics, cause=ran.cause, given=self.given)
        self.seen.feeds.append(found)
        self._decide("failed", f"{reason} [{label}]", ran.cause)
