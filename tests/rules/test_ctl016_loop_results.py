"""CTL016: what the real builder makes of loops that read each other's results, and what other rules make of its fix."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import ModelProto, parser

from onnxfix.rewrite.registry import registry
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import fixed, model_of
from support.real_tensorrt import REAL, built

RULES = {rule.code: rule for rule in registry().rules}
CTL016 = RULES["CTL016"]
DEFAULT = [rule for rule in registry().rules if rule.default]


def unrolled() -> ModelProto:
    """CTL014's example of a loop inside a loop: unrolled, the second copy reads what the first one gives."""
    why = "a loop in the body, whose trip count is an input"
    return model_of(next(one for one in RULES["CTL014"].examples if one.why == why))


@REAL
def test_what_is_unrolled_builds(worker: Worker, tmp_path: Path) -> None:
    model = unrolled()
    assert built(worker, model, tmp_path).accepted
    result, run = fixed(DEFAULT, model)
    assert {"CTL014", "CTL016"} <= {item.key.code for item in run.applied}
    assert not run.problems
    build = built(worker, result, tmp_path)
    assert build.accepted, build.reason


FUNCTION = """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
    g (float[2] x, int64 n) => (float[2] y) { y = my.F(x, n) }
    <domain: "my", opset_import: ["" : 18]> F (x, n) => (y) {
    w = Loop(n, , x)<body = a (int64 ai, bool ag, float[2] ah) => (bool af, float[2] ao) {
        af = Constant<value = bool {1}>()  ao = Add(ah, x) }>
    y = Loop(n, , x)<body = b (int64 bi, bool bg, float[2] bh) => (bool bf, float[2] bo) {
        bf = Constant<value = bool {1}>()  bo = Add(bh, w) }> }"""


@REAL
def test_in_a_local_function(worker: Worker, tmp_path: Path) -> None:
    model = parser.parse_model(FUNCTION)
    assert not built(worker, model, tmp_path).accepted
    result, run = fixed([CTL016], model)
    assert len(run.applied) == 1
    onnx.checker.check_model(result)
    build = built(worker, result, tmp_path)
    assert build.accepted, build.reason
