"""Shapes through loops, branches and local functions."""

# ruff: noqa: E501 - graphs in ONNX text are best read on one line

from __future__ import annotations

import time

import pytest

from onnxfix.model import Model
from onnxfix.shapes.shapes import Shapes
from support.shape_oracle import judged, parse, text_of

pytestmark = pytest.mark.usefixtures("strict_shapes")


NSIZES = ({"N": 1}, {"N": 2}, {"N": 7})
NSSIZES = ({"N": 1, "S": 1}, {"N": 2, "S": 5}, {"N": 3, "S": 1}, {"N": 4, "S": 8})

LOOPS: dict[str, tuple[str, str]] = {
    "grows": (
        """(float[N,4] x) => (float[] y) { n = Constant<value_int=3>() c = Constant<value=bool {1}>()
            y = Loop(n, c, x) <body = b (int64 i, bool go, float[] v) => (bool going, float[] w) {
                going = Identity(go) w = Concat<axis=0>(v, v) }> }""",
        "[y.0, 4]",
    ),
    "stays": (
        """(float[N,4] x) => (float[] y) { n = Constant<value_int=3>() c = Constant<value=bool {1}>()
            y = Loop(n, c, x) <body = b (int64 i, bool go, float[] v) => (bool going, float[] w) {
                going = Identity(go) w = Relu(v) }> }""",
        "[N, 4]",
    ),
    "swaps": (
        """(float[N,4] x) => (float[] y) { n = Constant<value_int=3>() c = Constant<value=bool {1}>()
            y = Loop(n, c, x) <body = b (int64 i, bool go, float[] v) => (bool going, float[] w) {
                going = Identity(go) w = Transpose(v) }> }""",
        "[y.0, y.1]",
    ),
    "collects": (
        """(float[N,4] x) => (float[] y) { n = Constant<value_int=3>() c = Constant<value=bool {1}>()
            z, y = Loop(n, c, x) <body = b (int64 i, bool go, float[] v) => (bool going, float[] w, float[] u) {
                going = Identity(go) w = Relu(v) u = Neg(v) }> }""",
        "[3, N, 4]",
    ),
    "stops-early": (
        """(float[N,4] x) => (float[] y) { n = Constant<value_int=3>() c = Constant<value=bool {1}>()
            one = Constant<value_int=1>()
            z, y = Loop(n, c, x) <body = b (int64 i, bool go, float[] v) => (bool going, float[] w, float[] u) {
                going = Less(i, one) w = Relu(v) u = Neg(v) }> }""",
        "unknown",
    ),
    "never-runs": (
        """(float[N,4] x) => (float[] y) { n = Constant<value_int=0>() c = Constant<value=bool {1}>()
            y, z = Loop(n, c, x) <body = b (int64 i, bool go, float[] v) => (bool going, float[] w, float[] u) {
                going = Identity(go) w = Concat<axis=0>(v, v) u = Neg(v) }> }""",
        "[y.0, 4]",
    ),
    "never-runs-and-collects": (
        """(float[N,4] x) => (float[] y) { n = Constant<value_int=0>() c = Constant<value=bool {1}>()
            z, y = Loop(n, c, x) <body = b (int64 i, bool go, float[] v) => (bool going, float[] w, float[] u) {
                going = Identity(go) w = Relu(v) u = Neg(v) }> }""",
        "unknown",
    ),
    "counts": (
        """(float[N,4] x) => (float[] y) { n = Constant<value_int=3>() c = Constant<value=bool {1}>()
            k = Constant<value_ints=[1]>()
            s = Loop(n, c, k) <body = b (int64 i, bool go, int64[] v) => (bool going, int64[] w) {
                going = Identity(go) w = Add(v, k) }>
            y = ConstantOfShape(s) }""",
        "[s[0]]",
    ),
    "scan": (
        """(float[N,S,4] x, float[4] z) => (float[] y) {
            f, y = Scan<num_scan_inputs=1, scan_output_axes=[1]> (z, x) <body = b (float[] h, float[] e) => (float[] k, float[] o) {
                k = Add(h, h) o = Add(e, h) }> }""",
        "",
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loop(name: str) -> None:
    graph, expected = LOOPS[name]
    if name == "scan":
        graph = graph.replace(
            "<num_scan_inputs=1, scan_output_axes=[1]> (z, x) <",
            "(z, x) <num_scan_inputs=1, scan_output_axes=[1], ",
        )
    proto = parse(f"g {graph}")
    if expected:
        assert text_of(proto, "y") == expected
    verdict = judged(proto, *NSSIZES)
    assert verdict.wrong == []


def test_values_inside_a_loop_hold_for_every_iteration() -> None:
    model = Model(parse(f"g {LOOPS['grows'][0]}"))
    shapes = Shapes(model)
    body = model.main.nodes[-1].subgraphs[0]
    carried = shapes.shape(body.values["v"])
    assert carried is not None
    assert [str(d) for d in carried] == ["y.body / v.0", "4"]
    grown = shapes.shape(body.values["w"])
    assert grown is not None
    assert grown[0] is carried[0] * 2


FUNCTIONS = """g (float[N,4] x, float[3] z) => (float[] y, float[] w) {{ y = my.f<axis=0>(x) w = my.f<axis=0>(z) }}
<domain: "my", opset_import: ["" : 17]> f<axis>(v) => (o) {{ d = Concat<axis: int = @axis>(v, v) o = Relu(d) }}""".format()


def test_function_is_walked_for_each_call_and_open_inside() -> None:
    proto = parse(FUNCTIONS, extra=', "my" : 1')
    assert text_of(proto, "y") == "[2*N, 4]"
    assert text_of(proto, "w") == "[6]"
    model = Model(proto)
    inside = model.functions[0].values
    assert model.shapes.shape(inside["v"]) is None
    assert model.shapes.shape(inside["d"]) is None
    verdict = judged(proto, *NSIZES)
    assert verdict.wrong == []


def test_attribute_of_a_function_is_open_inside_and_known_in_a_call() -> None:
    proto = parse(
        """g (float[N] x) => (float[] y, float[] z) { y = my.f<dims=[2,3]>() z = my.f() }
        <domain: "my", opset_import: ["" : 17]> f<dims: ints = [5]>() => (o) {
            t = Constant<value_ints: ints = @dims>() o = ConstantOfShape(t) }""".replace("<>{", "<").replace(
            "]}()", "]>()"
        ),
        extra=', "my" : 1',
    )
    assert text_of(proto, "y") == "[2, 3]"
    assert text_of(proto, "z") == "[5]"
    model = Model(proto)
    inside = model.functions[0].values
    assert model.shapes.value(inside["t"]) is None
    assert model.shapes.shape(inside["o"]) is None


def test_local_function_that_takes_an_operators_name() -> None:
    proto = parse(
        """g (float[N,4] x) => (float[] y) { y = my.Relu(x) }
        <domain: "my", opset_import: ["" : 17]> Relu(v) => (o) { o = Concat<axis=0>(v, v) }""",
        extra=', "my" : 1',
    )
    assert text_of(proto, "y") == "[2*N, 4]"


def test_function_that_calls_itself_ends() -> None:
    proto = parse(
        """g (float[N] x) => (float[] y) { y = Relu(x) }
        <domain: "", opset_import: ["" : 17]> Relu(v) => (o) { a = Relu(v) b = Relu(a) o = Add(a, b) }"""
    )
    started = time.process_time()
    assert text_of(proto, "y") == "unknown"
    assert time.process_time() - started < 2


def test_functions_that_call_twice_stay_bounded() -> None:
    """2**30 calls when written out."""
    text = "g (float[N] x) => (float[] y, float[] z) { y = my.f30(x) z = Relu(x) }"
    for k in range(31):
        body = f"a = my.f{k - 1}(v) o = my.f{k - 1}(a)" if k else "o = Relu(v)"
        text += f'<domain: "my", opset_import: ["" : 17, "my" : 1]> f{k}(v) => (o) {{ {body} }}'
    started = time.process_time()
    assert text_of(parse(text, extra=', "my" : 1'), "z") == "[N]"
    assert time.process_time() - started < 15
