"""``onnxfix verify``."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from onnxfix import spares
from onnxfix.cli.conflicts import refuse_conflicts
from onnxfix.cli.given import Given
from onnxfix.cli.reports import destinations, refuse_unknown_kinds
from onnxfix.cli.runs import Say, configure, print_run
from onnxfix.errors import UsageError
from onnxfix.fleet.work import Outcome, Task, attempt
from onnxfix.options import RunOptions
from onnxfix.pipeline import verifying
from onnxfix.trt.records import TrtOptions


def verify(given: Given) -> None:
    """Compare two models, or run one."""
    if given.max_batch is not None and not given.batch_sweep:
        raise UsageError("--max-batch has no effect without --batch-sweep")
    if given.exact and (given.rtol is not None or given.atol is not None):
        raise UsageError("--exact contradicts --rtol and --atol: identical bits have no tolerance")
    holding = configure(given, judges=False)
    trt = TrtOptions(batch_sweep=(given.max_batch or 2) if given.batch_sweep else 0)
    options = RunOptions(trt=trt).with_fields(given.fields())
    options = holding.options(given.original, options)
    models = [path for path in (given.original, given.fixed) if path is not None]
    tasks = [Task(number, path) for number, path in enumerate(models)]
    reports = destinations(given.report)
    refuse_conflicts(tasks, options, reports)
    refuse_unknown_kinds(reports)

    def work(say: Say) -> Generator[Outcome, None, None]:
        spares.fork(spares.FOR_A_PROOF)
        progress = partial(say, tasks[0])
        yield attempt(tasks[0], lambda: verifying.verify(given.original, given.fixed, options, progress))

    print_run(given, holding, reports, tasks[:1], work)
