"""One cause at one node is one finding, whichever rules see it."""

from __future__ import annotations

import pytest

import onnxfix
from support.models import model

RELU = "g (int32[4] x) => (int32[4] y) { y = Relu(x) }"
REDUCE = "g (int64[4] x) => (int64[1] y) { y = ReduceL2(x) }"
NORM = """g (float[2,8] x, float[8] s) => (float[2,8] y, float[2,1] d) {
    y, m, d = LayerNormalization(x, s) }"""
STRINGS = 'g (float[2] x) => (float[2] y) <string[1] c = {"a"}> { y = Neg(x) }'


@pytest.mark.parametrize(
    ("text", "listed", "other"),
    [
        (RELU, "INT006", "OPS050"),  # its fix is exact
        (REDUCE, "OPS050", "INT006"),  # only this one has a fix
        (NORM, "OPS050", "OPS021"),
        (STRINGS, "GRA002", "GRA008"),
    ],
    ids=lambda one: one[:6],
)
def test_the_finding_with_the_safest_fix_is_listed(text: str, listed: str, other: str) -> None:
    found = [item for item in onnxfix.check(model(text)).findings if item.severity == "error"]
    assert [item.code for item in found] == [listed]
    assert found[0].fix
    alone = [item.code for item in onnxfix.check(model(text), select=[other]).findings]
    assert alone == [other]


def test_elsewhere_the_other_rule_is_listed() -> None:
    text = "g (int32[4] x, int64[4] v) => (int32[4] y, int64[1] z) { y = Relu(x)  z = ReduceL2(v) }"
    found = [item for item in onnxfix.check(model(text)).findings if item.severity == "error"]
    assert [(item.code, item.place.output) for item in found] == [("INT006", "y"), ("OPS050", "z")]
