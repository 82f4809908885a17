"""Rung trt-gpu: engines of the original and of the fixed model, executed on a GPU and held against the ONNX model.

The truth is the ONNX model (``trt_truth``). A fix is refuted where the fixed model's engine is further from it than the
original's engine is, beyond noise: where the engine of the original is wrong and the fixed one right, that is what the
fix is for. Differences beyond the tolerance of the types are first held against the rounding of the original itself
(``trt_noise``). Every engine runs several times on the same inputs, and outputs whose bits differ are left out by name.

What is known of the original (its inputs, its engine's outputs) is kept for the candidates that follow when fixes are
withdrawn: these cost one build and one load each. Where no engine runs here, the rung is skipped with the driver's or
TensorRT's reason.
"""
# Long because: building, loading, running and concluding share what is known of one pair of models

from __future__ import annotations

import contextvars
import tempfile
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from onnxfix.backends.ort_weights import weight_bytes
from onnxfix.causes import Cause
from onnxfix.errors import UsageError
from onnxfix.nvidia import Missing
from onnxfix.trt.engine import Ran
from onnxfix.trt.messages import means
from onnxfix.trt.records import Profile, TrtBuild
from onnxfix.verification.feeds.profiles import bound_profile, given_profiles
from onnxfix.verification.remote import less
from onnxfix.verification.request import Request
from onnxfix.verification.rungs import benchmark, probe
from onnxfix.verification.rungs.builder import Builder, builder
from onnxfix.verification.rungs.judge import ORACLES, Terms, differing, judge
from onnxfix.verification.rungs.noise import Noise
from onnxfix.verification.rungs.oracle import Oracle
from onnxfix.verification.rungs.probe import Probe
from onnxfix.verification.rungs.sessions import Sessions
from onnxfix.verification.rungs.trials import Finder, Trial, outside, profiles, shapes
from onnxfix.verification.verdict import Executed, FeedResult, Outcome, RungResult, Status, unjudged

NAME = "trt-gpu"
REPEATS = 3
"""How often an engine runs on the first inputs, bit for bit compared."""
_MANY, _HEAVY = 500, 16 << 20  # nodes and bytes of weights
_DEATHS = 3  # runs of engines that fail: each costs the child that executes them


def climb(request: Request) -> RungResult:
    """Build, execute and compare; with ``--benchmark``, time engines that were not refuted.

    Raises:
        UsageError: what was asked of TensorRT does not exist, or does not fit the model.
        OnnxfixError: a file cannot be written.
    """
    result = _climb(request)
    return benchmark.with_latency(result) if request.trt.benchmark else result


def _climb(request: Request) -> RungResult:
    found = builder(request.trt)
    if isinstance(found, Missing):
        return unjudged(NAME, found.reason, found.cause)
    with closing(found), ExitStack() as stack:
        told = probe.probe(found)
        if told.reason:
            return unjudged(NAME, told.reason, told.cause)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
        engines = stack.enter_context(probe.engines(found.choice, request.trt, request.step))
        return _Climber(request, found, told, folder, engines).climb()


@dataclass
class _Original:
    """What is known of the original here, whatever is held against it: the ``trials`` and the feeds that make none,
    who says what is right (``oracle``, or why nobody does: ``silent``), the ``build`` of its engine or why there is
    none (``lacking``), and what that engine gave for each trial. ``cause`` is why there is no engine or nobody who says
    what is right, as data."""

    trials: list[Trial]
    refused: list[FeedResult]
    oracle: str
    silent: str
    build: TrtBuild | None = None
    lacking: str = ""
    cause: Cause = ""
    ran: dict[int, Ran] = field(default_factory=dict)


#: The last original: a run that withdraws fixes asks about it again and again.
_LAST: list[tuple[object, _Original]] = []


class _Evidence(NamedTuple):
    """What shows a finding, in a line, the output that it is about, and what an engine failed of."""

    reason: str
    output: str
    cause: Cause = ""


@dataclass
class _Progress:
    """What the rung has seen so far. ``excluded`` are outputs that are random, or not the same in two runs."""

    results: list[FeedResult] = field(default_factory=list)
    judged: list[Trial] = field(default_factory=list)
    findings: dict[str, _Evidence] = field(default_factory=dict)  # the first of each finding
    refused: list[FeedResult] = field(default_factory=list)  # that do not count
    excluded: set[str] = field(default_factory=set)
    unsteady: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    graces: list[str] = field(default_factory=list)  # what was forgiven to the kernels
    deaths: int = 0  # runs of engines that failed


class _Climber:
    """Engines are built by ``found``, lie in ``folder`` and run in ``engines``; ``told`` is what they do here."""

    def __init__(
        self, request: Request, found: Builder, told: Probe, folder: Path, engines: Sessions
    ) -> None:
        self.request, self.found, self.told, self.folder = request, found, told, folder
        self.engines = engines
        self.single = request.fixed == request.original
        self.seen = _Progress(excluded=set(request.known.drawn or ()), notes=list(found.notes()))
        self.builds: dict[str, TrtBuild] = {}  # "original" (unless it is the same file) and "fixed"
        self.given = given_profiles(request.trt, request.known)
        self.original = _Original([], [], "ort-cpu", "")
        self.noise = Noise(request, (), "ort-cpu")

    def climb(self) -> RungResult:
        key = _key(self.request, self.found)
        if _LAST and _LAST[0][0] == key:
            self.original = _LAST[0][1]
        else:
            try:
                self.original = self._find()
            except UsageError as error:  # no input can be made for this model
                return self._done("skipped", str(error))
            _LAST[:] = [(key, self.original)]
        self.noise = Noise(self.request, self.original.trials, self.original.oracle)
        self.seen.results.extend(self.original.refused)
        self.seen.refused.extend(self.original.refused)
        if not self.original.trials:
            return self._conclude()
        return self._timed(self._build() or self._load() or self._run())

    def _timed(self, result: RungResult) -> RungResult:
        """The result, with the latency of engines that it does not refute, where that was asked for."""
        refuted = "wrong" in self.seen.findings
        if not self.request.trt.benchmark or result.executed is None or refuted or not result.judged:
            return result
        names = ("fixed",) if self.single or self.original.lacking else ("original", "fixed")
        files = {name: Path(self._engine(name)) for name in names}
        told = benchmark.latency(
            self.engines, self.found, self.request.original, files, self.builds, self.seen.judged
        )
        return replace(result, latency=told)

    def _find(self) -> _Original:
        """Look for inputs that the original takes, with what it computes for them.

        Raises:
            UsageError: no input can be made for this model.
        """
        with Oracle(self.request) as oracle:
            finder = Finder(self.request, oracle.run, self.given[0] if self.given else None)
            trials = finder.find()
            return _Original(trials, finder.refused, oracle.backend, oracle.silent, cause=oracle.cause)

    def _done(self, status: Status, reason: str, cause: Cause = "", *, inherited: bool = False) -> RungResult:
        seen = self.seen
        if seen.excluded:
            names = ", ".join(sorted(seen.excluded))
            seen.notes.append(
                f"not compared, since they are not the same in two runs of the original: {names}"
            )
        unsteady = sorted(seen.unsteady - seen.excluded)
        if unsteady:
            seen.notes.append(
                f"not the same bits in {REPEATS} runs on the same inputs: {', '.join(unsteady)}"
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
            executed=self._executed(status),
            cause=cause,
        )

    def _executed(self, status: Status) -> Executed | None:
        """What engines did, as data; None where none was run."""
        if not self.seen.judged:
            return None
        choice, card = self.found.choice, self.told.card
        outcome = next((one for one in ("wrong", "alike", "repaired") if one in self.seen.findings), "agree")
        evidence = self.seen.findings.get(outcome, _Evidence("", ""))
        return Executed(
            package=choice.package,
            version=choice.version,
            gpu=card.name if card is not None else "",
            compute_capability=card.capability if card is not None else "",
            listed=self.told.listed,
            precision=self.told.precision,
            outcome=cast("Outcome", outcome),
            reason=evidence.reason,
            output=evidence.output,
            noise=tuple(self.noise.shares.items()),
        )

    # -- engines

    def _engine(self, name: str) -> str:
        return str(self.folder / f"{name}.engine")

    def _build(self) -> RungResult | None:
        """Build both, the fixed model with the profiles that the original was built with; None when there is one."""
        request, original = self.request, self.original
        tries = profiles(original.trials, self.given, bound_profile(request.known, request.shapes))
        made: dict[str, TrtBuild] = {}
        if not self.single and original.build is None:
            made = self._both(tries)
            original.build = made["original"]
            if not original.build.accepted:
                original.lacking = (
                    f"{self.found.product} builds no engine of the original: {original.build.reason}"
                )
                original.cause = "memory" if original.build.status == "memory" else ""
        if original.build is not None:
            self.builds["original"] = original.build
            if original.build.accepted:
                tries = [original.build.profiles or None]
        after = made.get("fixed")
        if after is None or (tries[0] or ()) != after.profiles:
            after = self._first(self.found, request.fixed, "fixed", tries)
        self.builds["fixed"] = after
        if after.accepted:
            return None
        reason = f"{self.found.product} builds no engine of {self._which()}: {after.reason}"
        cause: Cause = "memory" if after.status == "memory" else ""
        if self.single or original.lacking:  # that it refuses both is the rung trt-build's to tell
            return self._done("skipped", reason, cause)
        return self._done("failed", f"{reason}; of the original it does", cause)

    def _both(self, tries: Sequence[tuple[Profile, ...] | None]) -> dict[str, TrtBuild]:
        """The build of the original, and that of the fixed model where it is worth a process of its own beside it."""
        request = self.request
        beside = self.found.beside() if _is_large(request) else None
        if beside is None:
            return {"original": self._first(self.found, request.original, "original", tries)}
        with ThreadPoolExecutor(1) as pool:
            context = contextvars.copy_context()
            other = pool.submit(context.run, self._first, beside, request.fixed, "fixed", tries)
            try:
                before = self._first(self.found, request.original, "original", tries)
                return {"original": before, "fixed": other.result()}
            except BaseException:
                beside.worker.close()  # so that nobody waits for its build
                raise

    def _which(self) -> str:
        return "the model" if self.single else "the fixed model"

    def _first(
        self, by: Builder, path: Path, name: str, tries: Sequence[tuple[Profile, ...] | None]
    ) -> TrtBuild:
        """The first build that is accepted, or refused for another reason than the profile's sizes; else the first."""
        made: list[TrtBuild] = []
        for chosen in tries:
            made.append(by.build(path, chosen, save_engine=self._engine(name)))
            if made[-1].accepted or not means("profile", [one.text for one in made[-1].errors]):
                break
        return made[-1] if made[-1].accepted else made[0]

    def _load(self) -> RungResult | None:
        original = self.original
        if not self.single and not original.lacking and not original.ran:
            reason = self._loaded("original")
            original.lacking = f"the original's engine does not load: {reason}" if reason else ""
            original.cause = self.engines.cause
            if not reason:
                self._run_original()
        reason = self._loaded("fixed")
        if not reason:
            return self._alone() if original.silent and (self.single or original.lacking) else None
        told = f"the engine of {self._which()} does not load: {reason}"
        if self.single or original.lacking:
            return self._done("skipped", told, self.engines.cause)
        return self._done("failed", f"{told}; that of the original does", self.engines.cause)

    def _loaded(self, name: str) -> str:
        """Load an engine; returns why that is impossible, else ""."""
        outcome = self.engines.load(name, self._engine(name))
        return outcome if not self.engines.late else f"{self.found.product} {outcome}"

    def _run_original(self) -> None:
        """Run the original's engine on all inputs, once for all candidates."""
        original, failures = self.original, 0
        for number, trial in enumerate(original.trials):
            if failures == _DEATHS:
                ran = Ran(error=f"it failed {_DEATHS} times before")
            elif outside(self.builds["original"].profiles, trial.values):
                continue
            else:
                ran = self._execute("original", trial, first=not number)
                failures += bool(ran.error)
            original.ran[number] = ran

    def _alone(self) -> RungResult:
        whom = "" if self.single else f"{self.original.lacking}; "
        return self._done(
            "skipped",
            f"there is nothing to compare the engine with: {whom}{self.original.silent}",
            self.original.cause,
        )

    # -- runs

    def _run(self) -> RungResult:
        deadline = time.monotonic() + self.request.total
        for number, trial in enumerate(self.original.trials):
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
                self._judge(number, trial)
            if "wrong" in self.seen.findings:
                wrong = self.seen.findings["wrong"]
                return self._done("failed", wrong.reason, wrong.cause, inherited=self.single)
        return self._conclude()

    def _refuse(self, trial: Trial, reason: str, failed: Ran | None = None) -> None:
        found = FeedResult(trial.label, trial.feed, "not counted", reason, given=trial.given)
        if failed is not None:
            found = replace(found, stopped="fixed", said=failed.error, cause=failed.cause)
        self.seen.results.append(found)
        self.seen.refused.append(found)

    def _execute(self, name: str, trial: Trial, *, first: bool) -> Ran:
        """Run an engine, the ``first`` time as often as it takes to see whether it gives the same bits each time."""
        values = less(trial.values, self.request.without) if name == "fixed" else trial.values
        ran = self.engines.run(name, values, times=REPEATS if first else 1)
        if ran.late:
            ran = replace(ran, error=f"{self.found.product} {ran.error}")
        return ran

    def _judge(self, number: int, trial: Trial) -> None:
        before = None if self.single or self.original.lacking else self.original.ran.get(number)
        after = self._execute("fixed", trial, first=not self.seen.judged)
        self.seen.deaths += bool(after.error)
        if after.error:
            if before is None or before.error:
                return self._refuse(trial, f"the engine of {self._which()} fails: {after.error}", after)
            reason = f"the original's engine runs, the fixed model's does not: {after.error}"
            found = FeedResult(
                trial.label, trial.feed, "different", reason, cause=after.cause, given=trial.given
            )
            self.seen.results.append(found)
            self.seen.findings["wrong"] = _Evidence(f"{reason} [{trial.label}]", "", after.cause)
            return None
        if before is not None and before.error:
            self.seen.notes.append(f"the original's engine fails: {before.error} [{trial.label}]")
            before = None
        for ran in filter(None, (before, after)):
            self.seen.unread.update(ran.unread)
            self.seen.unsteady.update(ran.unsteady)
            steady = {name: ran.outputs[name] for name in ran.unsteady}
            self.seen.excluded |= differing(self._terms(tuple(steady)), Ran(steady), Ran(ran.unsteady))
        told = judge(self._terms(), trial.label, trial.feed, trial.expected, before, after)
        if told.finding not in ("agree", "nothing"):
            terms = self.noise.widened(self._terms(), trial)
            told = judge(terms, trial.label, trial.feed, trial.expected, before, after)
        self.seen.results.extend(replace(one, given=trial.given) for one in told.results)
        if told.finding == "nothing":
            return self._refuse(trial, "no output could be compared")
        self.seen.judged.append(trial)
        if told.finding == "agree":
            self.seen.findings.setdefault("agree", _Evidence("", ""))
            self.seen.graces.extend(filter(None, [told.reason]))
        else:
            evidence = _Evidence(f"{told.reason} [{trial.label}]", told.output)
            self.seen.findings.setdefault(told.finding, evidence)
        return None

    def _terms(self, names: Sequence[str] | None = None) -> Terms:
        request = self.request
        # TF32 keeps as many digits as half precision.
        coarse = "float16" if request.trt.tf32 or self.told.precision == "tf32" else ""
        return Terms(
            names=[one.name for one in request.known.model.graph.output] if names is None else names,
            excluded=frozenset(self.seen.excluded),
            noise=request.noise,
            coarse=request.coarse or coarse,
            oracle=self.original.oracle,
            engine="the engine" if self.single else "the fixed model's engine",
        )

    # -- the end

    def _conclude(self) -> RungResult:
        seen = self.seen
        if not seen.judged and seen.refused:
            return self._done("skipped", seen.refused[0].reason, seen.refused[0].cause)
        if not seen.judged:
            return self._done("skipped", "there was no time for a single run")
        counted = [one for one in seen.results if one.status in ("identical", "within")]
        if not any(part.elements for one in seen.results for part in one.metrics):
            return self._done("skipped", "every output is empty, so no value was compared")
        self._add_notes()
        if "alike" in seen.findings:
            reason = seen.findings["alike"].reason
            if self.single or not self.request.inherit:
                return self._done("failed", reason)
            return self._done("passed", f"the fixed model's engine is no worse: {reason}")
        how = "identical" if all(one.status == "identical" for one in counted) else "within tolerance"
        count, sizes = len(seen.judged), len(shapes(seen.judged))
        over = f" over {sizes} shapes" if sizes > 1 else ""
        reason = f"{self._agreement(counted)}: {how} on {count} feed{'s' * (count > 1)}{over}"
        silent = self.original.silent
        more = [self.original.lacking, f"nobody can say what is right: {silent}" if silent else ""]
        if "repaired" in seen.findings:
            more.insert(0, seen.findings["repaired"].reason)
        return self._done("passed", "; ".join([reason, *filter(None, more)]))

    def _agreement(self, counted: Sequence[FeedResult]) -> str:
        """Who agrees with whom."""
        engines = any(one.sides == "engines" for one in counted) and "repaired" not in self.seen.findings
        oracle = any(one.sides != "engines" for one in counted)
        if engines:
            also = f" and with {ORACLES[self.original.oracle]}" if oracle else ""
            return f"the engines of the original and of the fixed model agree with each other{also}"
        return f"{self._terms().engine} agrees with {ORACLES[self.original.oracle]}"

    def _add_notes(self) -> None:
        seen = self.seen
        if seen.refused:
            many = f"{len(seen.refused)} feeds do" if len(seen.refused) > 1 else "1 feed does"
            seen.notes.append(f"{many} not count: {seen.refused[0].reason}")
        if self.request.trt.tf32:
            seen.notes.append("TF32 was allowed, and outputs were held to the tolerance of half precision")
        elif self.told.precision == "tf32":
            seen.notes.append(
                "TF32 could not be turned off here, and outputs were held to the tolerance of half precision"
            )
        seen.notes.extend(seen.graces[:1])
        seen.notes.extend(self.noise.notes())
        values = [value for one in seen.judged if one.expected for value in one.expected.outputs.values()]
        if any(isinstance(value, np.ndarray) and value.dtype == np.float64 for value in values):
            seen.notes.append("TensorRT computes float64 as float32, and was judged as that")
        seen.notes.append(f"executed by {self.found.product} on {self.told.where}")


def _key(request: Request, found: Builder) -> object:
    """What the knowledge of an original hangs on."""
    about = request.original.stat()
    given = [
        (name, np.shape(value), zlib.crc32(np.ascontiguousarray(value).tobytes()))
        for feed in request.given or ()
        for name, value in feed.items()
    ]
    return (
        (request.original, about.st_mtime_ns, about.st_size, about.st_ino),
        (
            found.choice,
            replace(found.options, benchmark=False),
            request.seed,
            tuple(sorted(request.shapes.items())),
            tuple(given),
        ),
        request.known.pins,
        request.total > 0,
    )


def _is_large(request: Request) -> bool:
    """Whether a build takes so long that a second process beside the first, which takes a second to start, pays."""
    model = request.known.model
    return len(model.graph.node) > _MANY or weight_bytes(model) > _HEAVY
