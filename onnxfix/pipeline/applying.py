"""``apply``, as a straight line of stages: each takes the record of the one before it and returns its own.

ARCHITECTURE.md draws the line, and ``tests/pipeline/test_apply_path.py`` holds a run to the drawing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from onnxfix import deadline
from onnxfix.allowance import memory_limit
from onnxfix.files.lazy import Pending
from onnxfix.options import RunOptions
from onnxfix.pipeline.counting import bytes_read, node_counts
from onnxfix.pipeline.elsewhere import with_other_target
from onnxfix.pipeline.job import Job, resolved
from onnxfix.pipeline.opening import Source, name_of, opened
from onnxfix.pipeline.output import unmeasured, written
from onnxfix.pipeline.plan import Progress, planned
from onnxfix.pipeline.prove import Proven, prove
from onnxfix.pipeline.timing import limited
from onnxfix.report import confirm
from onnxfix.report.from_engine import applied_of, finding_of
from onnxfix.report.report import Report

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
            job = resolved(opened(source, planned(options, progress)))
            resources.enter_context(memory_limit(options.memory_mb))
            proven = prove(job, resources)
        if beyond is not None:
            proven = beyond(job, proven)
        report = written(job, proven, reported(job, proven))
    return replace(report, seconds=time.perf_counter() - began)


def reported(job: Job, proven: Proven) -> Report:
    """What was found, fixed and proven, as a report; nothing is written yet.

    Raises:
        ModelError, OnnxfixError: the input or the candidate is not what was judged.
    """
    job.loaded.check()
    proven.candidate.check()
    pending = Pending(proven.proto, job.loaded)
    notes = (*job.notes, *proven.notes, *unmeasured(job.comparison.trt, proven.verdict))
    run, by_code = proven.run, {rule.code: rule for rule in job.plan.rules}
    report = Report(
        path=name_of(job.loaded),
        command="apply",
        target=job.plan.target.name,
        installed=job.plan.installed,
        findings=tuple(finding_of(item) for item in run.remaining),
        applied=tuple(applied_of(item, by_code[item.key.code]) for item in run.applied),
        withdrawn=proven.withdrawn,
        steps=proven.steps,
        verdict=proven.verdict,
        changed=proven.changed,
        nodes_before=proven.steps[0].nodes_before if proven.steps else run.nodes_before,
        nodes_after=run.nodes_after,
        safety=job.plan.safety.name.lower(),
        operators_before=(before := node_counts(job.loaded.proto)),
        operators_after=node_counts(proven.proto) if proven.changed else before,
        bytes_before=bytes_read(job.loaded),
        rounds=run.rounds,
        problems=run.problems,
        notes=notes,
        pending=pending,
    )
    report = confirm.with_judgments(report, job.plan.rules, job.plan.known)
    report = with_other_target(report, job.loaded.proto, job.loaded.base_dir, job.plan)
    if job.plan.options.pictures:
        from onnxfix.pipeline.picturing import with_pictures  # lazy: start-up, seldom used

        report = with_pictures(report, job.loaded.proto, proven.proto, job.loaded.base_dir)
    if proven.verdict.passed:
        if not job.plan.options.output.diff:
            return report
        from onnxfix.pipeline.differing import with_difference  # lazy: start-up, seldom used

        return with_difference(report, job.loaded.proto, proven.proto, job.loaded.base_dir)
    from onnxfix.pipeline.stopped import stopped  # lazy: start-up, seldom used

    with contextlib.suppress(deadline.Expired):
        where = stopped(proven.original, job.loaded.proto, proven.verdict, job.fixed_inputs)
        report = replace(report, stopped=where)
    return report
