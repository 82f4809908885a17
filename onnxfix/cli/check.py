"""``onnxfix check``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from onnxfix.cli.guard import guarded, refuse_missing, refuse_unknown
from onnxfix.cli.options import (
    REPORT,
    TENSORRT,
    Capability,
    Fail,
    FailOn,
    Format,
    FormatOption,
    Ignore,
    Jobs,
    JournalFile,
    MaxAlias,
    MaxShapes,
    MemoryLimit,
    MinAlias,
    MinShapes,
    Models,
    OptAlias,
    OptShapes,
    Package,
    Quiet,
    RayAddress,
    ReportFile,
    Resume,
    Select,
    TargetName,
    TimingAlias,
    TimingCache,
    TrtPackage,
    Verbose,
)
from onnxfix.cli.outcomes import Printing, draws, queued, run
from onnxfix.cli.values import Profile, listed, profile_of, trt_options
from onnxfix.errors import UsageError


# Long because: typer reads the options of a command from the parameters of its function.
def check(
    models: Models,
    select: Select = None,
    ignore: Ignore = None,
    target: TargetName = None,
    trt: Annotated[
        bool,
        typer.Option(
            "--trt",
            help="Also run TensorRT's parser and builder, and compare the imported network with the model.",
            rich_help_panel=TENSORRT,
        ),
    ] = False,
    inputs_help: Annotated[
        bool,
        typer.Option(
            "--inputs-help",
            help="Also show which input sizes and values each model accepts, with examples that were run.",
            rich_help_panel=REPORT,
        ),
    ] = False,
    trt_package: TrtPackage = Package.auto,
    compute_capability: Capability = None,
    min_shapes: MinShapes = None,
    opt_shapes: OptShapes = None,
    max_shapes: MaxShapes = None,
    min_alias: MinAlias = None,
    opt_alias: OptAlias = None,
    max_alias: MaxAlias = None,
    timing_cache: TimingCache = None,
    timing_alias: TimingAlias = None,
    memory_limit: MemoryLimit = None,
    jobs: Jobs = "1",
    ray: RayAddress = None,
    resume: Resume = False,
    journal: JournalFile = None,
    fail_on: Fail = FailOn.warning,
    format: FormatOption = Format.text,
    report: ReportFile = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """List what TensorRT would reject, misread or run badly. Models are only read."""
    with guarded(format):
        from onnxfix.options import Rules, RunOptions  # lazy: start-up

        refuse_unknown(select, ignore, target)
        options = RunOptions(
            rules=Rules(listed(select), listed(ignore), target),
            memory_mb=memory_limit,
            pictures=draws(report),
            inputs_help=inputs_help,
        )
        profile = profile_of((min_shapes, min_alias), (opt_shapes, opt_alias), (max_shapes, max_alias))
        cache = timing_cache or timing_alias
        if trt:
            asked = trt_options(trt_package, compute_capability, profile, timing_cache=cache)
            options = replace(options, trt=asked)
        else:
            needless = None if inputs_help else memory_limit
            _refuse_unused(trt_package, compute_capability, profile, cache, needless)
        queue = queued(models, "check", options, resume=resume, journal=journal)
        from onnxfix.cli.conflicts import refuse_conflicts  # lazy: start-up, it loads onnx

        refuse_conflicts(queue.tasks, options, report, queue.journal)
        if options.trt is not None:
            refuse_missing(options.trt)
        printing = Printing(fail_on, format, report, quiet, verbose)
        run(queue.driven(jobs, ray), len(queue.tasks), printing)


def _refuse_unused(
    package: Package,
    capability: str | None,
    profile: Profile,
    timing_cache: Path | None,
    memory_limit: int | None,
) -> None:
    """Refuse options about TensorRT without --trt.

    Raises:
        UsageError: one was given.
    """
    minimum, optimum, maximum = profile
    given = {
        "--trt-package": package is not Package.auto,
        "--compute-capability": capability is not None,
        "--trt-min-shapes": minimum,
        "--trt-opt-shapes": optimum,
        "--trt-max-shapes": maximum,
        "--timing-cache": timing_cache is not None,
        "--memory-limit": memory_limit is not None,
    }
    names = [name for name, value in given.items() if value]
    if names:
        raise UsageError(f"{', '.join(names)}: has no effect without --trt")
