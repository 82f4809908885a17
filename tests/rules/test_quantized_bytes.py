"""Bytes that the graph quantizes: TensorRT reads them as int8 and takes what is done with them, and so it stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import ModelProto, parser

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import fixed, overlay
from onnxfix_rules.ops.limits._quantized import is_quantized
from support.models import of_opset
from support.real_tensorrt import FACT, REAL, built

RULES = [rule for rule in registry().rules if rule.per not in ("build", "network")]

MOVED = """g (float[1,2,8,8] x, float[1,2,8,8] w) => (float[1,4,4,4] y) <float s = {0.1}, uint8 z = {0}> {
    a = QuantizeLinear(x, s, z)  b = QuantizeLinear(w, s, z)  c = Concat<axis = 1>(a, b)
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)  t = Transpose<perm = [0, 2, 3, 1]>(p)
    y = DequantizeLinear(t, s, z) }"""

OPERATORS = {
    "Abs": "Abs(a)", "Add": "Add(a, b)", "Concat": "Concat<axis = 1>(a, b)", "Div": "Div(a, b)", "Max": "Max(a, b)",
    "MaxPool": "MaxPool<kernel_shape = [2, 2]>(a)", "Min": "Min(a, b)", "Mul": "Mul(a, b)", "Sign": "Sign(a)",
    "Sub": "Sub(a, b)", "Transpose": "Transpose(a)", "Clip": "Clip(a)",
}  # fmt: skip
"""Measured with TensorRT-RTX 1.7.1 to be accepted on what a QuantizeLinear to uint8 makes."""

BEHIND = {
    "dequantized": ("float", "y = DequantizeLinear(p, s, z)"),
    "cast": ("float", "y = Cast<to = 1>(p)"),
    "moved and dequantized": ("float", "t = Transpose(p)  y = DequantizeLinear(t, s, z)"),
    "returned": ("uint8", "y = Identity(p)"),
}
OTHER = {"Greater": "Greater(a, b)", "Equal": "Equal(a, b)", "ArgMax": "ArgMax(a)"}


model_of = of_opset(18, 9)


def of_operator(call: str, behind: str) -> ModelProto:
    kind, tail = BEHIND[behind]
    return model_of(f"""g (float[1,2,4,4] x, float[1,2,4,4] w) => ({kind}[A,B,C,D] y)
        <float s = {{0.1}}, uint8 z = {{0}}> {{ a = QuantizeLinear(x, s, z)  b = QuantizeLinear(w, s, z)
        p = {call}  {tail} }}""")


@pytest.mark.parametrize("zero", [0, 128])
@pytest.mark.parametrize("safety", [Safety.EXACT, Safety.NUMERIC])
def test_no_cast_to_bytes_comes_between(zero: int, safety: Safety) -> None:
    """The rule about pooling cast the bytes back, before nodes that no rule could change then."""
    result, run = fixed(RULES, model_of(MOVED.replace("z = {0}", f"z = {{{zero}}}")), safety=safety)
    assert not run.problems
    assert not [node for node in result.graph.node if node.op_type == "Cast"]
    assert {found.rule.code for found in run.remaining} <= {"QDQ004", "QDQ001"}
    if safety == Safety.NUMERIC:  # the rules about quantization reach the whole region
        assert not run.remaining


def test_bytes_are_followed_into_graphs_and_functions() -> None:
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "f" : 1]>
        g (float[2] x, uint8[2] k, bool c) => (float[2] y, uint8[2] n) <float s = {0.1}> {
            q = QuantizeLinear(x, s)  h = f.h(q)
            i = If(c)<then_branch = t () => (uint8[2] u) { u = Neg(q) },
                      else_branch = e () => (uint8[2] v) { v = Identity(k) }>
            d = DequantizeLinear(i, s)  w = Cast<to = 2>(d)  o = Identity(w)  y = Add(d, d)  n = Identity(k) }
        <domain: "f", opset_import: ["" : 21]> h (a) => (b) { m = Identity(a)  b = Identity(m) }""")
    model = overlay(proto)
    found = {
        name for scope in model.scopes for name, value in scope.values.items() if is_quantized(value, model)
    }
    assert found == {"q", "h", "u", "i", "a", "m", "b"}


@FACT
@REAL
@pytest.mark.corpus
@pytest.mark.parametrize("behind", BEHIND)
def test_so_it_does_for_every_operator(worker: Worker, tmp_path: Path, behind: str) -> None:
    models = {name: of_operator(call, behind) for name, call in OPERATORS.items()}
    if behind == "cast":
        models |= {name: of_operator(call, behind) for name, call in OTHER.items()}
    for name, model in models.items():
        assert built(worker, model, tmp_path).status == "accepted", name
        result, _ = fixed(RULES, model)
        assert built(worker, result, tmp_path).status == "accepted", name
