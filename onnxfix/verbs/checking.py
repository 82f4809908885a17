"""``check``: the hazards in one model, by the rules, and with ``trt`` by TensorRT; and facts that several commands
report about a model and about the TensorRT that judged it."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onnx import ModelProto

from onnxfix.errors import UsageError
from onnxfix.files import dtypes, loading, tensors, walk
from onnxfix.files.lazy import Pending
from onnxfix.model import Model
from onnxfix.options import RunOptions
from onnxfix.report import confirm
from onnxfix.report.confirm import build_problems, headline, import_notes
from onnxfix.report.findings import OPTIONS, SAFETIES, Finding, finding_of
from onnxfix.report.report import NodeCounts, Report
from onnxfix.rewrite import engine
from onnxfix.runtime import deadline, system
from onnxfix.runtime.allowance import memory_limit
from onnxfix.runtime.causes import Problem
from onnxfix.targets import target_judging
from onnxfix.verbs.job import Plan, Progress, limited, make_plan
from onnxfix.verbs.opening import Source, name_of, on_disk, refuse_conflicts

if TYPE_CHECKING:
    from onnxfix.proof.checks.builder import Builder
    from onnxfix.tensorrt.reading import Reading
    from onnxfix.tensorrt.records import Partition, TrtBuild

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


def check(source: Source, options: RunOptions, progress: Progress | None = None) -> Report:
    """List the hazards in a model; see :func:`onnxfix.check`.

    Raises:
        ModelError, UsageError: as there.
    """
    with limited(options.timeout), deadline.watched():
        return _check(source, make_plan(options, progress))


def _check(source: Source, plan: Plan) -> Report:
    began, options = time.perf_counter(), plan.options
    problems: list[Problem] = []
    build = reading = accepted = cut = None
    notes: tuple[str, ...] = ()
    with memory_limit(options.memory_mb), ExitStack() as resources:
        builder = _require_tensorrt(plan, resources)
        plan.say("reading")
        loaded = loading.load(source)
        refuse_conflicts([loaded], options)
        model = Model(loaded.proto, loaded.base_dir)
        model.target = plan.target
        plan.say("checking")
        findings = tuple(finding_of(item) for item in engine.check(model, plan.rules, problems))
        if options.partition:
            cut = foretell_parts(plan, on_disk(loaded, resources))
            cut = confirm.name_remedies(cut, findings, plan.known)
        if builder is not None:
            path = on_disk(loaded, resources)
            build, reading, findings = _ask(plan, builder, path, loaded, findings, problems)
            notes = (*builder.notes(), *import_notes(reading))
        if options.inputs_help:
            from onnxfix.verbs.intake import intake  # lazy: start-up, seldom used

            plan.say("trying sizes")
            accepted = intake(on_disk(loaded, resources))
    loaded.check()  # TensorRT has read it again
    problems.extend(build_problems(build, reading))
    if loaded.oversize:
        notes += (
            f"a protobuf of {loaded.size / 1e9:.1f} GB is more than ONNX Runtime, TensorRT and onnx read (2 GB); "
            "apply puts its weights beside it",
        )
    networks = [reading] if reading is not None else []
    counts = node_counts(loaded.proto)
    report = Report(
        path=name_of(loaded),
        command="check",
        target=plan.target.name,
        installed=plan.installed,
        producer=loaded.proto.producer_name,
        headline=headline([build], networks, always=True) if build is not None else "",
        findings=findings,
        build=build,
        network=reading,
        partition=cut,
        intake=accepted,
        nodes_before=model.node_count,
        nodes_after=model.node_count,
        operators_before=counts,
        operators_after=counts,
        bytes_before=bytes_read(loaded),
        seconds=time.perf_counter() - began,
        problems=tuple(dict.fromkeys(problems)),
        notes=notes,
        pending=Pending(loaded.proto, loaded),
    )
    return complete(report, loaded, plan)


def foretell_parts(plan: Plan, path: Path) -> Partition:
    """How ONNX Runtime's TensorRT provider would cut a model file.

    Raises:
        UsageError: no TensorRT is installed that can be asked.
    """
    from onnxfix.proof.asking import cut  # lazy: start-up, seldom used
    from onnxfix.tensorrt.records import TrtOptions  # lazy: start-up

    plan.say("asking TensorRT's parser for its parts")
    own = plan.options.trt or TrtOptions(memory_mb=plan.options.memory_mb)
    return cut(path, replace(own, target=plan.target.name))


def _ask(
    plan: Plan,
    builder: Builder,
    path: Path,
    loaded: loading.Loaded,
    own: Sequence[Finding],
    problems: list[Problem],
) -> tuple[TrtBuild, Reading | None, tuple[Finding, ...]]:
    """TensorRT's build of the model file, how it reads the model, and the findings of both beside the rules' ``own``.
    Where TensorRT and the rules name no node, it is searched."""
    from onnxfix.proof.asking import judge_model  # lazy: start-up, seldom used

    plan.say("asking TensorRT")
    reads, verification = any(rule.per == "network" for rule in plan.rules), plan.options.verification
    build, reading = judge_model(builder, path, loaded.proto, verification, plan.say, reads=reads)
    findings = confirm.merge_findings(own, build, plan.rules, plan.known, problems, reading)
    if lacks_place(findings):
        from onnxfix.verbs.suspects import name_suspects  # lazy: start-up, seldom used

        plan.say(SEARCHING)
        options = replace(plan.options, trt=builder.options)
        build = name_suspects(build, path, options, loaded.proto, loaded.path)
        findings = confirm.merge_findings(own, build, plan.rules, plan.known, problems, reading)
    return build, reading, findings


def _require_tensorrt(plan: Plan, resources: ExitStack) -> Builder | None:
    """TensorRT, which is closed with the resources; None where it is not used.

    Raises:
        UsageError: it is not available, which the user should learn before any work.
    """
    if plan.options.trt is None:
        return None
    trt = replace(plan.options.trt, target=plan.target.name)
    if trt.save_engine:
        raise UsageError("check writes no engine; use apply or verify")
    from onnxfix.proof.asking import require_tensorrt  # lazy: start-up, seldom used

    return resources.enter_context(closing(require_tensorrt(trt)))
