"""OPS089: ONNX Runtime's Gelu, BiasGelu, FastGelu and QuickGelu."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from onnx import TensorProto, helper

from onnxfix.rule import (
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
    target_of,
)
from onnxfix_rules.ops._runtimes import is_imported, origin
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
    yield Match(
        f"{target.title} has no importer for {node.domain}.{node.op_type}; {origin(node)}",
        node=node,
        fix=_fix(node, data, output, model),
    )


def _fix(node: Node, data: Value, output: Value, model: Model) -> Fix | None:
    bias = node.input(1)
    elem = known_float(node, data, *([] if bias is None else [bias]))
    if elem is None or node.scope.opset() < 7 or (node.op_type == "BiasGelu" and bias is None):
        return None
    draft, target = Draft(node), target_of(model)
    draft.remove(node)
    summed: Value | str = data if bias is None else draft.add("Add", [data, bias])
    if node.op_type == "FastGelu":
        tanh_gelu(draft, summed, elem, target, output.name)
    elif node.op_type != "QuickGelu":
        if not gelu(draft, summed, elem, target, output.name):
            return None
    elif not _quick(draft, data, elem, float(node.attr("alpha", 1.702)), output.name):
        return None
    return Fix(f"decompose {node.op_type}", draft.edits, Safety.NUMERIC)


def _quick(draft: Draft, data: Value, elem: int, alpha: float, output: str) -> bool:
    """``data * Sigmoid(alpha * data)``; False where the type cannot represent alpha."""
    largest = 65504.0 if elem == TensorProto.FLOAT16 else math.inf
    if not abs(alpha) < largest or helper.tensor_dtype_to_np_dtype(elem).type(alpha) == 0 != alpha:
        return False
    scaled: Value | str = data
    if alpha != 1.0:
        scaled = draft.add("Mul", [data, scalar(draft, alpha, elem)])
    draft.add("Mul", [data, draft.add("Sigmoid", [scaled])], output=output)
    return True


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
