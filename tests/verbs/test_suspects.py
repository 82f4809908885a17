"""Where TensorRT fails and names no node, onnxfix names the nodes of the smallest part that fails alike."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxfix
from onnxfix.verbs import suspects
from support.cli import run
from support.models import write
from support.paths import FIXTURES
from support.real_tensorrt import FACT, REAL

pytestmark = [REAL, FACT]

DIES = """g (float[1,4,4,4] x) => (float y) {
    a = Relu(x)  b = SpaceToDepth<blocksize = 0>(a)  y = Sigmoid(b) }"""
REFUSED = """g (float[1,1,5,5] x, float[1,1,3,3] w) => (float y) {
    a = Relu(x)  b = ConvTranspose(a, w)  c = Tanh(b)
    d = ConvTranspose<strides = [2, 2], dilations = [2, 2]>(c, w)  e = Sigmoid(d)  f = Abs(e)  y = Exp(f) }"""


@pytest.mark.parametrize("command", ["check --trt", "apply", "verify"])
def test_the_node_at_which_the_parser_dies_is_named(command: str, tmp_path: Path) -> None:
    text = " ".join(run(*command.split(), write(tmp_path / "m.onnx", DIES))[1].split())
    assert "the parser was killed by SIGFPE; the smallest part that fails: SpaceToDepth b" in text
    assert command == "verify" or "b: crash: SpaceToDepth: the parser" in text


def test_the_node_that_the_builder_refuses_is_named(tmp_path: Path) -> None:
    report = onnxfix.check(write(tmp_path / "m.onnx", REFUSED), trt=True, ignore=["OPS038"])
    [refusal] = [one for one in report.findings if one.code == "TRT002"]
    assert refusal.place.output == "d"
    assert refusal.message.endswith("; the smallest part that fails: ConvTranspose d")


def test_a_node_in_a_branch_is_named_with_the_node_around_it() -> None:
    report = onnxfix.check(FIXTURES / "cases" / "attention_in_if.onnx", trt=True)
    [refusal] = [one for one in report.findings if one.code == "TRT002"]
    assert refusal.place.text == "z.then_branch / a"
    assert refusal.message.endswith("the smallest part that fails: If z, Attention z.then_branch / a")


def test_a_search_without_time_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.onnx", REFUSED)
    monkeypatch.setattr(suspects, "SECONDS", 0.001)
    [refusal] = [
        one for one in onnxfix.check(path, trt=True, ignore=["OPS"]).findings if one.code == "TRT002"
    ]
    words = "; no smaller part that fails was found in 0.001 s; `onnxfix reduce"
    assert refusal.message.endswith(f"{words} {path} --check trt-build` goes on")


def test_nothing_is_searched_where_a_rule_knows_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "narrow", lambda *_: pytest.fail("searched"))
    report = onnxfix.check(FIXTURES / "kinds" / "bag_sum.legacy.op17.onnx", trt=True)
    assert [one.code for one in report.findings if one.severity == "error"] == ["CTL021"]
