"""Culprits inside of If, Loop and Scan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

import onnxfix
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
    assert found.error.place.around is not None
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
    assert found.error.place.around is not None
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
