"""The command line: parses, calls, prints, picks the exit code. No logic of its own.

Exit codes: 0 nothing left at or above ``--fail-on``; 1 findings remain (or a fix was withdrawn); 2 usage error,
unreadable model, internal error; 3 verification failed.
"""
# Long because: typer wants every option of every command spelled out where the command is.

from __future__ import annotations

import contextlib
import enum
import gc
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from onnxfix._version import __version__
from onnxfix.cli.arguments import lighten
from onnxfix.errors import OnnxfixError, UsageError, explained
from onnxfix.interrupts import finish, listen
from onnxfix.report.render.stream import complain, stream_at
from onnxfix.report.render.stream import output as standard_output

if TYPE_CHECKING:
    from onnxfix.fleet.work import Command, Options, Outcome, Task
    from onnxfix.trt.records import TrtOptions

    Say = Callable[[Task, str], None]

app = typer.Typer(
    name="onnxfix",
    help="Repair ONNX models for TensorRT, and prove that they still compute the same.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: rich alone would double the start-up
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(enum.StrEnum):
    """How results are printed."""

    text = "text"
    json = "json"


class ListFormat(enum.StrEnum):
    """How the list of rules is printed."""

    text = "text"
    json = "json"
    markdown = "markdown"


class Package(enum.StrEnum):
    """NVIDIA's two packages."""

    auto = "auto"
    tensorrt = "tensorrt"
    rtx = "tensorrt-rtx"


class FailOn(enum.StrEnum):
    """From which severity on a finding makes the exit code 1."""

    info = "info"
    warning = "warning"
    error = "error"
    never = "never"


Models = Annotated[
    list[str],
    typer.Argument(help="ONNX files, URLs, or quoted globs such as 'models/**/*.onnx'.", show_default=False),
]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", help="Rules to run: codes, code prefixes, names, or ALL."),
]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", help="Rules to skip.")]
TargetName = Annotated[
    str | None,
    typer.Option("--target", help="trt8.4, trt8.6, trt10, trt11 (default) or rtx.", show_default=False),
]
Fail = Annotated[
    FailOn, typer.Option("--fail-on", help="Lowest severity of a remaining finding that fails the run.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="Format of standard output.")]
ListFormatOption = Annotated[
    ListFormat,
    typer.Option(
        "--format", help="markdown is the table of the docs, with severities by target and evidence."
    ),
]
ReportFile = Annotated[
    Path | None,
    typer.Option("--report", help="Also write the report as JSON to this file.", show_default=False),
]
Jobs = Annotated[
    str,
    typer.Option(
        "--jobs",
        "-j",
        help="Models to process in parallel, sharing cores and memory; 0 or auto: one per core.",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run on a Ray cluster: auto (the running one, or RAY_ADDRESS), HOST:PORT, or local to start one on this "
        "machine.",
        show_default=False,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Skip unchanged models that a previous run finished with the same options, rules and versions; the "
        "journal records them.",
    ),
]
JournalFile = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        help="Journal file (default with --resume: .onnxfix-journal.jsonl in --output-dir).",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the outcome of each model.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every finding and measurement.")]
Require = Annotated[
    list[str] | None, typer.Option("--require", help="Checks that must pass, such as ort-cpu.")
]
Rungs = Annotated[
    list[str] | None,
    typer.Option("--rungs", help="Checks to run (default: all available)."),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        help="Input data for verification: .npz, a folder of .npy files, or Polygraphy JSON.",
        show_default=False,
    ),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option("--input-shapes", help="Input shapes for verification: x:[1,3], x:1,3 or x:1x3."),
]
ShapesAlias = Annotated[list[str] | None, typer.Option("--input-shape", "--shapes", hidden=True)]
Seed = Annotated[int, typer.Option("--seed", help="Random seed of generated inputs.")]
MemoryLimit = Annotated[
    int | None,
    typer.Option(
        "--memory-limit",
        metavar="MB",
        min=64,
        help="Memory limit in MiB for ONNX Runtime and for TensorRT, each in its own process (default: three quarters "
        "of what is available).",
        show_default=False,
    ),
]
TrtPackage = Annotated[
    Package,
    typer.Option("--trt-package", help="TensorRT package to use; auto prefers one that supports the GPU."),
]
Capability = Annotated[
    str | None,
    typer.Option(
        "--compute-capability",
        help="Compute capability to build for, such as 8.9 (default: this machine's GPU, else 8.9).",
        show_default=False,
    ),
]
_PROFILE = "of TensorRT's optimization profile: x:1x3 (default: derived from the model)."
MinShapes = Annotated[list[str] | None, typer.Option("--trt-min-shapes", help=f"Minimum shapes {_PROFILE}")]
OptShapes = Annotated[list[str] | None, typer.Option("--trt-opt-shapes", help=f"Optimum shapes {_PROFILE}")]
MaxShapes = Annotated[list[str] | None, typer.Option("--trt-max-shapes", help=f"Maximum shapes {_PROFILE}")]
MinAlias = Annotated[list[str] | None, typer.Option("--minShapes", hidden=True)]
OptAlias = Annotated[list[str] | None, typer.Option("--optShapes", hidden=True)]
MaxAlias = Annotated[list[str] | None, typer.Option("--maxShapes", hidden=True)]
Tf32 = Annotated[bool, typer.Option("--tf32", help="Allow TensorRT to use TF32 for float32.")]
Benchmark = Annotated[
    bool,
    typer.Option(
        "--benchmark", help="Also measure latency of the original and the fixed engine (check trt-gpu)."
    ),
]
SaveEngine = Annotated[
    Path | None,
    typer.Option(
        "--save-engine", help="Write the engine of the fixed model to this file.", show_default=False
    ),
]
TimingCache = Annotated[
    Path | None,
    typer.Option("--timing-cache", help="TensorRT timing cache to read and write.", show_default=False),
]
TimingAlias = Annotated[Path | None, typer.Option("--timingCacheFile", hidden=True)]


def _version(value: bool) -> None:
    if value:
        typer.echo(f"onnxfix {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Repair ONNX models for TensorRT, and prove that they still compute the same."""


@app.command()
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
        ),
    ] = False,
    inputs_help: Annotated[
        bool,
        typer.Option(
            "--inputs-help",
            help="Also show which input sizes and values each model accepts, with examples that were run.",
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
    """List the hazards in models. Reads only."""
    with _guard(format):
        _known(select, ignore, target)
        shapes = (
            _profile(min_shapes, min_alias),
            _profile(opt_shapes, opt_alias),
            _profile(max_shapes, max_alias),
        )
        cache, asked = timing_cache or timing_alias, None
        if trt:
            asked = _trt(trt_package, compute_capability, shapes, timing_cache=cache)
        else:
            _unused(trt_package, compute_capability, shapes, cache, None if inputs_help else memory_limit)
        options = replace(
            _options(select, ignore, target, asked), memory_mb=memory_limit, inputs_help=inputs_help
        )
        tasks, where = _tasks(models, "check", options, None, None, resume, journal)
        _separate(tasks, None, report, where, asked)
        if asked is not None:
            _insist(asked)
        _run(_driven(tasks, jobs, ray, where, resume), len(tasks), fail_on, format, report, quiet, verbose)


@app.command()
def apply(
    models: Models,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="File to write (one model).", show_default=False)
    ] = None,
    output_dir: Annotated[
        str | None,
        typer.Option(
            "--output-dir",
            help="Output folder; file names are kept, and for a glob the folders below its root.",
            show_default=False,
        ),
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Overwrite the models.")] = False,
    select: Select = None,
    ignore: Ignore = None,
    target: TargetName = None,
    numeric_fixes: Annotated[
        bool,
        typer.Option("--numeric-fixes", help="Also apply fixes that preserve outputs within tolerance only."),
    ] = False,
    unsafe_fixes: Annotated[
        bool,
        typer.Option("--unsafe-fixes", help="Also apply fixes that may change behavior or the interface."),
    ] = False,
    simplify: Annotated[
        bool,
        typer.Option(
            "--simplify",
            help="Run onnxsim first; its result is dropped unless the interface is unchanged and the outputs agree "
            "within tolerance (it fuses, so bits may change).",
        ),
    ] = False,
    graphsurgeon: Annotated[
        list[Path] | None,
        typer.Option(
            "--graphsurgeon",
            help="Then run a GraphSurgeon script that defines fix(graph), under the same condition; with "
            "--unsafe-fixes changes are reported instead. Repeatable.",
            show_default=False,
        ),
    ] = None,
    fix_dim: Annotated[
        list[str] | None,
        typer.Option(
            "--fix-dim",
            metavar="NAME=SIZE",
            help="Fix a symbolic input dimension: batch=1, or INPUT.AXIS=1 for an unnamed one. The result is verified "
            "for that size only.",
            show_default=False,
        ),
    ] = None,
    fix_input: Annotated[
        list[str] | None,
        typer.Option(
            "--fix-input",
            metavar="NAME=VALUE",
            help="Replace an input by a constant: a number (fills a tensor), true, false, [1,2,3], or @file.npy. The "
            "result is verified for that value only.",
            show_default=False,
        ),
    ] = None,
    static: Annotated[
        bool,
        typer.Option(
            "--static", help="Fix all dimensions to the sizes of the first of --inputs, or of --input-shapes."
        ),
    ] = False,
    keep_inputs: Annotated[
        bool, typer.Option("--keep-inputs", help="Keep the inputs that --fix-input replaced, unused.")
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Check the interface contract only.")
    ] = False,
    model_check: Annotated[bool, typer.Option("--model-check", hidden=True)] = False,
    require: Require = None,
    inputs: Inputs = None,
    input_shapes: InputShapes = None,
    shapes_alias: ShapesAlias = None,
    seed: Seed = 0,
    rungs: Rungs = None,
    trt_package: TrtPackage = Package.auto,
    compute_capability: Capability = None,
    min_shapes: MinShapes = None,
    opt_shapes: OptShapes = None,
    max_shapes: MaxShapes = None,
    min_alias: MinAlias = None,
    opt_alias: OptAlias = None,
    max_alias: MaxAlias = None,
    tf32: Tf32 = False,
    benchmark: Benchmark = False,
    save_engine: SaveEngine = None,
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
    """Fix models, prove the results, and write them (to MODEL.fixed.onnx unless told otherwise)."""
    with _guard(format):
        _known(select, ignore, target)
        if no_verify and (model_check or require or rungs or save_engine or benchmark):
            raise UsageError(
                "--no-verify contradicts --require, --rungs, --save-engine, --benchmark and --model-check"
            )
        if no_verify and not static and (inputs or input_shapes or shapes_alias):
            raise UsageError("--inputs and --input-shapes: nothing to do with --no-verify")
        _available(simplify, graphsurgeon)
        values = _specialized(fix_dim or (), fix_input or (), keep_inputs)
        shapes = (
            _profile(min_shapes, min_alias),
            _profile(opt_shapes, opt_alias),
            _profile(max_shapes, max_alias),
        )
        cache = timing_cache or timing_alias
        asked = _trt(trt_package, compute_capability, shapes, tf32, save_engine, cache, benchmark)
        options = replace(
            _options(select, ignore, target, asked),
            in_place=in_place,
            numeric_fixes=numeric_fixes,
            unsafe_fixes=unsafe_fixes,
            simplify=simplify,
            graphsurgeon=tuple(str(script) for script in graphsurgeon or ()),
            fix_dims=tuple(fix_dim or ()),
            fix_inputs=tuple(fix_input or ()),
            static=static,
            keep_inputs=keep_inputs,
            verify=not no_verify,
            require=tuple(_split(require) or ()),
            inputs=str(inputs) if inputs is not None else None,
            input_shapes=(*(input_shapes or ()), *(shapes_alias or ())),
            seed=seed,
            rungs=_names(rungs),
            memory_mb=memory_limit,
        )
        tasks, where = _tasks(models, "apply", options, output, output_dir, resume, journal)
        if save_engine is not None and len(tasks) > 1:
            raise UsageError("--save-engine takes one model")
        _separate(tasks, inputs, report, where, asked, values)
        _run(_driven(tasks, jobs, ray, where, resume), len(tasks), fail_on, format, report, quiet, verbose)


@app.command()
def verify(
    original: Annotated[Path, typer.Argument(help="The model to compare with.", show_default=False)],
    fixed: Annotated[
        Path | None,
        typer.Argument(help="The model to verify (default: ORIGINAL itself).", show_default=False),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Require bit-identical outputs.")] = False,
    require: Require = None,
    inputs: Inputs = None,
    input_shapes: InputShapes = None,
    shapes_alias: ShapesAlias = None,
    seed: Seed = 0,
    rungs: Rungs = None,
    trt_package: TrtPackage = Package.auto,
    compute_capability: Capability = None,
    min_shapes: MinShapes = None,
    opt_shapes: OptShapes = None,
    max_shapes: MaxShapes = None,
    min_alias: MinAlias = None,
    opt_alias: OptAlias = None,
    max_alias: MaxAlias = None,
    tf32: Tf32 = False,
    benchmark: Benchmark = False,
    save_engine: SaveEngine = None,
    timing_cache: TimingCache = None,
    timing_alias: TimingAlias = None,
    memory_limit: MemoryLimit = None,
    batch_sweep: Annotated[
        bool,
        typer.Option(
            "--batch-sweep",
            help="Also compare TensorRT's builds for batch 1 alone and for a profile of batch sizes.",
        ),
    ] = False,
    max_batch: Annotated[
        int | None,
        typer.Option(
            "--max-batch",
            help="Greatest batch of that profile; 2 without it.",
            min=2,
            max=2**31 - 1,
            show_default=False,
        ),
    ] = None,
    format: FormatOption = Format.text,
    report: ReportFile = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare two models on the verification ladder: same interface, same outputs."""
    with _guard(format):
        from onnxfix.fleet.work import Task, attempt

        if max_batch is not None and not batch_sweep:
            raise UsageError("--max-batch does nothing without --batch-sweep")
        shapes = (
            _profile(min_shapes, min_alias),
            _profile(opt_shapes, opt_alias),
            _profile(max_shapes, max_alias),
        )
        cache = timing_cache or timing_alias
        asked = _trt(trt_package, compute_capability, shapes, tf32, save_engine, cache, benchmark)
        tasks = [Task(number, str(path)) for number, path in enumerate((original, fixed)) if path is not None]
        _separate(tasks, inputs, report, None, asked)

        def compared(say: Say) -> Generator[Outcome, None, None]:
            from onnxfix.api import verify

            _collect()
            yield attempt(
                tasks[0],
                lambda: verify(
                    original,
                    fixed,
                    exact=exact,
                    require=_split(require) or (),
                    inputs=inputs,
                    input_shapes=[*(input_shapes or ()), *(shapes_alias or ())],
                    seed=seed,
                    rungs=_split(rungs),
                    trt=asked,
                    batch_sweep=(max_batch or 2) if batch_sweep else 0,
                    memory_mb=memory_limit,
                    progress=lambda words: say(tasks[0], words),
                ),
            )

        _run(compared, 1, FailOn.never, format, report, quiet, verbose)


@app.command()
def lift(
    model: Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write; MODEL.lifted.onnx without it.", show_default=False
        ),
    ] = None,
    trt_package: TrtPackage = Package.auto,
    format: FormatOption = Format.text,
) -> None:
    """Write what TensorRT understood of a model: its imported network, as a model to open and to run."""
    with _guard(format):
        from onnxfix.pipeline.lifting import lift
        from onnxfix.report.render.lift import lifted_json, show_lifted
        from onnxfix.report.render.progress import Steps

        asked = _trt(trt_package, None, ((), (), ()))
        _insist(asked)
        _collect()
        with Steps(1) as steps:
            target = output if output is not None else model.with_name(f"{model.stem}.lifted.onnx")
            found = lift(model, target, trt=asked, progress=steps.of(str(model)))
        if format is Format.json:
            standard_output().write(lifted_json(model, found) + "\n")
        else:
            show_lifted(model, found)
        raise typer.Exit(found.exit_code)


@app.command()
def explain(code: Annotated[str, typer.Argument(help="A rule's code or name.", show_default=False)]) -> None:
    """Print a rule's page: what it finds, why that matters, how it is fixed, the evidence."""
    with _guard():
        from onnxfix.registry import registry
        from onnxfix.report.render.rules import print_rule

        print_rule(registry().get(code))


@app.command()
def rules(select: Select = None, format: ListFormatOption = ListFormat.text) -> None:
    """List the rules: code, name, severity, safety of the fix, and what they find."""
    with _guard(Format.json if format is ListFormat.json else Format.text):
        from onnxfix.registry import registry
        from onnxfix.report.render.lines import print_lines
        from onnxfix.report.render.rules import rules_json, rules_lines, rules_markdown

        found = registry()
        chosen = found.matching(_split(select))
        _warn(found.warnings)
        if format is ListFormat.json:
            standard_output().write(rules_json(chosen) + "\n")
        elif format is ListFormat.markdown:
            from onnxfix.report.catalogue import facts_of

            standard_output().write(rules_markdown(chosen, [facts_of(rule) for rule in chosen]))
        else:
            print_lines(rules_lines(chosen))


@app.command()
def doctor(format: FormatOption = Format.text) -> None:
    """Say which rungs of the ladder this machine can run, why not the others, and what mends it."""
    with _guard(format):
        from onnxfix.doctor import examine
        from onnxfix.report.render.doctor import diagnosis_json, show_diagnosis

        found = examine()
        if format is Format.json:
            standard_output().write(diagnosis_json(found) + "\n")
        else:
            show_diagnosis(found)
        raise typer.Exit(found.exit_code())


def _run(
    work: Callable[[Say], Generator[Outcome, None, None]],
    count: int,
    fail_on: FailOn,
    format: Format,
    report_file: Path | None,
    quiet: bool,
    verbose: bool,
) -> NoReturn:
    """Work through ``count`` models, print as results come, and exit with the worst code."""
    from onnxfix.registry import registry
    from onnxfix.report.render.json import render_json
    from onnxfix.report.render.lines import print_lines
    from onnxfix.report.render.progress import Steps
    from onnxfix.report.render.text import render_report, render_summary

    if count > 1:
        _collect()
    new = report_file is not None and not report_file.exists()
    outcomes: list[Outcome] = []
    codes = [0]
    with (
        Steps(count) as steps,
        contextlib.closing(work(lambda task, words: steps.at(task.source, words))) as results,
    ):
        for outcome in results:
            outcomes.append(outcome)
            steps.over(outcome.task.source)
            if outcome.report is None:
                steps.pause()
                complain(outcome.error)
                codes.append(2)
                continue
            codes.append(outcome.report.exit_code(_severity(fail_on)))
            if format is Format.text:
                steps.pause()
                brief = quiet or (outcome.reused and not verbose)
                print_lines(render_report(outcome.report, quiet=brief, verbose=verbose))
    outcomes.sort(key=lambda outcome: outcome.task.index)
    done = [outcome.report for outcome in outcomes if outcome.report is not None]
    failed = [outcome for outcome in outcomes if outcome.report is None]
    errors = [(outcome.task.source, outcome.error) for outcome in failed]
    warnings = registry().warnings
    _warn(warnings)
    if format is Format.text and count > 1:
        crashed = sum(outcome.crashed or outcome.memory for outcome in failed)
        print_lines(render_summary(done, errors, crashed))
    if format is Format.json:
        standard_output().write(render_json(done, errors, warnings, _severity(fail_on)) + "\n")
    if report_file is not None:
        _write_report(report_file, render_json(done, errors, warnings, _severity(fail_on)), new=new)
    raise typer.Exit(max(codes))


def _collect() -> None:
    """Look for garbage from here on, if not in what start-up has made."""
    gc.freeze()
    gc.enable()


def _options(
    select: list[str] | None, ignore: list[str] | None, target: str | None, trt: TrtOptions | None
) -> Options:
    """What ``check`` and ``apply`` have in common."""
    from onnxfix.fleet.work import Options

    return Options(_names(select), _names(ignore), target, trt)


def _tasks(
    models: list[str],
    command: Command,
    options: Options,
    output: str | None,
    output_dir: str | None,
    resume: bool,
    journal: Path | None,
) -> tuple[list[Task], Path | None]:
    """What is wanted of each model, and the journal's place."""
    from onnxfix.fleet.drive import tasks_of

    where = journal
    if resume:
        from onnxfix.fleet.journal import place_of

        where = place_of(journal, resume, output_dir)
    tasks = tasks_of(
        models, command, options, output=output, output_dir=output_dir, stamped=where is not None
    )
    return tasks, where


def _driven(
    tasks: list[Task], jobs: str, ray: str | None, journal: Path | None, resume: bool
) -> Callable[[Say], Generator[Outcome, None, None]]:
    """How the tasks are done, before any is begun."""
    from onnxfix.fleet.drive import drive, executor_of

    executor = executor_of(jobs, ray, tasks)
    return lambda say: drive(tasks, executor, journal, resume=resume, progress=say)


@contextlib.contextmanager
def _guard(format: Format = Format.text) -> Iterator[None]:
    """One line and exit code 2 for whatever ends a command early; as a JSON document too where that was asked for."""
    try:
        listen()
        yield
    except KeyboardInterrupt:
        finish()
        complain("interrupted; nothing half-written was left behind")
    except typer.Exit:
        raise
    except Exception as error:
        message = explained(error)
        complain(message)
        if format is Format.json and isinstance(error, UsageError):
            from onnxfix.report.render.json import render_json

            standard_output().write(render_json((), [("", message)]) + "\n")
    else:
        return
    raise typer.Exit(2) from None


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        complain(f"warning: {warning}")


def _known(select: list[str] | None, ignore: list[str] | None, target: str | None) -> None:
    """Refuse selectors and targets that do not exist, once and before any work."""
    from onnxfix.registry import registry
    from onnxfix.targets import target_named

    registry().choose(_split(select), _split(ignore))
    target_named(target)


def _available(simplify: bool, scripts: list[Path] | None) -> None:
    """Refuse whole-model steps that cannot run, once and before any work."""
    from onnxfix.pipeline.whole.steps import steps_of

    steps_of(simplify, scripts or ())


def _specialized(dims: Sequence[str], inputs: Sequence[str], keep: bool) -> tuple[str, ...]:
    """The files of values. What cannot be read of ``--fix-dim`` and ``--fix-input`` is refused before any work."""
    from onnxfix.verification.specialize.request import files_of, pairs_of, sizes_of

    sizes_of(dims)
    if keep and not inputs:
        raise UsageError("--keep-inputs has no effect without --fix-input")
    return files_of(pairs_of("--fix-input", inputs).values())


def _profile(shapes: list[str] | None, alias: list[str] | None) -> tuple[str, ...]:
    return (*(shapes or ()), *(alias or ()))


def _trt(
    package: Package,
    capability: str | None,
    shapes: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    tf32: bool = False,
    save_engine: Path | None = None,
    timing_cache: Path | None = None,
    benchmark: bool = False,
) -> TrtOptions:
    """What the options ask of TensorRT."""
    from onnxfix.trt.records import TrtOptions

    least, usual, most = shapes
    return TrtOptions(
        package=package.value,
        compute_capability=capability,
        min_shapes=least,
        opt_shapes=usual,
        max_shapes=most,
        tf32=tf32,
        save_engine=str(save_engine) if save_engine is not None else "",
        timing_cache=str(timing_cache) if timing_cache is not None else "",
        benchmark=benchmark,
    )


def _unused(
    package: Package,
    capability: str | None,
    shapes: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    timing_cache: Path | None,
    memory_limit: int | None,
) -> None:
    """Refuse options about TensorRT where it is not asked."""
    least, usual, most = shapes
    given = {
        "--trt-package": package is not Package.auto,
        "--compute-capability": capability is not None,
        "--trt-min-shapes": least,
        "--trt-opt-shapes": usual,
        "--trt-max-shapes": most,
        "--timing-cache": timing_cache is not None,
        "--memory-limit": memory_limit is not None,
    }
    names = [name for name, value in given.items() if value]
    if names:
        raise UsageError(f"{', '.join(names)}: has no effect without --trt")


def _insist(asked: TrtOptions) -> None:
    """Refuse to ask a TensorRT that is not there, once and before any work."""
    from onnxfix.report.confirm import insist

    insist(asked).close()


def _separate(
    tasks: Sequence[Task],
    inputs: Path | None,
    report: Path | None,
    journal: Path | None,
    asked: TrtOptions | None,
    values: Sequence[str] = (),
) -> None:
    """Refuse files to write that would replace another file of this run, or that cannot be written anyway.

    What a model keeps in other files shows once it is read: ``api`` looks at that, but it knows neither the report
    nor the models that are still to come. A file that is not there yet replaces nothing.
    """
    from onnxfix.files.apart import File, files_named, inputs_of, separate
    from onnxfix.fleet.paths import remote

    written = []
    if asked is not None:
        from onnxfix.trt import files

        files.check_files(asked)
        written = files.files(asked)
    targets = {task.source: Path(task.target) for task in tasks if task.target and not remote(task.target)}
    models = [task.source for task in tasks if not remote(task.source)]
    known = [File("a model of this run", Path(model)) for model in models]
    if report is not None:
        _writable(report)
        written.insert(0, File("--report", report))
    ours = [one for one in written if one.what == "--report" or len(tasks) > 1]
    if journal is not None:  # an existing file that is none is refused when it is opened
        written.insert(0, File("--journal", journal))
    if any(one.path.is_file() for one in ours):
        folders = {source: target.parent for source, target in targets.items()}
        known = [one for model in models for one in files_named(Path(model), folders.get(model))]
    outputs = [File("the output", target) for target in targets.values()]
    known += [File("a value of --fix-input", Path(value)) for value in values]
    separate(written, [*known, *outputs, *inputs_of(inputs)])
    if len(tasks) > 1:
        _keep_data(tasks)


def _keep_data(tasks: Sequence[Task]) -> None:
    """Refuse results that would replace another model's external data, where it is read or where it is copied to."""
    from onnxfix.files.apart import File, data_named, replaceable, separate
    from onnxfix.fleet.paths import remote

    local = [task for task in tasks if task.command == "apply" and not remote(task.source)]
    targets = [Path(task.target) for task in tasks if task.target and not remote(task.target)]
    replaced = [Path(task.source) for task in local if task.options.in_place]
    if not targets and not replaced:
        return
    data = [
        one
        for task in local
        for one in data_named(
            Path(task.source),
            Path(task.target).parent if task.target and not remote(task.target) else None,
        )
    ]
    if data:
        separate([File("the output", target) for target in targets], data)
        for path in replaced:
            replaceable(path, data)


def _writable(report: Path) -> None:
    """Refuse a report that cannot be written. Pipes and terminals can: they are written to, not replaced."""
    if report.is_dir() or not report.parent.is_dir():
        raise UsageError(f"--report {report}: is a directory, or in a directory that does not exist")
    if report.is_block_device() or report.is_socket():
        raise UsageError(f"--report {report}: is no regular file; name another one")


def _write_report(path: Path, text: str, *, new: bool) -> None:
    """Write the report; ``new`` says that nothing stood there when the run began."""
    from onnxfix.files import atomic, regular

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


def _split(values: list[str] | None) -> list[str] | None:
    """``--select A,B --select C`` to a list."""
    if not values:
        return None
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _names(values: list[str] | None) -> tuple[str, ...] | None:
    found = _split(values)
    return None if found is None else tuple(found)


def _severity(fail_on: FailOn) -> Any:
    from onnxfix.rule import Severity

    return None if fail_on is FailOn.never else Severity[fail_on.name.upper()]


def main() -> None:
    """Entry point of the ``onnxfix`` command."""
    # numpy's BLAS would start a thread for every core as it is loaded; nothing here multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What start-up makes stays; so does most of what comes of checking or fixing one model. Without this, `check` of a
    # small export takes 15 % more processor time.
    gc.disable()
    command = typer.main.get_command(app)
    lighten(command)
    try:
        command()
    finally:
        gc.freeze()  # else the interpreter looks through everything for garbage once more before it ends
