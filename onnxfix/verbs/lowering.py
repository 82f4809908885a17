"""``precision``: files, inputs and checks for a mixed-precision model."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import ModelProto

from onnxfix._version import __version__
from onnxfix.errors import UsageError
from onnxfix.files import atomic, loading, saving, tensors, walk
from onnxfix.files.atomic import Temporary, temporary_beside
from onnxfix.inputs.feeds.plan import generate_large
from onnxfix.inputs.feeds.signature import signature
from onnxfix.lowering.bench import Bench, Failed
from onnxfix.lowering.convert import converted as convert
from onnxfix.lowering.lower import Found, Wish, described, find, without_bodies
from onnxfix.lowering.quantized import opset_of
from onnxfix.lowering.records import Lowering
from onnxfix.lowering.search import worst
from onnxfix.options import Output, RunOptions
from onnxfix.proof.compare.tolerance import Allowed
from onnxfix.proof.request import read_feeds
from onnxfix.proof.verify import Verdict
from onnxfix.runtime import backends
from onnxfix.runtime.allowance import memory_limit
from onnxfix.targets import choose_target
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.verbs.contract import record_budget
from onnxfix.verbs.job import Progress
from onnxfix.verbs.opening import Source, destination_of, name_of, on_disk, refuse_conflicts
from onnxfix.verbs.proof import comparison_of, run_checks

_ALWAYS = ("contract", "ort-cpu")
_RUNGS = ("trt-build", "trt-network")
"""Checks that can be chosen; trt-network, which takes longer, is left out by default."""
SAMPLES = 4
"""Generated samples."""
MOST_SAMPLES = 16
"""Samples of the user's inputs that are used."""
_NOT_FASTER = (
    "no product or convolution is in half precision: the model will not be faster; allow a larger error"
)


# Long because: the stages of the verb are read in one place.
def lower(
    source: Source,
    output: str | os.PathLike[str] | None,
    wish: Wish,
    options: RunOptions,
    progress: Progress | None = None,
) -> Lowering:
    """Convert a float32 model to mixed precision within a budget; see :func:`onnxfix.precision`.

    Raises:
        ModelError, UsageError, OnnxfixError: as there.
    """
    say = progress or (lambda text: None)
    began = time.perf_counter()
    for name, value in (("--max-error", wish.budget), ("--max-time", wish.max_time)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} {value:g}: a budget is a positive number")
    backends.require("ort-cpu", "precision")
    say("reading")
    loaded = loading.load(source)
    _rungs(options)  # a mistake there is found before any work
    destination = destination_of(loaded, Output(output)) if output is not None else None
    refuse_conflicts([loaded], options, destination)
    samples = MOST_SAMPLES if options.verification.inputs is not None else SAMPLES
    wish = replace(wish, target=choose_target(options.rules.target)[0], samples=samples)
    base = Lowering(
        name_of(loaded),
        wish.to,
        wish.budget,
        "unknown",
        io_types=wish.io_types,
        environment={"onnxfix": __version__, "onnx": onnx.__version__},
    )
    with ExitStack() as stack:
        stack.enter_context(memory_limit(options.memory_mb))
        path = on_disk(loaded, stack)
        bench = stack.enter_context(Bench())
        known, verification = signature(loaded.proto), options.verification
        given = read_feeds(known, verification.inputs)
        generated = generate_large(known, verification.input_shapes, verification.seed, SAMPLES)
        inputs = given[:MOST_SAMPLES] if given is not None else generated
        try:
            found: Found | None = find(loaded.proto, path, inputs, wish, bench, say)
            result = base
            while found is not None:
                result = described(found, base)
                if not result.heavy and not result.nodes:
                    result = replace(result, status="nothing", reason="no node computes in float32")
                elif not found.plan.met:
                    result = _explain_miss(result, wish)
                else:
                    say("converting")
                    converted, file = _convert(found, wish, loaded, path, destination, stack)
                    result = _prove(loaded.proto, path, converted, file.path, result, options, bench, say)
                    loaded.check()
                    if result.status == "met" and destination is not None:
                        say("writing")
                        atomic.install([file])
                        result = replace(result, status="written", output=str(destination))
                failed = any(name in _RUNGS and status == "failed" for name, status, _ in result.checks)
                retries = result.status == "refused" and failed
                found = without_bodies(found, result.reason, wish, bench, say) if retries else None
        except Failed as error:
            result = replace(base, reason=str(error), cause=error.cause)
    return replace(result, seconds=time.perf_counter() - began)


def _rungs(options: RunOptions) -> tuple[str, ...]:
    """The checks of the proof that the result goes through; the budget is checked in any case.

    Raises:
        UsageError: there is no such check here.
    """
    wanted = options.verification.rungs
    for name in wanted or ():
        if name not in (*_RUNGS, *_ALWAYS):
            raise UsageError(f"unknown check {name!r}; choose from {', '.join((*_ALWAYS, *_RUNGS))}")
    return ("contract", *(one for one in _RUNGS if (one == "trt-build" if wanted is None else one in wanted)))


def _explain_miss(result: Lowering, wish: Wish) -> Lowering:
    if result.best is None:
        every = "every node that computes has to stay in float32"
        counts = Counter(one.why for one in result.kept)
        why = ", ".join(f"{count} {name}" for name, count in counts.most_common(3))
        return replace(result, status="nothing", reason=f"{every}: {why}")
    if wish.max_time is not None and result.time is not None and result.time > wish.max_time:
        reason = (
            f"it takes {result.time:.3g} of float32's time at least, and the budget is {wish.max_time:.3g}"
        )
    else:
        reason = f"the smallest error found is {result.best:.3g}, and the budget is {result.budget:.3g}"
    return replace(result, status="missed", reason=reason)


def _convert(
    found: Found,
    wish: Wish,
    loaded: loading.Loaded,
    original: Path,
    destination: Path | None,
    stack: ExitStack,
) -> tuple[ModelProto, Temporary]:
    """The mixed-precision model of the file ``original``, and a temporary file with it, beside its destination if it
    has one. External weights that stay float32 are put into the model, whose file may go to another folder."""
    graph, low = found.facts.model, found.plan.low
    result = convert(graph, found.facts.able, low, base_dir=loaded.base_dir, io_types=wish.io_types)
    if destination is None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-"))
        file = stack.enter_context(temporary_beside(Path(folder, "result.onnx")))
    else:
        file = stack.enter_context(temporary_beside(destination, most=loaded.mode))
    for tensor in walk.model_tensors(result):
        if tensors.is_external(tensor) and loaded.base_dir is not None:
            tensor.CopyFrom(tensors.embedded(tensor, loaded.base_dir))
    record_budget(result, original, wish.budget)
    saving.save(result, file)
    return result, file


def _prove(
    before: ModelProto,
    original: Path,
    after: ModelProto,
    file: Path,
    result: Lowering,
    options: RunOptions,
    bench: Bench,
    say: Progress,
) -> Lowering:
    """The result with its errors and checks; its status is "met" where all hold."""
    if result.heavy and not result.heavy_low:
        result = replace(result, notes=(*result.notes, _NOT_FASTER))
    if (new := opset_of(after)) != (old := opset_of(before)):
        note = f"operator set raised from {old} to {new}, which has scales in half precision"
        result = replace(result, notes=(*result.notes, note))
    say("running the result")
    errors = bench.result_errors(file, wide=True)
    error, budget = worst(errors), result.budget
    result = replace(result, outputs=errors, error=error)
    if error <= budget:
        checks = [("budget", "passed", f"largest error {error:.3g} of the output's scale")]
    else:
        checks = [("budget", "failed", f"the result's error is {error:.3g}, and the budget is {budget:.3g}")]
    try:  # with its own half-precision kernels, which it has few of
        own = worst(bench.result_errors(file, wide=False))
        checks.append(("ort-cpu", "passed", f"runs; largest error {own:.3g} of the output's scale"))
    except Failed as failure:
        # The original ran, so that wrong types are the conversion's fault; a kernel that is missing is not.
        checks.append(("ort-cpu", "failed" if failure.mistyped else "skipped", str(failure)))
    say("verifying")
    required = options.verification.require
    verification = replace(
        options.verification, rungs=None, require=[name for name in required if name != "ort-cpu"]
    )
    comparison = comparison_of(verification, options.trt or TrtOptions())
    if not {*required} <= {*_ALWAYS, *_RUNGS}:  # values are compared
        comparison = replace(comparison, budget=Allowed(share=budget))
    verdict = run_checks(
        original,
        file,
        before,
        after,
        comparison,
        exact=False,
        interface=result.io_types == "keep",
        rungs=_rungs(options),
        say=say,
    )
    checks += [(rung.name, rung.status, rung.reason) for rung in verdict.rungs]
    result = replace(result, checks=tuple(checks))
    if checks[0][1] == "failed":
        return replace(result, status="missed", reason=checks[0][2])
    if why := _refusal(checks, verdict, required):
        return replace(result, status="refused", reason=why)
    reason = f"largest error {error:.3g} of the output's scale, budget {budget:.3g}"
    return replace(result, status="met", reason=reason)


def _refusal(checks: Sequence[tuple[str, str, str]], verdict: Verdict, required: Collection[str]) -> str:
    """Why a check refuses the result, "" where none does."""
    _, ran, why = checks[1]
    if ran == "failed":
        return f"ort-cpu: {why}"
    for rung in verdict.rungs:
        if rung.refutes and not rung.inherited:
            return f"{rung.name}: {rung.reason}"
    unmet = [one for one in checks if one[0] in required and one[1] != "passed"]
    return next((f"{name} was required and {status}: {reason}" for name, status, reason in unmet), "")
