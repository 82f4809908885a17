"""The options that commands share: how typer declares them, and what their values become.

An option that trtexec or Polygraphy spells another way has a hidden alias.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxfix.errors import UsageError

if TYPE_CHECKING:
    from onnxfix.rule import Severity
    from onnxfix.trt.records import TrtOptions

Texts = Sequence[str] | None
"""The values of an option that may be repeated; None where it was not given."""
Pair = tuple[Texts, Texts]
"""The values of an option, and those of its alias."""


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
_STANDARD = "Format of standard output."
FormatOption = Annotated[Format, typer.Option("--format", help=_STANDARD)]
OwnFormatOption = Annotated[OwnFormat, typer.Option("--format", help=_STANDARD)]
PlainFormatOption = Annotated[PlainFormat, typer.Option("--format", help=_STANDARD)]
ListFormatOption = Annotated[
    OwnFormat,
    typer.Option(
        "--format", help="markdown is the table of the docs, with severities by target and evidence."
    ),
]
ReportFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Also write a report to this file; repeatable. Its kind is that of the name's end: .json, .jsonl, .sarif, "
        ".xml (JUnit), .md, .html or .gitlab.json. Or write KIND:FILE.",
        show_default=False,
    ),
]
OwnReportFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Also write the result to this file, .json or .md; repeatable.",
        show_default=False,
    ),
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


def listed(values: Texts) -> tuple[str, ...] | None:
    """``--select A,B --select C`` as three names; None where the option was not given."""
    if not values:
        return None
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def merged(values: Texts, aliased: Texts) -> tuple[str, ...]:
    """The values of an option and of its alias."""
    return (*(values or ()), *(aliased or ()))


def profile_of(minimum: Pair, optimum: Pair, maximum: Pair) -> Profile:
    """The shapes of an optimization profile, each as given by the option and by its alias."""
    return merged(*minimum), merged(*optimum), merged(*maximum)


def pairs_of(option: str, texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts, each split at its first equals sign.

    Raises:
        UsageError: one has no name or no value, or a name has two values.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            what = "SIZE" if option == "--fix-dim" else "VALUE"
            raise UsageError(f"{option} {text}: write {option} NAME={what}")
        if found.setdefault(name, value) != value:
            raise UsageError(f"{option}: {name} is given two values: {found[name]} and {value}")
    return found


def sizes_of(texts: Iterable[str]) -> dict[str, int]:
    """``NAME=SIZE`` texts.

    Raises:
        UsageError: as for ``pairs_of``, or a size is not a whole number.
    """
    found = {}
    for name, text in pairs_of("--fix-dim", texts).items():
        try:
            found[name] = int(text)
        except ValueError:
            raise UsageError(f"--fix-dim {name}={text}: {text!r} is not a whole number") from None
    return found


Profile = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""The minimum, optimum and maximum shapes of the optimization profile, as texts."""
NO_PROFILE: Profile = ((), (), ())


def trt_options(
    package: Package,
    capability: str | None = None,
    profile: Profile = NO_PROFILE,
    *,
    tf32: bool = False,
    save_engine: Path | None = None,
    timing_cache: Path | None = None,
    benchmark: bool = False,
    batch_sweep: int = 0,
    builds: int = 1,
    save_tactics: Path | None = None,
    load_tactics: Path | None = None,
) -> TrtOptions:
    """The options about TensorRT as one record."""
    from onnxfix.trt.records import TrtOptions  # lazy: start-up

    minimum, optimum, maximum = profile
    return TrtOptions(
        package=package.value,
        compute_capability=capability,
        min_shapes=minimum,
        opt_shapes=optimum,
        max_shapes=maximum,
        tf32=tf32,
        save_engine=_named(save_engine),
        timing_cache=_named(timing_cache),
        benchmark=benchmark,
        batch_sweep=batch_sweep,
        builds=builds,
        save_tactics=_named(save_tactics),
        load_tactics=_named(load_tactics),
    )


def _named(path: Path | None) -> str:
    return str(path) if path is not None else ""


def severity_of(fail_on: FailOn) -> Severity | None:
    """The severity that ``--fail-on`` names; None for none."""
    from onnxfix.rule import Severity  # lazy: start-up

    return None if fail_on is FailOn.never else Severity[fail_on.name.upper()]
