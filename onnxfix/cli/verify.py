"""``onnxfix verify``."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxfix.cli import options as opt
from onnxfix.cli.configured import allowed, held, judged, on_command_line, show
from onnxfix.cli.guard import collect_garbage, guarded
from onnxfix.cli.outcomes import Printing, run
from onnxfix.cli.reports import destinations, refuse_unknown_kinds
from onnxfix.cli.values import listed, profile_of, trt_options
from onnxfix.errors import UsageError

if TYPE_CHECKING:
    from onnxfix.cli.outcomes import Say
    from onnxfix.fleet.work import Outcome


# Long because: typer reads the options of a command from the parameters of its function.
def verify(
    original: Annotated[Path, typer.Argument(metavar="ORIGINAL", help="The model to compare with.")],
    fixed: Annotated[
        Path | None, typer.Argument(metavar="NEW", help="The model to verify (default: ORIGINAL itself).")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Require bit-identical outputs.", rich_help_panel=opt.VERIFICATION)
    ] = False,
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
    batch_sweep: Annotated[
        bool,
        typer.Option(
            "--batch-sweep",
            help="Also compare TensorRT's builds for batch 1 alone and for a profile of batch sizes.",
            rich_help_panel=opt.TENSORRT,
        ),
    ] = False,
    max_batch: Annotated[
        int | None,
        typer.Option(
            "--max-batch",
            metavar="N",
            help="Largest batch of that profile (default: 2).",
            rich_help_panel=opt.TENSORRT,
            min=2,
            max=2**31 - 1,
        ),
    ] = None,
    format: opt.FormatOption = opt.Format.text,
    report: opt.ReportFiles = None,
    config: opt.ConfigFile = None,
    isolated: opt.Isolated = False,
    show_settings: opt.ShowSettings = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Show that two models have the same interface and compute the same outputs, or that one model runs."""
    with guarded(format):
        from onnxfix.cli.conflicts import refuse_conflicts  # lazy: start-up, it loads onnx
        from onnxfix.fleet.work import Task, attempt  # lazy: start-up
        from onnxfix.options import RunOptions, Verification  # lazy: start-up

        if max_batch is not None and not batch_sweep:
            raise UsageError("--max-batch has no effect without --batch-sweep")
        allowed(exact, rtol, atol)
        given = on_command_line(
            fail_on=opt.FailOn.never,
            require=require,
            rtol=rtol,
            atol=atol,
            effort=effort,
            structure_limit=structure_limit,
            timeout=timeout,
            rung_timeout=rung_timeout,
        )
        holding = held(config, isolated, given, judges=False)
        if show_settings:
            show(holding, [str(original)], format is opt.Format.json)
        profile = profile_of(min_shapes, opt_shapes, max_shapes)
        options = RunOptions(
            verification=Verification(
                exact=exact,
                inputs=inputs,
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
                batch_sweep=(max_batch or 2) if batch_sweep else 0,
            ),
            memory_mb=memory_limit,
        )
        options = holding.options(str(original), options)
        models = [path for path in (original, fixed) if path is not None]
        tasks = [Task(number, str(path)) for number, path in enumerate(models)]
        reports = destinations(report)
        refuse_conflicts(tasks, options, reports)
        refuse_unknown_kinds(reports)

        def compared(say: Say) -> Generator[Outcome, None, None]:
            from onnxfix import spares  # lazy: start-up
            from onnxfix.pipeline import verifying  # lazy: start-up

            spares.fork(spares.FOR_A_PROOF)
            collect_garbage()
            progress = partial(say, tasks[0])
            yield attempt(tasks[0], lambda: verifying.verify(original, fixed, options, progress))

        run(judged(compared, holding), 1, Printing(format, reports, quiet, verbose))
