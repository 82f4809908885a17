"""``diagnose``: files, inputs and tools for a diagnosis."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfix import backends
from onnxfix.allowance import memory_limit
from onnxfix.diagnosis.bench import Bench, Clock
from onnxfix.diagnosis.diagnose import Case
from onnxfix.diagnosis.diagnose import diagnose as run
from onnxfix.diagnosis.engines import with_layers
from onnxfix.diagnosis.explain import Explainer
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.records import Against, Diagnosis
from onnxfix.diagnosis.rows import Side
from onnxfix.diagnosis.sides import Impossible, itself, lowered, opened, optimized, paired
from onnxfix.errors import UsageError
from onnxfix.files import loading
from onnxfix.nvidia import Missing
from onnxfix.options import RunOptions
from onnxfix.pipeline.budgets import recorded_budget
from onnxfix.pipeline.opening import Source, name_of
from onnxfix.pipeline.plan import Progress
from onnxfix.pipeline.proof import on_disk
from onnxfix.report.report import runtimes
from onnxfix.sandbox import shared
from onnxfix.trt.records import TrtOptions
from onnxfix.verification import cuda
from onnxfix.verification.feeds import plan
from onnxfix.verification.feeds.files import check_inputs, load_inputs
from onnxfix.verification.feeds.inputs import Kind
from onnxfix.verification.feeds.plan import Feed
from onnxfix.verification.feeds.signature import Signature, signature

if TYPE_CHECKING:
    from onnxfix.verification.rungs.builder import Builder

_EVALUATED = "nodes without a kernel in ONNX Runtime were computed by onnx's reference evaluator"
SAMPLES = 2
"""Generated samples."""
MOST_SAMPLES = 16
"""Samples of the user's inputs that are walked through."""
_KINDS: tuple[Kind, ...] = ("normal", "small", "ones")


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
    against = _kind(second, against)
    backends.require("ort-cpu", "diagnose")
    say("reading")
    one = loading.load(first)
    two = loading.load(second) if second is not None else None
    try:
        found = _diagnosed(one, two, against, options, timeout, say)
    finally:  # a file that was changed meanwhile is the reason for whatever else was seen
        for loaded in (one, two):
            if loaded is not None:
                loaded.check()
    return found


def _diagnosed(
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
        clock = Clock(timeout)
        # ONNX Runtime with its optimizations keeps more digits than half precision has.
        bench = Bench(shared(), scratch, clock=clock, rounding=against != "ort-cpu")
        tools = _tensorrt(against, options, stack)
        truth = opened(path, bench)
        known = signature(one.proto)
        base = Diagnosis(
            name_of(one),
            against,
            name_of(two) if two is not None else "",
            "unknown",
            truth="ONNX Runtime on the CPU, without optimizations",
            environment={**runtimes(), **({tools.choice.package: tools.choice.version} if tools else {})},
        )
        given = _given(known, options)
        say("preparing the other side")
        try:
            like = None
            if other is not None:
                tried = given if given is not None else generated(known, options)
                like = paired(truth, opened(other, bench), str(other), bench, tried)
            prepared = _prepared(truth, like, against, bench, tools, stack)
        except Impossible as error:
            found = replace(base, reason=str(error), cause=error.cause)
        else:
            samples = given if given is not None else generated(known, options)
            count = min(len(given), MOST_SAMPLES) if given is not None else SAMPLES
            engines = prepared.engines
            allowed = recorded_budget(two.proto, path) if two is not None else None
            explainer = Explainer(against, truth, prepared, name_of(one))
            case = Case(truth, prepared, samples, count, given is None, explainer, allowed)
            found = run(case, bench, base, clock, say)
            if engines is not None and found.culprits:
                say("looking up the engine's layers")
                found = with_layers(found, engines, other or path)
            if found.exit_code == 0:  # what the proof lets pass needs nothing to be done
                found = replace(found, culprits=tuple(replace(one, advice="") for one in found.culprits))
            if bench.evaluated:
                found = replace(found, notes=(*found.notes, _EVALUATED))
    return found


def _kind(second: Source | None, against: Against | None) -> Against:
    """What is compared with.

    Raises:
        UsageError: nothing was named, or two things were.
    """
    if second is not None and against not in (None, "model", "trt-gpu"):
        raise UsageError(
            f"--against {against} is for one model; of two, the second or its engine is the other side"
        )
    if second is None and against in (None, "model"):
        raise UsageError("name a second model, or what to compare with: --against")
    return "model" if against is None else against


def _tensorrt(against: Against, options: RunOptions, stack: ExitStack) -> Builder | None:
    """TensorRT, where it is needed.

    Raises:
        UsageError: it is not available.
    """
    if against not in ("trt-network", "trt-gpu"):
        return None
    from onnxfix.verification.asking import require_tensorrt  # lazy: start-up, seldom used

    return stack.enter_context(closing(require_tensorrt(options.trt or TrtOptions())))


def _prepared(
    truth: Graph,
    like: Side | None,
    against: Against,
    bench: Bench,
    builder: Builder | None,
    stack: ExitStack,
) -> Side:
    """The other side; ``like`` is the second model."""
    if against == "trt-gpu":
        assert builder is not None
        return _executing(like or itself(truth, "", ""), bench, builder, stack)
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


def _executing(like: Side, bench: Bench, builder: Builder, stack: ExitStack) -> Side:
    """Engines of a graph as the other side.

    Raises:
        Impossible: no engine runs on this machine.
    """
    from onnxfix.diagnosis.engines import Engines, prepared  # lazy: start-up, seldom used
    from onnxfix.verification.rungs import probe  # lazy: start-up, seldom used

    here = probe.probe(builder)
    if here.reason:
        raise Impossible(here.reason, here.cause)
    sessions = stack.enter_context(probe.engines(builder.choice, builder.options, bench.timeout))
    engines = Engines(like.graph, builder, sessions, bench)
    return prepared(engines, like, here.precision, here.where)


def _given(known: Signature, options: RunOptions) -> list[dict[str, Any]] | None:
    """The user's inputs; None where there are none.

    Raises:
        UsageError: they do not fit the model.
    """
    inputs = options.verification.inputs
    if inputs is None:
        return None
    feeds = load_inputs(os.fspath(inputs)) if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    checked = check_inputs(known, feeds)
    for name in dict.fromkeys(name for feed in checked for name in feed):
        if known[name].default is not None:
            raise UsageError(f"input {name} has a default, which diagnose does not replace: leave it out")
    return checked


def generated(known: Signature, options: RunOptions) -> Iterator[Mapping[str, Any]]:
    """Generated samples: mixed sizes first, then milder ones until the truth accepts some."""
    shapes = plan.parse_shapes(options.verification.input_shapes, known.names)
    fixed = plan.bind_shapes(known, shapes) if shapes else {}
    sweep = plan.assignments(known, fixed)
    order = [sweep[min(2, len(sweep) - 1)], *sweep]
    seed = options.verification.seed
    for kind in _KINDS:
        for number, sizes in enumerate(order):
            try:
                yield Feed(sizes, kind, seed + number).values(known)
            except MemoryError:
                continue
