"""``onnxfix apply`` and ``onnxfix verify``."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from onnxfix.cli.conflicts import refuse_conflicts
from onnxfix.cli.given import Given
from onnxfix.cli.reports import destinations, refuse_unknown_kinds
from onnxfix.cli.runs import Say, configure, print_run, run_models
from onnxfix.errors import UsageError
from onnxfix.options import RunOptions, Verification
from onnxfix.runtime import prefork
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.verbs import verifying
from onnxfix.verbs.fleet.work import Outcome, Task, attempt
from onnxfix.verbs.whole.steps import steps_of

_OF_PROOF = ("require", "rungs", "rtol", "atol", "save_engine", "benchmark")
_OF_INPUTS = ("inputs", "input_shapes")
_WRITTEN = ("output", "output_dir", "in_place", "save_engine", "resume", "journal")


def apply(given: Given) -> None:
    """Repair models."""
    holding = configure(given)
    if given.no_verify and given.flags(_OF_PROOF):
        raise UsageError(
            "--no-verify contradicts --require, --rungs, --rtol, --atol, --save-engine and --benchmark"
        )
    if given.no_verify and not given.static and given.flags(_OF_INPUTS):
        raise UsageError("--inputs and --input-shapes have no effect with --no-verify")
    if given.diff and (written := given.flags(_WRITTEN)):
        raise UsageError(f"--diff writes no model; it contradicts {', '.join(written)}")
    options = RunOptions(verification=Verification(enabled=not given.no_verify), trt=TrtOptions())
    options = options.with_fields(given.fields())
    steps_of(given.simplify, given.graphsurgeon or ())  # steps that cannot run are refused before any work
    run_models(given, holding, "apply", options)


def verify(given: Given) -> None:
    """Compare two models, or run one."""
    if given.max_batch is not None and not given.batch_sweep:
        raise UsageError("--max-batch has no effect without --batch-sweep")
    if given.exact and given.flags(("rtol", "atol")):
        raise UsageError("--exact contradicts --rtol and --atol: identical bits have no tolerance")
    holding = configure(given, judges=False)
    trt = TrtOptions(batch_sweep=(given.max_batch or 2) if given.batch_sweep else 0)
    options = holding.options(given.original, RunOptions(trt=trt).with_fields(given.fields()))
    models = [path for path in (given.original, given.fixed) if path is not None]
    tasks = [Task(number, path) for number, path in enumerate(models)]
    reports = destinations(given.report)
    refuse_conflicts(tasks, options, reports)
    refuse_unknown_kinds(reports)

    def work(say: Say) -> Generator[Outcome, None, None]:
        prefork.fork(prefork.FOR_A_PROOF)
        progress = partial(say, tasks[0])
        yield attempt(tasks[0], lambda: verifying.verify(given.original, given.fixed, options, progress))

    print_run(given, holding, reports, tasks[:1], work)
