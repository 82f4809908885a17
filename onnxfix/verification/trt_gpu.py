"""Rung trt-gpu: engines of the original and of the fixed model, executed on a GPU and compared.

Engines are compared with each other and with ONNX Runtime on the original, within the tolerance of the output types:
two builds of one network may choose different kernels. Where there is no GPU that TensorRT serves, the rung is
skipped with the driver's or TensorRT's reason, and no engine is executed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix import backends
from onnxfix.backends import trt_profiles
from onnxfix.backends.trt_run import Ran
from onnxfix.backends.trt_types import Profile, TrtBuild
from onnxfix.errors import UsageError
from onnxfix.verification import cuda, trt_probe
from onnxfix.verification.request import Request
from onnxfix.verification.trt_build import Builder, builder
from onnxfix.verification.trt_feeds import Finder, Trial, outside, profiles, shapes
from onnxfix.verification.trt_judge import ENGINES, ORACLES, Terms, differing, judge
from onnxfix.verification.trt_shapes import bound_profile, given_profiles
from onnxfix.verification.trt_sides import Side
from onnxfix.verification.verdict import FeedResult, RungResult, Status

NAME = "trt-gpu"
#: What runs ONNX Runtime in the sandbox.
ORACLE = "onnxfix.verification.trt_sides"
_DEATHS = 3  # runs of engines that fail: each costs the child that executes them


def climb(request: Request) -> RungResult:
    """Build, execute and compare.

    Raises:
        UsageError: what was asked of TensorRT does not exist, or does not fit the model.
        OnnxfixError: a file cannot be written.
    """
    found = builder(request.trt)
    if isinstance(found, str):
        return RungResult(NAME, "skipped", found)
    with closing(found), ExitStack() as stack:
        reason = trt_probe.refusal(found)
        if reason is not None:
            return RungResult(NAME, "skipped", reason)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
        engines = stack.enter_context(trt_probe.engines(found.choice, request.trt, request.step))
        oracle = stack.enter_context(_Oracle(request))
        return _Climber(request, found, folder, engines, oracle).climb()


class _Oracle:
    """Who says what is right: ONNX Runtime on the original, on CUDA where that works, else on the CPU.

    ``backend`` names the one, ``deaf`` says why neither can be asked ("" when one can). What the CPU refuses, CUDA is
    not asked: its kernels check no index.
    """

    def __init__(self, request: Request) -> None:
        gpu = backends.missing("ort-cuda") or cuda.unavailable(request.worker, request.step)
        self._sides: dict[str, Side] = {}
        reasons = []
        for backend in ("ort-cpu",) if gpu else ("ort-cpu", "ort-cuda"):
            options = {"backend": backend}
            side = Side(request.worker, ORACLE, options, loading=request.step, running=request.step)
            reason = backends.missing(backend) or side.load(backend, str(request.original))
            if reason:
                reasons.append(reason)
            else:
                self._sides[backend] = side
        self.backend = next(reversed(self._sides), "ort-cpu")
        self.deaf = "" if self._sides else reasons[0]

    def __enter__(self) -> _Oracle:
        return self

    def __exit__(self, *_: object) -> None:
        for side in self._sides.values():
            side.__exit__()

    def run(self, values: dict[str, Any]) -> Ran | None:
        """What the original gives for these inputs; None where nobody can be asked."""
        ran = None
        for backend, side in self._sides.items():
            ran = side.run(backend, values)
            if ran.error:
                break
        return ran


@dataclass
class _Progress:
    """What the rung has seen so far. ``excluded`` are outputs that are random, or not the same in two runs."""

    results: list[FeedResult] = field(default_factory=list)
    judged: list[Trial] = field(default_factory=list)
    findings: dict[str, str] = field(default_factory=dict)  # finding -> the first reason for it
    refused: list[str] = field(default_factory=list)  # why feeds do not count
    excluded: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    deaths: int = 0  # runs of engines that failed


class _Climber:
    """Engines are built by ``found``, lie in ``folder`` and run in ``engines``."""

    def __init__(
        self, request: Request, found: Builder, folder: Path, engines: Side, oracle: _Oracle
    ) -> None:
        self.request, self.found, self.folder = request, found, folder
        self.engines, self.oracle = engines, oracle
        self.single = request.fixed == request.original
        self.seen = _Progress(excluded=set(request.known.drawn or ()), notes=list(found.notes()))
        self.builds: dict[str, TrtBuild] = {}  # "original" (unless it is the same file) and "fixed"
        self.given = given_profiles(request.trt, request.known)
        self.lacking = ""  # why there is no engine of the original

    def climb(self) -> RungResult:
        finder = Finder(self.request, self.oracle.run, self.given[0] if self.given else None)
        try:
            trials = finder.find()
        except UsageError as error:  # no input can be made for this model
            return self._done("skipped", str(error))
        self.seen.results.extend(finder.refused)
        self.seen.refused.extend(one.reason for one in finder.refused)
        if not trials:
            return self._conclude()
        return self._build(trials) or self._load() or self._run(trials)

    def _done(self, status: Status, reason: str, *, inherited: bool = False) -> RungResult:
        seen = self.seen
        if seen.excluded:
            names = ", ".join(sorted(seen.excluded))
            seen.notes.append(
                f"not compared, since they are not the same in two runs of the original: {names}"
            )
        if seen.unread:
            seen.notes.append(f"not compared: output {'; output '.join(seen.unread.values())}")
        return RungResult(
            NAME,
            status,
            reason,
            tuple(seen.results),
            tuple(sorted(seen.excluded)),
            tuple(seen.notes),
            builds=tuple(self.builds.values()),
            inherited=inherited and self.request.inherit,
        )

    # -- engines

    def _engine(self, name: str) -> str:
        return str(self.folder / f"{name}.engine")

    def _build(self, trials: Sequence[Trial]) -> RungResult | None:
        """Build both, the fixed model with the profiles that the original was built with; None when there is one."""
        request = self.request
        tries = profiles(trials, self.given, bound_profile(request.known, request.shapes))
        if not self.single:
            before = self._first(request.original, "original", tries)
            if before.accepted:
                tries = [before.profiles or None]
            else:
                self.lacking = f"{self.found.product} builds no engine of the original: {before.reason}"
        after = self._first(request.fixed, "fixed", tries)
        if after.accepted:
            return None
        reason = f"{self.found.product} builds no engine of {self._which()}: {after.reason}"
        if self.single or self.lacking:  # that it refuses both is the rung trt-build's to tell
            return self._done("skipped", reason)
        return self._done("failed", f"{reason}; of the original it does")

    def _which(self) -> str:
        return "the model" if self.single else "the fixed model"

    def _first(self, path: Path, name: str, tries: Sequence[tuple[Profile, ...] | None]) -> TrtBuild:
        """The first build that is accepted, or refused for another reason than the profile's sizes; else the first."""
        made: list[TrtBuild] = []
        for chosen in tries:
            made.append(self.found.build(path, chosen, save_engine=self._engine(name)))
            if made[-1].accepted or not trt_profiles.unfit([one.text for one in made[-1].errors]):
                break
        best = made[-1] if made[-1].accepted else made[0]
        self.builds[name] = best
        return best

    def _load(self) -> RungResult | None:
        if not self.single and not self.lacking:
            self.lacking = self.engines.load("original", self._engine("original"))
            if self.lacking:
                self.lacking = f"the original's engine does not load: {self.lacking}"
        reason = self.engines.load("fixed", self._engine("fixed"))
        if not reason:
            return self._alone() if self.oracle.deaf and (self.single or self.lacking) else None
        told = f"the engine of {self._which()} does not load: {reason}"
        if self.single or self.lacking:
            return self._done("skipped", told)
        return self._done("failed", f"{told}; that of the original does")

    def _alone(self) -> RungResult:
        whom = "" if self.single else f"{self.lacking}; "
        return self._done(
            "skipped", f"there is nothing to compare the engine with: {whom}ONNX Runtime: {self.oracle.deaf}"
        )

    # -- runs

    def _run(self, trials: Sequence[Trial]) -> RungResult:
        deadline = time.monotonic() + self.request.total
        for trial in trials:
            if self.seen.deaths >= _DEATHS:
                self.seen.notes.append(f"stopped after {self.seen.deaths} failures")
                break
            if time.monotonic() > deadline:
                self.seen.notes.append("stopped when the time was up")
                break
            reason = outside(self.builds["fixed"].profiles, trial.values)
            if reason:
                self._refuse(trial, reason)
            else:
                self._judge(trial)
            if "wrong" in self.seen.findings:
                return self._done("failed", self.seen.findings["wrong"], inherited=self.single)
        return self._conclude()

    def _refuse(self, trial: Trial, reason: str) -> None:
        self.seen.results.append(FeedResult(trial.label, trial.feed, "not counted", reason))
        self.seen.refused.append(reason)

    def _execute(self, name: str, trial: Trial) -> Ran:
        ran = self.engines.run(name, trial.values)
        self.seen.deaths += bool(ran.error)
        self.seen.unread.update(ran.unread)
        return ran

    def _judge(self, trial: Trial) -> None:
        before = None if self.single or self.lacking else self._execute("original", trial)
        if before is not None and not before.error and not self.seen.judged:
            again = self._execute("original", trial)
            if not again.error:
                self.seen.excluded |= differing(self._terms(), before, again)
        after = self._execute("fixed", trial)
        if after.error:
            if before is None or before.error:
                return self._refuse(trial, f"the engine of {self._which()} fails: {after.error}")
            reason = f"the original's engine runs, the fixed model's does not: {after.error}"
            self.seen.results.append(FeedResult(trial.label, trial.feed, "different", reason))
            self.seen.findings["wrong"] = f"{reason} [{trial.label}]"
            return None
        if before is not None and before.error:
            self.seen.notes.append(f"the original's engine fails: {before.error} [{trial.label}]")
            before = None
        told = judge(self._terms(), trial.label, trial.feed, trial.expected, before, after)
        self.seen.results.extend(told.results)
        if told.finding == "nothing":
            return self._refuse(trial, "no output could be compared")
        self.seen.judged.append(trial)
        self.seen.findings.setdefault(told.finding, f"{told.reason} [{trial.label}]")
        return None

    def _terms(self) -> Terms:
        request = self.request
        return Terms(
            names=[one.name for one in request.known.model.graph.output],
            excluded=frozenset(self.seen.excluded),
            noise=request.noise,
            # TF32 keeps as many digits as half precision.
            coarse=request.coarse or ("float16" if request.trt.tf32 else ""),
            oracle=self.oracle.backend,
            engine="the engine" if self.single else "the fixed model's engine",
        )

    # -- the end

    def _conclude(self) -> RungResult:
        seen = self.seen
        if not seen.judged:
            return self._done(
                "skipped", seen.refused[0] if seen.refused else "there was no time for a single run"
            )
        counted = [one for one in seen.results if one.status in ("identical", "within")]
        if not any(part.elements for one in seen.results for part in one.metrics):
            return self._done("skipped", "every output is empty, so no value was compared")
        self._add_notes()
        if "alike" in seen.findings:
            return self._done("failed", seen.findings["alike"], inherited=True)
        how = "identical" if all(one.status == "identical" for one in counted) else "within tolerance"
        count, sizes = len(seen.judged), len(shapes(seen.judged))
        over = f" over {sizes} shapes" if sizes > 1 else ""
        reason = f"{self._agreement(counted)}: {how} on {count} feed{'s' * (count > 1)}{over}"
        more = [
            self.lacking,
            f"ONNX Runtime cannot say what is right: {self.oracle.deaf}" if self.oracle.deaf else "",
        ]
        if "repaired" in seen.findings:
            more.append(f"TensorRT computes something else for the original: {seen.findings['repaired']}")
        return self._done("passed", "; ".join([reason, *filter(None, more)]))

    def _agreement(self, counted: Sequence[FeedResult]) -> str:
        """Who agrees with whom."""
        engines = (
            any(one.label.startswith(ENGINES) for one in counted) and "repaired" not in self.seen.findings
        )
        oracle = any(not one.label.startswith(ENGINES) for one in counted)
        if engines:
            also = f" and with {ORACLES[self.oracle.backend]}" if oracle else ""
            return f"the engines of the original and of the fixed model agree with each other{also}"
        return f"{self._terms().engine} agrees with {ORACLES[self.oracle.backend]}"

    def _add_notes(self) -> None:
        seen = self.seen
        if seen.refused:
            many = f"{len(seen.refused)} feeds do" if len(seen.refused) > 1 else "1 feed does"
            seen.notes.append(f"{many} not count: {seen.refused[0]}")
        if self.request.trt.tf32:
            seen.notes.append("TF32 was allowed, and outputs were held to the tolerance of half precision")
        values = [value for one in seen.judged if one.expected for value in one.expected.outputs.values()]
        if any(isinstance(value, np.ndarray) and value.dtype == np.float64 for value in values):
            seen.notes.append("TensorRT computes float64 as float32, and was judged as that")
