"""What the check trt-gpu knows of a pair of models while it compares them, and the result that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from onnxfix.inputs.feeds.profiles import given_profiles
from onnxfix.proof.checks.builder import Builder, Tries, try_profiles
from onnxfix.proof.checks.judge import ORACLES, Terms
from onnxfix.proof.checks.noise import Noise
from onnxfix.proof.checks.probe import Probe
from onnxfix.proof.checks.sessions import Sessions
from onnxfix.proof.checks.trials import shapes
from onnxfix.proof.remote import less
from onnxfix.proof.request import Request, Trial
from onnxfix.proof.verdict import Executed, FeedResult, Outcome, RungResult, Status
from onnxfix.runtime.causes import Cause
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.records import Profile, TrtBuild

NAME = "trt-gpu"
REPEATS = 3
"""How often an engine runs on the first inputs, to compare the bits of its outputs."""


@dataclass
class Original:
    """What is known about the original, for all candidates: the ``trials`` and ``refused`` feeds, the backend of the
    reference result (``oracle``, or why there is none: ``silent``), the ``build`` of its engine or why there is none
    (``lacking``), and the engine's outputs for each trial. ``cause`` is why there is no engine or no reference result,
    as data."""

    trials: list[Trial]
    refused: list[FeedResult]
    oracle: str
    silent: str
    build: TrtBuild | None = None
    lacking: str = ""
    cause: Cause = ""
    ran: dict[int, Ran] = field(default_factory=dict)


class Evidence(NamedTuple):
    """The reason for a finding, in a line, the output that it is about, and why an engine failed."""

    reason: str
    output: str
    cause: Cause = ""


class State:
    """One run of the check. ``builder`` builds the engines in ``folder``, and they run in ``engines``; ``probe`` is
    what engines do on this machine. ``builds`` are of "original" (unless it is the same file) and of "fixed".

    ``findings`` are the first of each kind, ``refused`` the results that do not count, ``excluded`` the outputs that
    are random or not the same in two runs, ``graces`` the differences that kernels explain, and ``deaths`` counts runs
    of engines that failed.
    """

    def __init__(
        self, request: Request, builder: Builder, probe: Probe, folder: Path, engines: Sessions
    ) -> None:
        self.request, self.builder, self.probe, self.folder = request, builder, probe, folder
        self.engines = engines
        self.single = request.fixed == request.original
        self.name = "the model" if self.single else "the new model"
        self.engine_name = "the engine" if self.single else "the new model's engine"
        self.builds: dict[str, TrtBuild] = {}
        self.given: tuple[Profile, ...] | None = given_profiles(request.trt, request.known)
        self.results: list[FeedResult] = []
        self.judged: list[Trial] = []
        self.findings: dict[str, Evidence] = {}
        self.refused: list[FeedResult] = []
        self.excluded: set[str] = set(request.known.drawn or ())
        self.unsteady: set[str] = set()
        self.unread: dict[str, str] = {}
        self.notes: list[str] = list(builder.notes())
        self.graces: list[str] = []
        self.deaths = 0
        self.use(Original([], [], "ort-cpu", ""))

    def use(self, original: Original) -> None:
        """Compare with this original, and measure its rounding on its trials."""
        request = self.request
        self.original = original
        self.noise = Noise(
            request.worker,
            request.original,
            original.trials,
            original.oracle,
            step=request.step,
            half=bool(request.coarse),
        )

    @property
    def alone(self) -> bool:
        """Whether there is no engine of the original to compare with."""
        return self.single or bool(self.original.lacking)

    def file(self, name: str) -> str:
        """Where the engine of "original" or "fixed" is."""
        return str(self.folder / f"{name}.engine")

    def model(self, name: str) -> Path:
        """The model file of "original" or "fixed"."""
        return self.request.original if name == "original" else self.request.fixed

    def build_engine(self, name: str, tries: Tries) -> TrtBuild:
        """Build the engine of "original" or "fixed"; see ``builder.try_profiles``."""
        build, path, engine = self.builder.build, self.model(name), self.file(name)
        return try_profiles(tries, lambda chosen: build(path, chosen, save_engine=engine), lambda made: made)

    def execute(self, name: str, trial: Trial, *, first: bool) -> Ran:
        """Run an engine, the ``first`` time as often as it takes to see whether it gives the same bits each time."""
        values = less(trial.values, self.request.without) if name == "fixed" else trial.values
        ran = self.engines.run(name, values, times=REPEATS if first else 1)
        return replace(ran, error=f"{self.builder.product} {ran.error}") if ran.late else ran

    def terms(self, names: Sequence[str] | None = None) -> Terms:
        """How outputs are compared: those of these names, by default all."""
        request = self.request
        # TF32 keeps as many digits as half precision.
        coarse = "float16" if request.trt.tf32 or self.probe.precision == "tf32" else ""
        return Terms(
            names=[one.name for one in request.known.model.graph.output] if names is None else names,
            excluded=frozenset(self.excluded),
            coarse=request.coarse or coarse,
            allowed=request.allowed,
            oracle=self.original.oracle,
            engine=self.engine_name,
            single=self.single,
        )

    def conclude_failure(self, reason: str, cause: Cause, but: str) -> RungResult:
        """The result where the fixed model has no engine that runs. ``but`` is what the original's does: the fixes are
        to blame if there is one."""
        if self.alone:  # the check trt-build reports that TensorRT refuses both
            return conclude_as(self, "skipped", reason, cause)
        return conclude_as(self, "failed", f"{reason}; {but}", cause)


def conclude_as(
    state: State, status: Status, reason: str, cause: Cause = "", *, inherited: bool = False
) -> RungResult:
    """The result, with notes on what was not compared. ``inherited``: the original fails in the same way."""
    if state.excluded:
        names = ", ".join(sorted(state.excluded))
        state.notes.append(f"not compared, since the original is not deterministic there: {names}")
    unsteady = sorted(state.unsteady - state.excluded)
    if unsteady:
        state.notes.append(f"not the same bits in {REPEATS} runs on the same inputs: {', '.join(unsteady)}")
    if state.unread:
        state.notes.append(f"not compared: output {'; output '.join(state.unread.values())}")
    return RungResult(
        NAME,
        status,
        reason,
        tuple(state.results),
        tuple(sorted(state.excluded)),
        tuple(state.notes),
        builds=tuple(state.builds.values()),
        inherited=inherited and state.request.inherit,
        executed=_executed(state),
        cause=cause,
    )


def _executed(state: State) -> Executed | None:
    """What engines did, as data; None where none was run."""
    if not state.judged:
        return None
    choice, card = state.builder.choice, state.probe.card
    outcome = next(
        (one for one in ("wrong", "unsteady", "alike", "repaired") if one in state.findings), "agree"
    )
    evidence = state.findings.get(outcome, Evidence("", ""))
    return Executed(
        package=choice.package,
        version=choice.version,
        gpu=card.name if card is not None else "",
        compute_capability=card.capability if card is not None else "",
        listed=state.probe.listed,
        precision=state.probe.precision,
        outcome=cast("Outcome", outcome),
        reason=evidence.reason,
        output=evidence.output,
        noise=tuple(state.noise.shares.items()),
    )


def conclude(state: State) -> RungResult:
    """The result of all trials, none of which refutes the fixed model."""
    if not state.judged and state.refused:
        return conclude_as(state, "skipped", state.refused[0].reason, state.refused[0].cause)
    if not state.judged:
        return conclude_as(state, "skipped", "no run finished within the time limit")
    if not any(part.elements for one in state.results for part in one.metrics):
        return conclude_as(state, "skipped", "every output is empty, so no value was compared")
    _add_notes(state)
    for finding, words in (
        ("unsteady", "no fix is to blame"),
        ("alike", "the new model's engine is no worse"),
    ):
        if finding in state.findings:
            reason = state.findings[finding].reason
            if state.single or not state.request.inherit:
                inherited = state.single and finding == "unsteady"
                return conclude_as(state, "failed", reason, inherited=inherited)
            return conclude_as(state, "passed", f"{words}: {reason}")
    parts = [_describe_agreement(state), state.original.lacking]
    if "repaired" in state.findings:
        parts.insert(1, state.findings["repaired"].reason)
    if state.original.silent:
        parts.append(f"there is no reference result: {state.original.silent}")
    return conclude_as(state, "passed", "; ".join(filter(None, parts)))


def _describe_agreement(state: State) -> str:
    """Which of the engines and the reference agree, how far, and on what."""
    counted = [one for one in state.results if one.status in ("identical", "within")]
    oracle = ORACLES[state.original.oracle]
    who = f"{state.engine_name} agrees with {oracle}"
    if any(one.sides == "engines" for one in counted) and "repaired" not in state.findings:
        also = f" and with {oracle}" if any(one.sides != "engines" for one in counted) else ""
        who = f"the engines of the original and of the new model agree with each other{also}"
    allowed = state.request.allowed
    how = f"within {allowed.words}" if allowed is not None else "within tolerance"
    how = "identical" if all(one.status == "identical" for one in counted) else how
    count, sizes = len(state.judged), len(shapes(state.judged))
    over = f" over {sizes} shapes" if sizes > 1 else ""
    return f"{who}: {how} on {count} feed{'s' * (count > 1)}{over}"


def _add_notes(state: State) -> None:
    if state.refused:
        many = f"{len(state.refused)} feeds do" if len(state.refused) > 1 else "1 feed does"
        state.notes.append(f"{many} not count: {state.refused[0].reason}")
    within = "outputs were compared within half precision's tolerance"
    if state.request.trt.tf32:
        state.notes.append(f"TF32 was allowed, and {within}")
    elif state.probe.precision == "tf32":
        state.notes.append(f"TF32 could not be turned off here, and {within}")
    state.notes.extend(state.graces[:1])
    state.notes.extend(state.noise.notes())
    values = [value for one in state.judged if one.expected for value in one.expected.outputs.values()]
    if any(isinstance(value, np.ndarray) and value.dtype == np.float64 for value in values):
        state.notes.append("TensorRT computes float64 as float32, and was compared as such")
    state.notes.append(f"executed by {state.builder.product} on {state.probe.where}")
