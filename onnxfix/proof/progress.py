"""The progress of a check that executes ONNX models, and the result that follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from onnxfix.inputs.feeds.plan import Feed
from onnxfix.proof import cuda
from onnxfix.proof.compare.compare import Metrics
from onnxfix.proof.verdict import FeedResult, LeftOut, RungResult, Side, Status
from onnxfix.runtime.causes import Cause

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
        news = [one for one in refused if not _is_empty(one)]
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
        self.notes.extend(cuda.describe_wobble(self.wobble))
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


def _is_empty(result: FeedResult) -> bool:
    """Whether the feed had a dimension of size 0: that a model rejects empty tensors needs no mention."""
    return result.feed is not None and 0 in result.feed.assignment.values()
