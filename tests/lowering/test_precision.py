"""``precision``: planted stories, the budget, few Casts, nodes to keep, and what is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxfix
from onnxfix.lowering.bench import Bench, Failed
from onnxfix.lowering.convert import between_casts
from onnxfix.lowering.records import Lowering
from support import ort
from support.cli import run as cli
from support.models import model
from support.paths import FIXTURES

RNG = np.random.default_rng(7)


def _model(text: str, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    return model(text, opset, 8, **{name: array.astype(np.float32) for name, array in weights.items()})


def _run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The model as its types say, whatever kernels ONNX Runtime has."""
    return ort.run(between_casts(model), feed)


def _lower(
    model: onnx.ModelProto, tmp_path: Path, budget: float = 1e-2, **more: object
) -> tuple[Lowering, onnx.ModelProto]:
    output = tmp_path / "low.onnx"
    found = onnxfix.precision(model, "fp16", budget, output, rungs=("contract",), **more)  # type: ignore[arg-type]
    assert found.status == "written", found
    assert found.error is not None
    assert found.error <= budget
    return found, onnx.load(output)


def _why(found: Lowering) -> dict[str, str]:
    return {one.place.output: one.why for one in found.kept}


def _types(model: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model).graph
    return {info.name: info.type.tensor_type.elem_type for info in (*inferred.value_info, *inferred.output)}


# ------------------------------------------------------------------------------------------------------ the stories


def test_values_beyond_65504_stay_in_float32(tmp_path: Path) -> None:
    model = _model(
        """g (float[4,8] x) => (float[4,8] y) <float big = {1000}, float small = {0.000001}> {
        p = MatMul(x, w)  a = Mul(p, big)  b = Mul(a, big)  c = Mul(b, small)  y = MatMul(c, v) }""",
        w=RNG.normal(size=(8, 8)),
        v=RNG.normal(size=(8, 8)),
    )
    found, low = _lower(model, tmp_path)
    assert {_why(found)[name] for name in ("b", "c")} <= {"overflow", "constant"}
    assert "p" not in _why(found)
    assert "y" not in _why(found)
    assert found.heavy_low == 2
    feed = {"x": RNG.normal(size=(4, 8)).astype(np.float32) * 4}
    assert np.allclose(_run(low, feed)[0], _run(model, feed)[0], rtol=0, atol=0.02 * 60)


NORM = """g (float[4,8] x) => (float[4,8] y) <float two = {2}, float e = {0.000000000001}> {
    p = MatMul(x, w)  m = ReduceMean<axes=[-1]>(p)  d = Sub(p, m)  q = Pow(d, two)  v = ReduceMean<axes=[-1]>(q)
    a = Add(v, e)  s = Sqrt(a)  n = Div(d, s)  y = MatMul(n, w) }"""


def _flat_row() -> dict[str, np.ndarray]:
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    x[1] = 0  # all of a row is equal: its variance is 0, and only epsilon is left
    return {"x": x}


def test_an_epsilon_that_half_precision_has_not(tmp_path: Path) -> None:
    model = _model(NORM, w=np.eye(8) + 0.1 * RNG.normal(size=(8, 8)))
    found, low = _lower(model, tmp_path)  # on samples without such a row
    assert {name for name, why in _why(found).items() if why == "norm"} == {"m", "d", "q", "v", "a", "s", "n"}
    assert found.heavy_low == 2
    assert np.isfinite(_run(low, _flat_row())[0]).all()


POSITIONS = """g (int64[N] ids, float[N,8] x) => (float[N,8] y) <int64[1] last = {-1}> {
    f = Cast<to=1>(ids)  c = Unsqueeze(f, last)  a = Mul(c, rate)  r = Cos(a)  p = MatMul(x, w)  t = Mul(p, r)
    y = MatMul(t, w) }"""


def test_large_positions_stay_in_float32(tmp_path: Path) -> None:
    model = _model(POSITIONS, rate=1.0 / 10 ** np.arange(8), w=np.eye(8) + 0.1 * RNG.normal(size=(8, 8)))
    feeds = [
        {"ids": np.arange(start, start + 64), "x": RNG.normal(size=(64, 8)).astype(np.float32)}
        for start in (0, 9000)
    ]
    found, low = _lower(model, tmp_path, inputs=feeds)
    types = _types(low)
    assert types["f"] == types["c"] == types["a"] == TensorProto.FLOAT
    assert {name: _why(found)[name] for name in ("a", "r")}["a"] == "integers"
    assert found.heavy_low == 2
    gap = np.abs(_run(low, feeds[1])[0] - _run(model, feeds[1])[0]).max()
    assert gap < 0.05


def test_masks_are_saturated_and_attention_stays_in_half_precision(tmp_path: Path) -> None:
    model = _model(
        """g (float[1,4,8] x, bool[1,4,4] keep) => (float[1,4,8] y)
        <float zero = {0}, float low = {-340282346638528859811704183484516925440}, int64[3] turn = {0,2,1}> {
        k = Transpose<perm=[0,2,1]>(x)  s = MatMul(x, k)  m = Where(keep, zero, low)  a = Add(s, m)
        p = Softmax<axis=-1>(a)  y = MatMul(p, x) }"""
    )
    del model.graph.initializer[-1]  # turn
    feeds = [
        {"x": RNG.normal(size=(1, 4, 8)).astype(np.float32), "keep": np.tril(np.ones((1, 4, 4), bool))}
        for _ in range(2)
    ]
    found, low = _lower(model, tmp_path, inputs=feeds)
    assert not found.kept
    assert any("mask" in note for note in found.notes)
    assert np.allclose(_run(low, feeds[0])[0], _run(model, feeds[0])[0], atol=0.02)
    blind = {**feeds[0], "keep": np.zeros((1, 4, 4), bool)}
    assert np.isfinite(_run(low, blind)[0]).all()


def test_a_sum_that_leaves_the_range_stays(tmp_path: Path) -> None:
    model = _model(
        """g (float[2,8] x) => (float[2,1] y) <int64[1] k = {1}> {
        a = Abs(x)  h = MatMul(a, c)  m = ReduceMean<axes=[1]>(h)  l = ReduceL2<axes=[1]>(h)  y = Add(m, l) }""",
        c=np.full((8, 4096), 20.0),
    )
    found, _ = _lower(model, tmp_path)
    assert _why(found)["m"] == _why(found)["l"] == "reduction"  # the values themselves fit
    assert found.heavy_low == 1


# ----------------------------------------------------------------------------------- budget, Casts, the keep file


def test_both_errors_of_an_output_are_on_one_scale(tmp_path: Path) -> None:
    """The root mean square is not above the largest error, where most values are far below the largest."""
    model = _model("g (float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }", w=np.eye(64) * 32)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.array([[8.0] + [0.3] * 63], np.float32))
    path, inputs = tmp_path / "m.onnx", tmp_path / "x.npz"
    _, out, _ = cli("precision", path, "--to", "fp16", "--max-error", "0.1", "--inputs", inputs)
    found = re.search(r"^ +y +(\S+) +(\S+) +256$", out, re.MULTILINE)
    assert found is not None, out
    assert 0.0 < float(found[2]) <= float(found[1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Lowering]:
    folder = tmp_path_factory.mktemp("budgets")
    path = FIXTURES / "vit.legacy.op17.onnx"
    return {
        budget: onnxfix.precision(path, "fp16", budget, folder / f"{budget}.onnx", rungs=("contract",))
        for budget in (1e-2, 6e-4, 1e-9)
    }


@pytest.mark.slow
def test_the_budget_is_kept_and_decides_how_many(runs: dict[float, Lowering]) -> None:
    wide, narrow, none = runs.values()
    assert wide.status == narrow.status == "written"
    assert narrow.error is not None
    assert narrow.error <= 6e-4 < (wide.error or 0)
    assert (wide.share, wide.casts) == (1.0, 2)  # Casts at the input and at the output
    assert narrow.casts <= 2 * (narrow.nodes - narrow.low)
    assert 0.3 < narrow.share < 1.0
    assert narrow.heavy_low / narrow.heavy > narrow.share  # products last
    assert {one.why for one in narrow.kept} <= {"error", "neighbor"}
    assert none.status == "missed"
    assert none.exit_code == 1
    assert none.best is not None
    assert none.best > 1e-9
    assert not none.output


@pytest.mark.slow
def test_one_verdict_about_one_pair(tmp_path: Path) -> None:
    original, low = FIXTURES / "vit.legacy.op17.onnx", tmp_path / "low.onnx"
    assert onnxfix.precision(original, "fp16", 0.01, low, rungs=("contract",)).status == "written"
    how = {"rungs": ("ort-cpu", "reference"), "effort": "quick"}
    assert onnxfix.verify(original, low, **how).exit_code == 0
    found = onnxfix.diagnose(original, low)
    assert (found.status, found.exit_code, any(one.advice for one in found.culprits)) == (
        "rounding",
        0,
        False,
    )
    assert onnxfix.verify(original, low, rtol=1e-4, **how).exit_code != 0, "the user's tolerance comes first"
    other = onnx.load(original)
    other.producer_name = "another file"
    assert onnxfix.verify(other, low, **how).exit_code != 0, "the budget is that of another pair"


def test_what_is_kept_is_kept(tmp_path: Path) -> None:
    path = FIXTURES / "vit.legacy.op17.onnx"
    model = onnx.load(path)
    names = [node.name for node in model.graph.node if node.op_type == "Softmax"]
    keep = tmp_path / "keep.txt"
    keep.write_text(f"# attention\n{names[0]}\n\n.*/mlp/fc1/.*\nabsent\n")
    output, report = tmp_path / "out.onnx", tmp_path / "report.json"
    code, text, _ = cli(
        *("precision", path, "--to", "fp16", "--max-error", "0.01", "-o", output, "--keep", keep),
        *("--report", report, "--rungs", "contract"),
    )
    assert code == 0, text
    document = json.loads(report.read_text())
    kept = {row["node"]: row["why"] for row in document["kept"]}
    assert kept[names[0]] == "user"
    dense = [name for name in kept if name.endswith("fc1/MatMul")]
    assert len(dense) >= 2
    assert names[0] in document["keep_fp32"]
    assert any("'absent'" in note for note in document["notes"])
    types = _types(onnx.load(output))
    softmax = {
        node.name: node.output[0] for node in onnx.load(output).graph.node if node.op_type == "Softmax"
    }
    assert types[softmax[names[0]]] == TensorProto.FLOAT
    assert types[softmax[names[1]]] == TensorProto.FLOAT16
    assert document["share"] < 1


# --------------------------------------------------------------------------------------------------- what is written


def test_a_weight_that_both_types_read_and_one_inside_a_branch(tmp_path: Path) -> None:
    model = _model(
        """g (float[2,4] x, bool p) => (float[2,4] y, float[2,4] z) <float big = {100000}> {
        a = MatMul(x, w)  b = Mul(w, big)  c = MatMul(x, b)  h = Neg(a)
        z = If(p) <then_branch = t () => (float[2,4] u) { u = Neg(h) },
                   else_branch = f () => (float[2,4] v) { v = MatMul(h, w) }>
        y = Add(a, h) }""",
        w=RNG.normal(size=(4, 4)),
    )
    del model.graph.node[1:3]  # big stays unread
    found, low = _lower(model, tmp_path, keep=("v",))
    types = {tensor.name: tensor.data_type for tensor in low.graph.initializer}
    assert types["w"] == TensorProto.FLOAT  # a branch reads it in this type
    assert TensorProto.FLOAT16 in types.values()
    assert _types(low)["z"] == TensorProto.FLOAT
    feed = {"x": RNG.normal(size=(2, 4)).astype(np.float32), "p": np.array(False)}
    for one, other in zip(_run(low, feed), _run(model, feed), strict=True):
        assert np.allclose(one, other, atol=0.02)
    assert found.casts <= 4


def test_low_inputs_and_outputs(tmp_path: Path) -> None:
    model = _model("g (float[2,4] x) => (float[2,4] y) { a = MatMul(x, w)  y = Relu(a) }", w=np.eye(4))
    found, low = _lower(model, tmp_path, io_types="low")
    kinds = {info.type.tensor_type.elem_type for info in (*low.graph.input, *low.graph.output)}
    assert kinds == {TensorProto.FLOAT16}
    assert found.casts == 0


def test_the_input_is_not_changed_and_nothing_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = _model("g (float[2,4] x) => (float[2,4] y) { y = MatMul(x, w) }", w=RNG.normal(size=(4, 4)))
    onnx.save(model, path)
    before = path.read_bytes()
    how = ("--to", "fp16", "--max-error", "1e-9", "-o", tmp_path / "o.onnx", "--rungs", "contract")
    assert cli("precision", path, *how)[0] == 1
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]
    for wrong in (["--rungs", "ort-gpu"], ["--max-error", "0"], ["--keep", tmp_path / "absent"]):
        code, _, error = cli("precision", path, "--to", "fp16", "--max-error", "0.1", *wrong)
        assert code == 2, wrong
        assert len(error.splitlines()) == 1
    code, _, error = cli("precision", path, "--to", "fp16", "--max-error", "0.1", "-o", path)
    assert code == 2
    assert "input" in error
    assert path.read_bytes() == before


def test_a_required_check_must_pass(tmp_path: Path) -> None:
    path, output = tmp_path / "model.onnx", tmp_path / "low.onnx"
    onnx.save(
        _model("g (float[2,4] x) => (float[2,4] y) { y = MatMul(x, w) }", w=RNG.normal(size=(4, 4))), path
    )
    how = ("precision", path, "--to", "fp16", "--max-error", "0.01", "--rungs", "contract", "-o", output)
    code, text, _ = cli(*how, "--require", "ort-cuda")  # there is no GPU
    assert (code, output.exists()) == (1, False)
    assert "ort-cuda was required and skipped" in " ".join(text.split())
    assert (
        cli(*how, "--require", "reference,ort-cpu")[0] == 0
    )  # on the budget, and not on the types' tolerance
    assert output.exists()
    assert cli(*how, "--require", "rung")[0] == 2


def test_types_that_only_readers_of_other_operators_tell(tmp_path: Path) -> None:
    """What a product of 4 bits writes has no declared type; the Div that reads it is of float32."""
    path = FIXTURES / "kinds" / "few_bits_symmetric.ort.op17.onnx"
    found = onnxfix.precision(path, "fp16", 0.01, tmp_path / "low.onnx", rungs=("contract",))
    assert found.status == "written", found
    assert {name: status for name, status, _ in found.checks}["ort-cpu"] == "passed"
    assert sorted(_why(found).values()) == ["domain", "domain", "neighbor"]
    assert found.low > 0


def test_wrong_types_are_told_from_missing_kernels(tmp_path: Path) -> None:
    """ONNX Runtime loads no model with the first, whatever runs it."""
    path = tmp_path / "m.onnx"
    causes = []
    for text in (
        "g (float[2] x) => (float[2] y) { h = Cast<to = 10>(x)  y = Add(h, x) }",
        "g (float[2] x) => (float[2] y) { h = Cast<to = 16>(x)  b = Add(h, h)  y = Cast<to = 1>(b) }",
    ):
        onnx.save(model("g (float[2] x) => (float[2] y) { y = Neg(x) }"), path)
        with Bench() as bench:
            bench.open(path, "fp16", [{"x": np.ones(2, np.float32)}])
            onnx.save(model(text), path)
            with pytest.raises(Failed) as failed:
                bench.result_errors(path, wide=False)
            causes.append(failed.value.mistyped)
    assert causes == [True, False]


def test_external_weights_come_with_the_result(tmp_path: Path) -> None:
    model = _model(
        """g (float[2,64] x) => (float[2,64] y) <float big = {100000}> {
        a = MatMul(x, w)  b = Mul(a, big)  c = Mul(b, v)  d = Div(c, big)  y = MatMul(d, w) }""",
        w=RNG.normal(size=(64, 64)),
        v=RNG.normal(size=(64, 64))[:1],
    )
    source = tmp_path / "in"
    source.mkdir()
    stored = onnx.ModelProto.FromString(model.SerializeToString())  # saving changes what is saved
    onnx.save(
        stored, source / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=128
    )
    target = tmp_path / "out"
    target.mkdir()
    found = onnxfix.precision(
        source / "model.onnx", "fp16", 0.01, target / "low.onnx", keep=("b", "c", "d"), rungs=("contract",)
    )
    assert found.status == "written", found.reason
    assert [one.name for one in target.iterdir()] == ["low.onnx"]
    low = onnx.load(target / "low.onnx")
    types = {tensor.name: tensor.data_type for tensor in low.graph.initializer}
    assert types["w"] == TensorProto.FLOAT16
    assert types["v"] == TensorProto.FLOAT
    feed = {"x": RNG.normal(size=(2, 64)).astype(np.float32)}
    wanted = _run(model, feed)[0]
    assert np.abs(_run(low, feed)[0] - wanted).max() <= 0.01 * np.abs(wanted).max()


def test_opset_7_is_measured_as_opset_9_is(tmp_path: Path) -> None:
    text = "g (float[4,8] x) => (float[4,8] y) { a = MatMul(x, w)  b = Add(a, m)  y = Softmax(b) }"
    weights = {"w": RNG.normal(size=(8, 8)), "m": np.where(np.arange(8) % 3, 0.0, -np.inf)}
    one, other = (_lower(_model(text, opset, **weights), tmp_path)[0] for opset in (7, 9))
    assert (one.share, one.error, one.kept) == (other.share, other.error, other.kept)


def test_bfloat16_needs_an_opset_that_has_it(tmp_path: Path) -> None:
    found = onnxfix.precision(FIXTURES / "bert.legacy.op11.onnx", "bf16", 0.1, tmp_path / "o.onnx")
    assert found.status == "nothing"
    assert {one.why for one in found.kept} == {"schema"}
    assert any("convert_version(model, 13)" in note for note in found.notes)


FLOATS = [path for path in sorted(FIXTURES.glob("*.onnx")) if "fp16" not in path.name]


@pytest.mark.corpus(every=7)
@pytest.mark.parametrize("to", ["fp16", "bf16"])
@pytest.mark.parametrize("path", FLOATS, ids=lambda path: path.stem)
def test_fixtures(path: Path, to: str, tmp_path: Path) -> None:
    budget = 4e-3 if to == "fp16" else 4e-2
    found = onnxfix.precision(path, to, budget, tmp_path / "o.onnx", rungs=("contract",))  # type: ignore[arg-type]
    if to == "bf16" and "op11" in path.name:
        assert found.status == "nothing"
        return
    assert found.status == "written", found.reason
    assert found.error is not None
    assert found.error <= budget
    assert found.low >= 0.4 * found.nodes
    onnx.checker.check_model(str(tmp_path / "o.onnx"), full_check=True)
    assert {name: status for name, status, _ in found.checks}["contract"] == "passed"
    if to == "fp16":
        assert {name: status for name, status, _ in found.checks}["ort-cpu"] == "passed"


@pytest.mark.trt
@pytest.mark.long
@pytest.mark.parametrize("path", FLOATS, ids=lambda path: path.stem)
def test_tensorrt_builds_the_fixtures(path: Path, tmp_path: Path) -> None:
    found = onnxfix.precision(path, "fp16", 4e-3, tmp_path / "o.onnx")
    assert found.status == "written", found.reason
    assert {name: status for name, status, _ in found.checks}["trt-build"] == "passed"
