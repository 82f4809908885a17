"""``onnxfix check``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from onnxfix.cli import options as opt
from onnxfix.cli.configured import expired, held, judged, on_command_line, settled, show, written
from onnxfix.cli.guard import guarded, refuse_missing
from onnxfix.cli.outcomes import Printing, queued, refuse_format, run
from onnxfix.cli.reports import destinations, draws, refuse_unknown_kinds
from onnxfix.cli.values import Profile, profile_of, trt_options
from onnxfix.errors import UsageError


# Long because: typer reads the options of a command from the parameters of its function.
def check(
    models: opt.Models,
    select: opt.Select = None,
    ignore: opt.Ignore = None,
    target: opt.TargetName = None,
    trt: Annotated[
        bool,
        typer.Option(
            "--trt",
            help="Also run TensorRT's parser and builder, and compare the imported network with the model.",
            rich_help_panel=opt.TENSORRT,
        ),
    ] = False,
    inputs_help: Annotated[
        bool,
        typer.Option(
            "--inputs-help",
            help="Also show which input sizes and values each model accepts, with examples that were run.",
            rich_help_panel=opt.REPORT,
        ),
    ] = False,
    inputs: opt.Inputs = None,
    input_shapes: opt.InputShapes = None,
    trt_package: opt.TrtPackage = opt.Package.auto,
    compute_capability: opt.Capability = None,
    min_shapes: opt.MinShapes = None,
    opt_shapes: opt.OptShapes = None,
    max_shapes: opt.MaxShapes = None,
    plugins: opt.Plugins = None,
    timing_cache: opt.TimingCache = None,
    memory_limit: opt.MemoryLimit = None,
    timeout: opt.Timeout = None,
    structure_limit: opt.StructureLimit = None,
    jobs: opt.Jobs = "1",
    ray: opt.RayAddress = None,
    resume: opt.Resume = False,
    journal: opt.JournalFile = None,
    fail_on: opt.Fail = None,
    baseline: opt.BaselineFile = None,
    write_baseline: opt.WriteBaseline = None,
    config: opt.ConfigFile = None,
    isolated: opt.Isolated = False,
    show_settings: opt.ShowSettings = False,
    statistics: opt.Statistics = False,
    format: opt.FormatOption = opt.Format.text,
    report: opt.ReportFiles = None,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """List what TensorRT would reject, misread or run badly. Models are only read."""
    with guarded(format):
        from onnxfix.options import RunOptions, Verification  # lazy: start-up

        given = on_command_line(
            target, select, ignore, fail_on, structure_limit=structure_limit, timeout=timeout
        )
        holding = held(config, isolated, given, baseline, write_baseline)
        if show_settings:
            show(holding, models, format is opt.Format.json)
        reports = destinations(report)
        shapes = tuple(input_shapes or ())
        options = RunOptions(
            verification=Verification(inputs=inputs, input_shapes=shapes),
            memory_mb=memory_limit,
            pictures=draws(reports),
            inputs_help=inputs_help,
        )
        profile = profile_of(min_shapes, opt_shapes, max_shapes)
        if trt:
            asked = trt_options(
                trt_package, compute_capability, profile, timing_cache=timing_cache, plugins=plugins
            )
            options = replace(options, trt=asked)
        else:
            needless = None if inputs_help else memory_limit
            _refuse_unused(
                trt_package, compute_capability, profile, timing_cache, plugins, needless, inputs, shapes
            )
        queue = settled(queued(models, "check", options, resume=resume, journal=journal), holding)
        from onnxfix.cli.conflicts import refuse_conflicts  # lazy: start-up, it loads onnx

        refuse_conflicts(queue.tasks, options, reports, queue.journal, [*written(holding)])
        refuse_unknown_kinds(reports)
        refuse_format(statistics, format)
        if options.trt is not None:
            refuse_missing(options.trt)
        known = expired(queue, holding)
        printing = Printing(format, reports, quiet, verbose, known, statistics, holding.unmatched)
        run(judged(queue.driven(jobs, ray), holding), len(queue.tasks), printing)


def _refuse_unused(
    package: opt.Package,
    capability: str | None,
    profile: Profile,
    timing_cache: Path | None,
    plugins: list[Path] | None,
    memory_limit: int | None,
    inputs: Path | None,
    shapes: Sequence[str],
) -> None:
    """Refuse options about TensorRT without --trt.

    Raises:
        UsageError: one was given.
    """
    minimum, optimum, maximum = profile
    given = {
        "--trt-package": package is not opt.Package.auto,
        "--compute-capability": capability is not None,
        "--trt-min-shapes": minimum,
        "--trt-opt-shapes": optimum,
        "--trt-max-shapes": maximum,
        "--timing-cache": timing_cache is not None,
        "--plugins": plugins,
        "--memory-limit": memory_limit is not None,
        "--inputs": inputs is not None,
        "--input-shapes": shapes,
    }
    names = [name for name, value in given.items() if value]
    if names:
        raise UsageError(f"{', '.join(names)}: has no effect without --trt")
