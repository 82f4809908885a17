"""``precision``: files, inputs and checks for a mixed-precision model."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, TensorProto

from onnxfix import backends, walk
from onnxfix._version import __version__
from onnxfix.allowance import memory_limit
from onnxfix.errors import UsageError
from onnxfix.files import atomic, loading, saving, tensors
from onnxfix.files.temporary import Temporary, temporary_beside
from onnxfix.lowering.bench import Bench, Failed
from onnxfix.lowering.convert import converted
from onnxfix.lowering.lower import Found, Wish, described, find
from onnxfix.lowering.records import Lowering, OutputError
from onnxfix.lowering.search import worst
from onnxfix.options import Output, RunOptions
from onnxfix.pipeline.budgets import record_budget
from onnxfix.pipeline.opening import Source, destination_of, name_of, refuse_conflicts
from onnxfix.pipeline.plan import Progress
from onnxfix.pipeline.proof import climb, comparison_of, on_disk
from onnxfix.targets import choose_target
from onnxfix.trt.records import TrtOptions
from onnxfix.verification.feeds import plan
from onnxfix.verification.feeds.files import check_inputs, load_inputs
from onnxfix.verification.feeds.plan import Feed
from onnxfix.verification.feeds.signature import Signature, signature

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
    if not wish.budget > 0:
        raise UsageError(f"--max-error {wish.budget:g}: a budget is a positive number")
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
        try:
            found = find(loaded.proto, path, _feeds(loaded.proto, options), wish, bench, say)
            result = described(found, base)
            if not result.heavy and not result.nodes:
                result = replace(result, status="nothing", reason="no node computes in float32")
            elif not found.plan.met:
                result = _missed(result)
            else:
                result = _proven(loaded, path, destination, found, result, wish, options, bench, stack, say)
        except Failed as error:
            result = replace(base, reason=str(error), cause=error.cause)
    return replace(result, seconds=time.perf_counter() - began)


def _rungs(options: RunOptions) -> tuple[str, ...]:
    """The checks of the ladder that the result goes through; the budget is checked in any case.

    Raises:
        UsageError: there is no such check here.
    """
    wanted = options.verification.rungs
    for name in wanted or ():
        if name not in (*_RUNGS, *_ALWAYS):
            raise UsageError(f"unknown check {name!r}; choose from {', '.join((*_ALWAYS, *_RUNGS))}")
    return ("contract", *(one for one in _RUNGS if (one == "trt-build" if wanted is None else one in wanted)))


def _missed(result: Lowering) -> Lowering:
    if result.best is None:
        every = "every node that computes has to stay in float32"
        counts = Counter(one.why for one in result.kept)
        why = ", ".join(f"{count} {name}" for name, count in counts.most_common(3))
        return replace(result, status="nothing", reason=f"{every}: {why}")
    reason = f"the smallest error found is {result.best:.3g}, and the budget is {result.budget:.3g}"
    return replace(result, status="missed", reason=reason)


# Long because: the stages of a proof share what they are about.
def _proven(
    loaded: loading.Loaded,
    path: Path,
    destination: Path | None,
    found: Found,
    result: Lowering,
    wish: Wish,
    options: RunOptions,
    bench: Bench,
    stack: ExitStack,
    say: Progress,
) -> Lowering:
    """Make the model, prove it, and write it where it is to go."""
    say("converting")
    made = converted(
        found.facts.model, found.facts.able, found.plan.low, base_dir=loaded.base_dir, io_types=wish.io_types
    )
    result = replace(result, casts=made.casts)
    if result.heavy and not result.heavy_low:
        result = replace(result, notes=(*result.notes, _NOT_FASTER))
    file: Temporary | Path
    if destination is not None:
        file = stack.enter_context(temporary_beside(destination, most=loaded.mode))
    else:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-"))) / "result.onnx"
    _embed(made.proto, loaded.base_dir)
    record_budget(made.proto, path, wish.budget)
    saving.save(made.proto, file)
    written = file.path if isinstance(file, Temporary) else file
    say("running the result")
    errors = bench.result_errors(written, wide=True)
    result = replace(result, outputs=errors, error=worst(errors))
    checks = [("budget", *_judged(errors, wish.budget))]
    checks.append(("ort-cpu", *_loads(bench, written)))
    say("verifying")
    verdict = climb(
        path,
        written,
        loaded.proto,
        made.proto,
        comparison_of(replace(options.verification, rungs=None), options.trt or TrtOptions()),
        exact=False,
        interface=wish.io_types == "keep",
        rungs=_rungs(options),
    )
    checks += [(rung.name, rung.status, rung.reason) for rung in verdict.rungs]
    result = replace(result, checks=tuple(checks))
    if checks[0][1] == "failed":
        return replace(result, status="missed", reason=checks[0][2])
    refusing = next((rung for rung in verdict.rungs if rung.refutes and not rung.inherited), None)
    if refusing is not None:
        return replace(result, status="refused", reason=f"{refusing.name}: {refusing.reason}")
    loaded.check()
    reason = f"largest error {result.error:.3g} of the output's scale, budget {result.budget:.3g}"
    if destination is None:
        return replace(result, status="met", reason=reason)
    say("writing")
    assert isinstance(file, Temporary)
    atomic.install([file])
    return replace(result, status="written", output=str(destination), reason=reason)


def _judged(errors: tuple[OutputError, ...], budget: float) -> tuple[str, str]:
    """Whether the result's own errors are within the budget, as status and reason."""
    found = worst(errors)
    if found <= budget:
        return "passed", f"largest error {found:.3g} of the output's scale"
    return "failed", f"the result's error is {found:.3g}, and the budget is {budget:.3g}"


def _loads(bench: Bench, path: Path) -> tuple[str, str]:
    """Whether ONNX Runtime runs the file with its own half-precision kernels, which it has few of."""
    try:
        found = worst(bench.result_errors(path, wide=False))
    except Failed as error:
        return "skipped", str(error)
    return "passed", f"runs; largest error {found:.3g} of the output's scale"


def _embed(proto: ModelProto, base_dir: Path | None) -> None:
    """Put the external weights that stay float32 into the model, whose file may go to another folder."""
    for tensor in walk.model_tensors(proto):
        if tensors.is_external(tensor) and base_dir is not None:
            whole: TensorProto = tensors.embedded(tensor, base_dir)
            tensor.CopyFrom(whole)


def _feeds(model: ModelProto, options: RunOptions) -> list[Mapping[str, Any]]:
    """The user's samples, or generated ones: candidates, of which the model may refuse some."""
    known = signature(model)
    inputs = options.verification.inputs
    if inputs is not None:
        given = load_inputs(os.fspath(inputs)) if isinstance(inputs, (str, os.PathLike)) else list(inputs)
        return list(check_inputs(known, [dict(feed) for feed in given][:MOST_SAMPLES]))
    return list(_generated(known, options))


def _generated(known: Signature, options: RunOptions) -> Iterator[Mapping[str, Any]]:
    shapes = plan.parse_shapes(options.verification.input_shapes, known.names)
    fixed = plan.bind_shapes(known, shapes) if shapes else {}
    sweep = [sizes for sizes in plan.assignments(known, fixed) if 0 not in sizes.values()]
    sweep = sweep or plan.assignments(known, fixed)
    grown = [group[0] for group in plan.grown(known, fixed) if group]
    sweep.reverse()  # larger sizes first: they show more values
    seed = options.verification.seed
    for number, sizes in enumerate([*sweep, *sweep, *sweep, *sweep][:SAMPLES] + grown):
        yield Feed(sizes, "normal", seed + number).values(known)
