"""``apply``, as a straight line of calls: each takes the records of the ones before it and returns its own.

ARCHITECTURE.md draws the line, and ``tests/verbs/test_apply_path.py`` holds a run to the drawing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from onnxfix.files import loading
from onnxfix.files.lazy import Pending
from onnxfix.model import Model
from onnxfix.options import RunOptions
from onnxfix.proof.verdict import Verdict
from onnxfix.report import confirm
from onnxfix.report.findings import applied_of, finding_of
from onnxfix.report.report import DataFile, Report
from onnxfix.runtime import deadline
from onnxfix.runtime.allowance import memory_limit
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.verbs.checking import (
    SEARCHING,
    bytes_of,
    bytes_read,
    complete,
    foretell_parts,
    lacks_place,
    node_counts,
)
from onnxfix.verbs.job import Job, Progress, limited, prepare
from onnxfix.verbs.opening import Source, name_of, on_disk
from onnxfix.verbs.prove import Proven, prove

#: More that must hold of a result before it is written: it returns the result with a verdict that has it.
Beyond = Callable[[Job, Proven], Proven]


def apply(
    source: Source, options: RunOptions, progress: Progress | None = None, beyond: Beyond | None = None
) -> Report:
    """Fix a model, prove the result, and write it; see :func:`onnxfix.apply`.

    Raises:
        ModelError, UsageError, OnnxfixError: as there.
    """
    began = time.perf_counter()
    with ExitStack() as resources:
        resources.enter_context(limited(options.timeout))
        with deadline.watched():
            job = prepare(source, options, progress)
            resources.enter_context(memory_limit(options.memory_mb))
            cut = foretell_parts(job.plan, on_disk(job.loaded, resources)) if options.partition else None
            proven = prove(job, resources)
            after = foretell_parts(job.plan, proven.candidate.path) if cut and proven.changed else cut
        if beyond is not None:
            proven = beyond(job, proven)
        report = write(job, proven, summarize(job, proven))
    seconds = time.perf_counter() - began
    return replace(report, seconds=seconds, partition=cut, partition_after=after)


def summarize(job: Job, proven: Proven) -> Report:
    """What was found, fixed and proven, as a report; nothing is written yet.

    Raises:
        ModelError, OnnxfixError: the input or the candidate is not what was judged.
    """
    job.loaded.check()
    proven.candidate.check()
    plan, loaded, run = job.plan, job.loaded, proven.run
    by_code = {rule.code: rule for rule in plan.rules}
    pending = Pending(proven.proto, loaded)
    before = node_counts(loaded.proto)
    after = node_counts(proven.proto) if proven.changed else before
    notes = (*job.notes, *proven.notes, *unmeasured(job.comparison.trt, proven.verdict))
    report = Report(
        path=name_of(loaded),
        command="apply",
        target=plan.target.name,
        installed=plan.installed,
        producer=loaded.proto.producer_name,
        findings=tuple(finding_of(item) for item in run.remaining),
        applied=tuple(applied_of(item, by_code[item.key.code]) for item in run.applied),
        withdrawn=proven.withdrawn,
        steps=proven.steps,
        verdict=proven.verdict,
        changed=proven.changed,
        nodes_before=proven.steps[0].nodes_before if proven.steps else run.nodes_before,
        nodes_after=run.nodes_after,
        safety=plan.safety.name.lower(),
        operators_before=before,
        operators_after=after,
        bytes_before=bytes_read(loaded),
        rounds=run.rounds,
        problems=run.problems,
        notes=notes,
        pending=pending,
    )
    report = complete(_judge(job, proven, report), loaded, plan, proven.proto)
    if not proven.verdict.passed:
        from onnxfix.verbs.intake import find_stop  # lazy: start-up, seldom used

        with contextlib.suppress(deadline.Expired):
            where = find_stop(proven.original, loaded.proto, proven.verdict, job.fixed_inputs)
            report = replace(report, stopped=where)
    elif plan.options.output.diff:
        from onnxfix.verbs.difference.compare import difference  # lazy: start-up, seldom used

        first, second = (Model(proto, loaded.base_dir) for proto in (loaded.proto, proven.proto))
        fixes = [(one.code, one.place) for one in report.applied]
        changes = difference(first, second, (report.path, "the result"), fixes)
        report = replace(report, difference=changes)
    return report


def _judge(job: Job, proven: Proven, report: Report) -> Report:
    """The report with the results of onnx.checker and TensorRT, and with the nodes that TensorRT did not name."""
    plan, verdict = job.plan, proven.verdict
    judged = confirm.add_judgments(report, plan.rules, plan.known)
    if not lacks_place(judged.findings):
        return judged
    from onnxfix.verbs.suspects import in_verdict  # lazy: start-up, seldom used

    plan.say(SEARCHING)
    options = replace(plan.options, trt=job.comparison.trt)
    path = proven.candidate.path if proven.changed else proven.original
    written = job.destination if proven.changed and verdict.passed else None
    verdict = in_verdict(verdict, path, options, job.loaded.proto, written or job.loaded.path)
    return confirm.add_judgments(replace(report, verdict=verdict), plan.rules, plan.known)


def write(job: Job, proven: Proven, report: Report) -> Report:
    """Write the requested files if the model is proven; the report, with what was written.

    Raises:
        ModelError: the input has changed since it was read: the proof would be of another model.
        OnnxfixError: a file cannot be written. Nothing half-written is left behind.
    """
    if not proven.verdict.passed:
        return report
    trt, candidate, destination = job.comparison.trt, proven.candidate, job.destination
    if trt.save_engine:
        job.plan.say("building the engine")
        path = candidate.path if proven.changed else proven.original
        saved = save_engine(path, trt, proven.verdict, job.loaded, candidate.check)
        report = replace(report, engine=saved)
    if destination is None:
        return report
    job.plan.say("writing")
    job.loaded.check()
    in_place = job.plan.options.output.in_place
    if proven.changed or not in_place:
        if not proven.changed and not candidate.rewritten:
            candidate.copy()  # byte for byte
        candidate.install(in_place=in_place)
    data = []
    for name in candidate.locations:  # the files beside the result that have weights of it
        own, path = candidate.split and name == candidate.location, destination.parent / name
        kind = "own" if own else "shared" if name in candidate.shared else "kept"
        data.append(DataFile(str(path), bytes_of(path), kind, candidate.shared.get(name, "")))
    size = bytes_of(destination) + sum(one.bytes for one in data)
    report = replace(report, output=str(destination), bytes_after=size, data=tuple(data))
    return replace(report, pending=Pending(candidate.proto, job.loaded)) if candidate.split else report


def save_engine(
    path: Path,
    trt: TrtOptions,
    verdict: Verdict,
    loaded: loading.Loaded,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Build and save the engine of the model in a file, which ``trt`` names; returns that file.

    ``verdict`` has the build of the check trt-build. ``loaded`` is the model that was read, and ``check`` raises where
    the file is not what was proven.
    """
    from onnxfix.proof.checks.builder import save_engine  # lazy: start-up, seldom used

    rung = verdict.rung("trt-build")
    assert rung is not None  # required wherever an engine is to be saved

    def unchanged() -> None:
        loaded.check()
        check()

    return save_engine(path, trt, rung.builds[-1], unchanged, loaded.mode)


def unmeasured(trt: TrtOptions, verdict: Verdict) -> tuple[str, ...]:
    """A note where latency was requested and no check measured it."""
    rung = verdict.rung("trt-gpu")
    if not trt.benchmark or (rung is not None and rung.latency is not None):
        return ()
    return (f"no latency was measured: the check trt-gpu {'did not run' if rung is None else 'broke'}",)
