"""``onnxfix apply``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfix.cli import options as opt
from onnxfix.cli.configured import expired, held, judged, on_command_line, settled, show, written
from onnxfix.cli.guard import guarded
from onnxfix.cli.outcomes import Printing, queued, refuse_format, run
from onnxfix.cli.reports import destinations, draws, refuse_unknown_kinds
from onnxfix.cli.values import listed, pairs_of, profile_of, sizes_of, trt_options
from onnxfix.errors import UsageError


# Long because: typer reads the options of a command from the parameters of its function.
def apply(
    models: opt.Models,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            callback=opt.refuse_dash,
            help="File to write (one model).",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    output_dir: Annotated[
        str | None,
        typer.Option(
            "--output-dir",
            metavar="FOLDER",
            callback=opt.refuse_dash,
            help="Output folder; file names are kept, and for a glob or a folder the folders below its root.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Overwrite the models.", rich_help_panel=opt.OUTPUT)
    ] = False,
    share_data: Annotated[
        bool,
        typer.Option(
            "--share-data",
            help="Leave weights that are outside the model in its data files, instead of copying them: for results in "
            "the model's folder. onnxfix verify tells if they change.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = False,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff",
            help="Write nothing; show what would change, and exit with 1 if anything would.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = False,
    select: opt.Select = None,
    ignore: opt.Ignore = None,
    target: opt.TargetName = None,
    numeric_fixes: Annotated[
        bool,
        typer.Option(
            "--numeric-fixes",
            help="Also apply fixes that preserve outputs within tolerance only.",
            rich_help_panel=opt.FIXES,
        ),
    ] = False,
    unsafe_fixes: Annotated[
        bool,
        typer.Option(
            "--unsafe-fixes",
            help="Also apply fixes that may change behavior or the interface.",
            rich_help_panel=opt.FIXES,
        ),
    ] = False,
    simplify: Annotated[
        bool,
        typer.Option(
            "--simplify",
            help="Run onnxsim first; its result is dropped unless the interface is unchanged and the outputs agree "
            "within tolerance (it fuses, so bits may change).",
            rich_help_panel=opt.FIXES,
        ),
    ] = False,
    graphsurgeon: Annotated[
        list[Path] | None,
        typer.Option(
            "--graphsurgeon",
            metavar="FILE",
            help="Then run a GraphSurgeon script that defines fix(graph), under the same condition; with "
            "--unsafe-fixes changes are reported instead. Repeatable.",
            rich_help_panel=opt.FIXES,
        ),
    ] = None,
    fix_dim: Annotated[
        list[str] | None,
        typer.Option(
            "--fix-dim",
            metavar="NAME=SIZE",
            help="Fix a symbolic input dimension: batch=1, or INPUT.AXIS=1 for an unnamed one. The result is verified "
            "for that size only.",
            rich_help_panel=opt.CONSTANTS,
        ),
    ] = None,
    fix_input: Annotated[
        list[str] | None,
        typer.Option(
            "--fix-input",
            metavar="NAME=VALUE",
            help="Replace an input by a constant: a number (fills a tensor), true, false, [1,2,3], or @file.npy. The "
            "result is verified for that value only.",
            rich_help_panel=opt.CONSTANTS,
        ),
    ] = None,
    static: Annotated[
        bool,
        typer.Option(
            "--static",
            help="Fix all dimensions to the sizes of the first of --inputs, or of --input-shapes.",
            rich_help_panel=opt.CONSTANTS,
        ),
    ] = False,
    keep_inputs: Annotated[
        bool,
        typer.Option(
            "--keep-inputs",
            help="Keep the inputs that --fix-input replaced, unused.",
            rich_help_panel=opt.CONSTANTS,
        ),
    ] = False,
    no_verify: Annotated[
        bool,
        typer.Option(
            "--no-verify",
            help="Check the interface contract only; no values are compared.",
            rich_help_panel=opt.VERIFICATION,
        ),
    ] = False,
    model_check: Annotated[bool, typer.Option("--model-check", hidden=True)] = False,
    require: opt.Require = None,
    rtol: opt.Rtol = None,
    atol: opt.Atol = None,
    effort: opt.EffortOption = None,
    inputs: opt.Inputs = None,
    input_shapes: opt.InputShapes = None,
    seed: opt.Seed = 0,
    rungs: opt.Rungs = None,
    trt_package: opt.TrtPackage = opt.Package.auto,
    compute_capability: opt.Capability = None,
    min_shapes: opt.MinShapes = None,
    opt_shapes: opt.OptShapes = None,
    max_shapes: opt.MaxShapes = None,
    tf32: opt.Tf32 = False,
    benchmark: opt.Benchmark = False,
    save_engine: opt.SaveEngine = None,
    plugins: opt.Plugins = None,
    timing_cache: opt.TimingCache = None,
    memory_limit: opt.MemoryLimit = None,
    timeout: opt.Timeout = None,
    rung_timeout: opt.RungTimeout = None,
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
    """Repair models, prove that they still compute the same, and write them (default: to MODEL.fixed.onnx)."""
    with guarded(format):
        from onnxfix.cli.conflicts import refuse_conflicts  # lazy: start-up, it loads onnx
        from onnxfix.options import (  # lazy: start-up
            Fixes,
            Output,
            RunOptions,
            Specialization,
            Verification,
        )
        from onnxfix.pipeline.whole.steps import steps_of  # lazy: start-up

        given = on_command_line(
            target,
            select,
            ignore,
            fail_on,
            require,
            rtol,
            atol,
            effort,
            structure_limit,
            timeout,
            rung_timeout,
        )
        holding = held(config, isolated, given, baseline, write_baseline)
        if show_settings:
            show(holding, models, format is opt.Format.json)
        tolerance = rtol is not None or atol is not None
        if no_verify and (model_check or require or rungs or save_engine or benchmark or tolerance):
            raise UsageError(
                "--no-verify contradicts --require, --rungs, --rtol, --atol, --save-engine, --benchmark and "
                "--model-check"
            )
        if no_verify and not static and (inputs or input_shapes):
            raise UsageError("--inputs and --input-shapes have no effect with --no-verify")
        if diff:
            _refuse_written(output, output_dir, in_place, save_engine, resume or journal is not None)
        profile = profile_of(min_shapes, opt_shapes, max_shapes)
        fixed_inputs = pairs_of("--fix-input", fix_input or ())
        reports = destinations(report)
        options = RunOptions(
            fixes=Fixes(numeric_fixes, unsafe_fixes, simplify, tuple(map(str, graphsurgeon or ()))),
            specialization=Specialization(sizes_of(fix_dim or ()), fixed_inputs, static, keep_inputs),
            verification=Verification(
                enabled=not no_verify,
                inputs=str(inputs) if inputs is not None else None,
                input_shapes=tuple(input_shapes or ()),
                seed=seed,
                rungs=listed(rungs),
            ),
            trt=trt_options(
                trt_package,
                compute_capability,
                profile,
                tf32=tf32,
                save_engine=save_engine,
                timing_cache=timing_cache,
                plugins=plugins,
                benchmark=benchmark,
            ),
            output=Output(in_place=in_place, diff=diff, share_data=share_data),
            memory_mb=memory_limit,
            pictures=draws(reports),
        )
        steps_of(simplify, graphsurgeon or ())  # steps that cannot run are refused before any work
        queue = queued(
            models, "apply", options, output=output, output_dir=output_dir, resume=resume, journal=journal
        )
        queue = settled(queue, holding)
        if save_engine is not None and len(queue.tasks) > 1:
            raise UsageError("--save-engine works with one model only")
        refuse_conflicts(queue.tasks, options, reports, queue.journal, [*written(holding)])
        refuse_unknown_kinds(reports)
        refuse_format(statistics, format)
        known = expired(queue, holding)
        printing = Printing(format, reports, quiet, verbose, known, statistics, holding.unmatched)
        work = judged(queue.driven(jobs, ray), holding)
        if not no_verify and len(queue.tasks) == 1:
            # What this loads, the children have as well.
            import onnxfix.pipeline.applying  # noqa: F401  # lazy: start-up
            from onnxfix import spares  # lazy: start-up

            spares.fork(spares.FOR_A_PROOF)
        run(work, len(queue.tasks), printing)


def _refuse_written(
    output: str | None, output_dir: str | None, in_place: bool, engine: Path | None, journal: bool
) -> None:
    """Refuse options about files beside --diff, which writes none.

    Raises:
        UsageError: one was given.
    """
    given = {
        "--output": output is not None,
        "--output-dir": output_dir is not None,
        "--in-place": in_place,
        "--save-engine": engine is not None,
        "--resume, --journal": journal,
    }
    names = [name for name, value in given.items() if value]
    if names:
        raise UsageError(f"--diff writes no model; it contradicts {', '.join(names)}")
