"""Test inputs around the limits of what a model quantizes, and who is fed with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import make_inputs
from onnxfix.inputs.feeds.signature import Signature, signature
from onnxfix.proof import extents
from onnxfix.proof.request import Request
from onnxfix.proof.verdict import RungResult
from onnxfix.proof.verify import Limits, verify
from onnxfix.runtime.sandbox import shared
from support import networks
from support.models import model


def known(text: str, opset: int = 20) -> Signature:
    return signature(networks.model(text, opset))


def points(text: str, name: str = "x", opset: int = 20) -> list[float]:
    return sorted(known(text, opset).quantizers.points.get(name, ()))


def around(low: float, high: float, found: list[float], scale: float) -> bool:
    """Whether there are the limits, what is inside and outside of them, and what is half a step off."""
    shares = (2, 0.5, 0, -0.5, -1)
    wanted = [high + share * scale for share in shares] + [low - share * scale for share in shares]
    return all(any(abs(one - value) < 1e-6 * scale for one in found) for value in wanted)


PAIR = "q = QuantizeLinear({of}, s, z) y = DequantizeLinear(q, s, z)"
GRAPH = "g (float[4,8] x) => (float[4,8] y) <float s = {256}, uint8 z = {0}, float k = {4}, float m = {3}>"


@pytest.mark.parametrize(
    ("before", "of", "low", "high", "scale"),
    [
        ("", "x", 0, 255 * 256, 256),
        ("a = Identity(x)", "a", 0, 255 * 256, 256),
        ("a = Transpose(x) b = Concat<axis = 0>(a, a)", "b", 0, 255 * 256, 256),
        ("a = Mul(x, k)", "a", 0, 255 * 64, 64),
        ("a = Div(x, k)", "a", 0, 255 * 1024, 1024),
        ("a = Sub(x, m) b = Div(a, k)", "b", 3, 3 + 255 * 1024, 1024),
        ("a = Sub(m, x)", "a", 3 - 255 * 256, 3, 256),
        ("a = Neg(x) b = Add(a, m)", "b", 3 - 255 * 256, 3, 256),
        ("a = Relu(x)", "a", 0, 255 * 256, 256),
    ],
)
def test_values_of_the_input_that_reach_the_limits(
    before: str, of: str, low: float, high: float, scale: float
) -> None:
    assert around(low, high, points(f"{GRAPH} {{ {before} {PAIR.format(of=of)} }}"), scale)


def test_the_limits_of_the_type_of_the_other_sign() -> None:
    found = points(f"{GRAPH} {{ {PAIR.format(of='x')} }}")
    assert {127 * 256.0, 128 * 256.0, -128 * 256.0, -129 * 256.0} <= set(found)


@pytest.mark.parametrize(
    ("kind", "zero", "low", "high"),
    [
        (np.int8, 0, -128, 127),
        (np.uint8, 128, -128, 127),
        (np.int8, -3, -125, 130),
        (np.uint16, 0, 0, 65535),
        (ml_dtypes.int4, 0, -8, 7),
        (ml_dtypes.float8_e4m3fn, 0, -448, 448),
    ],
)
def test_every_quantized_type(kind: Any, zero: int, low: float, high: float) -> None:
    text = f"g (float[4,8] x) => (float[4,8] y) <float s = {{0.5}}> {{ {PAIR.format(of='x')} }}"
    made = model(text, 21, z=np.array(zero).astype(kind))
    found = signature(made).quantizers.points["x"]
    assert {low * 0.5, high * 0.5} <= set(found)
    assert min(found) < low * 0.5 < high * 0.5 < max(found)


def test_no_zero_point_and_a_named_type() -> None:
    bare = """g (float[4,8] x) => (float[4,8] y) <float s = {2}> {
        q = QuantizeLinear%s(x, s) y = DequantizeLinear(q, s) }"""
    assert {0.0, 510.0, 514.0} <= set(points(bare % ""))
    assert {-256.0, 254.0, 258.0} <= set(points(bare % "<output_dtype = 3>", opset=21))


def test_a_scale_for_each_channel() -> None:
    text = """g (float[4,3] x) => (float[4,3] y) <float[3] s = {1, 2, 4}, int8[3] z = {0, 0, 0}> {
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
    assert {127.0, 254.0, 508.0, -128.0, -512.0} <= set(points(text))


def test_a_clip_before_it() -> None:
    found = points(f"{GRAPH} {{ a = Clip(x, m, k) {PAIR.format(of='a')} }}")
    assert {3.0, 4.0} <= set(found)
    assert 255 * 256.0 in found


def test_inside_a_branch_and_a_function() -> None:
    branch = """g (float[4,8] x, bool c) => (float[4,8] y) <float s = {256}, uint8 z = {0}> {
        y = If(c)<then_branch = p () => (float[4,8] i) { q = QuantizeLinear(x, s, z) i = DequantizeLinear(q, s, z) },
                  else_branch = r () => (float[4,8] j) { j = Neg(x) }> }"""
    assert 255 * 256.0 in points(branch)
    function = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]> g (float[4,8] x) => (float[4,8] y)
        <float s = {256}, uint8 z = {0}> { t = Neg(x) y = my.Pair(t, s, z) }
        <domain: "my", opset_import: ["" : 20]> Pair (a, b, c) => (d) {
            q = QuantizeLinear(a, b, c) d = DequantizeLinear(q, b, c) }"""
    assert -255 * 256.0 in points(function)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4] x) => (float[4] y) { y = Neg(x) }",
        "g (float[4] x, float s) => (uint8[4] y) { y = QuantizeLinear(x, s) }",
        "g (float[4] x, uint8 z) => (uint8[4] y) <float s = {1}> { y = QuantizeLinear(x, s, z) }",
        "g (float[4] x) => (uint8[4] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }",
        '<ir_version: 10, opset_import: ["" : 20, "my" : 1]> g (float[4] x) => (float[4] y) <float s = {1}>'
        ' { y = my.QuantizeLinear(x, s) } <domain: "my", opset_import: ["" : 20]> QuantizeLinear (a, b) => (c)'
        " { c = Mul(a, b) }",
    ],
    ids=["nothing", "scale of run time", "zero point of run time", "dynamic", "namesake"],
)
def test_nothing_is_known_and_no_feed_is_made(text: str) -> None:
    one = known(text)
    assert not one.quantizers.points
    assert not one.quantizers.inside
    assert plan.quantized(one, {}, 0) == []


# ------------------------------------------------------------------------------------------------- feeds


def test_the_feeds_hold_the_points_the_first_ones_first() -> None:
    one = known(f"{GRAPH} {{ {PAIR.format(of='x')} }}".replace("[4,8]", "[4,100]"))
    (feed,) = plan.quantized(one, {}, 3)
    assert feed.label == "quantized values; seed 3"
    x = feed.values(one)["x"]
    wanted = set(np.array(one.quantizers.points["x"], np.float32).tolist())
    assert wanted <= set(x.reshape(-1).tolist())
    assert np.isin(x, list(wanted)).mean() <= 0.55, "the other half is random"
    assert np.array_equal(x, feed.values(one)["x"])


def test_a_short_input_takes_two_feeds() -> None:
    one = known(f"{GRAPH} {{ {PAIR.format(of='x')} }}".replace("[4,8]", "[7]"))
    first, second = plan.quantized(one, {}, 3)
    wanted = np.array(one.quantizers.points["x"], np.float32).tolist()
    assert sorted(first.values(one)["x"].tolist()) == sorted(wanted[:7])
    assert sorted(second.values(one)["x"].tolist()) == sorted(wanted[7:14])
    assert wanted[0] == 257 * 256.0


def test_integers_and_narrow_types_take_what_they_hold() -> None:
    text = """g (uint8[4,8] x) => (float[4,8] y) <float s = {0.0078125}, int8 z = {0}, float k = {255}> {
        a = Cast<to = 1>(x) b = Div(a, k) q = QuantizeLinear(b, s, z) y = DequantizeLinear(q, s, z) }"""
    x = plan.quantized(known(text), {}, 0)[0].values(known(text))["x"]
    assert x.dtype == np.uint8
    assert {0, 253, 255} <= set(x.reshape(-1).tolist())
    half = GRAPH.replace("float[4,8] x", "float16[4,8] x")
    one = known(f"{half} {{ a = Cast<to = 1>(x) {PAIR.format(of='a')} }}")
    made = plan.quantized(one, {}, 0)[0].values(one)["x"]
    assert np.isfinite(made).all()
    assert 65280.0 in made


INSIDE = """g (float[N,8] x) => (float[N,8] y) <float[8] w = {1,2,3,4,5,6,7,8}, float s = {%s}, uint8 z = {0}> {
    a = Mul(x, x) b = Sqrt(a) c = Softplus(b) q = QuantizeLinear(c, s, z) y = DequantizeLinear(q, s, z) }"""


def reached(text: str, folder: Path, opset: int = 20) -> tuple[Signature, extents.Reach]:
    path = networks.write(folder / "m.onnx", networks.model(text, opset))
    one = signature(path)
    request = Request(path, path, one, shared(), False, 0, {}, None)
    return one, extents.reach(request, path, {"N": 16})


def test_what_is_quantized_inside_is_looked_at_and_the_inputs_are_scaled(tmp_path: Path) -> None:
    one, found = reached(INSIDE % "1.0", tmp_path)
    assert not one.quantizers.points
    assert found.missed == ""
    assert 50 < found.gain < 2000
    (feed,) = plan.quantized(one, {"N": 16}, 0, found.gain)
    assert f"times {found.gain:.3g}" in feed.label
    assert np.abs(feed.values(one)["x"]).max() > 255
    plain = make_inputs(one, {"N": 16}, kind="normal")["x"]
    assert np.abs(plain).max() < 10


def test_no_factor_where_it_is_reached_already(tmp_path: Path) -> None:
    assert reached(INSIDE % "0.01", tmp_path)[1] == extents.Reach(1.0, "")


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        (
            "g (float[N,8] x) => (float[N,8] y) <float s = {1}, uint8 z = {0}> { c = Sigmoid(x)"
            " q = QuantizeLinear(c, s, z) y = DequantizeLinear(q, s, z) }",
            "1 of 1 quantizers inside do not reach both limits on generated inputs: c",
        ),
        (
            "g (float[N,8] x, bool b) => (float[N,8] y) <float s = {1}, uint8 z = {0}> { y = If(b)<"
            "then_branch = p () => (float[N,8] i) { c = Sigmoid(x) q = QuantizeLinear(c, s, z)"
            " i = DequantizeLinear(q, s, z) }, else_branch = r () => (float[N,8] j) { j = Neg(x) }> }",
            "1 quantizer in subgraphs or functions was not checked",
        ),
    ],
    ids=["bounded", "subgraph"],
)
def test_what_is_not_reached_is_said(tmp_path: Path, text: str, missed: str) -> None:
    assert reached(text, tmp_path)[1] == extents.Reach(1.0, missed)
    path = tmp_path / "m.onnx"
    verdict = verify(path, path, exact=True, rungs=["ort-cpu"])
    assert missed in verdict.rungs[0].notes


def test_products_of_integers_are_looked_at_as_well(tmp_path: Path) -> None:
    text = """g (float[N,2] x) => (uint8[N,2] y) <float s = {0.1}, uint8 z = {0}, uint8[2,2] w = {1, 0, 0, 1},
        float u = {100}> { q = QuantizeLinear(x, s, z) y = QLinearMatMul(q, s, z, w, s, z, u, z) }"""
    one, found = reached(text, tmp_path)
    assert [inside.name for inside in one.quantizers.inside] == ["y"]
    assert found.missed == "1 of 1 quantizers inside do not reach both limits on generated inputs: y"


# ------------------------------------------------------------------------------------------------- the ladder

READ_AS_INT8 = """{graph} {{ d = Div(x, s) r = Round(d) c = Clip(r, lo, hi) y = Mul(c, s) }}"""


def rung(folder: Path, name: str, high: int) -> RungResult:
    """QuantizeLinear to uint8 against what an importer makes of it that saturates at ``high``."""
    before = f"{GRAPH} {{ {PAIR.format(of='x')} }}"
    graph = GRAPH.replace("float m = {3}", f"float lo = {{0}}, float hi = {{{high}}}")
    after = READ_AS_INT8.format(graph=graph)
    for file, text in (("a.onnx", before), ("b.onnx", after)):
        networks.write(folder / file, text)
    limits = Limits(reference_total=60.0)
    return verify(folder / "a.onnx", folder / "b.onnx", exact=False, rungs=[name], limits=limits).rungs[0]


@pytest.mark.parametrize("name", ["reference", "ort-cpu"])
@pytest.mark.parametrize("high", [127, 254, 255])
def test_who_saturates_elsewhere_fails(tmp_path: Path, name: str, high: int) -> None:
    found = rung(tmp_path, name, high)
    assert found.status == ("passed" if high == 255 else "failed")
    told = [feed.feed.kind for feed in found.feeds if feed.feed is not None and feed.status == "different"]
    assert set(told) == (set() if high == 255 else {"quantized"}), "no other feed shows it"
    kinds = [feed.feed.kind for feed in found.feeds if feed.feed is not None]
    assert kinds.count("quantized") == 1
