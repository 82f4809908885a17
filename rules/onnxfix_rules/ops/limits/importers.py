"""Operators and types of operands that the importers of a target do not have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

from onnx import TensorProto, defs

from onnxfix.rule import (
    Flagged,
    Match,
    Model,
    Operator,
    Severity,
    Silent,
    Target,
    elem_types,
    imported,
    name_of,
    rule,
    target_of,
)
from onnxfix.targets.documented import INSTEAD, SHIPPED
from onnxfix.targets.measured import OWN
from onnxfix_rules.ops._runtimes import OTHER_DOMAINS, is_foreign
from onnxfix_rules.ops.limits._quantized import is_quantized

TYPES = (
    TensorProto.BOOL, TensorProto.UINT8, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
)  # fmt: skip
"""Types that only some operators support. INT006 covers other integers; int8 and narrower types count as quantized."""

_DATA = {"Where": 1, "OneHot": 2}
_ELSEWHERE = frozenset({"Cast", "CastLike", "DequantizeLinear", "QuantizeLinear", "If", "Loop", "Scan"})
"""CST covers casts, QDQ quantization; for control flow the nodes in the bodies are checked."""
_RANKING = frozenset({"ArgMax", "ArgMin", "TopK"})
"""ONNX does not define these for booleans, but exporters write them."""


@rule("OPS002", per="model", severity=Severity.ERROR, hazards=[49, 66], general=True)
def unsupported_operand_type(model: Model) -> Iterator[Match]:
    """A standard operator on data of a type that the target's parser does not accept for it.

    ## Why it matters
    TensorRT has the type and the operator, but not the combination. The parser stops: `Found unsupported input type of
    BOOL` (ReduceMax, ReduceMin, DepthToSpace, SpaceToDepth, Resize), `Found unsupported input type of UINT8` (nearly
    all operators except Cast: uint8 is supported only for network inputs and outputs), `Invalid input type for
    ConstantOfShape` (uint8), `first input has type Bool but must have type Float, ...` (ArgMax, ArgMin and TopK, which
    ONNX does not define for booleans either), `Only FLOAT, HALF or INT8` for bfloat16 (HardSwish, Mish, LpPool,
    GlobalLpPool, LpNormalization, GRU), measured with TensorRT-RTX 1.7.1, for each operator and type with a single-node
    model. In half precision MeanVarianceNormalization does not parse at all.

    The rule covers only targets whose types were measured: TensorRT-RTX, TensorRT 11 with its parser of the same
    generation, and TensorRT 10.6. It does not report constants, which the parser may convert, outputs of a
    QuantizeLinear in the graph, which TensorRT treats as int8, or types that only the builder refused, since it may
    accept another model.

    ## Fix
    None. Cast the data to a supported type and the result back: bool to int32, uint8 to int32 if nothing wraps around,
    bfloat16 to float. Data movement (Transpose, Reshape, Slice) gives the same result after the Cast.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    target = target_of(model)
    if not target.types_measured:
        return
    present = elem_types(model).intersection(TYPES)

    def refuses(operator: Operator) -> bool:
        domain, op_type = operator
        if domain != "" or op_type in _ELSEWHERE or target.operator(op_type) is None:
            return False
        return op_type in _RANKING or any(target.accepts(op_type, elem) is False for elem in present)

    for node in imported(model).of(refuses):
        if not node.is_onnx:
            continue
        data = node.output() if node.op_type == "ConstantOfShape" else node.input(_DATA.get(node.op_type, 0))
        elem = (
            None
            if data is None or data.initializer is not None or data.is_constant
            else model.shapes.elem_type(data)
        )
        if data is None or elem is None or elem not in TYPES or is_quantized(data, model):
            continue
        ranked = elem == TensorProto.BOOL and node.op_type in _RANKING
        if ranked or target.accepts(node.op_type, elem) is False:
            yield Match(
                f"{target.title} does not support {name_of(elem)} in {node.op_type} (source: {target.source})",
                node=node,
            )


_LP = "g (TYPE[1,4,8,8] x) => (TYPE[1,4,7,7] y) { y = LpPool<kernel_shape=[2,2]>(x) }"
_flagged = partial(Flagged, runs=False)


def _reduce_max(elem: str) -> str:
    return f"g ({elem}[2,3] x) => ({elem}[2,1] y) <int64[1] a = {{1}}> {{ y = ReduceMax(x, a) }}"


unsupported_operand_type.examples = [
    Flagged("ReduceMax of booleans", _reduce_max("bool"), opset=20),
    Flagged(
        "uint8 transposed before the Cast",
        "g (uint8[2,3] x) => (float[3,2] y) { t = Transpose(x)  y = Cast<to=FLOAT>(t) }",
    ),
    Flagged(
        "Where of booleans is supported, Where of uint8 is not",
        """g (bool[2] c, bool[2] p, bool[2] q, uint8[2] s, uint8[2] t) => (bool[2] y, uint8[2] z) {
            y = Where(c, p, q)  z = Where(c, s, t) }""",
    ),
    Flagged("LpPool of bfloat16", _LP.replace("TYPE", "bfloat16"), opset=22, runs=False),
    _flagged(
        "ArgMax of booleans, which ONNX does not define either",
        "g (bool[2,3] x) => (int64[1,3] y) { y = ArgMax(x) }",
    ),
    Flagged(
        "ConstantOfShape of uint8",
        "g (int64[1] s) => (uint8[N] y) { y = ConstantOfShape<value = uint8[1] {3}>(s) }",
    ),
    Silent(
        "ConstantOfShape of int32",
        "g (int64[1] s) => (int32[N] y) { y = ConstantOfShape<value = int32[1] {3}>(s) }",
    ),
    Silent("LpPool of half precision", _LP.replace("TYPE", "float16"), opset=22),
    Silent("ReduceMax of integers", _reduce_max("int64"), opset=20),
    Silent(
        "integers without a kernel, INT006's subject",
        "g (int32[2,3] x, int32[3,2] w) => (int32[2,2] y) { y = MatMul(x, w) }",
    ),
    Silent(
        "uint8 cast immediately",
        "g (uint8[2,3] x) => (float[3,2] y) { t = Cast<to=FLOAT>(x)  y = Transpose(t) }",
    ),
    Silent(
        "uint8 from a QuantizeLinear, which TensorRT treats as int8",
        """g (float[2,3] x) => (float[3,2] y) <float s = {0.1}, uint8 z = {0}> {
            q = QuantizeLinear(x, s, z)  t = Transpose(q)  y = DequantizeLinear(t, s, z) }""",
    ),
    Silent(
        "a constant, which the parser may convert",
        "g (int64[2] i) => (float[2] y) <uint8[3] c = {1, 2, 3}> { g = Gather(c, i)  y = Cast<to=FLOAT>(g) }",
    ),
    Silent("TensorRT 9.3 was not measured", _reduce_max("bool"), opset=20, target="9.3"),
    Silent(
        "in a function that is never called",
        """<ir_version: 9, opset_import: ["" : 20, "my" : 1]> g (bool[2,3] x) => (bool[2,3] y) { y = Not(x) }
            <domain: "my", opset_import: ["" : 20]> F (a) => (b) { c = Cast<to=BOOL>(a)  b = ReduceMax(c) }""",
    ),
    Silent(
        "a Cast to uint8 for a graph output", "g (float[2,3] x) => (uint8[2,3] y) { y = Cast<to=UINT8>(x) }"
    ),
]


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
        severity = None
        if node.op_type in SHIPPED:
            text = f"{target.title} does not ship the plugin {node.op_type}: {_history(node.op_type, target)}"
        elif node.op_type in target.refused:
            text = f"{target.title} refuses {node.domain}.{node.op_type}, as every operator of that name"
        elif node.is_onnx:
            text = f"ONNX has no operator {node.op_type}, and {target.title} no plugin of that name"
        else:
            text = f"{node.domain}.{node.op_type} needs a plugin: give its library to --plugins"
            text += ", or export a function" if target.calls_functions else ""
            severity = Severity.WARNING
        yield Match(text, node=node, severity=severity)


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
    _flagged(
        "an operator of another domain", f"{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.FusedNorm(x) }}"
    ),
    _flagged("a name that ONNX does not have", "g (float[2] x) => (float[2] y) { y = FusedNorm(x) }"),
    _flagged(
        "in a loop, and in a function that is called",
        f"""{_HEAD} g (float[2] x, int64 n) => (float[2] y) {{ y = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {{
                more = Constant<value = bool {{1}}>()  u = my.FusedNorm(v)  w = my.F(u) }}> }}
            {_FUNCTION} F (a) => (b) {{ b = my.FusedNorm(a) }}""",
    ),
    Flagged("a plugin that TensorRT 11 no longer has", _nms(_NMS), target="trt11", runs=False),
    Flagged("a plugin that TensorRT-RTX never had", _nms("my.EfficientNMS_TRT"), target="rtx", runs=False),
    _flagged(
        "a standard name of another domain, which TensorRT refuses in any",
        f"{_HEAD} g (float[2,2] x) => (float y) {{ y = my.Det(x) }}",
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
