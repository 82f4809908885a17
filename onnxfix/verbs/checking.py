"""``check``: the hazards in one model, by the rules, and with ``trt`` by TensorRT."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfix.errors import UsageError
from onnxfix.files import loading
from onnxfix.files.lazy import Pending
from onnxfix.model import Model
from onnxfix.options import RunOptions
from onnxfix.report import confirm
from onnxfix.report.confirm import build_problems, headline, import_notes
from onnxfix.report.findings import finding_of
from onnxfix.report.report import Finding, Report
from onnxfix.rewrite import engine
from onnxfix.runtime import deadline
from onnxfix.runtime.allowance import memory_limit
from onnxfix.runtime.causes import Problem
from onnxfix.verbs.job import Plan, Progress, limited, make_plan
from onnxfix.verbs.opening import Source, name_of, on_disk, refuse_conflicts
from onnxfix.verbs.summing import SEARCHING, bytes_read, complete, lacks_place, node_counts

if TYPE_CHECKING:
    from onnxfix.proof.checks.builder import Builder
    from onnxfix.tensorrt.reading import Reading
    from onnxfix.tensorrt.records import Partition, TrtBuild


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
