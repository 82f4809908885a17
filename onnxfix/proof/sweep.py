"""What a batch sweep found: one model built for batch 1 alone and for batch 1 to N, as data and in lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt.messages import means
from onnxfix.tensorrt.records import Issue, TrtBuild

_WIDEST = 240  # characters of one of TensorRT's texts in a line


@dataclass(frozen=True)
class Pair:
    """One model, called ``name`` in texts, built for batch 1 alone and for a profile of batch sizes.

    ``differing`` says which outputs of the two engines differ at batch 1, ``unproven`` why none were compared; both
    are empty where all agree.
    """

    name: str
    static: TrtBuild
    dynamic: TrtBuild
    differing: str = ""
    unproven: str = ""

    @property
    def wrong(self) -> str:
        """How the two builds differ, in acceptance or in outputs; "" where they agree."""
        if self.static.accepted != self.dynamic.accepted:
            builds = [("batch 1 alone", self.static), ("the profile", self.dynamic)]
            (yes, _), (no, refused) = sorted(builds, key=lambda one: not one[1].accepted)
            return f"{yes} builds, {no} does not: {one_line(refused.reason, _WIDEST)}"
        hollow = next((one for one in self.only_dynamic() if means("inconsistent-profile", [one.text])), None)
        if hollow is not None and self.dynamic.accepted:
            return f"the profile builds, but not all of its sizes fit: {one_line(str(hollow), _WIDEST)}"
        return self.differing

    def only_static(self) -> list[Issue]:
        """The warnings for batch 1 alone that the profile's build does not give."""
        return _only(self.static, self.dynamic)

    def only_dynamic(self) -> list[Issue]:
        """The warnings for the profile that the build for batch 1 alone does not give."""
        return _only(self.dynamic, self.static)


def _only(own: TrtBuild, other: TrtBuild) -> list[Issue]:
    found: list[Issue] = []
    for issue in own.warnings:
        if not any(map(issue.repeats, (*other.warnings, *found))):
            found.append(issue)
    return found


@dataclass(frozen=True)
class SweepResult:
    """A batch sweep up to batch ``greatest`` over ``symbols``. ``reason`` is one line, ``span`` another: how the
    batches of the user's own profile relate to it ("" without one).

    It fails where the last of ``pairs``, the fixed model or the only one, differs between its two builds.
    """

    status: Literal["passed", "failed", "skipped"]
    reason: str
    symbols: tuple[str, ...] = ()
    greatest: int = 0
    pairs: tuple[Pair, ...] = ()
    span: str = ""

    def lines(self) -> tuple[str, ...]:
        """The result and the differences between the builds of each model, as text."""
        return (
            f"batch sweep {self.status}: {self.reason}",
            *([f"batch sweep: {self.span}"] if self.span else []),
            *(line for one in self.pairs for line in self._of(one)),
        )

    def _of(self, pair: Pair) -> Iterator[str]:
        span = f"batch 1 to {self.greatest}"
        figures = f"batch 1 alone: {_figures(pair.static)}; {span}: {_figures(pair.dynamic)}"
        yield f"batch sweep of {pair.name}: {figures}"
        static, dynamic = dict(pair.static.layers), dict(pair.dynamic.layers)
        counts = [(kind, static.get(kind, 0), dynamic.get(kind, 0)) for kind in sorted({*static, *dynamic})]
        kinds = ", ".join(f"{kind} {alone}/{spread}" for kind, alone, spread in counts if alone != spread)
        if (
            kinds and pair.static.accepted and pair.dynamic.accepted
        ):  # else the parser may have stopped half-way
            yield f"imported layers that differ, batch 1 alone against {span}: {kinds}"
        for where, issues in (("batch 1 alone", pair.only_static()), (span, pair.only_dynamic())):
            yield from (f"warning for {where} only: {one_line(str(one), _WIDEST)}" for one in issues)
        if pair.differing:
            yield f"outputs differ: {pair.differing}"
        elif pair.static.accepted and pair.dynamic.accepted:
            yield f"outputs {pair.unproven or 'of the two engines agree at batch 1'}"


def _figures(build: TrtBuild) -> str:
    """``accepted, 131 layers, 2 warnings``."""
    layers, warnings = build.layer_count, len(build.warnings)
    counts = f"{layers} layer{'s' * (layers != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    return f"accepted, {counts}" if build.accepted else f"{build.status} ({one_line(build.reason, _WIDEST)})"
