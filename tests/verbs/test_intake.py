"""``check --inputs-help``: which sizes and values of its inputs a model takes."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxfix
from onnxfix.report.render.details import range_text
from onnxfix.report.render.text import render_report
from onnxfix.verbs.intake import Example, Intake, intake
from support.cli import output, reported, run
from support.size_demands import DEMANDS, RATES, model


def saved(folder: Path, body: str) -> Path:
    path = folder / "m.onnx"
    onnx.save(model(body), path)
    return path


def sizes(found: Intake, way: int = 0) -> dict[str, str]:
    return {one.symbol: range_text(one) for one in found.ways[way].sizes}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a kernel", {"B": "any size", "H": "from 5", "W": "from 5"}),
        ("channels", {"C": "3 only"}),
        ("reflection", {"B": "any size", "S": "from 6"}),
        ("equal parts", {"N": "from 3, in steps of 3"}),
        ("upsampled and joined", {"H": "from 2, in steps of 2"}),
        ("a state", {"S": "any size", "B": "the same as C", "C": "the same as B"}),
        ("the best k", {"N": "from 12"}),
        ("given parts", {"N": "11 only"}),
        ("equal dimensions", {"N": "depends on M", "M": "depends on N"}),
    ],
)
def test_sizes_are_told_in_words(tmp_path: Path, name: str, words: dict[str, str]) -> None:
    assert sizes(intake(saved(tmp_path, DEMANDS[name]))) == words


def test_an_end_is_told_with_the_operator_that_makes_it(tmp_path: Path) -> None:
    text = """g (float[1,1,H] x) => (float[1,3] y) <int64[2] s = {1, 3}> {
        p = AveragePool<kernel_shape=[4], strides=[4]>(x)  y = Reshape(p, s) }"""
    found = intake(saved(tmp_path, text))
    assert sizes(found) == {"H": "from 12 to 15"}
    (one,) = found.ways[0].sizes
    assert one.because == ("Reshape at y: number of elements floor(H / 4) must be equal to 3",)


def test_examples_were_run_and_values_have_ways_of_their_own(tmp_path: Path) -> None:
    path = saved(tmp_path, RATES)
    found = intake(path)
    assert [way.values for way in found.ways] == [{"rate": 16000}, {"rate": 8000}]
    assert [sizes(found, way)["S"] for way in (0, 1)] == ["from 41", "from 10"]
    assert {one.name: one.values for one in found.inputs} == {"x": (), "rate": (16000, 8000)}
    assert found.examples
    assert {one.ran for one in found.examples} == {True}


def test_an_example_that_fails_says_why(tmp_path: Path) -> None:
    """How many elements are not 0 is data: no size is known to fit, and odd ones do not."""
    text = """g (float[N, 2] x) => (int64[A, B] y) <int64[2] s = {-1, 8}> {
        z = Exp(x)  n = NonZero(z)  y = Reshape(n, s) }"""
    told = {one.ran: one.reason for one in intake(saved(tmp_path, text)).examples}
    assert set(told) == {True, False}
    assert "Reshape" in told[False]


def test_a_model_of_static_shape_and_one_without_a_rank(tmp_path: Path) -> None:
    found = intake(saved(tmp_path, "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"))
    assert found.ways == (found.ways[0],)
    assert found.ways[0].sizes == ()
    assert [one.words for one in found.examples] == ["as declared"]
    proto = model("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, tmp_path / "r.onnx")
    (one,) = intake(tmp_path / "r.onnx").inputs
    assert one.dims is None


def test_the_commands_words_and_json(tmp_path: Path) -> None:
    path = saved(tmp_path, RATES)
    told = output(0, "check", path, "--inputs-help", "--ignore", "CTL011")
    lines = told.splitlines()
    assert "  input rate: int64 []; the model distinguishes the values 16000, 8000" in lines
    assert "  where rate=16000:" in lines
    assert "    S: from 41" in lines
    assert any(one.startswith("  runs: B=1, S=41, rate.value=16000") for one in lines)
    assert "dimension padded by reflection" not in told
    _, verbose, _ = run("check", path, "--inputs-help", "-v")
    assert "dimension padded by reflection S must be at least 41" in " ".join(verbose.split())
    assert reported("check", path, "--inputs-help")[1]["intake"]["ways"][0]["values"] == {"rate": 16000}
    assert reported("check", path)[1]["intake"] is None


def test_python_takes_bytes_too() -> None:
    found = onnxfix.check(model(DEMANDS["a pool"]).SerializeToString(), inputs_help=True)
    assert found.intake is not None
    assert sizes(found.intake) == {"H": "from 6"}
    assert any("runs: H=" in line.plain for line in render_report(found))


def test_without_onnx_runtime_examples_are_to_be_tried() -> None:
    taken = Intake((), (), (Example("N=1", None), Example("N=2", False, "no")))
    found = onnxfix.check(model(DEMANDS["a pool"]).SerializeToString())
    lines = [line.plain for line in render_report(onnxfix_with(found, taken))]
    assert "  not tried: N=1 (ONNX Runtime is not installed)" in lines
    assert "  fails: N=2: no" in lines


def onnxfix_with(report: onnxfix.Report, taken: Intake) -> onnxfix.Report:
    from dataclasses import replace

    return replace(report, intake=taken)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "g (int64[N] i, float[S] x) => (float[N] y) { a = Exp(x)  y = Gather(a, i) }",
            "indices must be from -S to S - 1",
        ),
        (
            """g (int64[N] i) => (float[N] y) <float[5] t = {1,2,3,4,5}, int64 o = {3}> {
            a = Sub(o, i)  y = Gather(t, a) }""",
            "with x for a number, -x + 3: indices must be from -5 to 4",
        ),
        (
            """g (float[N] i) => (float[N] y) <float[5] t = {1,2,3,4,5}, float k = {0.5}> {
            a = Mul(i, k)  b = Cast<to=7>(a)  y = Gather(t, b) }""",
            "with x for a number, 0.5 * x: indices must be from -5 to 4",
        ),
    ],
)
def test_limits_of_values_are_told(tmp_path: Path, body: str, words: str) -> None:
    path = saved(tmp_path, body)
    assert intake(path).inputs[0].limits == (words,)
    told = output(0, "check", path, "--inputs-help")
    assert f"; {words}" in " ".join(told.split())
