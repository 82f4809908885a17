"""OPS089 and OPS090: activations of ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from onnx import TensorProto, helper

from onnxfix.rule import (
    AddNode,
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    rule,
    takes,
    target_of,
)
from onnxfix_rules.ops._runtimes import is_imported, no_importer
from onnxfix_rules.ops.expansions._formulas import gelu, known_float, scalar, tanh_gelu


@rule(
    "OPS089",
    ops=[f"com.microsoft::{name}" for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[43],
)
def gelu_of_onnx_runtime(node: Node, model: Model) -> Iterator[Match]:
    """A Gelu, BiasGelu, FastGelu or QuickGelu of ONNX Runtime.

    ## Why it matters
    ONNX Runtime's graph optimizer writes them into the models that it saves. TensorRT finds no importer: `Plugin not
    found, are the plugin name, version, and namespace correct?`, measured with TensorRT-RTX 1.7.1 for BiasGelu,
    FastGelu and QuickGelu. It imports Gelu as ONNX's, which is the same; older targets without Gelu reject it.

    ## Fix
    The definition in ONNX's operators, which TensorRT-RTX was measured to accept. NUMERIC: ONNX Runtime computes each
    in one kernel, and rounds elsewhere.

    - Gelu: ONNX's where opset and target have it, else `0.5 x (1 + Erf(x / sqrt(2)))`; BiasGelu adds the bias first.
    - FastGelu: Gelu with `approximate = "tanh"`, else its formula; an optional bias is added first.
    - QuickGelu: `x Sigmoid(alpha x)`, alpha 1.702 by default.

    Better: save the model before ONNX Runtime optimizes it, or with `ORT_ENABLE_BASIC`. No fix for bfloat16, and for
    the exact Gelu before opset 9.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.BiasGelu
    - https://onnx.ai/onnx/operators/onnx__Gelu.html
    """
    target = target_of(model)
    data, output = node.require(0), node.require_output()
    if node.function is not None:
        return
    if is_imported(node.op_type, target) is not False:
        return
    yield Match(no_importer(node), node=node, fix=_fix(node, data, output, model))


def _fix(node: Node, data: Value, output: Value, model: Model) -> Fix | None:
    bias = node.input(1)
    elem = known_float(node, data, *([] if bias is None else [bias]))
    if elem is None or node.scope.opset() < 7 or (node.op_type == "BiasGelu" and bias is None):
        return None
    draft, target = Draft(node), target_of(model)
    summed: Value | str = data if bias is None else draft.add("Add", [data, bias])
    if node.op_type == "FastGelu":
        result = tanh_gelu(draft, summed, elem, target)
    elif node.op_type == "QuickGelu":
        result = _quick(draft, data, elem, float(node.attr("alpha", 1.702)))
    else:
        result = gelu(draft, summed, elem, target)
    if not result:
        return None
    draft.replace_output(node, result)
    return Fix(f"decompose {node.op_type}", draft.edits, Safety.NUMERIC)


def _quick(draft: Draft, data: Value, elem: int, alpha: float) -> str:
    """``data * Sigmoid(alpha * data)``; "" where the type cannot represent alpha."""
    largest = 65504.0 if elem == TensorProto.FLOAT16 else math.inf
    if not abs(alpha) < largest or helper.tensor_dtype_to_np_dtype(elem).type(alpha) == 0 != alpha:
        return ""
    scaled: Value | str = data
    if alpha != 1.0:
        scaled = draft.add("Mul", [data, scalar(draft, alpha, elem)])
    return draft.add("Mul", [data, draft.add("Sigmoid", [scaled])])


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_NEW = '<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>'
_G = "g (float[N,4] x) => (float[N,4] y)"
_B = "g (float[N,4] x, float[4] b) => (float[N,4] y)"
_ERF = """<float r = {0.707106769}, float o = {1}, float h = {0.5}> {
            SUM m = Mul(DATA, r)  e = Erf(m)  a = Add(e, o)  k = Mul(DATA, h)  y = Mul(k, a) }"""
_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, runs=False, safety=Safety.NUMERIC)


gelu_of_onnx_runtime.examples = [
    _fixed(
        "a bias and an exact Gelu, before opset 20",
        before=f"{_HEAD} {_B} {{ y = com.microsoft.BiasGelu(x, b) }}",
        after=f"{_HEAD} {_B} {_ERF.replace('SUM', 's = Add(x, b)').replace('DATA', 's')}",
    ),
    Flagged("without --numeric-fixes: reported only", f"{_HEAD} {_B} {{ y = com.microsoft.BiasGelu(x, b) }}"),
    _fixed(
        "opset 20 has Gelu",
        before=f"{_NEW} {_B} {{ y = com.microsoft.BiasGelu(x, b) }}",
        after=f"{_NEW} {_B} {{ s = Add(x, b)  y = Gelu(s) }}",
    ),
    _fixed(
        "TensorRT 8.6 does not import Gelu",
        before=f"{_NEW} {_G} {{ y = com.microsoft.Gelu(x) }}",
        after=f"{_NEW} {_G} {_ERF.replace('SUM', '').replace('DATA', 'x')}",
        target="trt8.6",
    ),
    _fixed(
        "the approximation by Tanh, without a bias",
        before=f"{_HEAD} {_G} {{ y = com.microsoft.FastGelu(x) }}",
        after=f"""{_HEAD} {_G} <float c = {{0.0356774069}}, float s = {{0.797884583}}, float o = {{1}},
            float h = {{0.5}}> {{ q = Mul(x, x)  i = Mul(q, c)  f = Add(i, s)  z = Mul(x, f)  t = Tanh(z)  a = Add(t, o)
            k = Mul(x, h)  y = Mul(k, a) }}""",
    ),
    _fixed(
        "the approximation by Tanh, with a bias",
        before=f"{_NEW} {_B} {{ y = com.microsoft.FastGelu(x, b) }}",
        after=f'{_NEW} {_B} {{ s = Add(x, b)  y = Gelu<approximate = "tanh">(s) }}',
    ),
    _fixed(
        "QuickGelu with its own alpha",
        before=f"{_HEAD} {_G} {{ y = com.microsoft.QuickGelu(x) }}",
        after=f"""{_HEAD} {_G} <float a = {{1.702}}> {{ m = Mul(x, a)  s = Sigmoid(m)  y = Mul(x, s) }}""",
    ),
    _fixed(
        "QuickGelu with alpha 1, which is SiLU",
        before=f"{_HEAD} {_G} {{ y = com.microsoft.QuickGelu<alpha = 1.0>(x) }}",
        after=f"{_HEAD} {_G} {{ s = Sigmoid(x)  y = Mul(x, s) }}",
    ),
    _fixed(
        "half precision",
        before=f"{_HEAD} g (float16[N,4] x) => (float16[N,4] y) {{ y = com.microsoft.QuickGelu<alpha = 2.0>(x) }}",
        after=f"""{_HEAD} g (float16[N,4] x) => (float16[N,4] y) <float16 a = {{f16(2.0)}}> {{
            m = Mul(x, a)  s = Sigmoid(m)  y = Mul(x, s) }}""",
        runs=False,
    ),
    Flagged(
        "opset 8 has no Erf",
        f"""<ir_version: 8, opset_import: ["" : 8, "com.microsoft" : 1]> {_B} {{
            y = com.microsoft.BiasGelu(x, b) }}""",
        safety=Safety.NUMERIC,
    ),
    _flagged(
        "an alpha that float16 cannot represent",
        f"{_HEAD} g (float16[2] x) => (float16[2] y) {{ y = com.microsoft.QuickGelu<alpha = 100000.0>(x) }}",
    ),
    _flagged(
        "bfloat16", f"{_HEAD} g (bfloat16[2] x) => (bfloat16[2] y) {{ y = com.microsoft.QuickGelu(x) }}"
    ),
    Silent(
        "a Gelu that TensorRT-RTX imports as ONNX's",
        f"{_NEW} {_G} {{ y = com.microsoft.Gelu(x) }}",
        target="rtx",
    ),
    Silent("ONNX's Gelu", f"{_NEW} {_G} {{ y = Gelu(x) }}"),
]


_PARAMETERS = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
}
"""Activations that ONNX Runtime fuses, with the names of their parameters in order."""
_OWN = ("activation", "activation_params", "activation_alpha", "activation_beta", "activation_gamma")


@rule(
    "OPS090",
    ops=["com.microsoft::FusedConv", "com.microsoft::FusedGemm"],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[43],
)
def fused_activation(node: Node, model: Model) -> Iterator[Match]:
    """A FusedConv or FusedGemm of ONNX Runtime: Conv or Gemm with a fused activation.

    ## Why it matters
    ONNX Runtime's graph optimizer writes them into the models that it saves. TensorRT finds no importer: `Plugin not
    found, are the plugin name, version, and namespace correct?`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    Conv or Gemm, Add for the addend Z, and the activation as an operator: Relu, Sigmoid, Tanh, LeakyRelu, Clip or
    HardSigmoid, measured to be accepted. Exact for a FusedConv in float32 without an addend: ONNX Runtime 1.32 gives
    the same bits, including NaN and infinities; exact too where only the name differs. Otherwise NUMERIC: ONNX Runtime
    adds in another order, and a kernel of half precision may round only after the activation.

    No fix for any other activation, where its parameters are missing or not finite, or where the lower bound of a Clip
    is above the upper one. Better: save the model before ONNX Runtime optimizes it, or with `ORT_ENABLE_BASIC`.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.FusedConv
    - https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html
    """
    data, weights, output = node.input(0), node.input(1), node.output()
    if node.function is not None or data is None or weights is None or output is None:
        return
    yield Match(no_importer(node), node=node, fix=_unfused(node, output))


def _unfused(node: Node, output: Value) -> Fix | None:
    plain = node.op_type.removeprefix("Fused")
    activation = _activation(node)
    elem = known_float(node, *(value for value in node.inputs if value is not None))
    opset = node.scope.opset()
    if activation is None or elem is None or opset < 7 or not takes(plain, opset, elem):
        return None
    if plain == "Gemm" and node.input(2) is None and opset < 11:
        return None
    name, values = activation
    addend = node.input(3) if plain == "Conv" else None
    draft = Draft(node)
    draft.remove(node)
    last = _without_activation(draft, node, plain, "" if name or addend is not None else output.name)
    if addend is not None:
        last = draft.add("Add", [last, addend], output="" if name else output.name)
    if name:
        _activate(draft, last, name, values, elem, output.name)
    is_same = not name or (plain == "Conv" and elem == TensorProto.FLOAT)
    safety = Safety.EXACT if is_same and addend is None else Safety.NUMERIC
    return Fix(f"replace by {plain}" + (f" and {name}" if name else ""), draft.edits, safety)


def _activation(node: Node) -> tuple[str, dict[str, float]] | None:
    """The activation, "" for none, with its parameters; None where they are invalid."""
    attribute = node.attribute("activation")
    name = "" if attribute is None else attribute.s.decode("utf-8", "replace")
    if not name:
        return "", {}
    if name not in _PARAMETERS:
        return None
    wanted = _PARAMETERS[name]
    if node.op_type == "FusedConv":
        given = list(node.attr("activation_params", ()))
        if wanted and len(given) != len(wanted):
            return None
    else:
        if name == "Clip":
            return None  # FusedGemm does not have it
        given = [node.attr(f"activation_{key}", math.nan) for key in wanted]
    values = dict(zip(wanted, map(float, given), strict=False))
    if not all(map(math.isfinite, values.values())) or values.get("min", 0.0) > values.get("max", math.inf):
        return None
    return name, values


def _without_activation(draft: Draft, node: Node, plain: str, output: str) -> str:
    """Conv or Gemm with the node's attributes, except those of the activation."""
    names = ["" if value is None else value.name for value in node.inputs[:3]]
    while not names[-1]:
        names.pop()
    output = output or draft.name(plain.lower())
    proto = helper.make_node(plain, names, [output])
    proto.attribute.extend(one for one in node.proto.attribute if one.name not in _OWN)
    draft.edits.append(AddNode(node.scope, proto, node))
    return output


def _activate(draft: Draft, data: str, name: str, values: dict[str, Any], elem: int, output: str) -> None:
    if name != "Clip" or draft.anchor.scope.opset() < 11:
        draft.add(name, [data], output=output, **values)
        return
    bounds = [scalar(draft, values[key], elem, key) for key in ("min", "max")]
    draft.add("Clip", [data, *bounds], output=output)


_CONV = "g (float[N,2,4,4] x, float[3,2,3,3] w) => (float[N,3,4,4] y)"
_Z = "g (float[N,2,4,4] x, float[3,2,3,3] w, float[3] b, float[N,3,4,4] z) => (float[N,3,4,4] y)"
_P = "pads = [1, 1, 1, 1]"
_M = "g (float[N,3] x, float[3,4] w, float[4] c) => (float[N,4] y)"


def _conv(attributes: str) -> str:
    return f"{_HEAD} {_CONV} {{ y = com.microsoft.FusedConv<{_P}, {attributes}>(x, w) }}"


def _by_steps(call: str) -> str:
    return f"{_HEAD} {_CONV} {{ c = Conv<{_P}>(x, w)  y = {call}(c) }}"


fused_activation.examples = [
    Fixed("a convolution and its Relu", before=_conv('activation = "Relu"'), after=_by_steps("Relu")),
    Flagged(
        "an addend, without --numeric-fixes: reported only",
        f'{_HEAD} {_Z} {{ y = com.microsoft.FusedConv<{_P}, activation = "Relu">(x, w, b, z) }}',
    ),
    _fixed(
        "half precision, for which ONNX Runtime has no CPU kernel",
        before=_conv('activation = "Relu"').replace("float[", "float16["),
        after=f"{_HEAD} {_CONV} {{ c = Conv<{_P}>(x, w)  y = Relu(c) }}".replace("float[", "float16["),
        runs=False,
    ),
    Fixed(
        "no activation: a Conv",
        before=f"{_HEAD} {_CONV} {{ y = com.microsoft.FusedConv<{_P}>(x, w) }}",
        after=f"{_HEAD} {_CONV} {{ y = Conv<{_P}>(x, w) }}",
    ),
    _fixed(
        "bias, addend and activation",
        before=f'{_HEAD} {_Z} {{ y = com.microsoft.FusedConv<{_P}, activation = "Sigmoid">(x, w, b, z) }}',
        after=f"{_HEAD} {_Z} {{ c = Conv<{_P}>(x, w, b)  a = Add(c, z)  y = Sigmoid(a) }}",
    ),
    _fixed(
        "an addend without bias or activation",
        before=f"{_HEAD} {_Z} {{ y = com.microsoft.FusedConv<{_P}>(x, w, , z) }}",
        after=f"{_HEAD} {_Z} {{ c = Conv<{_P}>(x, w)  y = Add(c, z) }}",
    ),
    Fixed("Tanh", before=_conv('activation = "Tanh"'), after=_by_steps("Tanh")),
    Fixed(
        "LeakyRelu with its slope",
        before=_conv('activation = "LeakyRelu", activation_params = [0.25]'),
        after=_by_steps("LeakyRelu<alpha = 0.25>"),
    ),
    Fixed(
        "Clip with its bounds",
        before=_conv('activation = "Clip", activation_params = [0.0, 6.0]'),
        after=f"""{_HEAD} {_CONV} <float l = {{0}}, float h = {{6}}> {{ c = Conv<{_P}>(x, w)  y = Clip(c, l, h) }}""",
    ),
    Fixed(
        "HardSigmoid with both",
        before=_conv('activation = "HardSigmoid", activation_params = [0.25, 0.5]'),
        after=_by_steps("HardSigmoid<alpha = 0.25, beta = 0.5>"),
    ),
    _fixed(
        "a FusedGemm with LeakyRelu",
        before=f"""{_HEAD} {_M} {{
            y = com.microsoft.FusedGemm<alpha = 0.5, activation = "LeakyRelu", activation_alpha = 0.25>(x, w, c) }}""",
        after=f"{_HEAD} {_M} {{ g = Gemm<alpha = 0.5>(x, w, c)  y = LeakyRelu<alpha = 0.25>(g) }}",
    ),
    Flagged("a missing slope", _conv('activation = "LeakyRelu"'), safety=Safety.NUMERIC, runs=False),
    _flagged("an activation that ONNX Runtime does not fuse", _conv('activation = "Mish"')),
    _flagged(
        "crossed bounds of a Clip, where TensorRT and ONNX differ",
        _conv('activation = "Clip", activation_params = [6.0, 0.0]'),
    ),
    Silent("ONNX's Conv", f"{_HEAD} {_CONV} {{ y = Conv<{_P}>(x, w) }}"),
]
