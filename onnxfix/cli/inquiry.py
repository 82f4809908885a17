"""``onnxfix diagnose``, ``reduce``, ``layers`` and ``precision``: one model, and a result of the command's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from onnxfix.cli.conflicts import refuse_conflicts
from onnxfix.cli.given import Given, refuse_missing
from onnxfix.cli.reports import OWN, Destination, destinations, refuse_unknown_kinds, write_reports
from onnxfix.files.apart import File
from onnxfix.options import RunOptions
from onnxfix.report.render.documents import Kind, render_result, result_lines
from onnxfix.report.render.lines import print_lines
from onnxfix.report.render.stream import Steps, complain, output
from onnxfix.runtime.interrupts import exit_code, finish
from onnxfix.shown import Shown
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.verbs.fleet.work import Task


def diagnose(given: Given) -> None:
    """Compare two models, or a model with another way to compute it."""
    from onnxfix.files import atomic  # lazy: start-up
    from onnxfix.lowering.records import keep_text  # lazy: start-up
    from onnxfix.verbs.diagnosing import diagnose  # lazy: start-up

    options = _options(given)
    if given.against in ("trt-gpu", "trt-network"):
        refuse_missing(options.trt or TrtOptions())
    models = [given.model, given.other] if given.other is not None else [given.model]
    kept = [File("--keep-fp32", Path(given.keep_fp32))] if given.keep_fp32 is not None else []
    reports = _destinations(given, models, options, (*OWN, Kind.html), kept)
    with Steps(1) as steps:
        result = diagnose(
            given.model,
            given.other,
            given.against,
            options,
            timeout=given.timeout,
            progress=steps.of(given.model),
        )
    if result.interrupted:
        finish()
        complain("interrupted; this is what was found until then")
    if given.keep_fp32 is not None:
        atomic.put(Path(given.keep_fp32), keep_text(result.keep_fp32).encode())
    _publish(given, result, reports, exit_code() if result.interrupted else result.exit_code)


def reduce(given: Given) -> None:
    """Reduce a model."""
    from onnxfix.verbs.reducing import ReduceOptions, reduce  # lazy: start-up

    options = ReduceOptions(
        check=given.check,
        against=given.against,
        match=given.match or "",
        timeout=given.timeout,
        time_limit=given.time_limit,
        run=_options(given),
    )
    with Steps(1) as steps:
        result = reduce(given.model, given.output, options, steps.of(given.model))
    if result.interrupted:
        finish()
    code = exit_code() if result.interrupted else result.exit_code
    _publish(given, result, (), code)


def layers(given: Given) -> None:
    """Show what TensorRT made of a model."""
    from onnxfix.verbs.layering import layers  # lazy: start-up

    options = _options(given)
    reports = _destinations(given, [given.model], options, OWN)
    refuse_missing(options.trt or TrtOptions())
    with Steps(1) as steps:
        result = layers(given.model, options, steps.of(given.model))
    _publish(given, result, reports, result.exit_code)


def precision(given: Given) -> None:
    """Convert a model to mixed precision."""
    from onnxfix.api.inquiry import patterns_of  # lazy: start-up
    from onnxfix.lowering.lower import Wish  # lazy: start-up
    from onnxfix.verbs.lowering import lower  # lazy: start-up

    options = _options(given)
    written = [File("--output", Path(given.output))] if given.output is not None else []
    read = [File("--keep", Path(given.keep))] if given.keep is not None else []
    reports = _destinations(given, [given.model], options, OWN, written, read)
    kept = patterns_of(given.keep)
    wish = Wish(
        given.to, given.max_error, given.io_types, kept, seconds=given.timeout, max_time=given.max_time
    )
    with Steps(1) as steps:
        result = lower(given.model, given.output, wish, options, steps.of(given.model))
    _publish(given, result, reports, result.exit_code)


def _options(given: Given) -> RunOptions:
    """The options of a run; of the settings, these commands have the target and the required checks alone."""
    options = RunOptions(trt=TrtOptions()).with_fields(given.fields())
    fields = {"target": "rules.target", "require": "verification.require"}
    return options.with_fields({fields[key]: one for key, one in given.settings().items() if key in fields})


def _destinations(
    given: Given,
    models: Sequence[str],
    options: RunOptions,
    kinds: Sequence[Kind],
    written: Sequence[File] = (),
    read: Sequence[File] = (),
) -> tuple[Destination, ...]:
    """The files of ``--report``, once it is known that nothing that is written replaces anything else.

    Raises:
        UsageError: it would, or the command writes no report of that kind.
    """
    reports = destinations(given.report)
    tasks = [Task(number, model, options=options) for number, model in enumerate(models)]
    refuse_conflicts(tasks, options, reports, more=written, read=read)
    refuse_unknown_kinds(reports, kinds)
    return reports


def _publish(given: Given, result: Shown, reports: Sequence[Destination], code: int) -> None:
    if given.format == "text":
        quiet, verbose = (getattr(given, name, False) for name in ("quiet", "verbose"))
        print_lines(result_lines(result, quiet=quiet, verbose=verbose))
    else:
        output().write(render_result(Kind(given.format), result) + "\n")
    written = write_reports(reports, lambda kind: render_result(kind, result))
    raise typer.Exit(code if written else 2)
