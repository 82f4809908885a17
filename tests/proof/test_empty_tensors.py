"""Where the original takes nothing but empty tensors, shapes agree and no value was compared: not proven."""

from __future__ import annotations

from pathlib import Path

from onnxfix.proof.verdict import CPU_RUNGS
from onnxfix.proof.verify import verify
from support.models import of_opset, write

#: What a local function demands is not known, and no size that is tried is a multiple of a prime.
REFUSES = """g (float[A, B] x) => (float[C, 769] y) { a = Neg(x) y = my.Rows(a) }
<domain: "my", opset_import: ["" : 18]>
Rows (v) => (w) { s = Constant<value_ints = [-1, 769]>()  w = Reshape(v, s) }"""
EMPTY = "g (float[0, 4] x) => (float[0, 4] y) { y = Neg(x) }"


def statuses(folder: Path, text: str, **more: object) -> dict[str, tuple[str, str]]:
    path = write(folder / "m.onnx", of_opset(18, domains={"my": 1})(text))
    verdict = verify(path, path, exact=True, rungs=CPU_RUNGS, **more)  # type: ignore[arg-type]
    return {rung.name: (rung.status, rung.reason) for rung in verdict.rungs}


def test_only_empty_tensors_ran(tmp_path: Path) -> None:
    for name in ("reference", "ort-cpu"):
        status, reason = statuses(tmp_path, REFUSES)[name]
        assert status == "skipped"
        assert "no value was compared" in reason


def test_shapes_that_fit_prove_it(tmp_path: Path) -> None:
    found = statuses(tmp_path, REFUSES, input_shapes=["x:2x769"])
    assert found["ort-cpu"][0] == found["reference"][0] == "passed"


def test_model_that_is_empty_by_declaration_passes(tmp_path: Path) -> None:
    found = statuses(tmp_path, EMPTY)
    assert found["ort-cpu"][0] == found["reference"][0] == "passed"


def test_milder_values_are_tried_at_a_size_of_0_too(tmp_path: Path) -> None:
    """What a maximum of nothing does shows at no other size. This model takes only a k of 0."""
    text = """g (float[N] x, float[9] k) => (float[N] y, float[2] w)
        <float[2] c = {1, 2}, float t = {1000}, int64[1] two = {2}> {
        a = Abs(k)  m = ReduceMax<keepdims = 1>(a)  b = Mul(m, t)
        n = Cast<to = 7>(b)  s = Add(n, two)  w = Reshape(c, s)  y = Neg(x) }"""
    path = write(tmp_path / "m.onnx", text, 18)
    (found,) = verify(path, path, exact=True, rungs=("ort-cpu",)).rungs
    counted = [one.feed for one in found.feeds if one.status != "not counted" and one.feed is not None]
    assert {one.assignment["N"] for one in counted} == {0, 1, 2, 3}
    assert {one.kind for one in counted} == {"zeros"}
