"""A run over tasks: printing outcomes as they come, the report file, and the exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import typer

from onnxfix.cli.guard import collect_garbage, warn
from onnxfix.cli.options import Format
from onnxfix.cli.reports import Destination, write_reports
from onnxfix.errors import UsageError
from onnxfix.report.render.stream import complain
from onnxfix.report.render.stream import output as standard_output

if TYPE_CHECKING:
    from onnxfix.fleet.work import Command, Outcome, Task
    from onnxfix.options import RunOptions
    from onnxfix.report.report import Report

    Say = Callable[[Task, str], None]
    Work = Callable[[Say], Generator[Outcome, None, None]]


class Printing(NamedTuple):
    """How outcomes are shown, and warnings that go with them, ``late`` gives those that are known at the end.
    ``statistics``: counts by rule instead of findings."""

    format: Format
    reports: tuple[Destination, ...]
    quiet: bool
    verbose: bool
    warnings: tuple[str, ...] = ()
    statistics: bool = False
    late: Callable[[], Iterable[str]] = tuple


class Queue(NamedTuple):
    """The models of a run as tasks, and its journal (None: none)."""

    tasks: Sequence[Task]
    journal: Path | None
    resume: bool

    def driven(self, jobs: str, ray: str | None) -> Work:
        """The work of ``--jobs`` or ``--ray`` on the tasks, not begun yet.

        Raises:
            UsageError: the two contradict each other, or cannot be read.
        """
        from onnxfix.fleet.drive import drive, executor_of  # lazy: start-up

        executor = executor_of(jobs, ray, self.tasks)
        return lambda say: drive(self.tasks, executor, self.journal, resume=self.resume, progress=say)


def queued(
    models: list[str],
    command: Command,
    options: RunOptions,
    *,
    output: str | None = None,
    output_dir: str | None = None,
    resume: bool = False,
    journal: Path | None = None,
) -> Queue:
    """The models that the command line names, as tasks.

    Raises:
        UsageError: a glob matches nothing, or a result would replace another file.
    """
    from onnxfix.fleet.drive import tasks_of  # lazy: start-up

    if resume:
        from onnxfix.fleet.journal import place_of  # lazy: start-up, seldom used

        journal = place_of(journal, resume, output_dir)
    stamped = journal is not None
    tasks = tasks_of(models, command, options, output=output, output_dir=output_dir, stamped=stamped)
    return Queue(tasks, journal, resume)


def run(work: Work, count: int, printing: Printing) -> NoReturn:
    """Work through ``count`` models, print outcomes as they come, write reports, and exit with the worst code."""
    from onnxfix.registry import registry  # lazy: start-up
    from onnxfix.report.render.documents import Kind, render_document  # lazy: start-up
    from onnxfix.report.render.json import note_lines  # lazy: start-up
    from onnxfix.report.render.lines import print_lines  # lazy: start-up
    from onnxfix.report.render.overall import render_summary  # lazy: start-up

    if count > 1:
        collect_garbage()
    outcomes, code = _printed(work, count, printing)
    outcomes.sort(key=lambda outcome: outcome.task.index)
    done = [outcome.report for outcome in outcomes if outcome.report is not None]
    failed = [outcome for outcome in outcomes if outcome.report is None]
    errors = [(outcome.task.source, outcome.error) for outcome in failed]
    warnings = (*printing.warnings, *printing.late(), *registry().warnings)
    warn(warnings)
    if printing.statistics:
        _print_statistics(done, errors, warnings, printing.format)
    elif printing.format is Format.jsonl:
        _print_each(note_lines(errors, warnings))
    elif printing.format is not Format.text:
        kind = Kind(printing.format.value)
        standard_output().write(render_document(kind, done, errors, warnings) + "\n")
    elif count > 1:
        crashed = sum(outcome.crashed or outcome.memory for outcome in failed)
        print_lines(render_summary(done, errors, crashed))
    if not write_reports(printing.reports, lambda kind: render_document(kind, done, errors, warnings)):
        code = 2
    raise typer.Exit(code)


def refuse_format(statistics: bool, format: Format) -> None:
    """Refuse --statistics in a format that has none.

    Raises:
        UsageError: it is such a format.
    """
    if statistics and format not in (Format.text, Format.json):
        raise UsageError(f"--statistics is printed as text or json, not as {format}")


def _print_statistics(
    done: Sequence[Report], errors: Sequence[tuple[str, str]], warnings: Sequence[str], format: Format
) -> None:
    from onnxfix.report.render.lines import print_lines  # lazy: start-up
    from onnxfix.report.render.statistics import statistics_json, statistics_lines  # lazy: start-up

    if format is Format.json:
        standard_output().write(statistics_json(done, errors, warnings) + "\n")
    elif done:
        print_lines(statistics_lines(done))


def _print_each(lines: Iterable[str]) -> None:
    stream = standard_output()
    for each in lines:
        stream.write(f"{each}\n")


def _printed(work: Work, count: int, printing: Printing) -> tuple[list[Outcome], int]:
    """All outcomes, each printed as it came, and the worst exit code."""
    from onnxfix.report.render.json import report_line  # lazy: start-up
    from onnxfix.report.render.lines import print_lines  # lazy: start-up
    from onnxfix.report.render.progress import Steps  # lazy: start-up
    from onnxfix.report.render.text import render_report  # lazy: start-up

    outcomes: list[Outcome] = []
    codes = [0]
    with (
        Steps(count) as steps,
        contextlib.closing(work(lambda task, text: steps.at(task.source, text))) as results,
    ):
        for outcome in results:
            outcomes.append(outcome)
            steps.over(outcome.task.source)
            if outcome.report is None:
                steps.pause()
                complain(outcome.error)
                codes.append(3 if outcome.late else 2)
                continue
            codes.append(outcome.report.exit_code)
            if printing.format is Format.jsonl:
                _print_each([report_line(outcome.report)])
            elif printing.format is Format.text and _told(outcome.report, printing):
                steps.pause()
                brief = printing.quiet or printing.statistics or (outcome.reused and not printing.verbose)
                print_lines(render_report(outcome.report, quiet=brief, verbose=printing.verbose))
    return outcomes, max(codes)


def _told(report: Report, printing: Printing) -> bool:
    """Whether a model has lines of its own: with --statistics, where something was written or went wrong."""
    return not printing.statistics or report.command == "apply" or report.exit_code > 1
