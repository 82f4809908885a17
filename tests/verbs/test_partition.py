"""``check --partition``: the parts of a model that ONNX Runtime's TensorRT provider would give to TensorRT."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

import onnxfix
from support.cli import errors, output, reported
from support.models import write
from support.paths import FIXTURES
from support.real_tensorrt import REAL

#: Det has no importer; it needs what comes before it, and the last node needs both.
CUT = "m (float[3,3] x) => (float y) { a = Relu(x) b = Det(a) c = ReduceSum<keepdims=0>(a) y = Add(b, c) }"
MIXED = (
    "m (float[3,3] x) => (float[3,3] y, float d) { a = Relu(x) i = Cast<to=4>(a) j = Cast<to=1>(i) b = Neg(j) "
    "d = Det(b) y = Sqrt(a) }"
)
CASES = {
    # model -> nodes that TensorRT's parser takes, and of these the plugin; parts, labels of the nodes outside
    "m (float[3,3] x) => (float[3,3] y) { a = Relu(x) y = Neg(a) }": (2, 2, 1, []),
    CUT: (3, 0, 2, ["b"]),
    # beside Det nothing needs it: the rest is one part
    "m (float[3,3] x) => (float[3,3] y, float d) { d = Det(x) y = Relu(x) }": (1, 0, 1, ["d"]),
    # computed before the provider is asked
    "m (float[3,3] x) => (float[3,3] y) <float[2,2] w = {1, 2, 3, 4}> { d = Det(w) a = Relu(d) y = Add(x, a) }": (
        1, 1, 1, [],
    ),
    # a branch that is not taken keeps the whole If out
    "m (float[3,3] x, bool c) => (float y) { y = If(c) <then_branch = t () => (float d) { d = Det(x) }, "
    "else_branch = e () => (float s) { s = ReduceSum<keepdims=0>(x) }> }": (1, 1, 1, ["d", "y"]),
    "m (float[3,3] x, bool c) => (float[3,3] y) { y = If(c) <then_branch = t () => (float[3,3] d) { d = Neg(x) }, "
    "else_branch = e () => (float[3,3] s) { s = Relu(x) }> }": (1, 1, 1, []),
    # nodes that the plugin does not ask about end a group; it takes the others
    MIXED: (3, 1, 3, ["i", "j", "d"]),
    # a type of the interface keeps everything out
    "m (float[3] x, double[3] z) => (float[3] y, double[3] w) { y = Relu(x) w = Neg(z) }": (0, 0, 0, ["y", "w"]),
}  # fmt: skip


@REAL
@pytest.mark.parametrize("text", CASES)
def test_parts_and_nodes_outside(tmp_path: Path, text: str) -> None:
    taken, provided, parts, outside = CASES[text]
    cut = onnxfix.check(write(tmp_path / "m.onnx", text), partition=True).partition
    assert cut is not None
    assert (cut.taken, cut.parts) == (taken, parts), cut.words
    found = [one.place.output for one in cut.outside]
    assert found == outside
    assert cut.provided == (provided if cut.package == "tensorrt-rtx" else taken)


@REAL
def test_functions_stand_in_place_of_their_calls() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20, "own": 1]> m (float[3,3] x) => (float y) '
        "{ a = own.f(x) y = ReduceSum<keepdims=0>(a) } "
        '<domain: "own", opset_import: ["": 20]> f (x) => (y) { d = Det(x) y = Add(x, d) }'
    )
    cut = onnxfix.check(model, partition=True).partition
    assert cut is not None
    assert (cut.taken, cut.parts, [one.place.op_type for one in cut.outside]) == (2, 1, ["Det"])


@REAL
def test_what_a_user_reads(tmp_path: Path) -> None:
    """Reasons and remedies in text and JSON; the exit code is that of the findings."""
    model = FIXTURES / "kinds" / "uint8_channels_last.legacy.op13.onnx"
    said = output(1, "check", model, "--partition")
    assert "TensorRT takes 6 of 9 nodes" in said
    assert "OPS032 fixes it" in said.replace("\n", " ")
    assert "TensorRT  " not in said  # nothing was built
    code, report = reported("check", model, "--partition")
    assert code == 1
    assert [one["place"]["op_type"] for one in report["partition"]["outside"]] == [
        "Transpose",
        "Cast",
        "Transpose",
    ]
    assert report["partition"]["taken"] == 6
    code, report = reported(
        "apply", model, "-o", tmp_path / "fixed.onnx", "--partition", "--rungs", "ort-cpu"
    )
    before, after = report["partition"], report["partition_after"]
    assert (code, before["taken"], after["provided"], after["outside"]) == (0, 6, after["nodes"], [])


@REAL
def test_every_fixture_that_tensorrt_takes_is_one_part() -> None:
    for path in sorted(FIXTURES.glob("vit*.onnx")):
        cut = onnxfix.check(path, partition=True).partition
        assert cut is not None
        assert (cut.parts, cut.outside) == (1, ()), path.name
        assert cut.taken == cut.nodes


@REAL
def test_the_page_has_the_parts(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    output(1, "check", write(tmp_path / "m.onnx", CUT), "--partition", "--report", page)
    assert "TensorRT takes 3 of 4 nodes" in page.read_text(encoding="utf-8")


@REAL
def test_options_of_the_build_need_a_build() -> None:
    said = errors(2, "check", FIXTURES / "vit.legacy.op17.onnx", "--partition", "--compute-capability", "8.9")
    assert "--compute-capability: has no effect without --trt" in said
