"""The table of commands: the purpose, arguments, options and examples of each command. A test parses each example.

Options that several commands share, or that set a field of ``RunOptions``, are in ``config.table``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnxfix.config.table import OPTIONS, Kind, Option


@dataclass(frozen=True)
class Argument:
    """A positional argument; ``many``: one or more values."""

    name: str
    value: str
    help: str
    required: bool = True
    many: bool = False
    complete: str = ""


@dataclass(frozen=True)
class Command:
    """A command, which runs the function ``name`` of this package's module ``module``. ``panel`` is its group in the
    help of the program; ``examples`` maps command lines to what they do."""

    name: str
    module: str
    panel: str
    help: str
    arguments: tuple[Argument, ...]
    options: tuple[Option, ...]
    examples: Mapping[str, str]


def _options(*parts: str | Option) -> tuple[Option, ...]:
    """The options of a command. A text holds names of shared options, with spaces between them."""
    options: list[Option] = []
    for part in parts:
        options += [part] if isinstance(part, Option) else [OPTIONS[name] for name in part.split()]
    return tuple(options)


MODELS = Argument(
    "models",
    "MODEL",
    "ONNX files, folders (every .onnx file in them), URLs, or quoted globs such as 'models/**/*.onnx'.",
    many=True,
)
MODEL = Argument("model", "MODEL", "An ONNX file.")
PROFILE = "trt_min_shapes trt_opt_shapes trt_max_shapes"
INPUTS = "inputs input_shapes seed"
RUN = "jobs ray resume journal fail_on baseline write_baseline config isolated show_settings source_root"
RUN += " statistics format report"
PROOF = f"require rtol atol effort {INPUTS} rungs trt_package compute_capability {PROFILE} tf32 benchmark save_engine"
LIMITS = "plugins timing_cache memory_limit timeout rung_timeout"

PLAIN = replace(OPTIONS["format"], choices=("text", "json"))
TABLES = replace(OPTIONS["format"], choices=("text", "json", "markdown"))
RESULT = replace(OPTIONS["report"], help="Also write the result to this file, .json or .md; repeatable.")


def _output(help: str, value: str = "FILE", *, group: str = "", required: bool = False) -> Option:
    return Option("output", Kind.FILE, value, help, short="-o", writes=True, group=group, required=required)


_ALL = (
    Command(
        "check", "runs", "Find and repair",
        "List what TensorRT would reject, misread or run badly. Models are only read.",
        (MODELS,),
        _options(
            "select ignore target trt partition inputs_help inputs input_shapes trt_package compute_capability",
            f"{PROFILE} plugins timing_cache memory_limit timeout {RUN} quiet verbose",
        ),
        {
            "onnxfix check model.onnx": "List the hazards for TensorRT 11; the model is only read.",
            "onnxfix check models --target 10.3 --fail-on error": "Each model in a folder, for TensorRT 10.",
            "onnxfix check model.onnx --trt": "Also ask the TensorRT that is installed, parser and builder.",
            "onnxfix check model.onnx --partition": "What ONNX Runtime's TensorRT provider would leave to the CPU.",
            "onnxfix check model.onnx --select CST,INT002 -v": "Some rules only, with every finding.",
            "onnxfix check models --statistics": "How often each rule finds something.",
        },
    ),
    Command(
        "apply", "repair", "Find and repair",
        "Repair models, prove that they still compute the same, and write them (default: to MODEL.fixed.onnx).",
        (MODELS,),
        _options(
            _output("File to write (one model).", group="Output"),
            Option(
                "output_dir", Kind.FILE, "FOLDER",
                "Output folder; file names are kept, and for a glob or a folder the folders below its root.",
                writes=True, group="Output",
            ),
            "in_place share_data diff select ignore target numeric_fixes unsafe_fixes simplify graphsurgeon",
            "fix_dim fix_input static keep_inputs no_verify",
            f"partition {PROOF} {LIMITS} {RUN} quiet verbose",
        ),
        {
            "onnxfix apply model.onnx": "Repair and prove; writes model.fixed.onnx.",
            "onnxfix apply model.onnx --diff": "Show what would change; nothing is written.",
            "onnxfix apply model.onnx -o fixed.onnx --numeric-fixes": "Also fixes within a tolerance.",
            "onnxfix apply models --output-dir fixed --jobs auto": "Each model in a folder, several at once.",
            "onnxfix apply model.onnx --fix-dim batch=1 --inputs feeds.npz": "One batch size, proven on your data.",
            "onnxfix apply model.onnx --require trt-build": "Fail unless TensorRT builds an engine of the result.",
        },
    ),
    Command(
        "verify", "repair", "Find and repair",
        "Show that two models have the same interface and compute the same outputs, or that one model runs.",
        (
            Argument("original", "ORIGINAL", "The model to compare with."),
            Argument("fixed", "NEW", "The model to verify (default: ORIGINAL itself).", required=False),
        ),
        _options(
            f"exact {PROOF} {LIMITS} batch_sweep max_batch format report config isolated show_settings quiet verbose"
        ),
        {
            "onnxfix verify model.onnx fixed.onnx": "Do both compute the same, within tolerance?",
            "onnxfix verify model.onnx fixed.onnx --exact --rungs ort-cpu": "The same bits, on ONNX Runtime's CPU.",
            "onnxfix verify model.onnx": "Does the model run, and does TensorRT import what it says?",
        },
    ),
    Command(
        "diagnose", "inquiry", "Find out why",
        "Find the node where two ways to compute a model begin to differ, why, and what to do.",
        (
            Argument("model", "MODEL", "The model that is right."),
            Argument("other", "OTHER", "A second model that should compute the same.", required=False),
        ),
        _options(
            Option(
                "against", Kind.CHOICE, "KIND",
                "Compare MODEL with TensorRT's engine or network of it, with ONNX Runtime's CUDA provider or "
                "optimizations, or with half precision.",
                choices=("trt-gpu", "trt-network", "ort-cuda", "ort-cpu", "fp16", "bf16"),
            ),
            INPUTS,
            Option(
                "timeout", Kind.SECONDS, "SECONDS", "Seconds after which to report what was found.", least=1
            ),
            Option(
                "keep_fp32", Kind.FILE, "FILE",
                "File to write: the nodes that must stay in float32, as AutoCast and precision --keep take them.",
            ),
            "trt_package plugins memory_limit",
            TABLES,
            replace(RESULT, help="Also write the result to this file, .html, .json or .md; repeatable."),
            "quiet verbose",
        ),
        {
            "onnxfix diagnose model.onnx other.onnx": "The first node at which two models differ, and why.",
            "onnxfix diagnose model.onnx --against trt-network": "What TensorRT's import computes differently.",
            "onnxfix diagnose model.onnx --against fp16 --keep-fp32 keep.txt":
                "The nodes that half precision breaks; precision --keep reads the file.",
        },
    ),
    Command(
        "inspect", "looking", "Find out why",
        "Show what a model consists of on one screen: inputs, outputs, operators, weights, and hazards by severity.",
        (MODEL,),
        _options("target", PLAIN),
        {"onnxfix inspect model.onnx": "What is in this file?"},
    ),
    Command(
        "diff", "looking", "Find out why",
        "Show which nodes, constants, inputs and outputs differ between two models, and the rule behind each change.",
        (Argument("first", "A", "An ONNX file."), Argument("second", "B", "The one to compare.")),
        _options(
            Option(
                "fixes", Kind.TEXT, "FILE",
                "The JSON report of the apply that wrote B: names the rules of models before IR version 10, too.",
            ),
            PLAIN, "quiet verbose",
        ),
        {
            "onnxfix diff model.onnx fixed.onnx": "What changed, and the rule behind each change.",
            "onnxfix diff model.onnx fixed.onnx --format json": "The same for another program.",
        },
    ),
    Command(
        "view", "looking", "Find out why",
        "Show a node or a finding with the few nodes around it; also as a model that opens in Netron.",
        (MODEL,),
        _options(
            _output("Also write these nodes as a model to this file (default: none)."),
            Option("rule", Kind.TEXT, "RULE", "Show a finding of this rule.", complete="rules"),
            Option(
                "place", Kind.TEXT, "NAME",
                "Which finding: the name of its node or value, also with * (default: the first).",
            ),
            Option(
                "node", Kind.TEXT, "NAME",
                "Show a node instead: its name, or that of a value it computes, also with *.",
            ),
            Option(
                "around", Kind.WHOLE, "N", "How many nodes away the others may be.", default=2, least=0, most=1000
            ),
            "target",
            PLAIN,
        ),
        {
            "onnxfix view model.onnx --node /layers.3/Softmax": "A node, what it reads, and what reads it.",
            "onnxfix view model.onnx --rule PRC001 -o part.onnx": "The first finding of a rule, for Netron.",
        },
    ),
    Command(
        "reduce", "inquiry", "Find out why",
        "Find the smallest part of a model that still fails for the same reason, as a folder for a bug report.",
        (replace(MODEL, help="An ONNX file that fails."),),
        _options(
            Option(
                "check", Kind.TEXT, "CHECK",
                "What fails: trt-build, trt-network, trt-gpu, ort-cuda, ort-cpu, or a command with {} for the model's "
                "path and {inputs} for that of its inputs, whose exit code is not 0.",
                required=True, complete="failures",
            ),
            _output("Folder to write (default: MODEL.reduced).", "FOLDER"),
            Option(
                "against", Kind.FILE, "OTHER", "A second model that computes something else (check ort-cpu)."
            ),
            Option("match", Kind.TEXT, "REGEX", "Regular expression that the command's output must contain."),
            INPUTS,
            Option(
                "timeout", Kind.WHOLE, "SECONDS", "Time limit of one check in seconds.", default=300, least=1
            ),
            Option("time_limit", Kind.WHOLE, "SECONDS", "Time limit of the search in seconds.", least=1),
            "trt_package compute_capability memory_limit",
            TABLES,
        ),
        {
            "onnxfix reduce model.onnx --check trt-build": "The smallest part that TensorRT still refuses.",
            "onnxfix reduce model.onnx --check 'python run.py {}' --match Segfault": "By a command of yours.",
        },
    ),
    Command(
        "layers", "inquiry", "Find out why",
        "Show what TensorRT made of each node: its layers, what it is fused with, precision, reformats and tactics.",
        (MODEL,),
        _options(
            Option(
                "builds", Kind.WHOLE, "N",
                "Build this many engines, compare them, and keep the best one.",
                "trt.builds", default=1, least=1,
            ),
            replace(OPTIONS["save_engine"], help="Write the engine, or the best one, to this file.", group=""),
            Option(
                "save_tactics", Kind.FILE, "FILE",
                "Write the tactics that TensorRT chose to this file.",
                "trt.save_tactics", writes=True,
            ),
            Option(
                "load_tactics", Kind.FILE, "FILE",
                "Build with the tactics of this file, which may be edited.",
                "trt.load_tactics",
            ),
            f"{INPUTS} trt_package compute_capability {PROFILE} tf32 plugins timing_cache memory_limit",
            TABLES, RESULT,
            "quiet verbose",
        ),
        {
            "onnxfix layers model.onnx": "Layers, fusions, precision, reformats and tactics by node.",
            "onnxfix layers model.onnx --builds 3 --save-engine best.engine": "Keep the best of three engines.",
        },
    ),
    Command(
        "lift", "looking", "Find out why",
        "Write TensorRT's imported network as an ONNX model that can be opened and run.",
        (MODEL,),
        _options(_output("File to write (default: MODEL.lifted.onnx)."), "trt_package", PLAIN),
        {"onnxfix lift model.onnx -o lifted.onnx": "Open TensorRT's view of the model in Netron."},
    ),
    Command(
        "precision", "inquiry", "Convert",
        "Convert a float32 model to mixed precision within an error budget: the Casts are the plan for TensorRT.",
        (replace(MODEL, help="A float32 ONNX file."),),
        _options(
            Option(
                "to", Kind.CHOICE, "TYPE", "Type to compute in where the budget allows it.",
                choices=("fp16", "bf16"), required=True,
            ),
            Option(
                "max_error", Kind.NUMBER, "SHARE",
                "Error budget: largest error of an output, as a share of its largest magnitude, such as 0.01.",
                required=True,
            ),
            Option(
                "max_time", Kind.NUMBER, "SHARE",
                "Most time on a GPU, as a share of float32's by an estimate, such as 0.4: of what is that fast, the "
                "smallest error is chosen.",
            ),
            _output("File to write (default: none, report only)."),
            Option(
                "keep", Kind.FILE, "FILE",
                "File of nodes that stay in float32: a name or a regular expression a line.",
            ),
            Option(
                "io_types", Kind.CHOICE, "TYPES", "Types of inputs and outputs: as they are, or the low type.",
                choices=("keep", "low"), default="keep",
            ),
            f"{INPUTS} rungs require target",
            Option(
                "timeout", Kind.SECONDS, "SECONDS", "Seconds to search where the error comes from.",
                default=600, least=1,
            ),
            "trt_package memory_limit",
            TABLES, RESULT,
            "quiet verbose",
        ),
        {
            "onnxfix precision model.onnx --to fp16 --max-error 0.005 -o half.onnx":
                "float16 wherever the outputs stay within 0.5 % of their scale.",
            "onnxfix precision model.onnx --to bf16 --max-error 0.01": "Only report what is possible.",
        },
    ),
    Command(
        "explain", "knowledge", "Look up",
        "Explain rules: what they find, why that matters, how it is fixed, the evidence.\n\n"
        "Also lists a family, or the rules about a message that TensorRT printed.",
        (
            Argument(
                "codes", "RULE", "Codes or names of rules, or families such as PRC.",
                required=False, many=True, complete="rules",
            ),
        ),
        _options(
            Option(
                "search", Kind.TEXT, "TEXT",
                "List the rules about this: words, or a message that TensorRT printed.",
                short="-s",
            ),
            Option("verbose", Kind.FLAG, "", "Show all examples, not only 2.", short="-v"),
        ),
        {
            "onnxfix explain PRC001": "A rule: what, why, the fix, the evidence, two examples.",
            "onnxfix explain PRC": "A family of rules.",
            'onnxfix explain --search "INT64 weights"': "The rules about a message that TensorRT printed.",
        },
    ),
    Command(
        "rules", "knowledge", "Look up",
        "List the rules: code, name, severity, safety of the fix, and what they find.\n\n"
        "Below them are the rule packs that are installed, if there are others than the built-in one.",
        (),
        _options("select", PLAIN),
        {
            "onnxfix rules": "All rules, a line each.",
            "onnxfix rules --select PRC --format json": "A family, for another program.",
        },
    ),
    Command(
        "targets", "knowledge", "Look up",
        "List the releases of TensorRT that --target knows, or what differs between two.",
        (
            Argument(
                "targets", "TARGET", "Two targets to compare: 10.3, jetpack6.2, trt11, rtx.",
                required=False, many=True, complete="targets",
            ),
        ),
        (),
        {
            "onnxfix targets": "Each release: opset, types, JetPacks, where its facts come from.",
            "onnxfix targets 10.3 11.2": "Operators, types and restrictions that differ.",
        },
    ),
    Command(
        "doctor", "looking", "Look up",
        "Show which checks this machine can run, why others cannot run, and how to enable them.",
        (),
        _options(PLAIN),
        {"onnxfix doctor": "What can be verified here, and how to enable the rest."},
    ),
)  # fmt: skip

COMMANDS = {command.name: command for command in _ALL}
"""The commands by their names, in the order of the help."""
EXAMPLES = {
    "onnxfix check model.onnx": "List what TensorRT would reject, misread or run badly.",
    "onnxfix apply model.onnx -o fixed.onnx": "Repair it, prove the result, and write it.",
    "onnxfix explain PRC001": "Why a finding matters, and what the fix does.",
}
"""The examples in the help of the program itself."""
