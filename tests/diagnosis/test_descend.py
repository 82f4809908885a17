"""Culprits inside of If, Loop and Scan, and of local functions, although these are inlined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, inliner, parser

import onnxfix
from onnxfix.diagnosis.opening import restored, stamped
from onnxfix.diagnosis.records import Culprit, Diagnosis


def _model(text: str, opset: int = 17) -> ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


def _diagnosed(a: str, b: str, **inputs: Any) -> Diagnosis:
    return onnxfix.diagnose(
        _model(a), _model(b), inputs=[{name: np.asarray(one) for name, one in inputs.items()}]
    )


def _only(found: Diagnosis) -> Culprit:
    assert found.status == "differ"
    assert len(found.culprits) == 1
    return found.culprits[0]


X = np.linspace(-2, 3, 6, dtype=np.float32)

IF = """agraph (bool c, float[6] x) => (float[6] y) <float[6] w = {{1., 2., 3., 4., 5., 6.}}> {{
    h = Sin(x)
    r = If (c) <
        then_branch = t () => (float[6] u) {{ p = Mul(h, w) q = {then}(p) u = Neg(q) }},
        else_branch = e () => (float[6] v) {{ s = {other}(h) v = Abs(s) }}>
    y = Exp(r)
}}"""


@pytest.mark.parametrize(
    ("taken", "then", "other", "path", "output"),
    [(True, "Erf", "Tanh", "r.then_branch", "q"), (False, "Tanh", "Erf", "r.else_branch", "s")],
)
def test_the_branch_of_an_if_that_is_taken(
    taken: bool, then: str, other: str, path: str, output: str
) -> None:
    a = IF.format(then="Tanh", other="Tanh")
    found = _only(_diagnosed(a, IF.format(then=then, other=other), c=taken, x=X))
    assert found.error.place.graph == (path,)
    assert (found.error.place.output, found.error.place.op_type) == (output, "Tanh")
    assert found.error.place.around.output == "r"


def test_a_branch_that_is_not_taken_is_no_culprit() -> None:
    found = _diagnosed(IF.format(then="Tanh", other="Tanh"), IF.format(then="Tanh", other="Erf"), c=True, x=X)
    assert found.status == "agree"


def test_an_if_within_an_if() -> None:
    text = """agraph (bool c, float[6] x) => (float[6] y) {{
        r = If (c) <
            then_branch = t () => (float[6] u) {{
                i = If (c) <
                    then_branch = tt () => (float[6] m) {{ k = {op}(x) m = Neg(k) }},
                    else_branch = te () => (float[6] n) {{ n = Abs(x) }}>
                u = Neg(i)
            }},
            else_branch = e () => (float[6] v) {{ v = Abs(x) }}>
        y = Exp(r)
    }}"""
    found = _only(_diagnosed(text.format(op="Tanh"), text.format(op="Erf"), c=True, x=X))
    assert found.error.place.graph == ("r.then_branch", "i.then_branch")
    assert found.error.place.output == "k"
    assert found.error.place.around.output == "r"


LOOP = """agraph (int64 n, float[6] x) => (float[6] y, float[K,6] each) <bool go = {{1}}, int64 two = {{2}}, float[6] w = {{1., 1., 1., 1., 1., 1.}}> {{
    h = Sin(x)
    f, each = Loop (n, go, h) <
        body = b (int64 i, bool g, float[6] s) => (bool o, float[6] t, float[6] z) {{
            late = Less(two, i)
            k = Cast<to = 1>(late)
            d = Mul(k, {scale})
            a = Add(s, d)
            t = {op}(a)
            z = Mul(t, w)
            o = Identity(g)
        }}>
    y = Neg(f)
}}"""  # noqa: E501


def test_every_iteration_of_a_loop() -> None:
    a, b = (LOOP.format(scale="w", op=op) for op in ("Tanh", "Erf"))
    found = _only(_diagnosed(a, b, n=np.int64(5), x=X))
    assert found.error.place.graph == ("f.body",)
    assert found.error.place.output == "t"
    assert "in iteration 0 (from 0)" in found.reason


def test_the_first_iteration_that_differs() -> None:
    """Of the fourth on the bodies add something: w, and x."""
    a, b = (LOOP.format(scale=scale, op="Tanh") for scale in ("w", "x"))
    found = _only(_diagnosed(a, b, n=np.int64(6), x=X))
    assert found.error.place.graph == ("f.body",)
    assert found.error.place.output == "d"
    assert "in iteration 3 (from 0)" in found.reason


def test_a_loop_that_ends_by_its_condition() -> None:
    text = """agraph (float[6] x) => (float[6] y) <bool go = {{1}}, int64 two = {{2}}> {{
        f = Loop (, go, x) <
            body = b (int64 i, bool g, float[6] s) => (bool o, float[6] t) {{
                t = {op}(s)
                o = Less(i, two)
            }}>
        y = Neg(f)
    }}"""
    found = _only(_diagnosed(text.format(op="Tanh"), text.format(op="Erf"), x=X))
    assert found.error.place.output == "t"
    assert found.error.place.graph == ("f.body",)
    assert "in iteration 0 (from 0)" in found.reason


def test_a_scan_that_runs_backwards() -> None:
    text = """agraph (float[6] h, float[4,6] x) => (float[6] y, float[4,6] each) {{
        y, each = Scan<num_scan_inputs = 1, scan_input_directions = [1],
            body = b (float[6] s, float[6] e) => (float[6] t, float[6] z) {{
                p = {op}(e)
                t = Add(s, p)
                z = Identity(t)
            }}>(h, x)
    }}"""
    x = np.zeros((4, 6), np.float32)
    x[1] = 1  # both operators give 0 for 0
    found = _only(_diagnosed(text.format(op="Tanh"), text.format(op="Erf"), h=X, x=x))
    assert found.error.place.graph == ("y.body",)
    assert found.error.place.output == "p"
    assert "in iteration 2 (from 0)" in found.reason


def test_bodies_under_other_names_with_other_values_from_outside() -> None:
    a = """agraph (bool c, float[6] x) => (float[6] y) {
        h = Sin(x)
        r = If (c) <
            then_branch = t () => (float[6] u) { p = Mul(h, x) q = Tanh(p) u = Neg(q) },
            else_branch = e () => (float[6] v) { v = Abs(h) }>
        y = Exp(r)
    }"""
    b = """agraph (bool c, float[6] x) => (float[6] y) {
        i = Identity(x)
        h2 = Sin(i)
        h3 = Neg(h2)
        r2 = If (c) <
            then_branch = t () => (float[6] u2) { n = Neg(h3) p2 = Mul(n, i) q2 = Erf(p2) u2 = Neg(q2) },
            else_branch = e () => (float[6] v2) { v2 = Abs(h2) }>
        y = Exp(r2)
    }"""
    found = _only(_diagnosed(a, b, c=True, x=X))
    assert found.error.place.graph == ("r.then_branch",)
    assert found.error.place.output == "q"


def test_a_difference_in_the_condition_is_not_searched_inside() -> None:
    text = """agraph (float[6] x) => (float[6] y) <float zero = {{0.}}> {{
        m = ReduceMax<keepdims = 0>(x)
        c = {op}(m, zero)
        r = If (c) <
            then_branch = t () => (float[6] u) {{ u = Neg(x) }},
            else_branch = e () => (float[6] v) {{ v = Abs(x) }}>
        y = Exp(r)
    }}"""
    found = _only(_diagnosed(text.format(op="Greater"), text.format(op="Less"), x=X))
    assert found.error.place.graph == ()
    assert found.error.place.output == "c"


# --------------------------------------------------------------- local functions, whose nodes are named by them

OUTER, INNER = "fn l::outer", "fn l::inner"

TEXT = """<ir_version: 8, opset_import: ["" : 17, "l": 1]> agraph (float[4] x) => (float[4] y) {
    h = l.outer(x)
    g = Neg(h)
    y = l.outer(g)
}
<domain: "l", opset_import: ["" : 17, "l": 1]> outer (a) => (b) { t = OUTER(a) u = l.inner(t) b = Sigmoid(u) }
<domain: "l", opset_import: ["" : 17]> inner (a) => (b) { t = INNER(a) b = Sin(t) }"""


def _calling(outer: str = "Tanh", inner: str = "Atan") -> ModelProto:
    model = parser.parse_model(TEXT.replace("OUTER", outer).replace("INNER", inner))
    for number, node in enumerate(model.graph.node):
        node.name = f"call{number}"
    for function in model.functions:
        for number, node in enumerate(function.node):
            node.name = f"{function.name}{number}" if function.name == "outer" else ""
    return model


def test_places_of_inlined_nodes() -> None:
    model = _calling()
    inlined = inliner.inline_local_functions(stamped(model))
    found = restored(inlined, model)
    places = [found.get(node.output[0]) for node in inlined.graph.node]
    called = [
        (one.graph, one.node, one.output, one.around.node, one.index)
        if one is not None and one.around
        else None
        for one in places
    ]
    expected = [
        ((OUTER,), "outer0", "t"),
        ((OUTER, INNER), "", "t"),
        ((OUTER, INNER), "", "b"),
        ((OUTER,), "outer2", "b"),
    ]
    assert called == [
        *((*one, "call0", 0) for one in expected),
        None,
        *((*one, "call2", 2) for one in expected),
    ]
    assert [node.name for node in inlined.graph.node] == [
        "outer0__1", "", "", "outer2__1", "call1", "outer0__3", "", "", "outer2__3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("other", "graph", "op_type"),
    [(_calling(outer="Erf"), (OUTER,), "Tanh"), (_calling(inner="Softsign"), (OUTER, INNER), "Atan")],
    ids=["outer", "inner"],
)
def test_a_fault_in_a_function(other: ModelProto, graph: tuple[str, ...], op_type: str) -> None:
    x = np.linspace(-2, 1, 4, dtype=np.float32)
    found = onnxfix.diagnose(_calling(), other, inputs=[{"x": x}])
    assert found.status == "differ"
    places = {one.error.place for one in found.culprits}
    assert {(place.graph, place.op_type, place.output) for place in places} == {(graph, op_type, "t")}
    assert {one.error.place.around.node for one in found.culprits if one.error.place.around} <= {
        "call0",
        "call2",
    }
