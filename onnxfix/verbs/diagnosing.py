"""``diagnose``: files, inputs and tools for a diagnosis."""

from __future__ import annotations

import functools
import tempfile
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfix.diagnosis.bench import Bench, Clock
from onnxfix.diagnosis.diagnose import Case
from onnxfix.diagnosis.diagnose import diagnose as run
from onnxfix.diagnosis.engines import with_layers
from onnxfix.diagnosis.explain import Explainer
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.opening import opened
from onnxfix.diagnosis.records import Against, Diagnosis
from onnxfix.diagnosis.rows import Side
from onnxfix.diagnosis.sides import Impossible, itself, lowered, optimized, paired
from onnxfix.errors import UsageError
from onnxfix.files import loading
from onnxfix.inputs.feeds.plan import generate_mild
from onnxfix.inputs.feeds.signature import signature
from onnxfix.options import RunOptions
from onnxfix.proof import cuda
from onnxfix.proof.request import read_feeds
from onnxfix.report.report import runtimes
from onnxfix.runtime import backends
from onnxfix.runtime.allowance import memory_limit
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import shared
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.verbs.contract import recorded_budget
from onnxfix.verbs.job import Progress
from onnxfix.verbs.opening import Source, name_of, on_disk

if TYPE_CHECKING:
    from onnxfix.proof.checks.builder import Builder

_EVALUATED = "nodes without a kernel in ONNX Runtime were computed by onnx's reference evaluator"
SAMPLES = 2
"""Generated samples."""
MOST_SAMPLES = 16
"""Samples of the user's inputs that are walked through."""


def diagnose(
    first: Source,
    second: Source | None,
    against: Against | None,
    options: RunOptions,
    *,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Where a model and the other side begin to differ; see :func:`onnxfix.diagnose`.

    Raises:
        ModelError, UsageError: as there.
    """
    say = progress or (lambda text: None)
    if second is not None and against not in (None, "model", "trt-gpu"):
        raise UsageError(
            f"--against {against} is for one model; of two, the second or its engine is the other side"
        )
    if second is None and against in (None, "model"):
        raise UsageError("name a second model, or what to compare with: --against")
    backends.require("ort-cpu", "diagnose")
    say("reading")
    one = loading.load(first)
    two = loading.load(second) if second is not None else None
    try:
        return _diagnose(one, two, against or "model", options, timeout, say)
    finally:  # a file that was changed meanwhile is the reason for whatever else was seen
        for loaded in (one, two):
            if loaded is not None:
                loaded.check()


def _diagnose(
    one: loading.Loaded,
    two: loading.Loaded | None,
    against: Against,
    options: RunOptions,
    timeout: float | None,
    say: Progress,
) -> Diagnosis:
    with ExitStack() as stack:
        stack.enter_context(memory_limit(options.memory_mb))
        path = on_disk(one, stack)
        other = on_disk(two, stack) if two is not None else None
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
        # ONNX Runtime with its optimizations keeps more digits than half precision has.
        bench = Bench(shared(), scratch, clock=Clock(timeout), rounding=against != "ort-cpu")
        builder = None
        if against in ("trt-network", "trt-gpu"):
            from onnxfix.proof.asking import require_tensorrt  # lazy: start-up, seldom used

            builder = stack.enter_context(closing(require_tensorrt(options.trt or TrtOptions())))
        truth = opened(path, bench)
        known = signature(one.proto)
        base = Diagnosis(
            name_of(one),
            against,
            name_of(two) if two is not None else "",
            "unknown",
            truth="ONNX Runtime on the CPU, without optimizations",
            environment={
                **runtimes(),
                **({builder.choice.package: builder.choice.version} if builder else {}),
            },
        )
        given = read_feeds(known, options.verification.inputs)
        for name in dict.fromkeys(name for sample in given or () for name in sample):
            if known[name].default is not None:
                raise UsageError(f"input {name} has a default, which diagnose does not replace: leave it out")
        shapes, seed = options.verification.input_shapes, options.verification.seed
        samples = functools.partial(generate_mild, known, shapes, seed) if given is None else lambda: given
        say("preparing the other side")
        try:
            like = None
            if other is not None:
                like = paired(truth, opened(other, bench), str(other), bench, samples())
            prepared = _prepare(truth, like, against, bench, builder, stack)
        except Impossible as error:
            return replace(base, reason=str(error), cause=error.cause)
        count = min(len(given), MOST_SAMPLES) if given is not None else SAMPLES
        engines = prepared.engines
        allowed = recorded_budget(two.proto, path) if two is not None else None
        explainer = Explainer(against, truth, prepared, name_of(one))
        case = Case(truth, prepared, samples(), count, given is None, explainer, allowed)
        found = run(case, bench, base, say)
        if engines is not None and found.culprits:
            say("looking up the engine's layers")
            found = with_layers(found, engines, other or path)
        if found.exit_code == 0:  # what the proof lets pass needs nothing to be done
            found = replace(found, culprits=tuple(replace(one, advice="") for one in found.culprits))
        return replace(found, notes=(*found.notes, _EVALUATED)) if bench.evaluated else found


def _prepare(
    truth: Graph, like: Side | None, against: Against, bench: Bench, builder: Builder | None, stack: ExitStack
) -> Side:
    """The other side; ``like`` is the second model.

    Raises:
        Impossible: it does not run on this machine.
    """
    if against == "trt-gpu":
        from onnxfix.diagnosis.engines import Engines, prepared  # lazy: start-up, seldom used
        from onnxfix.proof.checks import probe  # lazy: start-up, seldom used

        assert builder is not None
        here = probe.probe(builder)
        if here.reason:
            raise Impossible(here.reason, here.cause)
        like = like or itself(truth, "", "")
        sessions = stack.enter_context(probe.engines(builder.choice, builder.options, bench.timeout))
        return prepared(Engines(like.graph, builder, sessions, bench), like, here.precision, here.where)
    if like is not None:
        return like
    if against in ("fp16", "bf16"):
        return lowered(truth, against)
    if against == "ort-cpu":
        return optimized(truth, bench)
    if against == "ort-cuda":
        why = backends.missing("ort-cuda")
        absent = Missing(why, "not-installed") if why else cuda.unavailable(bench.worker, bench.timeout)
        if absent is not None:
            raise Impossible(absent.reason, absent.cause)
        return itself(truth, "ort-cuda", "ONNX Runtime's CUDA provider")
    assert builder is not None
    from onnxfix.diagnosis.sides import imported  # lazy: start-up, seldom used

    return imported(truth, builder, bench)
