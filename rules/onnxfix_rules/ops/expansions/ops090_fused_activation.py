"""OPS090: ONNX Runtime's FusedConv and FusedGemm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from onnx import AttributeProto, TensorProto, helper

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
from onnxfix_rules.ops._runtimes import origin
from onnxfix_rules.ops.expansions._formulas import known_float, scalar

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
    yield Match(
        f"{target_of(model).title} has no importer for {node.domain}.{node.op_type}; {origin(node)}",
        node=node,
        fix=_fix(node, output),
    )


def _fix(node: Node, output: Value) -> Fix | None:
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
    name = _text(node.attribute("activation"))
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


def _text(attribute: AttributeProto | None) -> str:
    return "" if attribute is None else attribute.s.decode("utf-8", "replace")


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


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_G = "g (float[N,2,4,4] x, float[3,2,3,3] w) => (float[N,3,4,4] y)"
_Z = "g (float[N,2,4,4] x, float[3,2,3,3] w, float[3] b, float[N,3,4,4] z) => (float[N,3,4,4] y)"
_P = "pads = [1, 1, 1, 1]"
_M = "g (float[N,3] x, float[3,4] w, float[4] c) => (float[N,4] y)"


def _conv(attributes: str) -> str:
    return f"{_HEAD} {_G} {{ y = com.microsoft.FusedConv<{_P}, {attributes}>(x, w) }}"


_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, runs=False, safety=Safety.NUMERIC)
fused_activation.examples = [
    Fixed(
        "a convolution and its Relu",
        before=_conv('activation = "Relu"'),
        after=f"{_HEAD} {_G} {{ c = Conv<{_P}>(x, w)  y = Relu(c) }}",
    ),
    Flagged(
        "an addend, without --numeric-fixes: reported only",
        f'{_HEAD} {_Z} {{ y = com.microsoft.FusedConv<{_P}, activation = "Relu">(x, w, b, z) }}',
    ),
    _fixed(
        "half precision, for which ONNX Runtime has no CPU kernel",
        before=_conv('activation = "Relu"').replace("float[", "float16["),
        after=f"{_HEAD} {_G} {{ c = Conv<{_P}>(x, w)  y = Relu(c) }}".replace("float[", "float16["),
        runs=False,
    ),
    Fixed(
        "no activation: a Conv",
        before=f"{_HEAD} {_G} {{ y = com.microsoft.FusedConv<{_P}>(x, w) }}",
        after=f"{_HEAD} {_G} {{ y = Conv<{_P}>(x, w) }}",
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
    Fixed(
        "Tanh",
        before=_conv('activation = "Tanh"'),
        after=f"{_HEAD} {_G} {{ c = Conv<{_P}>(x, w)  y = Tanh(c) }}",
    ),
    Fixed(
        "LeakyRelu with its slope",
        before=_conv('activation = "LeakyRelu", activation_params = [0.25]'),
        after=f"{_HEAD} {_G} {{ c = Conv<{_P}>(x, w)  y = LeakyRelu<alpha = 0.25>(c) }}",
    ),
    Fixed(
        "Clip with its bounds",
        before=_conv('activation = "Clip", activation_params = [0.0, 6.0]'),
        after=f"""{_HEAD} {_G} <float l = {{0}}, float h = {{6}}> {{ c = Conv<{_P}>(x, w)  y = Clip(c, l, h) }}""",
    ),
    Fixed(
        "HardSigmoid with both",
        before=_conv('activation = "HardSigmoid", activation_params = [0.25, 0.5]'),
        after=f"{_HEAD} {_G} {{ c = Conv<{_P}>(x, w)  y = HardSigmoid<alpha = 0.25, beta = 0.5>(c) }}",
    ),
    _fixed(
        "a FusedGemm with LeakyRelu",
        before=f"""{_HEAD} {_M} {{
            y = com.microsoft.FusedGemm<alpha = 0.5, activation = "LeakyRelu", activation_alpha = 0.25>(x, w, c) }}""",
        after=f"{_HEAD} {_M} {{ g = Gemm<alpha = 0.5>(x, w, c)  y = LeakyRelu<alpha = 0.25>(g) }}",
    ),
    Fixed(
        "in a branch",
        before=f"""{_HEAD} g (float[1,1,2] x, float[1,1,1] w, bool c) => (float[1,1,2] y) {{
            y = If(c)<then_branch = p () => (float[1,1,2] u) {{ u = com.microsoft.FusedConv(x, w) }},
                      else_branch = q () => (float[1,1,2] v) {{ v = Neg(x) }}> }}""",
        after=f"""{_HEAD} g (float[1,1,2] x, float[1,1,1] w, bool c) => (float[1,1,2] y) {{
            y = If(c)<then_branch = p () => (float[1,1,2] u) {{ u = Conv(x, w) }},
                      else_branch = q () => (float[1,1,2] v) {{ v = Neg(x) }}> }}""",
    ),
    Flagged("a missing slope", _conv('activation = "LeakyRelu"'), safety=Safety.NUMERIC, runs=False),
    _flagged("an activation that ONNX Runtime does not fuse", _conv('activation = "Mish"')),
    _flagged(
        "crossed bounds of a Clip, where TensorRT and ONNX differ",
        _conv('activation = "Clip", activation_params = [6.0, 0.0]'),
    ),
    Silent("ONNX's Conv", f"{_HEAD} {_G} {{ y = Conv<{_P}>(x, w) }}"),
]
