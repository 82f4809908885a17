"""The table of options: their names, kinds and help, and the field of a run's record that each one sets.

The command line declares its options from here, Python's keywords are checked by their kinds, and a settings file may
have those that are settings. Options that concern one command alone, and no run, are in ``cli.commands``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

from onnxfix.names import DEFAULT_TARGET, RUNGS, TARGETS


class Kind(enum.Enum):
    """What the value of an option is. The command line, Python and the settings file each have a reader for it."""

    FLAG = enum.auto()
    TEXT = enum.auto()
    TEXTS = enum.auto()
    CHOICE = enum.auto()
    NAMES = enum.auto()
    """Codes, beginnings of codes, and names of rules."""
    CHECKS = enum.auto()
    WHOLE = enum.auto()
    NUMBER = enum.auto()
    SECONDS = enum.auto()
    MEGABYTES = enum.auto()
    EFFORT = enum.auto()
    FILE = enum.auto()
    FILES = enum.auto()
    INPUTS = enum.auto()
    SHAPES = enum.auto()
    SIZES = enum.auto()
    """Sizes by the names of dimensions."""
    VALUES = enum.auto()
    """Values by the names of inputs."""

    @property
    def repeatable(self) -> bool:
        """Whether the command line may have it several times."""
        return self in _REPEATABLE


_REPEATABLE = {
    Kind.TEXTS, Kind.NAMES, Kind.CHECKS, Kind.FILES, Kind.SHAPES, Kind.SIZES, Kind.VALUES,
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """An option. ``name`` is also its flag, ``--memory-limit`` for ``memory_limit``; ``value`` is what help calls its
    value, "" for a flag.

    ``field`` is the field of ``RunOptions`` that it sets, such as ``verification.seed``; ``keyword`` is Python's name
    where that is another one, and ``example`` a value of it. ``least`` and ``most`` bound a number on the command line,
    ``writes`` says that the value names a file to write, and ``complete`` names a function of ``cli.completion``.
    """

    name: str
    kind: Kind
    value: str
    help: str
    field: str = ""
    default: Any = None
    choices: tuple[str, ...] = ()
    short: str = ""
    keyword: str = ""
    example: str = ""
    least: float | None = None
    most: float | None = None
    required: bool = False
    writes: bool = False
    complete: str = ""
    group: str = ""

    @property
    def flag(self) -> str:
        """``--memory-limit``."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def key(self) -> str:
        """Its name in a settings file."""
        return self.name.replace("_", "-")

    @property
    def notes(self) -> list[str]:
        """What help adds: whether it is required, its choices, its default."""
        notes = ["required"] if self.required else []
        notes += [", ".join(self.choices)] if self.choices else []
        return notes + ([f"default: {self.default}"] if self.default is not None else [])


FAIL_ON = ("info", "warning", "error", "never")
"""The values of ``fail-on``."""
FORMATS = ("text", "json", "jsonl", "sarif", "github", "gitlab", "junit", "markdown")
"""The values of ``--format``: text, and each kind in ``report.render.documents`` except html. The help of ``--report``
below names the suffixes."""
PACKAGES = ("auto", "tensorrt", "tensorrt-rtx")
MAX_BATCH = 2**31 - 1
"""The largest batch of a sweep: TensorRT's dimensions are no larger."""


def _profile(bound: str) -> Option:
    """The option for one of the shapes of the optimization profile."""
    return Option(
        f"trt_{bound[:3].lower()}_shapes", Kind.SHAPES, "SHAPES",
        f"{bound} shapes of the optimization profile, such as x:1x3 (default: derived from the model).",
        f"trt.{bound[:3].lower()}_shapes",
    )  # fmt: skip


GROUPS: dict[str, tuple[Option, ...]] = {
    "Output": (
        Option("in_place", Kind.FLAG, "", "Overwrite the models.", "output.in_place"),
        Option(
            "share_data", Kind.FLAG, "",
            "Leave weights that are outside the model in its data files, instead of copying them: for results in the "
            "model's folder. onnxfix verify tells if they change.",
            "output.share_data",
        ),
        Option(
            "diff", Kind.FLAG, "",
            "Write nothing; show what would change, and exit with 1 if anything would.",
            "output.diff",
        ),
    ),
    "Rules": (
        Option(
            "select", Kind.NAMES, "RULES",
            "Rules to run: codes, beginnings of codes, names or ALL; several with commas.",
            "rules.select", complete="rules",
        ),
        Option(
            "ignore", Kind.NAMES, "RULES", "Rules to skip.", "rules.ignore", complete="rules",
        ),
        Option(
            "target", Kind.TEXT, "TARGET",
            f"TensorRT to deploy to: {', '.join(TARGETS)}, a release from 8.4 to 11.4, a JetPack such as jetpack6.2, "
            f"or several with commas (default: that of the installed TensorRT, else {DEFAULT_TARGET}).",
            "rules.target", example="trt11", complete="targets",
        ),
    ),
    "Fixes": (
        Option(
            "numeric_fixes", Kind.FLAG, "",
            "Also apply fixes that preserve outputs within tolerance only.",
            "fixes.numeric",
        ),
        Option(
            "unsafe_fixes", Kind.FLAG, "",
            "Also apply fixes that may change behavior or the interface.",
            "fixes.unsafe",
        ),
        Option(
            "simplify", Kind.FLAG, "",
            "Run onnxsim first; its result is dropped unless the interface is unchanged and the outputs agree within "
            "tolerance (it fuses, so bits may change).",
            "fixes.simplify",
        ),
        Option(
            "graphsurgeon", Kind.FILES, "FILE",
            "Then run a GraphSurgeon script that defines fix(graph), under the same condition; with --unsafe-fixes "
            "changes are reported instead. Repeatable.",
            "fixes.graphsurgeon",
        ),
    ),
    "Constant shapes and inputs": (
        Option(
            "fix_dim", Kind.SIZES, "NAME=SIZE",
            "Fix a symbolic input dimension: batch=1, or INPUT.AXIS=1 for an unnamed one. The result is verified for "
            "that size only.",
            "specialization.dims", keyword="fix_dims", example="{'batch': 1}",
        ),
        Option(
            "fix_input", Kind.VALUES, "NAME=VALUE",
            "Replace an input by a constant: a number (fills a tensor), true, false, [1,2,3], or @file.npy. The result "
            "is verified for that value only.",
            "specialization.inputs", keyword="fix_inputs", example="{'training': False}",
        ),
        Option(
            "static", Kind.FLAG, "",
            "Fix all dimensions to the sizes of the first of --inputs, or of --input-shapes.",
            "specialization.static",
        ),
        Option(
            "keep_inputs", Kind.FLAG, "",
            "Keep the inputs that --fix-input replaced, unused.",
            "specialization.keep",
        ),
    ),
    "Verification": (
        Option("exact", Kind.FLAG, "", "Require bit-identical outputs.", "verification.exact"),
        Option(
            "no_verify", Kind.FLAG, "", "Check the interface contract only; no values are compared."
        ),
        Option(
            "require", Kind.CHECKS, "CHECKS",
            "Checks that must pass, such as ort-cpu; several with commas.",
            "verification.require", complete="checks",
        ),
        Option(
            "rtol", Kind.NUMBER, "NUMBER",
            "Relative tolerance of outputs that need not be bit-identical (default: by element type).",
            "verification.rtol",
        ),
        Option(
            "atol", Kind.NUMBER, "NUMBER",
            "Absolute tolerance of such outputs, in their unit (default: by element type and magnitude).",
            "verification.atol",
        ),
        Option(
            "effort", Kind.EFFORT, "EFFORT",
            "What checks that run models may cost: quick, default, thorough (all inputs, all checks), or seconds for "
            "each check.",
            "verification.effort",
        ),
        Option(
            "inputs", Kind.INPUTS, "FILE",
            "Input data for verification: .npz, a folder of .npy files, or Polygraphy JSON (default: random).",
            "verification.inputs",
        ),
        Option(
            "input_shapes", Kind.SHAPES, "SHAPES",
            "Input shapes for verification, such as x:1x3x224x224, x:[1,3] or x:1,3.",
            "verification.input_shapes",
        ),
        Option("seed", Kind.WHOLE, "N", "Random seed of generated inputs.", "verification.seed", default=0),
        Option(
            "rungs", Kind.CHECKS, "CHECKS",
            f"Checks to run: {', '.join(RUNGS)} (default: all available but ort-trt).",
            "verification.rungs", complete="checks",
        ),
        Option(
            "memory_limit", Kind.MEGABYTES, "MB",
            "Memory limit in MiB for ONNX Runtime and for TensorRT, each in its own process (default: three quarters "
            "of what is available).",
            "memory_mb", keyword="memory_mb", least=64,
        ),
        Option(
            "rung_timeout", Kind.SECONDS, "SECONDS",
            "Time limit of each check in seconds (default: by the model).",
            "verification.rung_timeout", least=0.1,
        ),
    ),
    "TensorRT": (
        Option(
            "trt", Kind.FLAG, "",
            "Also run TensorRT's parser and builder, and compare the imported network with the model.",
        ),
        Option(
            "partition", Kind.FLAG, "",
            "Also show how ONNX Runtime's TensorRT provider would cut each model: the parts that TensorRT takes, and "
            "the nodes that run elsewhere.",
            "partition",
        ),
        Option(
            "trt_package", Kind.CHOICE, "PACKAGE",
            "TensorRT package to use; auto prefers one that supports the GPU.",
            "trt.package", default="auto", choices=PACKAGES,
        ),
        Option(
            "compute_capability", Kind.TEXT, "X.Y",
            "Compute capability to build for, such as 8.9 (default: this machine's GPU, else 8.9).",
            "trt.compute_capability",
        ),
        _profile("Minimum"),
        _profile("Optimum"),
        _profile("Maximum"),
        Option("tf32", Kind.FLAG, "", "Allow TensorRT to use TF32 for float32.", "trt.tf32"),
        Option(
            "benchmark", Kind.FLAG, "",
            "Also measure latency of the original and the fixed engine (check trt-gpu).",
            "trt.benchmark",
        ),
        Option(
            "save_engine", Kind.FILE, "FILE",
            "Write the engine of the new model to this file.",
            "trt.save_engine", writes=True,
        ),
        Option(
            "plugins", Kind.FILES, "LIBRARY",
            "Library of TensorRT plugins to load (repeatable). It is code: name only what you trust.",
            "trt.plugins",
        ),
        Option(
            "timing_cache", Kind.FILE, "FILE",
            "TensorRT timing cache to read and write.",
            "trt.timing_cache", writes=True,
        ),
        Option(
            "batch_sweep", Kind.FLAG, "",
            "Also compare TensorRT's builds for batch 1 alone and for a profile of batch sizes.",
        ),
        Option(
            "max_batch", Kind.WHOLE, "N",
            "Largest batch of that profile (default: 2).",
            least=2, most=MAX_BATCH,
        ),
    ),
    "Several models": (
        Option(
            "timeout", Kind.SECONDS, "SECONDS",
            "Time limit for each model in seconds: what was checked until then is reported, and the result is written "
            "only if that proves it (default: none).",
            "timeout", least=0.1,
        ),
        Option(
            "jobs", Kind.TEXT, "N",
            "Models to process in parallel, sharing cores and memory; 0 or auto: one per core.",
            default="1", short="-j",
        ),
        Option(
            "ray", Kind.TEXT, "ADDRESS",
            "Run on a Ray cluster: auto (the running one, or RAY_ADDRESS), HOST:PORT, or local to start one on this "
            "machine.",
        ),
        Option(
            "resume", Kind.FLAG, "",
            "Skip unchanged models that a previous run finished with the same options, rules and versions; the journal "
            "records them.",
        ),
        Option(
            "journal", Kind.FILE, "FILE",
            "Journal file (default with --resume: .onnxfix-journal.jsonl in --output-dir).",
            writes=True,
        ),
    ),
    "Settings": (
        Option("baseline", Kind.FILE, "FILE", "Known findings: they do not fail the run, new ones do."),
        Option(
            "write_baseline", Kind.FILE, "FILE", "Write the findings of this run as known ones.", writes=True
        ),
        Option(
            "config", Kind.FILE, "FILE",
            "Configuration file (default: the nearest onnxfix.toml, or pyproject.toml with [tool.onnxfix]).",
        ),
        Option("isolated", Kind.FLAG, "", "Read no configuration file."),
        Option(
            "show_settings", Kind.FLAG, "",
            "Print the settings of each model and where they come from, then stop.",
        ),
    ),
    "Report": (
        Option(
            "inputs_help", Kind.FLAG, "",
            "Also show which input sizes and values each model accepts, with examples that were run.",
            "inputs_help",
        ),
        Option(
            "fail_on", Kind.CHOICE, "SEVERITY",
            "Lowest severity of a remaining finding that makes the exit code 1 (default: warning).",
            choices=FAIL_ON,
        ),
        Option(
            "source_root", Kind.TEXTS, "FOLDER",
            "Folder in which the exporter saw this repository, such as /workspace, or FOLDER=HERE; repeatable.",
        ),
        Option(
            "statistics", Kind.FLAG, "", "Print counts by rule instead of findings, as text or JSON."
        ),
        Option(
            "format", Kind.CHOICE, "FORMAT", "Format of standard output.", default="text", choices=FORMATS
        ),
        Option(
            "report", Kind.TEXTS, "FILE",
            "Also write a report to this file; repeatable. Its kind is that of the name's end: .json, .jsonl, .sarif, "
            ".xml (JUnit), .md, .html or .gitlab.json. Or write KIND:FILE.",
            writes=True,
        ),
        Option("quiet", Kind.FLAG, "", "Print only the outcome of each model.", short="-q"),
        Option("verbose", Kind.FLAG, "", "Print every finding and measurement.", short="-v"),
    ),
}  # fmt: skip
"""The options by the groups that help shows, in its order."""

OPTIONS = {option.name: replace(option, group=group) for group, them in GROUPS.items() for option in them}
SETTINGS = {
    name: OPTIONS[name]
    for name in (
        "target", "select", "ignore", "fail_on", "require", "rtol", "atol", "effort", "timeout",
        "rung_timeout", "source_root",
    )
}  # fmt: skip
"""What a settings file may have, in the order in which ``--show-settings`` lists them."""
