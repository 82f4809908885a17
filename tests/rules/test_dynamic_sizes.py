"""CTL017 and IFC007: dynamic sizes that TensorRT refuses, and the one size that a model takes."""

from __future__ import annotations

import shlex
from pathlib import Path

import onnx
import pytest
from onnx import parser

import onnxfix
from onnxfix.rewrite.registry import registry
from onnxfix.testing import findings
from support.cli import output
from support.size_demands import DEMANDS, model, runs

RULE = next(rule for rule in registry().rules if rule.code == "IFC007")
ONE = {"channels": ("C", 3), "inner dimensions": ("K", 5), "given parts": ("N", 11), "a squeezed dimension": ("N", 1),
       "normalized channels": ("C", 6)}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ONE))
def test_the_size_runs_and_others_do_not(name: str) -> None:
    symbol, size = ONE[name]
    proto = model(DEMANDS[name])
    (found,) = findings(RULE, proto)
    assert (
        f"dimension {symbol} of input x is declared dynamic and can only be {size}: " in found.match.message
    )
    rest = {dim.dim_param: 2 for dim in proto.graph.input[0].type.tensor_type.shape.dim if dim.dim_param}
    assert runs(proto, {**rest, symbol: size})
    assert not any(runs(proto, {**rest, symbol: other}) for other in (size - 1, size + 1, 2 * size) if other)


@pytest.mark.parametrize("name", sorted(set(DEMANDS) - set(ONE)))
def test_nothing_is_said_where_more_than_one_size_runs(name: str) -> None:
    proto = model(DEMANDS[name])
    for found in findings(RULE, proto):
        words = found.match.message.split()
        symbol, size = words[1], int(words[words.index("be") + 1].rstrip(":"))
        sizes = {dim.dim_param: 2 for one in proto.graph.input for dim in one.type.tensor_type.shape.dim}
        assert not any(runs(proto, {**sizes, symbol: other}) for other in (size - 1, size + 1) if other)


def test_the_command_makes_it_static(tmp_path: Path) -> None:
    onnx.save(model(DEMANDS["channels"]), tmp_path / "m.onnx")
    (found,) = onnxfix.check(tmp_path / "m.onnx", select=["IFC007"]).findings
    option = found.message.partition("(apply ")[2].partition(" makes")[0]
    output(
        0, "apply", tmp_path / "m.onnx", *shlex.split(option), "--rungs", "ort-cpu", "-o", tmp_path / "o.onnx"
    )
    assert not onnxfix.check(tmp_path / "o.onnx", select=["IFC007"]).findings
    dims = onnx.load(tmp_path / "o.onnx").graph.input[0].type.tensor_type.shape.dim
    assert dims[1].dim_value == 3


def test_a_reshape_says_it_in_its_own_rule() -> None:
    proto = model("g (float[N,3,4] x) => (float[A,B] y) <int64[2] s = {2, 12}> { y = Reshape(x, s) }")
    found = onnxfix.check(proto).findings
    assert [one.code for one in found] == ["RSH008"]
    assert "(apply --fix-dim N=2 makes it static)" in found[0].message


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
