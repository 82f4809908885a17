"""A run under settings that come from files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from onnxfix import packs
from onnxfix.cli.guard import refuse_unknown
from onnxfix.cli.options import FailOn
from onnxfix.cli.values import Texts, listed
from onnxfix.errors import UsageError

if TYPE_CHECKING:
    from onnxfix.cli.outcomes import Queue, Say, Work
    from onnxfix.config.baseline import Baseline
    from onnxfix.config.holding import Holding
    from onnxfix.config.records import Config, Values
    from onnxfix.files.apart import File
    from onnxfix.fleet.work import Outcome


def held(
    config: Path | None,
    isolated: bool,
    given: Values,
    baseline: Path | None = None,
    write_baseline: Path | None = None,
    *,
    judges: bool = True,
) -> Holding:
    """The configuration of a run with what the command line gives.

    Raises:
        UsageError: options contradict each other, a selector or the target does not exist, or a file cannot be used.
    """
    from onnxfix.config.holding import Holding  # lazy: start-up
    from onnxfix.config.records import Config  # lazy: start-up

    if config is not None and isolated:
        raise UsageError("--config contradicts --isolated")
    if baseline is not None and write_baseline is not None:
        raise UsageError("--write-baseline contradicts --baseline: choose one")
    found = Config()
    if not isolated:
        from onnxfix.config.reading import configuration  # lazy: start-up

        found = configuration(Path.cwd(), config)
    _load(found)
    refuse_unknown(given.select, given.ignore, given.target)
    known = _baseline(found, baseline, write_baseline) if judges else None
    return Holding(found, given, known, write_baseline is not None, judges)


def _load(config: Config) -> None:
    """Have this command, and the worker processes of its run, load the packs that a file names."""
    if config.packs is None or packs.setting():  # --packs and the environment win
        return
    os.environ[packs.VARIABLE] = packs.text_of(config.packs)  # until the end of ``guarded``


def _baseline(config: Config, named: Path | None, written: Path | None) -> Baseline | None:
    from onnxfix.config import baseline as baselines  # lazy: start-up, seldom used

    if written is not None:
        return baselines.load_or_new(written)
    if named is not None:
        return baselines.load(named)
    return (
        baselines.load(config.baseline, f"{config.name}: baseline") if config.baseline is not None else None
    )


def on_command_line(
    target: str | None = None,
    select: Texts = None,
    ignore: Texts = None,
    fail_on: FailOn | None = None,
    require: Texts = None,
    rtol: float | None = None,
    atol: float | None = None,
    effort: str | None = None,
    structure_limit: int | None = None,
    timeout: float | None = None,
    rung_timeout: float | None = None,
) -> Values:
    """What options give, None where they were not given.

    Raises:
        UsageError: the effort does not exist.
    """
    from onnxfix.config.records import COMMAND_LINE, Values  # lazy: start-up
    from onnxfix.effort import effort_of  # lazy: start-up

    if effort is not None:
        effort_of(effort)
    return Values(
        COMMAND_LINE,
        target=target,
        select=listed(select),
        ignore=listed(ignore),
        fail_on=fail_on.value if fail_on is not None else None,
        require=listed(require),
        rtol=rtol,
        atol=atol,
        effort=effort,
        structure_limit=structure_limit,
        timeout=timeout,
        rung_timeout=rung_timeout,
    )


def settled(queue: Queue, holding: Holding) -> Queue:
    """The queue, in which each task has the options of its model."""
    return queue._replace(
        tasks=[replace(task, options=holding.options(task.source, task.options)) for task in queue.tasks]
    )


def expired(queue: Queue, holding: Holding) -> tuple[str, ...]:
    """A warning for each suppression about a model of the queue that holds no more."""
    return tuple(holding.expired(task.source for task in queue.tasks))


def judged(work: Work, holding: Holding) -> Work:
    """The same work, whose reports say what the configuration and the baseline accept. Writes the baseline at its end.

    Raises:
        OnnxfixError: it cannot be written.
    """

    def results(say: Say) -> Generator[Outcome, None, None]:
        with contextlib.closing(work(say)) as outcomes:
            for outcome in outcomes:
                if outcome.report is None:
                    yield outcome
                    continue
                task = outcome.task
                yield replace(outcome, report=holding.judged(task.source, outcome.report, task.options))
        renewed = holding.renewal()
        if renewed is not None:
            from onnxfix.files import atomic  # lazy: start-up, seldom used

            atomic.put(renewed.path, renewed.text().encode("utf-8"))

    return results


def written(holding: Holding) -> Iterator[File]:
    """The baseline, where the run writes one."""
    if holding.renewed and holding.baseline is not None:
        from onnxfix.files.apart import File  # lazy: start-up, it loads onnx

        yield File("--write-baseline", holding.baseline.path)


def show(holding: Holding, models: Sequence[str], json: bool) -> NoReturn:
    """Print the settings of models and where they come from, and stop.

    Raises:
        UsageError: a glob matches nothing.
    """
    from onnxfix.config.showing import as_data, rows  # lazy: seldom used
    from onnxfix.fleet.names import expand  # lazy: seldom used
    from onnxfix.fleet.paths import as_reported  # lazy: seldom used
    from onnxfix.report.render.lines import print_lines  # lazy: seldom used
    from onnxfix.report.render.settings import render_settings, settings_lines  # lazy: seldom used
    from onnxfix.report.render.stream import output  # lazy: seldom used

    sources = [as_reported(model.source) for model in expand(models)]
    if json:
        output().write(render_settings([as_data(holding, source) for source in sources]) + "\n")
    else:
        for source in sources:
            print_lines(settings_lines(source, rows(holding, source)))
    raise typer.Exit(0)


def allowed(exact: bool, rtol: float | None, atol: float | None) -> None:
    """Refuse a tolerance where identical bits are required.

    Raises:
        UsageError: both are given.
    """
    if exact and (rtol is not None or atol is not None):
        raise UsageError("--exact contradicts --rtol and --atol: identical bits have no tolerance")
