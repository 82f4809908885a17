"""``verify``: the checks on two models, or on one and itself."""

from __future__ import annotations

import contextlib
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from onnxfix.errors import about
from onnxfix.files import lazy, loading, tensors, walk
from onnxfix.files.saving import first_changed
from onnxfix.model import Model
from onnxfix.options import RunOptions
from onnxfix.proof.verdict import RungResult, Verdict
from onnxfix.report.report import Report
from onnxfix.runtime import deadline
from onnxfix.runtime.allowance import memory_limit
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.verbs.applying import save_engine, unmeasured
from onnxfix.verbs.checking import bytes_read, node_counts
from onnxfix.verbs.contract import recorded_budget
from onnxfix.verbs.intake import find_stop
from onnxfix.verbs.job import Progress, limited
from onnxfix.verbs.opening import Source, name_of, on_disk, refuse_conflicts
from onnxfix.verbs.proof import comparison_of, run_checks


def verify(
    original: Source, fixed: Source | None, options: RunOptions, progress: Progress | None = None
) -> Report:
    """Compare two models, or with ``fixed`` None one with itself; see :func:`onnxfix.verify`.

    Raises:
        ModelError, UsageError: as there.
    """
    began, say = time.perf_counter(), progress or (lambda text: None)
    comparison = comparison_of(options.verification, options.trt or TrtOptions())
    engine, where, exact = "", None, options.verification.exact
    with ExitStack() as resources:
        resources.enter_context(limited(options.timeout))
        with deadline.watched():
            say("reading")
            first = loading.load(original)
            second = first if fixed is None else loading.load(fixed)
            refuse_conflicts([first, second], options)
            changed = first_changed(first) or first_changed(second)
            nodes = _count_nodes(first), _count_nodes(second)  # refuses what is no graph before anything runs
            resources.enter_context(memory_limit(options.memory_mb))
            a = on_disk(first, resources)
            b = a if fixed is None else on_disk(second, resources)
            say("verifying")
            if changed:  # whatever the model computes, it is not what was proven
                verdict = Verdict((RungResult("contract", "failed", changed),))
            else:
                sources: dict[Path, lazy.Source] = {}
                before, after = (_with_defaults(one, sources) for one in (first, second))
                comparison = replace(comparison, budget=recorded_budget(after, a))
                verdict = run_checks(a, b, before, after, comparison, exact=exact, inherit=False, say=say)
        if not verdict.passed and not changed:
            from onnxfix.verbs.suspects import in_verdict  # lazy: start-up, seldom used

            verdict = in_verdict(verdict, b, replace(options, trt=comparison.trt), second.proto, second.path)
            with contextlib.suppress(deadline.Expired):
                where = find_stop(a, first.proto, verdict)
        first.check()
        second.check()
        if comparison.trt.save_engine and verdict.passed:
            say("building the engine")
            engine = save_engine(b, comparison.trt, verdict, second)
    return Report(
        path=name_of(first),
        command="verify",
        target="",
        output="" if fixed is None else name_of(second),
        engine=engine,
        verdict=verdict,
        stopped=where,
        nodes_before=nodes[0],
        nodes_after=nodes[1],
        operators_before=node_counts(first.proto),
        operators_after=node_counts(second.proto),
        bytes_before=bytes_read(first),
        bytes_after=bytes_read(second),
        seconds=time.perf_counter() - began,
        notes=unmeasured(comparison.trt, verdict),
    )


def _with_defaults(loaded: loading.Loaded, sources: dict[Path, lazy.Source]) -> ModelProto:
    """The model with stand-ins for the defaults of inputs that are external data: the contract compares their bytes, in
    whatever files. ``sources`` keeps these open.

    Raises:
        ModelError: external data is not where it should be.
    """
    inputs = {info.name for info in loaded.proto.graph.input}
    if loaded.base_dir is None or inputs.isdisjoint(tensor.name for tensor in loaded.outside):
        return loaded.proto
    proto = walk.copied(loaded.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in inputs and tensors.is_external(tensor):
            tensors.refer(tensor, loaded.base_dir, sources)
    return proto


def _count_nodes(loaded: loading.Loaded) -> int:
    with about(name_of(loaded)):
        return Model(loaded.proto, loaded.base_dir).node_count
