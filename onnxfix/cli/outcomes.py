"""A run over tasks: printing outcomes as they come, the report file, and the exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import typer

from onnxfix.cli.guard import collect_garbage, warn
from onnxfix.cli.options import FailOn, Format
from onnxfix.cli.values import severity_of
from onnxfix.errors import OnnxfixError
from onnxfix.report.render.stream import complain, stream_at
from onnxfix.report.render.stream import output as standard_output

if TYPE_CHECKING:
    from onnxfix.fleet.work import Command, Outcome, Task
    from onnxfix.options import RunOptions

    Say = Callable[[Task, str], None]
    Work = Callable[[Say], Generator[Outcome, None, None]]


class Printing(NamedTuple):
    """How outcomes are shown, and which findings fail the run."""

    fail_on: FailOn
    format: Format
    report: Path | None
    quiet: bool
    verbose: bool


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


def draws(report: Path | None) -> bool:
    """Whether the report shows pictures, which are gathered for such reports only."""
    return report is not None and report.suffix == ".html"


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
    """Work through ``count`` models, print outcomes as they come, and exit with the worst code."""
    from onnxfix.registry import registry  # lazy: start-up
    from onnxfix.report.render.json import render_json  # lazy: start-up
    from onnxfix.report.render.lines import print_lines  # lazy: start-up
    from onnxfix.report.render.text import render_summary  # lazy: start-up

    if count > 1:
        collect_garbage()
    report_file = printing.report
    new = report_file is not None and not report_file.exists()
    outcomes, code = _printed(work, count, printing)
    outcomes.sort(key=lambda outcome: outcome.task.index)
    done = [outcome.report for outcome in outcomes if outcome.report is not None]
    failed = [outcome for outcome in outcomes if outcome.report is None]
    errors = [(outcome.task.source, outcome.error) for outcome in failed]
    warnings = registry().warnings
    warn(warnings)
    severity = severity_of(printing.fail_on)
    if printing.format is Format.text and count > 1:
        crashed = sum(outcome.crashed or outcome.memory for outcome in failed)
        print_lines(render_summary(done, errors, crashed))
    if printing.format is Format.json:
        standard_output().write(render_json(done, errors, warnings, severity) + "\n")
    if report_file is not None:
        if draws(report_file):
            from onnxfix.report.render.html import render_html  # lazy: start-up, seldom used

            text = render_html(done, errors, warnings, severity)
        else:
            text = render_json(done, errors, warnings, severity)
        _write_report(report_file, text, new=new)
    raise typer.Exit(code)


def _printed(work: Work, count: int, printing: Printing) -> tuple[list[Outcome], int]:
    """All outcomes, each printed as it came, and the worst exit code."""
    from onnxfix.report.render.lines import print_lines  # lazy: start-up
    from onnxfix.report.render.progress import Steps  # lazy: start-up
    from onnxfix.report.render.text import render_report  # lazy: start-up

    severity = severity_of(printing.fail_on)
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
                codes.append(2)
                continue
            codes.append(outcome.report.exit_code_for(severity))
            if printing.format is Format.text:
                steps.pause()
                brief = printing.quiet or (outcome.reused and not printing.verbose)
                print_lines(render_report(outcome.report, quiet=brief, verbose=printing.verbose))
    return outcomes, max(codes)


def _write_report(path: Path, text: str, *, new: bool) -> None:
    """Write the report; ``new`` says that the file did not exist when the run began.

    Raises:
        OnnxfixError: it cannot be written, or somebody else has made the file since.
    """
    from onnxfix.files import atomic, regular  # lazy: start-up

    stream = stream_at(path)
    if stream is not None:
        stream.write(text + "\n")
    elif regular.special(path):
        regular.pour(text.encode() + b"\n", path)
    elif new and path.exists():
        raise OnnxfixError(
            f"--report {path}: something was written there since the run began; nothing is replaced"
        )
    else:
        atomic.put(path, text.encode() + b"\n")
