"""CTL017: where it speaks and how often, beyond its examples."""

from __future__ import annotations

import pytest
from onnx import parser

from onnxfix.rewrite.registry import registry
from onnxfix.testing import findings

CTL017 = next(rule for rule in registry().rules if rule.code == "CTL017")
HEAD = '<ir_version: 9, opset_import: ["" : 18, "my" : 1]>'
FLOATS = f"""{HEAD} g (float[N] x, bool c) => (float[N] y) {{ y = If(c)<
    then_branch = p () => (float[N] u) {{ u = Exp(x) }}, else_branch = q () => (float[N] v) {{ v = Neg(x) }}> }}"""
BODY = """<domain: "my", opset_import: ["" : 18]> F (k, a) => (b) { b = If(k)<
    then_branch = p () => (float[N] u) { u = Exp(a) }, else_branch = q () => (float[N] v) { v = Neg(a) }> }"""


@pytest.mark.parametrize("kind", ["float", "float16", "bfloat16", "double"])
@pytest.mark.parametrize(
    ("target", "count"), [("rtx", 1), ("trt11", 1), ("trt10", 0), ("trt8.6", 0), ("trt8.4", 0)]
)
def test_targets_and_types(kind: str, target: str, count: int) -> None:
    assert len(findings(CTL017, parser.parse_model(FLOATS.replace("float", kind)), target)) == count


def test_a_function_that_is_called_twice_is_named_once() -> None:
    text = f"{HEAD} g (float[N] x, bool c) => (float[N] z) {{ y = my.F(c, x)  z = my.F(c, y) }} {BODY}"
    assert len(findings(CTL017, parser.parse_model(text))) == 1
