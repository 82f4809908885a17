"""OPS101: operators that neither ONNX nor the target knows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from onnx import defs

from onnxfix.rule import (
    Flagged,
    Match,
    Model,
    Operator,
    Severity,
    Silent,
    Target,
    imported,
    rule,
    target_of,
)
from onnxfix.targets.measured import OWN
from onnxfix.targets.plugins import INSTEAD, SHIPPED
from onnxfix_rules.ops._runtimes import OTHER_DOMAINS, is_foreign


@rule(
    "OPS101",
    per="model",
    severity=Severity.ERROR,
    hazards=[43],
    general=True,
    differs={"foreign": "about local functions that are named like operators"},
)
def operator_without_importer(model: Model) -> Iterator[Match]:
    """An operator that is neither ONNX's nor a local function, for which the target ships no plugin.

    ## Why it matters
    TensorRT's parser looks for a plugin with the operator's name: `Plugin not found, are the plugin name, version, and
    namespace correct?`, measured with TensorRT-RTX 1.7.1. It ignores the domain.

    - In a domain of your own it is a warning: you may have the plugin. Load its library with `--plugins`, and the
      finding is gone; or export the operator as a local function of ONNX's operators.
    - In ONNX's domain it is an error: ONNX has no such operator. Often the name is misspelled, or the domain is
      missing.
    - A plugin that NVIDIA ships with other releases only is an error. TensorRT 11.0 removed sixteen, BatchedNMS_TRT and
      NMS_TRT among them, and TensorRT-RTX has none but ROIAlign_TRT. The names were read from the registries of
      TensorRT 8.6.1, 10.6.0, 10.15.1 and 11.2.1, and of TensorRT-RTX 1.7.1.
    - A name that the parser refuses whatever the domain, such as Det, is an error from TensorRT 10 on: a plugin does
      not help (`UNSUPPORTED_NODE`, measured).

    Silent for the names of the parser's own importers (`TRT_FP8QuantizeLinear`), and for functions that are never
    called.

    ## Fix
    None: onnxfix does not know what the operator computes.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/extending-custom-layers.html
    - https://github.com/NVIDIA/TensorRT/blob/release/11.1/CHANGELOG.md: the plugins that 11.0 removed
    """
    target = target_of(model)
    functions = {name for _, name in model.function_names}

    def is_unknown(operator: Operator) -> bool:
        domain, name = operator
        if name in functions or target.has_plugin(name) or name in OWN:
            return False
        if domain in OTHER_DOMAINS or is_foreign(operator) or target.imports(name) is True:
            return False
        return name not in _standard() or (domain not in ("", "ai.onnx") and target.imports(name) is False)

    for node in imported(model).of(is_unknown):
        if node.op_type in SHIPPED:
            why = _history(node.op_type, target)
            yield Match(f"{target.title} does not ship the plugin {node.op_type}: {why}", node=node)
        elif node.op_type in target.refused:
            yield Match(
                f"{target.title} refuses {node.domain}.{node.op_type}, as every operator of that name",
                node=node,
            )
        elif node.is_onnx:
            yield Match(
                f"ONNX has no operator {node.op_type}, and {target.title} no plugin of that name", node=node
            )
        else:
            yield Match(
                f"{node.domain}.{node.op_type} needs a plugin: give its library to --plugins"
                + (", or export a function" if target.calls_functions else ""),
                node=node,
                severity=Severity.WARNING,
            )


def _history(name: str, target: Target) -> str:
    """Which releases ship a plugin of NVIDIA's that the target does not, and what replaces it."""
    since, gone = ("TensorRT " + ".".join(map(str, release)) for release in SHIPPED[name])
    if target.package != "tensorrt":
        return "only the full TensorRT does"
    if target.oldest < SHIPPED[name].since:
        return f"it came with {since}"
    return f"it is gone since {gone}" + (f"; use {INSTEAD[name]}" if name in INSTEAD else "")


@cache
def _standard() -> frozenset[str]:
    """The names of all operators of ONNX's main domain, in all opsets."""
    return frozenset(one.name for one in defs.get_all_schemas_with_history() if one.domain == "")


_HEAD = '<ir_version: 9, opset_import: ["" : 18, "my" : 1]>\n'
_FUNCTION = '<domain: "my", opset_import: ["" : 18]>'
_NMS = "BatchedNMS_TRT<numClasses = 2>"


def _nms(operator: str) -> str:
    return f"""{_HEAD} g (float[1,10,1,4] b, float[1,10,2] s)
        => (int32[1,1] n, float[1,4,4] o, float[1,4] t, float[1,4] c) {{ n, o, t, c = {operator}(b, s) }}"""


operator_without_importer.examples = [
    Flagged(
        "an operator of another domain",
        f"{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.FusedNorm(x) }}",
        runs=False,
    ),
    Flagged(
        "a name that ONNX does not have",
        "g (float[2] x) => (float[2] y) { y = FusedNorm(x) }",
        runs=False,
    ),
    Flagged(
        "in a loop, and in a function that is called",
        f"""{_HEAD} g (float[2] x, int64 n) => (float[2] y) {{ y = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {{
                more = Constant<value = bool {{1}}>()  u = my.FusedNorm(v)  w = my.F(u) }}> }}
            {_FUNCTION} F (a) => (b) {{ b = my.FusedNorm(a) }}""",
        runs=False,
    ),
    Flagged("a plugin that TensorRT 11 no longer has", _nms(_NMS), target="trt11", runs=False),
    Flagged("a plugin that TensorRT-RTX never had", _nms("my.EfficientNMS_TRT"), target="rtx", runs=False),
    Flagged(
        "a standard name of another domain, which TensorRT refuses in any",
        f"{_HEAD} g (float[2,2] x) => (float y) {{ y = my.Det(x) }}",
        runs=False,
    ),
    Flagged("a plugin that came with TensorRT 11", _nms("my.TopkLastDim"), target="trt10", runs=False),
    Silent("a plugin that TensorRT 10 has", _nms(_NMS), target="trt10.6", runs=False),
    Silent("a plugin that every TensorRT has", _nms("my.EfficientNMS_TRT"), target="trt11", runs=False),
    Silent(
        "a local function",
        f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.F(x) }}
            {_FUNCTION} F (a) => (b) {{ b = Neg(a) }}""",
    ),
    Silent(
        "in a function that is never called",
        f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = Neg(x) }}
            {_FUNCTION} F (a) => (b) {{ b = my.FusedNorm(a) }}""",
    ),
    Silent(
        "an operator of TensorRT's own importers",
        '<ir_version: 9, opset_import: ["" : 18, "trt" : 1]> '
        "g (float[2] x, float s) => (float8e4m3fn[2] y) { y = trt.TRT_FP8QuantizeLinear(x, s) }",
        runs=False,
    ),
    Silent(
        "a standard operator that is not imported: OPS001", "g (float[2,2] x) => (float y) { y = Det(x) }"
    ),
    Silent(
        "an operator of ONNX Runtime: OPS088",
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> '
        "g (float[2,2] x) => (float[2,2] y) { y = com.microsoft.Inverse(x) }",
    ),
]
