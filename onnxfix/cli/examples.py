"""Command lines that the help shows as examples. A test parses each of them."""

from __future__ import annotations

from typing import NamedTuple


class Shown(NamedTuple):
    """A command line, and what it does."""

    line: str
    what: str


EXAMPLES: dict[str, tuple[Shown, ...]] = {
    "": (
        Shown("onnxfix check model.onnx", "List what TensorRT would reject, misread or run badly."),
        Shown("onnxfix apply model.onnx -o fixed.onnx", "Repair it, prove the result, and write it."),
        Shown("onnxfix explain PRC001", "Why a finding matters, and what the fix does."),
    ),
    "check": (
        Shown("onnxfix check model.onnx", "List the hazards for TensorRT 11; the model is only read."),
        Shown(
            "onnxfix check models --target 10.3 --fail-on error", "Each model in a folder, for TensorRT 10."
        ),
        Shown(
            "onnxfix check model.onnx --trt", "Also ask the TensorRT that is installed, parser and builder."
        ),
        Shown("onnxfix check model.onnx --select CST,INT002 -v", "Some rules only, with every finding."),
        Shown("onnxfix check models --statistics", "How often each rule finds something."),
    ),
    "apply": (
        Shown("onnxfix apply model.onnx", "Repair and prove; writes model.fixed.onnx."),
        Shown("onnxfix apply model.onnx --diff", "Show what would change; nothing is written."),
        Shown("onnxfix apply model.onnx -o fixed.onnx --numeric-fixes", "Also fixes within a tolerance."),
        Shown(
            "onnxfix apply models --output-dir fixed --jobs auto", "Each model in a folder, several at once."
        ),
        Shown(
            "onnxfix apply model.onnx --fix-dim batch=1 --inputs feeds.npz",
            "One batch size, proven on your data.",
        ),
        Shown(
            "onnxfix apply model.onnx --require trt-build",
            "Fail unless TensorRT builds an engine of the result.",
        ),
    ),
    "verify": (
        Shown("onnxfix verify model.onnx fixed.onnx", "Do both compute the same, within tolerance?"),
        Shown(
            "onnxfix verify model.onnx fixed.onnx --exact --rungs ort-cpu",
            "The same bits, on ONNX Runtime's CPU.",
        ),
        Shown("onnxfix verify model.onnx", "Does the model run, and does TensorRT import what it says?"),
    ),
    "diagnose": (
        Shown(
            "onnxfix diagnose model.onnx other.onnx", "The first node at which two models differ, and why."
        ),
        Shown(
            "onnxfix diagnose model.onnx --against trt-network",
            "What TensorRT's import computes differently.",
        ),
        Shown(
            "onnxfix diagnose model.onnx --against fp16 --keep-fp32 keep.txt",
            "The nodes that half precision breaks; precision --keep reads the file.",
        ),
    ),
    "diff": (
        Shown("onnxfix diff model.onnx fixed.onnx", "What changed, and the rule behind each change."),
        Shown("onnxfix diff model.onnx fixed.onnx --format json", "The same for another program."),
    ),
    "view": (
        Shown(
            "onnxfix view model.onnx --rule PRC001 -o part.onnx", "The first finding of a rule, for Netron."
        ),
        Shown("onnxfix view model.onnx --node /layers.3/Softmax -o part.onnx", "A node, by its name."),
    ),
    "reduce": (
        Shown(
            "onnxfix reduce model.onnx --check trt-build", "The smallest part that TensorRT still refuses."
        ),
        Shown(
            "onnxfix reduce model.onnx --check 'python run.py {}' --match Segfault", "By a command of yours."
        ),
    ),
    "precision": (
        Shown(
            "onnxfix precision model.onnx --to fp16 --max-error 0.005 -o half.onnx",
            "float16 wherever the outputs stay within 0.5 % of their scale.",
        ),
        Shown("onnxfix precision model.onnx --to bf16 --max-error 0.01", "Only report what is possible."),
    ),
    "layers": (
        Shown("onnxfix layers model.onnx", "Layers, fusions, precision, reformats and tactics by node."),
        Shown(
            "onnxfix layers model.onnx --builds 3 --save-engine best.engine",
            "Keep the best of three engines.",
        ),
    ),
    "lift": (
        Shown("onnxfix lift model.onnx -o lifted.onnx", "Open TensorRT's view of the model in Netron."),
    ),
    "explain": (
        Shown("onnxfix explain PRC001", "A rule: what, why, the fix, the evidence, two examples."),
        Shown("onnxfix explain PRC", "A family of rules."),
        Shown('onnxfix explain --search "INT64 weights"', "The rules about a message that TensorRT printed."),
    ),
    "rules": (
        Shown("onnxfix rules", "All rules, a line each."),
        Shown("onnxfix rules --select PRC --format json", "A family, for another program."),
    ),
    "doctor": (Shown("onnxfix doctor", "What can be verified here, and how to enable the rest."),),
}
"""By command; "" is the program itself."""
