"""Activations and normalizations that ONNX Runtime fuses (OPS089 to OPS092)."""
# Long because: four rules, with an example of each operator and form.

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
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
    is_read,
    rule,
    takes,
    target_of,
)
from onnxfix_rules.ops._runtimes import is_imported, no_importer, origin
from onnxfix_rules.ops.expansions._formulas import (
    Operand,
    deviation,
    gelu,
    known_float,
    layer_normalization,
    mean,
    rms_normalization,
    scalar,
    tanh_gelu,
    widened,
)


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

_ROOTS = ("SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization")


@rule(
    "OPS091",
    ops=[
        "com.microsoft::SkipLayerNormalization",
        "com.microsoft::SkipSimplifiedLayerNormalization",
        "SimplifiedLayerNormalization",
    ],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[43],
)
def fused_normalization(node: Node, model: Model) -> Iterator[Match]:
    """A SkipLayerNormalization, SkipSimplifiedLayerNormalization or SimplifiedLayerNormalization of ONNX Runtime.

    ## Why it matters
    ONNX Runtime's optimizers write them into the models that they save. TensorRT finds no importer for
    SkipLayerNormalization: `Plugin not found, are the plugin name, version, and namespace correct?`, measured with
    TensorRT-RTX 1.7.1. It imports the other two, SimplifiedLayerNormalization with one output only: `Node has more
    output tensors than TRT expected`. TensorRT 8 has neither.

    ## Fix
    Add for the sum with the skip tensor and the bias, then LayerNormalization, or without the mean RMSNormalization,
    where opset and target have it; otherwise their definition by ReduceMean, in float32 for data in half precision.
    Mean, inverse deviation and the sum are computed where they are read. NUMERIC: ONNX Runtime sums in another order,
    and in half precision does not round the sum. Measured to be accepted.

    No fix for another axis than the last, bfloat16, an epsilon that is not positive, and for the mean of a norm that
    does not compute it. Better: save the model before ONNX Runtime optimizes it, or with `ORT_ENABLE_BASIC`.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.SkipLayerNormalization
    - https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
    """
    data, output = node.require(0), node.require_output()
    if node.function is not None:
        return
    target = target_of(model)
    imported = is_imported(node.op_type, target)
    has_extra_outputs = not node.domain and any(is_read(value) for value in node.outputs[1:])
    if imported is None or (imported and not has_extra_outputs):
        return
    name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    problem = f"supports only one output of {name}" if imported else f"has no importer for {name}"
    yield Match(
        f"{target.title} {problem}; {origin(node)}", node=node, fix=_normalization(node, data, output, model)
    )


def _normalization(node: Node, data: Value, output: Value, model: Model) -> Fix | None:
    skips, root = node.op_type.startswith("Skip"), node.op_type in _ROOTS
    inputs = list(node.inputs) + [None] * (5 - len(node.inputs))
    addends = [inputs[1], inputs[3 if root else 4]] if skips else []
    scale, beta = (inputs[2], None if root else inputs[3]) if skips else (inputs[1], None)
    if scale is None or (skips and addends[0] is None):
        return None
    elem = known_float(node, data, scale, *(one for one in (*addends, beta) if one is not None))
    epsilon = float(node.attr("epsilon", 1e-12 if skips else 1e-5))
    if elem is None or not (0 < epsilon < math.inf) or not _is_expressible(node, data, elem, model):
        return None
    draft, target = Draft(node), target_of(model)
    draft.remove(node)
    total = _sum(draft, node, data, addends)
    if root:
        rms_normalization(draft, total, scale, epsilon, elem, target, output.name)
    else:
        layer_normalization(draft, total, scale, beta, epsilon, elem, target, output.name)
    if not _statistics(draft, node, total, elem, epsilon):
        return None
    return Fix(f"decompose {node.op_type}", draft.edits, Safety.NUMERIC)


def _is_expressible(node: Node, data: Value, elem: int, model: Model) -> bool:
    """Whether opset, axis and outputs allow the fix."""
    axis, rank = node.attr("axis", -1), model.shapes.rank(data)
    last = axis == -1 or (rank is not None and axis == rank - 1)
    known = node.op_type != "SimplifiedLayerNormalization" or node.attr("stash_type", 1) == TensorProto.FLOAT
    return last and known and node.scope.opset() >= 7 and takes("ReduceMean", node.scope.opset(), elem)


def _sum(draft: Draft, node: Node, data: Value, addends: list[Value | None]) -> Operand:
    """The normalized sum, under its own name where it is an output that is read."""
    own = node.output(3)
    terms = [one for one in addends if one is not None]
    total: Operand = data
    for number, term in enumerate(terms, 1):
        last = number == len(terms) and own is not None and is_read(own)
        total = draft.add("Add", [total, term], output=own.name if last and own is not None else "")
    return total


def _statistics(draft: Draft, node: Node, total: Operand, elem: int, epsilon: float) -> bool:
    """Mean and inverse deviation, where they are read; False where this norm has none."""
    root = node.op_type in _ROOTS
    average, inverse = (None, node.output(1)) if not node.domain else (node.output(1), node.output(2))
    average, inverse = (value if is_read(value) else None for value in (average, inverse))
    if average is None and inverse is None:
        return True
    declared = [value.declared for value in (average, inverse) if value is not None]
    if any(one is not None and one.tensor_type.elem_type != TensorProto.FLOAT for one in declared):
        return False
    if (root and average is not None) or elem == TensorProto.DOUBLE:
        return False
    wide, kind = widened(draft, total, elem)
    if not root:
        middle = mean(draft, wide, "" if average is None else average.name)
        if inverse is not None:
            wide = draft.add("Sub", [wide, middle])
    if inverse is not None:
        draft.add("Reciprocal", [deviation(draft, wide, epsilon, kind)], output=inverse.name)
    return True


_OPSET_23 = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
_OLD = '<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>'
_S = "g (float[B,S,8] x, float[B,S,8] k, float[8] s) => (float[B,S,8] y)"
_A = "float[8] b, float[8] c"
_SKIP = "y = com.microsoft.SkipLayerNormalization<epsilon = 0.001>"


fused_normalization.examples = [
    _fixed(
        "a sum and its norm",
        before=f"{_HEAD} {_S} {{ {_SKIP}(x, k, s) }}",
        after=f"{_HEAD} {_S} {{ a = Add(x, k)  y = LayerNormalization<axis = -1, epsilon = 0.001>(a, s) }}",
    ),
    Flagged("without --numeric-fixes: reported only", f"{_HEAD} {_S} {{ {_SKIP}(x, k, s) }}"),
    _fixed(
        "beta and bias; the sum is read; the skip tensor has no batch",
        before=f"""{_HEAD} g (float[B,S,8] x, float[S,8] k, float[8] s, {_A}) => (float[B,S,8] y, float[B,S,8] z) {{
            y, , , z = com.microsoft.SkipLayerNormalization(x, k, s, b, c) }}""",
        after=f"""{_HEAD} g (float[B,S,8] x, float[S,8] k, float[8] s, {_A}) => (float[B,S,8] y, float[B,S,8] z) {{
            a = Add(x, k)  z = Add(a, c)  y = LayerNormalization<axis = -1, epsilon = 1e-12>(z, s, b) }}""",
    ),
    _fixed(
        "mean and inverse deviation are read",
        before=f"""{_HEAD} g (float[2,3,8] x, float[8] s) => (float[2,3,8] y, float[2,3,1] m, float[2,3,1] i) {{
            y, m, i = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, x, s) }}""",
        after=f"""{_HEAD} g (float[2,3,8] x, float[8] s) => (float[2,3,8] y, float[2,3,1] m, float[2,3,1] i)
            <float e = {{0.001}}> {{
            a = Add(x, x)  y = LayerNormalization<axis = -1, epsilon = 0.001>(a, s)
            m = ReduceMean<axes = [-1], keepdims = 1>(a)  d = Sub(a, m)  q = Mul(d, d)
            v = ReduceMean<axes = [-1], keepdims = 1>(q)  p = Add(v, e)  r = Sqrt(p)  i = Reciprocal(r) }}""",
    ),
    _fixed(
        "opset 13 has no LayerNormalization",
        before=f"{_OLD} {_S} {{ {_SKIP}(x, k, s) }}",
        after=f"""{_OLD} {_S} <float e = {{0.001}}> {{ a = Add(x, k)  m = ReduceMean<axes = [-1], keepdims = 1>(a)
            d = Sub(a, m)  q = Mul(d, d)  v = ReduceMean<axes = [-1], keepdims = 1>(q)  p = Add(v, e)  r = Sqrt(p)
            n = Div(d, r)  y = Mul(n, s) }}""",
    ),
    _fixed(
        "half precision: computed in float32, since squares overflow",
        before=f"{_OLD} {_S} {{ {_SKIP}(x, k, s) }}".replace("float[", "float16["),
        after=f"""{_OLD} {_S} <float e = {{0.001}}> {{ a = Add(x, k)  w = Cast<to = FLOAT>(a)
            m = ReduceMean<axes = [-1], keepdims = 1>(w)  d = Sub(w, m)  q = Mul(d, d)
            v = ReduceMean<axes = [-1], keepdims = 1>(q)  p = Add(v, e)  r = Sqrt(p)  n = Div(d, r)
            f = Cast<to = FLOAT>(s)  o = Mul(n, f)  y = Cast<to = FLOAT16>(o) }}""".replace(
            "float[", "float16["
        ),
    ),
    _fixed(
        "without the mean, for a target without an importer",
        before=f"{_HEAD} {_S} {{ y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001>(x, k, s) }}",
        after=f"""{_HEAD} {_S} <float e = {{0.001}}> {{ a = Add(x, k)  q = Mul(a, a)
            v = ReduceMean<axes = [-1], keepdims = 1>(q)  p = Add(v, e)  r = Sqrt(p)  n = Div(a, r)
            y = Mul(n, s) }}""",
        target="trt8.6",
    ),
    _fixed(
        "opset 23 has RMSNormalization; TensorRT-RTX does not import the second output",
        before=f"""{_OPSET_23} g (float[2,8] x, float[8] s) => (float[2,8] y, float[2,1] i) {{
            y, i = SimplifiedLayerNormalization<epsilon = 0.001>(x, s) }}""",
        after=f"""{_OPSET_23} g (float[2,8] x, float[8] s) => (float[2,8] y, float[2,1] i)
            <float e = {{0.001}}, int64[1] a = {{-1}}> {{
            y = RMSNormalization<axis = -1, epsilon = 0.001>(x, s)  q = Mul(x, x)
            v = ReduceMean<keepdims = 1>(q, a)  p = Add(v, e)  r = Sqrt(p)  i = Reciprocal(r) }}""",
        target="rtx",
    ),
    _fixed(
        "a second output, which TensorRT-RTX does not import",
        before=f"""{_HEAD} g (float[2,8] x, float[8] s) => (float[2,8] y, float[2,1] i) {{
            y, i = SimplifiedLayerNormalization(x, s) }}""",
        after=f"""{_HEAD} g (float[2,8] x, float[8] s) => (float[2,8] y, float[2,1] i)
            <float e = {{1e-5}}, float e2 = {{1e-5}}> {{
            q = Mul(x, x)  v = ReduceMean<axes = [-1], keepdims = 1>(q)  p = Add(v, e)  r = Sqrt(p)  n = Div(x, r)
            y = Mul(n, s)  q2 = Mul(x, x)  v2 = ReduceMean<axes = [-1], keepdims = 1>(q2)  p2 = Add(v2, e2)
            r2 = Sqrt(p2)  i = Reciprocal(r2) }}""",
        target="rtx",
    ),
    Flagged(
        "another axis than the last",
        f"""{_HEAD} g (float[2,3,8] x, float[3,8] s) => (float[2,3,8] y) {{
            y = SimplifiedLayerNormalization<axis = 1>(x, s) }}""",
        safety=Safety.NUMERIC,
        target="trt8.6",
    ),
    _flagged(
        "the mean, which this norm does not compute",
        f"""{_HEAD} g (float[2,3,8] x, float[8] s) => (float[2,3,8] y, float[2,3,1] m) {{
            y, m = com.microsoft.SkipSimplifiedLayerNormalization(x, x, s) }}""",
        target="trt8.6",
    ),
    _flagged(
        "statistics declared in half precision, which they never have",
        f"""{_HEAD} g (float16[2,8] x, float16[8] s) => (float16[2,8] y, float16[2,1] m) {{
            y, m = com.microsoft.SkipLayerNormalization(x, x, s) }}""",
    ),
    _flagged("bfloat16", f"{_HEAD} {_S} {{ {_SKIP}(x, k, s) }}".replace("float[", "bfloat16[")),
    Silent(
        "norms that TensorRT-RTX imports",
        f"""{_HEAD} {_S} {{ z = com.microsoft.SkipSimplifiedLayerNormalization(x, k, s)
            y = SimplifiedLayerNormalization(z, s) }}""",
        target="rtx",
    ),
    Silent("ONNX's norm", f"{_HEAD} {_S} {{ a = Add(x, k)  y = LayerNormalization<axis = -1>(a, s) }}"),
]


@rule(
    "OPS092",
    ops=["com.microsoft::EmbedLayerNormalization"],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[43],
)
def embedding_normalization(node: Node, model: Model) -> Iterator[Match]:
    """An EmbedLayerNormalization of ONNX Runtime: embeddings of words, positions and segments, and a norm of their sum.

    ## Why it matters
    `onnxruntime.transformers.optimizer` writes it into BERT and its relatives. TensorRT finds no importer: `Plugin not
    found, are the plugin name, version, and namespace correct?`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    A Gather for each table, Add, and the norm as in OPS091. Without position ids, the first rows of the position table
    are used. The lengths, where they are read, count the ones in the mask; the sum is computed where it is read.
    NUMERIC: ONNX Runtime sums in another order.

    No fix where the lengths are read and there is no mask, and where only one of segment ids and their table is given.
    Better: give TensorRT the model from before the optimizer.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.EmbedLayerNormalization
    """
    if node.function is not None or node.input(0) is None or node.output() is None:
        return
    yield Match(no_importer(node), node=node, fix=_embedded(node, model))


def _embedded(node: Node, model: Model) -> Fix | None:
    ids, segments, words, positions, table, scale, bias, mask, position_ids = (
        node.input(index) for index in range(9)
    )
    output, lengths, total = (node.output(index) for index in range(3))
    if ids is None or words is None or positions is None or scale is None or bias is None or output is None:
        return None
    if (segments is None) != (table is None) or (is_read(lengths) and mask is None):
        return None
    elem = known_float(node, words, positions, scale, bias, *([] if table is None else [table]))
    if any(
        model.shapes.elem_type(one) != TensorProto.INT32
        for one in (ids, segments, mask, position_ids)
        if one is not None
    ):
        return None
    epsilon = float(node.attr("epsilon", 1e-12))
    opset = node.scope.opset()
    if elem is None or not 0 < epsilon < math.inf or opset < 10 or not takes("ReduceMean", opset, elem):
        return None
    draft = Draft(node)
    draft.remove(node)
    word_embedding = draft.add("Gather", [words, ids], axis=0)
    position_embedding = (
        _first_positions(draft, positions, ids, model)
        if position_ids is None
        else draft.add("Gather", [positions, position_ids], axis=0)
    )
    own = total.name if total is not None and is_read(total) else ""
    last = draft.add("Add", [word_embedding, position_embedding], output=own if table is None else "")
    if table is not None:
        last = draft.add("Add", [last, draft.add("Gather", [table, segments], axis=0)], output=own)
    layer_normalization(draft, last, scale, bias, epsilon, elem, target_of(model), output.name)
    if lengths is not None and mask is not None and is_read(lengths):
        one = draft.constant(np.array(1, np.int32), "one")
        ones = draft.add("Cast", [draft.add("Equal", [mask, one])], to=TensorProto.INT32)
        draft.add("Identity", [draft.sum(ones, [1])], output=lengths.name)
    return Fix("decompose EmbedLayerNormalization", draft.edits, Safety.NUMERIC)


def _first_positions(draft: Draft, positions: Value, ids: Value, model: Model) -> str:
    """The first rows of the position table, as many as there are ids in a sequence."""
    shape = model.shapes.shape(ids)
    length = None if shape is None or len(shape) != 2 else shape[1].value
    start, axes = (draft.integers([0], hint) for hint in ("start", "axes"))
    if length is not None:
        return draft.add("Slice", [positions, start, draft.integers([length], "length"), axes])
    first, second = (draft.integers([at], "end") for at in (1, 2))
    count = draft.add("Slice", [draft.add("Shape", [ids]), first, second, axes])
    return draft.add("Slice", [positions, start, count, axes])


_TABLES = f"""<float[9,4] w = {{{",".join(map(str, range(36)))}}},
            float[3,4] p = {{1,3,2,4,3,1,2,4,4,2,1,3}}, float[2,4] e = {{1,2,3,4,4,3,1,2}},
            float[4] s = {{1,2,3,4}}, float[4] b = {{1,2,3,4}}"""
_CALL = "com.microsoft.EmbedLayerNormalization"
_NORM = "LayerNormalization<axis = -1, epsilon = 0.001>"
_not_run = partial(Fixed, runs=False, safety=Safety.NUMERIC)


embedding_normalization.examples = [
    _not_run(
        "word and position ids",
        before=f"""{_HEAD} g (int32[N,3] i, int32[N,3] o) => (float[N,3,4] y) {_TABLES}> {{
            y = {_CALL}<epsilon = 0.001, mask_index_type = 0>(i, , w, p, , s, b, , o) }}""",
        after=f"""{_HEAD} g (int32[N,3] i, int32[N,3] o) => (float[N,3,4] y) {_TABLES}> {{
            c = Gather<axis = 0>(w, i)  d = Gather<axis = 0>(p, o)  f = Add(c, d)  y = {_NORM}(f, s, b) }}""",
    ),
    _not_run(
        "word and segment ids, without position ids; the sum is read",
        before=f"""{_HEAD} g (int32[N,3] i, int32[N,3] t) => (float[N,3,4] y, float[N,3,4] z) {_TABLES}> {{
            y, , z = {_CALL}<epsilon = 0.001>(i, t, w, p, e, s, b) }}""",
        after=f"""{_HEAD} g (int32[N,3] i, int32[N,3] t) => (float[N,3,4] y, float[N,3,4] z) {_TABLES},
            int64[1] k = {{0}}, int64[1] l = {{3}}, int64[1] a = {{0}}> {{
            c = Gather<axis = 0>(w, i)  d = Slice(p, k, l, a)  f = Add(c, d)  g = Gather<axis = 0>(e, t)
            z = Add(f, g)  y = {_NORM}(z, s, b) }}""",
    ),
    Flagged(
        "without --numeric-fixes: reported only",
        f"""{_HEAD} g (int32[N,3] i, int32[N,3] o) => (float[N,3,4] y) {_TABLES}> {{
            y = {_CALL}<epsilon = 0.001, mask_index_type = 0>(i, , w, p, , s, b, , o) }}""",
        runs=False,
    ),
    _flagged(
        "the lengths without a mask",
        f"""{_HEAD} g (int32[N,3] i) => (float[N,3,4] y, int32[N] m) {_TABLES}> {{
            y, m = {_CALL}(i, , w, p, , s, b) }}""",
    ),
    _flagged(
        "a segment table without ids",
        f"""{_HEAD} g (int32[N,3] i) => (float[N,3,4] y) {_TABLES}> {{
            y = {_CALL}<mask_index_type = 0>(i, , w, p, e, s, b) }}""",
    ),
    Silent(
        "the operators that it was fused from",
        f"""{_HEAD} g (int32[N,3] i) => (float[N,3,4] y) {_TABLES}> {{
            c = Gather(w, i)  d = Add(c, p)  y = {_NORM}(d, s, b) }}""",
    ),
]
