"""The options that commands share, as typer declares them; ``values`` makes records of what was given.

``rich_help_panel`` is the group of an option in the help (``cli.help``); without one, it is the command's own.
"""

# Long because: each option of several commands is declared here, and nowhere else.
from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from onnxfix.cli import completion
from onnxfix.names import DEFAULT_TARGET, RUNGS, TARGETS


class Format(enum.StrEnum):
    """How reports on models are printed: text, or one of ``report.render.documents.Kind``."""

    text = "text"
    json = "json"
    jsonl = "jsonl"
    sarif = "sarif"
    github = "github"
    gitlab = "gitlab"
    junit = "junit"
    markdown = "markdown"


class OwnFormat(enum.StrEnum):
    """How a result that is no report on models is printed."""

    text = "text"
    json = "json"
    markdown = "markdown"


class PlainFormat(enum.StrEnum):
    """How a result without tables is printed."""

    text = "text"
    json = "json"


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


RULES = "Rules"
FIXES = "Fixes"
OUTPUT = "Output"
CONSTANTS = "Constant shapes and inputs"
VERIFICATION = "Verification"
TENSORRT = "TensorRT"
MODELS = "Several models"
SETTINGS = "Settings"
REPORT = "Report"


def refuse_dash(value: Any) -> Any:
    """Return the value of an option that names files to write, unless one is ``-``: other programs mean standard
    output by it, and nobody wants a file of that name.

    Raises:
        BadParameter: a value is ``-``, also after a kind (``json:-``).
    """
    for text in value if isinstance(value, list) else [value]:
        if str(text).rpartition(":")[2] == "-":
            raise typer.BadParameter(f"{text}: files are not written to standard output; name a file")
    return value


Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help="ONNX files, folders (every .onnx file in them), URLs, or quoted globs such as 'models/**/*.onnx'.",
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="RULES",
        help="Rules to run: codes, beginnings of codes, names or ALL; several with commas.",
        autocompletion=completion.rules,
        rich_help_panel=RULES,
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="RULES",
        help="Rules to skip.",
        autocompletion=completion.rules,
        rich_help_panel=RULES,
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help=f"TensorRT to deploy to: {', '.join(TARGETS)}, or a version such as 10.3 (default: that of the installed "
        f"TensorRT, else {DEFAULT_TARGET}).",
        autocompletion=completion.targets,
        rich_help_panel=RULES,
    ),
]
Fail = Annotated[
    FailOn | None,
    typer.Option(
        "--fail-on",
        metavar="SEVERITY",
        help="Lowest severity of a remaining finding that makes the exit code 1 (default: warning).",
        rich_help_panel=REPORT,
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option("--format", metavar="FORMAT", help="Format of standard output.", rich_help_panel=REPORT),
]
OwnFormatOption = Annotated[
    OwnFormat,
    typer.Option("--format", metavar="FORMAT", help="Format of standard output.", rich_help_panel=REPORT),
]
PlainFormatOption = Annotated[
    PlainFormat,
    typer.Option("--format", metavar="FORMAT", help="Format of standard output.", rich_help_panel=REPORT),
]
ListFormatOption = Annotated[
    OwnFormat,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Format of the list; markdown is the table of the docs, with severities by target and evidence.",
        rich_help_panel=REPORT,
    ),
]
ReportFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        callback=refuse_dash,
        help="Also write a report to this file; repeatable. Its kind is that of the name's end: .json, .jsonl, .sarif, "
        ".xml (JUnit), .md, .html or .gitlab.json. Or write KIND:FILE.",
        rich_help_panel=REPORT,
    ),
]
OwnReportFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        callback=refuse_dash,
        help="Also write the result to this file, .json or .md; repeatable.",
        rich_help_panel=REPORT,
    ),
]
DrawnReportFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        callback=refuse_dash,
        help="Also write the result to this file, .html, .json or .md; repeatable.",
        rich_help_panel=REPORT,
    ),
]
Jobs = Annotated[
    str,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        help="Models to process in parallel, sharing cores and memory; 0 or auto: one per core.",
        rich_help_panel=MODELS,
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run on a Ray cluster: auto (the running one, or RAY_ADDRESS), HOST:PORT, or local to start one on this "
        "machine.",
        rich_help_panel=MODELS,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Skip unchanged models that a previous run finished with the same options, rules and versions; the "
        "journal records them.",
        rich_help_panel=MODELS,
    ),
]
JournalFile = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        metavar="FILE",
        callback=refuse_dash,
        help="Journal file (default with --resume: .onnxfix-journal.jsonl in --output-dir).",
        rich_help_panel=MODELS,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only the outcome of each model.", rich_help_panel=REPORT)
]
Statistics = Annotated[
    bool,
    typer.Option(
        "--statistics",
        help="Print counts by rule instead of findings, as text or JSON.",
        rich_help_panel=REPORT,
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print every finding and measurement.", rich_help_panel=REPORT)
]
Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        metavar="CHECKS",
        help="Checks that must pass, such as ort-cpu; several with commas.",
        autocompletion=completion.rungs,
        rich_help_panel=VERIFICATION,
    ),
]
Rungs = Annotated[
    list[str] | None,
    typer.Option(
        "--rungs",
        metavar="CHECKS",
        help=f"Checks to run: {', '.join(RUNGS)} (default: all available).",
        autocompletion=completion.rungs,
        rich_help_panel=VERIFICATION,
    ),
]
EffortOption = Annotated[
    str | None,
    typer.Option(
        "--effort",
        metavar="EFFORT",
        help="What checks that run models may cost: quick, default, thorough (all inputs, all checks), or seconds for "
        "each check.",
        rich_help_panel=VERIFICATION,
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE",
        help="Input data for verification: .npz, a folder of .npy files, or Polygraphy JSON (default: random).",
        rich_help_panel=VERIFICATION,
    ),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shapes",
        metavar="SHAPES",
        help="Input shapes for verification, such as x:1x3x224x224, x:[1,3] or x:1,3.",
        rich_help_panel=VERIFICATION,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed", metavar="N", help="Random seed of generated inputs.", rich_help_panel=VERIFICATION
    ),
]
MemoryLimit = Annotated[
    int | None,
    typer.Option(
        "--memory-limit",
        metavar="MB",
        min=64,
        help="Memory limit in MiB for ONNX Runtime and for TensorRT, each in its own process (default: three quarters "
        "of what is available).",
        rich_help_panel=VERIFICATION,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        help="Time limit for each model in seconds: what was checked until then is reported, and the result is written "
        "only if that proves it (default: none).",
        rich_help_panel=MODELS,
    ),
]
RungTimeout = Annotated[
    float | None,
    typer.Option(
        "--rung-timeout",
        metavar="SECONDS",
        min=0.1,
        help="Time limit of each check in seconds (default: by the model).",
        rich_help_panel=VERIFICATION,
    ),
]
StructureLimit = Annotated[
    int | None,
    typer.Option(
        "--structure-limit",
        metavar="MB",
        min=1,
        help="Memory limit in MiB for a model's nodes, names and attributes, judged before it is parsed (default: 512 "
        "and 96 times the size without weights, 8192 at most).",
        rich_help_panel=SETTINGS,
    ),
]
TrtPackage = Annotated[
    Package,
    typer.Option(
        "--trt-package",
        metavar="PACKAGE",
        help="TensorRT package to use; auto prefers one that supports the GPU.",
        rich_help_panel=TENSORRT,
    ),
]
Capability = Annotated[
    str | None,
    typer.Option(
        "--compute-capability",
        metavar="X.Y",
        help="Compute capability to build for, such as 8.9 (default: this machine's GPU, else 8.9).",
        rich_help_panel=TENSORRT,
    ),
]


def _profile(option: str, bound: str) -> Any:
    """The option for one of the shapes of the optimization profile."""
    return typer.Option(
        option,
        metavar="SHAPES",
        help=f"{bound} shapes of the optimization profile, such as x:1x3 (default: derived from the model).",
        rich_help_panel=TENSORRT,
    )


MinShapes = Annotated[list[str] | None, _profile("--trt-min-shapes", "Minimum")]
OptShapes = Annotated[list[str] | None, _profile("--trt-opt-shapes", "Optimum")]
MaxShapes = Annotated[list[str] | None, _profile("--trt-max-shapes", "Maximum")]
Tf32 = Annotated[
    bool, typer.Option("--tf32", help="Allow TensorRT to use TF32 for float32.", rich_help_panel=TENSORRT)
]
Benchmark = Annotated[
    bool,
    typer.Option(
        "--benchmark",
        help="Also measure latency of the original and the fixed engine (check trt-gpu).",
        rich_help_panel=TENSORRT,
    ),
]
SaveEngine = Annotated[
    Path | None,
    typer.Option(
        "--save-engine",
        metavar="FILE",
        callback=refuse_dash,
        help="Write the engine of the new model to this file.",
        rich_help_panel=TENSORRT,
    ),
]
TimingCache = Annotated[
    Path | None,
    typer.Option(
        "--timing-cache",
        metavar="FILE",
        callback=refuse_dash,
        help="TensorRT timing cache to read and write.",
        rich_help_panel=TENSORRT,
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugins",
        metavar="LIBRARY",
        help="Library of TensorRT plugins to load (repeatable). It is code: name only what you trust.",
        rich_help_panel=TENSORRT,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        rich_help_panel=SETTINGS,
        metavar="FILE",
        help="Configuration file (default: the nearest onnxfix.toml, or pyproject.toml with [tool.onnxfix]).",
    ),
]
Isolated = Annotated[
    bool, typer.Option("--isolated", rich_help_panel=SETTINGS, help="Read no configuration file.")
]
ShowSettings = Annotated[
    bool,
    typer.Option(
        "--show-settings",
        rich_help_panel=SETTINGS,
        help="Print the settings of each model and where they come from, then stop.",
    ),
]
BaselineFile = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        rich_help_panel=SETTINGS,
        metavar="FILE",
        help="Known findings: they do not fail the run, new ones do.",
    ),
]
WriteBaseline = Annotated[
    Path | None,
    typer.Option(
        "--write-baseline",
        rich_help_panel=SETTINGS,
        metavar="FILE",
        callback=refuse_dash,
        help="Write the findings of this run as known ones.",
    ),
]
Rtol = Annotated[
    float | None,
    typer.Option(
        "--rtol",
        rich_help_panel=VERIFICATION,
        metavar="NUMBER",
        help="Relative tolerance of outputs that need not be bit-identical (default: by element type).",
    ),
]
Atol = Annotated[
    float | None,
    typer.Option(
        "--atol",
        rich_help_panel=VERIFICATION,
        metavar="NUMBER",
        help="Absolute tolerance of such outputs, in their unit (default: by element type and magnitude).",
    ),
]
