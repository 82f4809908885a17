"""Fixes that the rules have for the TensorRT that judges a model, where they have none for the target."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from onnxfix import deadline, engine, system
from onnxfix.model import Model
from onnxfix.pipeline.plan import Plan
from onnxfix.report.from_engine import finding_of
from onnxfix.report.report import Report
from onnxfix.report.summary import OPTIONS, SAFETIES
from onnxfix.targets import target_judging

_REFUSED = ("TRT001", "TRT002")


def with_other_target(report: Report, proto: ModelProto, base_dir: Path | None, plan: Plan) -> Report:
    """The report with a note that names the command, where TensorRT refuses a model that no fix for the target repairs,
    and there are fixes for what the judging TensorRT is."""
    if (
        not report.builds
        or report.path.startswith("<")
        or all(item.code not in _REFUSED or item.fix for item in report.findings)
    ):
        return report
    judge = target_judging(report.builds[0].package, report.builds[0].version)
    if judge is None or judge is plan.target:
        return report
    model = Model(proto, base_dir)
    model.target = judge
    known = {(item.code, item.place) for item in report.findings}
    known.update((item.code, item.place) for item in report.applied)
    found = []
    with contextlib.suppress(deadline.Expired):  # the report stands without
        found = [finding_of(item) for item in engine.check(model, plan.rules)]
    fixes = [
        item
        for item in found
        if item.fix and item.severity == "error" and (item.code, item.place) not in known
    ]
    if not fixes:
        return report
    safety = max((item.safety for item in fixes), key=SAFETIES.index)
    words = ["onnxfix apply", system.quoted_path(report.path), f"--target {judge.name}", OPTIONS[safety]]
    codes = ", ".join(sorted({item.code for item in fixes}))
    note = f"for {judge.title}, which judged it, there is a fix ({codes}): {' '.join(words).strip()}"
    return replace(report, notes=(*report.notes, note))
