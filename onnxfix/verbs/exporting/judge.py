"""The check ``pytorch``: the module's own outputs beside those of the exported model and of the result.

A difference that the exported model has is the exporter's, one that only the result has is a fix's. All other checks
compare the two models with each other, and cannot see the first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix.inputs.feeds.signature import Signature, signature
from onnxfix.names import PYTORCH
from onnxfix.proof.checks import sessions
from onnxfix.proof.checks.sessions import Sessions
from onnxfix.proof.compare.compare import (
    Metrics,
    Terms,
    agreement,
    compare,
    compare_outputs,
    different,
    moved_by,
)
from onnxfix.proof.compare.tolerance import SHARE, Allowed, shaken
from onnxfix.proof.compare.twin import half_type
from onnxfix.proof.verdict import Blame, Exported, FeedResult, RungResult, Side, Sides, unjudged
from onnxfix.runtime import backends
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.sandbox import one_line, shared
from onnxfix.tensorrt.engine import Ran
from onnxfix.verbs.exporting.pytorch import Case, Subject, cases, wire_inputs

STEP = 120.0
"""Seconds to load a model, and to run it once."""
TOTAL = 300.0
"""Seconds after which no further inputs are tried."""
_RUNTIMES = ("ort-cpu", "reference")
_FILES: dict[Sides, str] = {"export": "the exported model", "result": "the result"}


def judge(
    subject: Subject, exported: Path, result: Path, *, seed: int = 0, allowed: Allowed | None = None
) -> RungResult:
    """Run the module and both models on the same inputs, and compare.

    Args:
        subject: the module, which runs in this process.
        exported: the file that the exporter wrote.
        result: the fixed model; the same file where nothing was fixed.
        seed: of the inputs that are made besides the given ones.
        allowed: the user's tolerance, in the place of those of the element types.

    Raises:
        ModelError: a file is no model.
    """
    began = time.monotonic()
    found = _Judge(subject, exported, result, seed, allowed).judge()
    return replace(found, seed=seed, seconds=time.monotonic() - began)


class _Failed(Exception):
    """Nothing can be compared, for the reason that it names, on any or on this input."""


class _Judge:
    def __init__(
        self, subject: Subject, exported: Path, result: Path, seed: int, allowed: Allowed | None
    ) -> None:
        self.subject, self.seed, self.allowed = subject, seed, allowed
        # A sandbox stays in the folder that it was started in.
        self.paths: dict[Sides, Path] = {"export": exported.absolute(), "result": result.absolute()}
        self.known: Signature = signature(exported)
        self.outputs = [one.name for one in self.known.model.graph.output]
        self.coarse = half_type(self.known.model)
        self.excluded: set[str] = set(self.known.drawn or ())
        self.feeds: list[FeedResult] = []
        self.notes: list[str] = []
        self.shapes: set[tuple[tuple[int, ...], ...]] = set()
        self.counted = 0
        self.differs: dict[Sides, FeedResult] = {}

    def judge(self) -> RungResult:
        """The check's result."""
        wires, reason = wire_inputs(self.subject.given, self.known)
        if reason:
            return self._unjudged(f"it is not known which argument is which input: {reason}")
        try:
            self._exclude_unsteady()
            sides = self._load()
        except _Failed as failure:
            return self._unjudged(*failure.args)
        deadline = time.monotonic() + TOTAL
        try:
            for case in cases(self.subject.given, wires, self.known, self.subject.bounds, self.seed):
                if time.monotonic() > deadline:
                    self.notes.append(f"no inputs were tried after {TOTAL:g} s")
                    break
                self._try(case, wires, sides)
        finally:
            for side, session in sides.items():
                session.forget(side)
        return self._conclude()

    # -- the module

    def _exclude_unsteady(self) -> None:
        """Find outputs that differ from run to run.

        Raises:
            _Failed: nothing is left to be compared.
        """
        arrays = [one.array for one in self.subject.given]
        try:
            first, second = self.subject.run(arrays), self.subject.run(arrays)
        except Exception as error:
            raise _Failed(f"the module fails on the given inputs: {_describe(error)}") from None
        if len(first) != len(self.outputs):
            raise _Failed(
                f"the module gives {_count(first, 'tensor')}, and the exported model has "
                f"{_count(self.outputs, 'output')} ({', '.join(self.outputs)})"
            )
        for name, a, b in zip(self.outputs, first, second, strict=True):
            if different(compare(name, a, b, exact=False)):
                self.excluded.add(name)
        if len(self.excluded) == len(self.outputs):
            raise _Failed(
                "the module gives other values each time: it draws random numbers, or keeps a state"
            )

    def _expect(self, case: Case) -> tuple[dict[str, Any], dict[str, float]]:
        """What the module computes on a case, and how far its own rounding lets others be from that, by output.

        Raises:
            _Failed: it does not take it.
        """
        try:
            values = dict(zip(self.outputs, self.subject.run(case.arrays), strict=True))
            feed = shaken({str(number): value for number, value in enumerate(case.arrays)}, self.seed)
            others = dict(zip(self.outputs, self.subject.run([*feed.values()]), strict=True))
        except Exception as error:
            raise _Failed(f"the module does not take it: {_describe(error)}") from None
        floats = {name: value for name, value in values.items() if value.dtype.kind not in "biu"}
        return values, {name: SHARE * moved_by(name, value, others[name]) for name, value in floats.items()}

    # -- the models

    def _load(self) -> dict[Sides, Sessions]:
        """Both models in a runtime that loads both.

        Raises:
            _Failed: there is none; with the cause.
        """
        reasons: list[str] = []
        cause: Cause = ""
        same = self.paths["export"] == self.paths["result"]
        wanted: list[Sides] = ["export"] if same else ["export", "result"]
        for runtime in _RUNTIMES:
            reason = backends.missing(runtime) or ""
            loaded: dict[Sides, Sessions] = {}
            for side in wanted if not reason else ():
                worker = shared(f"pytorch beside {runtime}")
                session = Sessions(
                    worker, sessions.__name__, {"backend": runtime}, loading=STEP, running=STEP
                )
                reason = session.load(side, str(self.paths[side]))
                if reason:
                    reason, cause = f"{_FILES[side]} does not load: {reason}", session.last.cause or cause
                    break
                loaded[side] = session
            if not reason:
                return loaded
            reasons.append(f"{runtime}: {reason}")
        raise _Failed("; ".join(reasons), cause)

    def _try(self, case: Case, wires: Mapping[int, str], sides: Mapping[Sides, Sessions]) -> None:
        """One case on the module and the models."""
        given = 1 if not case.sizes and case.label == "the given inputs" else 0
        try:
            values, slack = self._expect(case)
        except _Failed as failure:
            self.feeds.append(FeedResult(case.label, None, "not counted", str(failure), given=given))
            return
        feed = {name: case.arrays[number] for number, name in wires.items()}
        judged = False
        for side, session in sides.items():
            result = self._compare(side, session.run(side, feed), case.label, values, slack)
            self.feeds.append(replace(result, given=given))
            judged = judged or result.status != "not counted"
            if result.status == "different":
                self.differs.setdefault(side, result)
                break  # the result has what the export has
        if judged:
            self.counted += 1
            self.shapes.add(tuple(np.shape(one) for one in case.arrays))

    def _compare(
        self, side: Sides, ran: Ran, label: str, values: dict[str, Any], slack: dict[str, float]
    ) -> FeedResult:
        result = FeedResult(
            label, None, "not counted", ran.error, said=ran.error, cause=ran.cause, sides=side
        )
        if ran.error and ran.cause in ("memory", "timeout"):
            return result
        if ran.error:
            reason = f"{_FILES[side]} fails where PyTorch does not: {one_line(ran.error)}"
            stopped: Side = "original" if side == "export" else "fixed"
            return replace(result, status="different", reason=reason, stopped=stopped)
        terms = Terms(coarse=self.coarse, allowed=self.allowed)
        names = [name for name in values if name not in self.excluded]
        metrics = compare_outputs(names, values, ran.outputs, terms, slack=slack)
        reason = next(map(_words, different(metrics)), "")
        return replace(result, status=agreement(metrics), reason=reason, metrics=metrics)

    # -- the result

    def _conclude(self) -> RungResult:
        blame: Blame = "export" if "export" in self.differs else "fix" if "result" in self.differs else ""
        first = self.differs.get("export") or self.differs.get("result")
        bad = next((one.output for one in different(first.metrics)), "") if first else ""
        if first is not None:
            what = (
                "the export is wrong, before any fix"
                if blame == "export"
                else "the export is right and the result is not"
            )
            reason = f"{what}: {first.reason} ({first.label})"
        elif not self.counted:
            why = next((one.reason for one in self.feeds), "no inputs")
            return self._unjudged(f"nothing was compared: {why}")
        else:
            good = [one for one in self.feeds if one.status in ("identical", "within")]
            how = "identical" if all(one.status == "identical" for one in good) else "within tolerance"
            over = f" over {len(self.shapes)} shapes" if len(self.shapes) > 1 else ""
            both = " and the result" * (len({one.sides for one in good}) > 1)
            feeds = f"{self.counted} feed{'s' * (self.counted != 1)}"
            reason = f"{how} on {feeds}{over}: PyTorch {self.subject.torch}, the exported model{both}"
        return RungResult(
            PYTORCH,
            "failed" if blame else "passed",
            reason,
            tuple(self.feeds),
            tuple(sorted(self.excluded)),
            tuple(self.notes),
            exported=replace(self._about(), blame=blame, output=bad),
        )

    def _about(self) -> Exported:
        subject = self.subject
        return Exported(subject.torch, subject.exporter, inputs=self.counted, sizes=len(self.shapes))

    def _unjudged(self, reason: str, cause: Cause = "") -> RungResult:
        return replace(unjudged(PYTORCH, reason, cause), exported=self._about(), feeds=tuple(self.feeds))


_SUBJECTS = {"shape": "shape", "dtype": "type", "structure": "structure"}


def _words(metric: Metrics) -> str:
    """What differs, with PyTorch's values first."""
    name = f"output {metric.output}"
    if metric.sides is not None:
        there, here = metric.sides
        return f"{name} has {_SUBJECTS.get(metric.kind, metric.kind)} {there} in PyTorch, {here} in ONNX"
    if metric.at is None or metric.values is None:
        return f"{name}: {metric.reason}"
    there, here = metric.values
    return f"{name}: {metric.reason}, {metric.place}: {there} in PyTorch, {here} in ONNX"


def _count(items: Sequence[object], name: str) -> str:
    return f"{len(items)} {name}{'s' * (len(items) != 1)}"


def _describe(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", 300)
