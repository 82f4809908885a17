"""What the rung trt-gpu knows of one pair of models while it compares them: records that its steps share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from onnxfix.causes import Cause
from onnxfix.trt.engine import Ran
from onnxfix.trt.records import Profile, TrtBuild
from onnxfix.verification.feeds.profiles import given_profiles
from onnxfix.verification.remote import less
from onnxfix.verification.request import Request
from onnxfix.verification.rungs.builder import Builder
from onnxfix.verification.rungs.judge import Terms
from onnxfix.verification.rungs.noise import Noise
from onnxfix.verification.rungs.probe import Probe
from onnxfix.verification.rungs.sessions import Sessions
from onnxfix.verification.rungs.trials import Trial
from onnxfix.verification.verdict import FeedResult

REPEATS = 3
"""How often an engine runs on the first inputs, to compare the bits of its outputs."""
CONTEXTS = 3
"""How often each of two builds of the new model is loaded before a fix is blamed. Of 20 contexts of FastViT, loaded by
TensorRT-RTX 1.6.1 on an H200, 6 were wrong by the whole scale, of the original as of the fixed model."""


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


@dataclass
class Progress:
    """What the rung has seen so far. ``excluded`` are outputs that are random, or not the same in two runs."""

    results: list[FeedResult] = field(default_factory=list)
    judged: list[Trial] = field(default_factory=list)
    findings: dict[str, Evidence] = field(default_factory=dict)  # the first of each finding
    refused: list[FeedResult] = field(default_factory=list)  # that do not count
    excluded: set[str] = field(default_factory=set)
    unsteady: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    graces: list[str] = field(default_factory=list)  # differences that the kernels explain
    deaths: int = 0  # runs of engines that failed


class State:
    """One climb of the rung. ``builder`` builds the engines in ``folder``, and they run in ``engines``; ``probe`` is
    what engines do on this machine. ``builds`` are of "original" (unless it is the same file) and of "fixed"."""

    def __init__(
        self, request: Request, builder: Builder, probe: Probe, folder: Path, engines: Sessions
    ) -> None:
        self.request, self.builder, self.probe, self.folder = request, builder, probe, folder
        self.engines = engines
        self.single = request.fixed == request.original
        self.seen = Progress(excluded=set(request.known.drawn or ()), notes=list(builder.notes()))
        self.builds: dict[str, TrtBuild] = {}
        self.given: tuple[Profile, ...] | None = given_profiles(request.trt, request.known)
        self.original = Original([], [], "ort-cpu", "")
        self.noise = self.measuring()

    def measuring(self) -> Noise:
        """What measures the rounding of the original on its trials."""
        one, request = self.original, self.request
        half = bool(request.coarse)
        return Noise(request.worker, request.original, one.trials, one.oracle, step=request.step, half=half)

    @property
    def name(self) -> str:
        """The model that is judged, for people."""
        return "the model" if self.single else "the new model"

    @property
    def engine_name(self) -> str:
        """Its engine, for people."""
        return "the engine" if self.single else "the new model's engine"

    def file(self, name: str) -> str:
        """Where the engine of "original" or "fixed" is."""
        return str(self.folder / f"{name}.engine")

    def execute(self, name: str, trial: Trial, *, first: bool) -> Ran:
        """Run an engine, the ``first`` time as often as it takes to see whether it gives the same bits each time."""
        values = less(trial.values, self.request.without) if name == "fixed" else trial.values
        ran = self.engines.run(name, values, times=REPEATS if first else 1)
        if ran.late:
            ran = replace(ran, error=f"{self.builder.product} {ran.error}")
        return ran

    def terms(self, names: Sequence[str] | None = None) -> Terms:
        """How outputs are compared: those of these names, by default all."""
        request = self.request
        # TF32 keeps as many digits as half precision.
        coarse = "float16" if request.trt.tf32 or self.probe.precision == "tf32" else ""
        return Terms(
            names=[one.name for one in request.known.model.graph.output] if names is None else names,
            excluded=frozenset(self.seen.excluded),
            coarse=request.coarse or coarse,
            allowed=request.allowed,
            oracle=self.original.oracle,
            engine=self.engine_name,
            single=self.single,
        )
