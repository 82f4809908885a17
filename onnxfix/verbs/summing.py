"""Facts that several commands report about a model and about the TensorRT that judged it."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from onnxfix.files import dtypes, loading, tensors, walk
from onnxfix.model import Model
from onnxfix.report.findings import OPTIONS, SAFETIES, Finding, finding_of
from onnxfix.report.report import NodeCounts, Report
from onnxfix.rewrite import engine
from onnxfix.runtime import deadline, system
from onnxfix.targets import target_judging
from onnxfix.verbs.job import Plan

_ONNX = ("", "ai.onnx")
SEARCHING = "looking for the node that TensorRT does not name"
_REFUSED = ("TRT001", "TRT002")


def node_counts(proto: ModelProto) -> NodeCounts:
    """The number of nodes by operator, at any depth, and the size of weights. Constant nodes are counted separately."""
    counts = Counter((node.domain, node.op_type) for node in walk.model_nodes(proto))
    constants = sum(counts.pop((domain, "Constant"), 0) for domain in _ONNX)
    by_name: Counter[str] = Counter()
    for (domain, name), count in counts.items():
        by_name[name if domain in _ONNX else f"{domain}.{name}"] += count
    ordered = sorted(by_name.items(), key=lambda item: (-item[1], item[0]))
    weights: Counter[str] = Counter()
    for tensor in walk.model_tensors(proto):
        weights[dtypes.name_of(tensor.data_type)] += tensors.nbytes(tensor)
    return NodeCounts(dict(ordered), constants, dict(weights.most_common()))


def bytes_read(loaded: loading.Loaded) -> int:
    """Bytes of a model's file and of its external data."""
    return loaded.size + sum(bytes_of((loaded.base_dir or Path()) / name) for name in loaded.external)


def bytes_of(path: Path) -> int:
    """Bytes of a file; 0 if it is gone or not readable: a missing size is not an error."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def lacks_place(findings: Iterable[Finding]) -> bool:
    """Whether TensorRT refuses the model, and neither TensorRT nor a rule names a node."""
    return any(item.code in _REFUSED and not (item.place.label or item.place.graph) for item in findings)


def complete(report: Report, loaded: loading.Loaded, plan: Plan, result: ModelProto | None = None) -> Report:
    """Add a note on another target's fixes, and requested pictures. ``result`` is the fixed model."""
    report = _add_other_target(report, loaded, plan)
    if not plan.options.pictures:
        return report
    from onnxfix.verbs.picturing import with_pictures  # lazy: start-up, seldom used

    return with_pictures(report, loaded.proto, result, loaded.base_dir)


def _add_other_target(report: Report, loaded: loading.Loaded, plan: Plan) -> Report:
    """Add a note with a command if TensorRT refuses the model, no fix for the run's target repairs it, and
    the judging TensorRT belongs to another target that has fixes."""
    refused = any(item.code in _REFUSED and not item.fix for item in report.findings)
    if not report.builds or report.path.startswith("<") or not refused:
        return report
    package, version = report.builds[0].package, report.builds[0].version
    judge = target_judging(package, version)
    if judge is None or plan.target.includes(package, version):
        return report
    model = Model(loaded.proto, loaded.base_dir)
    model.target = judge
    reported = {(item.code, item.place) for item in report.findings}
    reported.update((item.code, item.place) for item in report.applied)
    fixes = []
    with contextlib.suppress(deadline.Expired):  # the note is optional
        for match in engine.check(model, plan.rules):
            item = finding_of(match)
            if item.fix and item.severity == "error" and (item.code, item.place) not in reported:
                fixes.append(item)
    if not fixes:
        return report
    safety = max((item.safety for item in fixes), key=SAFETIES.index)
    words = ["onnxfix apply", system.quoted_path(report.path), f"--target {judge.name}", OPTIONS[safety]]
    codes = ", ".join(sorted({item.code for item in fixes}))
    note = f"for {judge.title}, which judged it, there is a fix ({codes}): {' '.join(words).strip()}"
    return replace(report, notes=(*report.notes, note))
