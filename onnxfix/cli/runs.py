"""Runs of ``check``, ``apply`` and ``verify``: settings, outcomes printed as they come, reports, and the exit code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import typer

from onnxfix.cli.conflicts import refuse_conflicts
from onnxfix.cli.given import Given, refuse_missing, warn
from onnxfix.cli.reports import Destination, destinations, refuse_unknown_kinds, write_reports
from onnxfix.config.holding import Baseline, Holding, load_baseline, load_or_new_baseline
from onnxfix.config.reading import read_configuration
from onnxfix.config.records import COMMAND_LINE, Config, Layer
from onnxfix.errors import UsageError
from onnxfix.files import atomic
from onnxfix.files.apart import File
from onnxfix.options import RunOptions
from onnxfix.report.render.documents import Kind, note_lines, render_document, report_line
from onnxfix.report.render.lines import print_lines
from onnxfix.report.render.rules import statistics_json, statistics_lines
from onnxfix.report.render.settings import render_settings, settings_lines
from onnxfix.report.render.stream import Steps, complain, output
from onnxfix.report.render.text import render_report, render_summary
from onnxfix.rewrite import packs
from onnxfix.rewrite.registry import registry
from onnxfix.targets import target_named
from onnxfix.verbs.fleet.drive import drive, executor_of, expand, tasks_of
from onnxfix.verbs.fleet.paths import as_reported, is_remote
from onnxfix.verbs.fleet.work import Command, Outcome, Task

Say = Callable[[Task, str], None]
Work = Callable[[Say], Generator[Outcome, None, None]]


def configure(given: Given, *, judges: bool = True) -> Holding:
    """The configuration of a run, with what the command line gives. ``--show-settings`` prints it, and ends the run.
    ``judges``: the command has findings.

    Raises:
        UsageError: options contradict each other, a selector or the target does not exist, or a file cannot be used.
    """
    if given.config is not None and given.isolated:
        raise UsageError("--config contradicts --isolated")
    if judges and given.baseline is not None and given.write_baseline is not None:
        raise UsageError("--write-baseline contradicts --baseline: choose one")
    config = Config()
    if not given.isolated:
        config = read_configuration(Path.cwd(), Path(given.config) if given.config is not None else None)
    if config.packs is not None and not packs.setting():  # --packs and the environment win
        # The worker processes of this run have it too, until the end of ``guarded``.
        os.environ[packs.VARIABLE] = packs.text_of(config.packs)
    settings = given.settings()
    registry().choose(settings.get("select"), settings.get("ignore"))
    target_named(settings.get("target"))
    layer = Layer(COMMAND_LINE, settings)
    if judges:
        holding = Holding(config, layer, _baseline(given, config), given.write_baseline is not None)
    else:
        holding = Holding(config, layer, judges=False)
    if not given.show_settings:
        return holding
    sources = [as_reported(one.source) for one in expand(given.models if judges else [given.original])]
    if given.format == "json":
        output().write(render_settings({source: holding.rows(source) for source in sources}) + "\n")
    else:
        for source in sources:
            print_lines(settings_lines(source, holding.rows(source)))
    raise typer.Exit(0)


def _baseline(given: Given, config: Config) -> Baseline | None:
    if given.write_baseline is not None:
        return load_or_new_baseline(Path(given.write_baseline))
    if given.baseline is not None:
        return load_baseline(Path(given.baseline))
    if config.baseline is None:
        return None
    return load_baseline(config.baseline, f"{config.name}: baseline")


def run_models(given: Given, holding: Holding, command: Command, options: RunOptions) -> NoReturn:
    """Check or repair the models that the command line names. Whatever cannot work is refused before any of it does.

    Raises:
        UsageError: options contradict each other, a glob matches nothing, or a result would replace another file.
    """
    reports = destinations(given.report)
    options = replace(options, pictures=any(one.kind is Kind.html for one in reports))
    folder = getattr(given, "output_dir", None)
    journal = Path(given.journal) if given.journal is not None else None
    if given.resume and journal is None:
        from onnxfix.verbs.fleet.journal import NAME  # lazy: start-up, seldom used

        if folder is None or is_remote(folder):
            raise UsageError(
                "--resume keeps its journal in a local --output-dir; without one, name a file by --journal"
            )
        journal = Path(folder) / NAME
    tasks = tasks_of(
        given.models,
        command,
        options,
        output=getattr(given, "output", None),
        output_dir=folder,
        stamped=journal is not None,
    )
    tasks = [replace(task, options=holding.options(task.source, task.options)) for task in tasks]
    if options.trt is not None and options.trt.save_engine and len(tasks) > 1:
        raise UsageError("--save-engine works with one model only")
    baseline = (
        [File("--write-baseline", Path(given.write_baseline))] if given.write_baseline is not None else []
    )
    refuse_conflicts(tasks, options, reports, journal, baseline)
    refuse_unknown_kinds(reports)
    if given.statistics and given.format not in ("text", "json"):
        raise UsageError(f"--statistics is printed as text or json, not as {given.format}")
    if command == "check" and options.trt is not None:
        refuse_missing(options.trt)
    executor = executor_of(given.jobs, given.ray, tasks)
    if command == "apply" and options.verification.enabled and len(tasks) == 1:
        # What this loads, the children have as well.
        import onnxfix.verbs.applying  # noqa: F401  # lazy: start-up
        from onnxfix.runtime import prefork  # lazy: start-up

        prefork.fork(prefork.FOR_A_PROOF)

    def work(say: Say) -> Generator[Outcome, None, None]:
        return drive(tasks, executor, journal, resume=given.resume, progress=say)

    print_run(given, holding, reports, tasks, work)


def print_run(
    given: Given, holding: Holding, reports: Sequence[Destination], tasks: Sequence[Task], work: Work
) -> NoReturn:
    """Work through the tasks, print outcomes as they come, write reports, and exit with the worst code."""
    statistics = getattr(given, "statistics", False)
    expired = holding.expired(task.source for task in tasks)
    outcomes, code = _print_outcomes(given, holding, len(tasks), work, statistics)
    renewed = holding.renewal()
    if renewed is not None:
        atomic.put(renewed.path, renewed.text().encode("utf-8"))
    outcomes.sort(key=lambda outcome: outcome.task.index)
    done = [outcome.report for outcome in outcomes if outcome.report is not None]
    failed = [outcome for outcome in outcomes if outcome.report is None]
    errors = [(outcome.task.source, outcome.error) for outcome in failed]
    warnings = (*expired, *holding.unmatched(), *registry().warnings)
    warn(warnings)
    if statistics and given.format == "json":
        output().write(statistics_json(done, errors, warnings) + "\n")
    elif statistics and done:
        print_lines(statistics_lines(done))
    elif given.format == "jsonl":
        for line in note_lines(errors, warnings):
            output().write(f"{line}\n")
    elif given.format != "text":
        output().write(render_document(Kind(given.format), done, errors, warnings) + "\n")
    elif len(tasks) > 1 and not statistics:
        crashed = sum(outcome.crashed or outcome.memory for outcome in failed)
        print_lines(render_summary(done, errors, crashed))
    if not write_reports(reports, lambda kind: render_document(kind, done, errors, warnings)):
        code = 2
    raise typer.Exit(code)


def _print_outcomes(
    given: Given, holding: Holding, count: int, work: Work, statistics: bool
) -> tuple[list[Outcome], int]:
    """All outcomes, with what the configuration and the baseline accept of their reports, each printed as it came; and
    the worst exit code."""
    outcomes: list[Outcome] = []
    codes = [0]
    with (
        Steps(count) as steps,
        contextlib.closing(work(lambda task, text: steps.at(task.source, text))) as results,
    ):
        for outcome in results:
            task, report = outcome.task, outcome.report
            steps.over(task.source)
            if report is None:
                outcomes.append(outcome)
                steps.pause()
                complain(outcome.error)
                codes.append(3 if outcome.late else 2)
                continue
            report = holding.judge(task.source, report, task.options)
            outcomes.append(replace(outcome, report=report))
            codes.append(report.exit_code)
            if given.format == "jsonl":
                output().write(f"{report_line(report)}\n")
            elif given.format == "text" and (
                not statistics or report.command == "apply" or report.exit_code > 1
            ):  # beside statistics only what was written, or went wrong
                steps.pause()
                brief = given.quiet or statistics or (outcome.reused and not given.verbose)
                print_lines(render_report(report, quiet=brief, verbose=given.verbose))
    return outcomes, max(codes)


_OF_TRT = (
    "trt_package", "compute_capability", "trt_min_shapes", "trt_opt_shapes", "trt_max_shapes", "timing_cache",
    "plugins", "memory_limit", "inputs", "input_shapes",
)  # fmt: skip
"""Options that have an effect with ``--trt`` alone."""


def check(given: Given) -> None:
    """Check models."""
    holding = configure(given)
    options, fields = RunOptions(), given.fields()
    if given.trt:
        from onnxfix.tensorrt.records import TrtOptions  # lazy: start-up

        options = RunOptions(trt=TrtOptions())
    else:
        alone = given.inputs_help or given.partition
        needless = [name for name in _OF_TRT if name != "memory_limit" or not alone]
        unused = given.flags(needless)
        if unused:
            raise UsageError(f"{', '.join(unused)}: has no effect without --trt")
        del fields["trt.package"]
    run_models(given, holding, "check", options.with_fields(fields))
