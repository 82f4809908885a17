"""Half precision: the reference evaluator judges bits, ONNX Runtime's CPU provider only the order of magnitude."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxfix.proof.verdict import CPU_RUNGS
from onnxfix.proof.verify import RungResult, verify
from support.models import write

# Casts up and down again are exact, yet ONNX Runtime rounds here and not there (issue 17565).
ROUND_TRIP = """g (float[N, 8] x) => (float[N, 8] y) {
    a = Cast<to = 10>(x) b = Cast<to = 1>(a) c = Cast<to = 10>(b) d = Exp(c) y = Cast<to = 1>(d) }"""
STRAIGHT = """g (float[N, 8] x) => (float[N, 8] y) {
    a = Cast<to = 10>(x) d = Exp(a) y = Cast<to = 1>(d) }"""
WRONG = STRAIGHT.replace("y = Cast<to = 1>(d)", "e = Add(d, d) y = Cast<to = 1>(e)")
UNROUNDED = "g (float[N, 8] x) => (float[N, 8] y) { y = Exp(x) }"
SINGLE = "g (float[N, 8] x) => (float[N, 8] y) { y = Exp(x) }"


def rungs(folder: Path, before: str, after: str, **more: object) -> dict[str, RungResult]:
    paths = write(folder / "a.onnx", before, 18), write(folder / "b.onnx", after, 18)
    verdict = verify(*paths, exact=True, **{"rungs": CPU_RUNGS, **more})  # type: ignore[arg-type]
    return {rung.name: rung for rung in verdict.rungs}


def test_exact_rewrite_passes_although_onnxruntime_rounds_elsewhere(tmp_path: Path) -> None:
    found = rungs(tmp_path, ROUND_TRIP, STRAIGHT)
    assert found["reference"].status == "passed"
    assert found["reference"].exact
    assert found["ort-cpu"].status == "passed"
    assert not found["ort-cpu"].exact, "it must not say that it asked for identical bits"
    assert "within half precision's tolerance" in found["ort-cpu"].reason
    assert any("half precision" in note for note in found["ort-cpu"].notes)


def test_a_proof_for_all_values_is_as_good_as_the_reference(tmp_path: Path) -> None:
    found = rungs(tmp_path, ROUND_TRIP, STRAIGHT, rungs=["symbolic", "ort-cpu"])
    assert {name: rung.exact for name, rung in found.items()} == {"symbolic": True, "ort-cpu": False}
    assert {rung.status for rung in found.values()} == {"passed"}
    assert rungs(tmp_path, STRAIGHT, UNROUNDED, rungs=["symbolic", "ort-cpu"])["symbolic"].status == "skipped"
    assert rungs(tmp_path, ROUND_TRIP, WRONG, rungs=["symbolic", "ort-cpu"])["ort-cpu"].status == "failed"


def test_nothing_is_forgiven_without_the_reference(tmp_path: Path) -> None:
    found = rungs(tmp_path, ROUND_TRIP, STRAIGHT, rungs=["ort-cpu"])
    assert found["ort-cpu"].status == "failed"


def test_dropped_rounding_is_seen_by_the_reference(tmp_path: Path) -> None:
    """ONNX Runtime computes both alike: it drops the roundings of the original itself."""
    found = rungs(tmp_path, STRAIGHT, UNROUNDED)
    assert found["reference"].status == "failed"


def test_wrong_values_fail_all_the_same(tmp_path: Path) -> None:
    found = rungs(tmp_path, STRAIGHT, WRONG)
    assert found["reference"].status == "failed"
    assert found["ort-cpu"].status == "failed"


@pytest.mark.parametrize("text", [SINGLE, SINGLE.replace("Exp", "Neg")])
def test_single_precision_is_not_forgiven(tmp_path: Path, text: str) -> None:
    found = rungs(tmp_path, text, text)
    assert found["ort-cpu"].exact
    assert not any("half precision" in note for note in found["ort-cpu"].notes)


def test_half_weights_alone_count_as_half_precision(tmp_path: Path) -> None:
    text = "g (float16[N, 1] x) => (float16[N, 1] y) <float16[1] w = {15872}> { y = Mul(x, w) }"
    found = rungs(tmp_path, text, text)
    assert not found["ort-cpu"].exact
    assert onnx.load(tmp_path / "a.onnx").graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
