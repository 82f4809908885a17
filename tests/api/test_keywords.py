"""What callers may pass: strings where lists do, arrays and shapes by name; what is refused, and how; what
``onnxfix.diagnose`` takes, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix import Diagnosis, UsageError
from onnxfix.api import keywords
from support import models
from support.paths import FIXTURES

SUM = "g (float[N,3] x, float[N,3] image) => (float[N,3] y) { y = Add(x, image) }"
DEEP = "g (float[N,4] x) => (float[N,4] y) { a = Tanh(x)  b = Exp(a)  c = Neg(b)  y = Abs(c) }"
WIDE = "g (float[N,4] x) => (float[N,4] y) { a = MatMul(x, w)  t = Tanh(a)  y = MatMul(t, w) }"
ONES = np.ones((2, 3), np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.write(tmp_path / "m.onnx", SUM)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(onnxfix.UsageError) as found:
        call()
    assert "\n" not in str(found.value)
    return str(found.value)


# ---- names


def test_names_are_one_several_in_a_text_or_a_sequence() -> None:
    for given in (
        "CST,BRC001",
        "CST, BRC001,",
        ["CST", "BRC001"],
        ("CST", " BRC001"),
        iter(["CST", "BRC001"]),
    ):
        assert keywords.names("select", given) == ("CST", "BRC001")
    assert keywords.names("select", None) is None
    assert keywords.names("select", []) == ()
    assert refusal(lambda: keywords.names("select", 3)) == "select is a name, or several, not 3"
    assert refusal(lambda: keywords.names("rungs", ["a", None])) == "an item of rungs is a name, not None"
    assert "not a dict" in refusal(lambda: keywords.names("select", {"a": 1}))
    assert "not a bytes" in refusal(lambda: keywords.names("select", b"CST"))


def test_a_string_selects_as_a_list_does(model: Path) -> None:
    mixed = FIXTURES / "mixed_precision.legacy.op17.onnx"
    text = onnxfix.check(mixed, select="CST,BRC", ignore="CST002")
    several = onnxfix.check(mixed, select=["CST", "BRC"], ignore=["CST002"])
    assert list(text.by_rule()) == list(several.by_rule()) == ["BRC001", "CST003", "CST004"]
    report = onnxfix.verify(model, rungs="reference", require="contract")
    assert [rung.name for rung in report.verdict.rungs] == ["contract", "reference"]
    assert report.verdict.required == ("contract",)


@pytest.mark.parametrize("target", ["trt10", "TRT10", "10.15", 10.15, 10])
def test_a_target_is_a_name_or_a_version(model: Path, target: Any) -> None:
    assert onnxfix.check(model, target=target).target == ("trt10.15" if "15" in str(target) else "trt10")


# ---- models


def test_a_model_is_a_path_bytes_or_a_proto(model: Path) -> None:
    proto, data = onnx.load(model), model.read_bytes()
    for given in (model, str(model), data, bytearray(data), memoryview(data), proto):
        assert onnxfix.check(given, select="CST").ok
    assert refusal(lambda: onnxfix.check(proto.graph)) == (
        "source is a path, bytes, an onnx.ModelProto, or a torch.onnx.ONNXProgram, not a GraphProto"
    )
    assert refusal(lambda: onnxfix.verify(model, 3)).startswith("fixed is a path")
    assert refusal(lambda: onnxfix.diagnose(model, [model])).endswith("not a list")
    with pytest.raises(onnxfix.ModelError, match="not an ONNX model"):
        onnxfix.check(b"no model")


# ---- shapes and inputs


def test_shapes_are_texts_or_by_name() -> None:
    assert keywords.shapes("input_shapes", "x:1x3") == ("x:1x3",)
    assert keywords.shapes("input_shapes", ["x:1x3", "y:2"]) == ("x:1x3", "y:2")
    assert keywords.shapes("input_shapes", {"x": (np.int64(1), 3), "y": 2, "z": [], "w": np.array([4, 5])}) == {
        "x": (1, 3), "y": (2,), "z": (), "w": (4, 5),
    }  # fmt: skip
    for wrong in ({"x": (1, "N")}, {"x": (1, -1)}, {"x": (1.0, 3)}, {"x": (True,)}):
        assert refusal(lambda wrong=wrong: keywords.shapes("input_shapes", wrong)).startswith(
            "input_shapes['x'] is a shape such as (1, 3, 224, 224), not ("
        )
    assert refusal(lambda: keywords.shapes("input_shapes", {1: (1, 3)})).startswith("a key of input_shapes")
    assert refusal(lambda: keywords.shapes("input_shapes", 3)).endswith("not 3")


class Tensor:
    """An array of another library."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __array__(self, *_: Any, **__: Any) -> Any:
        if self.value is None:
            raise TypeError("it is on a GPU")
        return self.value


def test_inputs_are_arrays_by_name_or_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=ONES)
    assert keywords.inputs("inputs", tmp_path) == tmp_path
    found = keywords.inputs("inputs", [{"x": ONES}, tmp_path / "a.npz", str(tmp_path / "a.npz")])
    assert isinstance(found, list)
    assert [one["x"].tolist() for one in found] == [ONES.tolist()] * 3
    (one,) = keywords.inputs("inputs", {"x": Tensor(ONES), "n": 3})
    assert one["x"] is ONES
    assert one["n"] == 3
    assert refusal(lambda: keywords.inputs("inputs", {"x": Tensor(None)})) == (
        "inputs['x'] cannot be read as an array: it is on a GPU"
    )
    for wrong, said in (
        (ONES, "several of those, or a path, not an ndarray"),
        ([ONES], "an item of inputs is a dict of arrays"),
        ({0: ONES}, "a key of inputs is the name of an input"),
    ):
        assert said in refusal(lambda wrong=wrong: keywords.inputs("inputs", wrong))
    assert "missing.npz" in refusal(lambda: keywords.inputs("inputs", [str(tmp_path / "missing.npz")]))


def test_arrays_are_what_models_are_run_on(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=ONES, image=ONES)
    several = [{"x": ONES, "image": ONES}, tmp_path / "a.npz"]
    report = onnxfix.verify(model, inputs=several, rungs="reference")
    assert len(report.verdict.rungs[1].feeds) == 2
    assert report.ok
    assert (
        refusal(lambda: onnxfix.verify(model, inputs={"x": ONES}, rungs="reference"))
        == "the given inputs lack image"
    )
    wrong = {"x": ONES, "image": ONES.astype(np.float64)}
    assert (
        refusal(lambda: onnxfix.verify(model, inputs=wrong)) == "input image: expected float32, got float64"
    )
    assert refusal(lambda: onnxfix.verify(model, inputs=[])) == "the given inputs contain no feed"


def test_shapes_by_name_are_those_of_generated_inputs(model: Path) -> None:
    report = onnxfix.verify(model, input_shapes={"image": (5, 3)}, rungs="reference")
    assert {tuple(feed.feed.assignment.items()) for feed in report.verdict.rungs[1].feeds if feed.feed} == {
        (("N", 5),)
    }
    for wrong, said in (
        ({"other": (5, 3)}, "the model has no input other; its inputs are x, image"),
        ({"image": (5,)}, "input image has rank 2 ['N', 3], got shape [5]"),
        ({"image": (5, 4)}, "input image has size 3 in dimension 1, got shape [5, 4]"),
    ):
        assert refusal(lambda wrong=wrong: onnxfix.verify(model, input_shapes=wrong)) == said


def test_arrays_and_shapes_specialize(model: Path) -> None:
    for more in ({"inputs": {"x": ONES, "image": ONES}}, {"input_shapes": {"x": (2, 3)}}):
        result = onnxfix.apply(model, static=True, rungs="reference", **more).model
        assert [dim.dim_value for dim in result.graph.input[0].type.tensor_type.shape.dim] == [2, 3]


def test_check_has_inputs_for_tensorrt_alone(model: Path) -> None:
    assert refusal(lambda: onnxfix.check(model, inputs={"x": ONES})) == (
        "inputs and input_shapes have no effect without trt"
    )


@pytest.mark.slow
def test_arrays_and_shapes_are_understood_everywhere(tmp_path: Path) -> None:
    deep = models.model(DEEP)
    feed = {"x": np.full((3, 4), 0.5, np.float32)}
    found = onnxfix.diagnose(deep, against="fp16", inputs=[feed, feed])
    assert (found.status, found.samples) == ("rounding", 2)
    wrong = {"x": (7, 5)}
    said = "input x has size 4 in dimension 1, got shape [7, 5]"
    assert refusal(lambda: onnxfix.diagnose(deep, against="fp16", input_shapes=wrong)) == said
    wide = models.model(WIDE, w=np.eye(4, dtype=np.float32))
    half = onnxfix.precision(wide, "fp16", 0.1, inputs=feed, rungs="contract", keep="t")
    assert (half.status, half.samples, [one.place.output for one in half.kept]) == ("met", 1, ["t"])
    assert refusal(lambda: onnxfix.precision(wide, "fp16", 0.1, input_shapes=wrong)) == said
    small = onnxfix.reduce(deep, tmp_path / "a", check="! grep -q Exp {}", inputs=feed)
    assert (small.status, small.path, small.nodes_after) == ("reduced", "<model>", 1)
    exp = "! grep -q Exp {}"
    assert refusal(lambda: onnxfix.reduce(deep, tmp_path / "b", check=exp, input_shapes=wrong)) == said
    other = models.model(DEEP.replace("Exp", "Sqrt"))
    small = onnxfix.reduce(deep, tmp_path / "c", check="ort-cpu", against=other, inputs=feed)
    assert small.status == "reduced"
    assert "needs an output folder" in refusal(lambda: onnxfix.reduce(deep, check="ort-cpu", against=other))


# ---- the rest


@pytest.mark.parametrize(
    ("verb", "given", "said"),
    [
        ("check", {"target": ["trt11"]}, "target is a text such as 'trt11', not a list"),
        ("check", {"trt": "tensorrt"}, "trt is onnxfix.TrtOptions(...), not 'tensorrt'"),
        ("check", {"memory_mb": 0}, "memory_mb is a whole number from 1, not 0"),
        ("check", {"memory_mb": 1.5}, "memory_mb is a whole number from 1, not 1.5"),
        ("check", {"progress": "yes"}, "progress is a function of a text, not 'yes'"),
        ("check", {"inputs_help": 1}, "inputs_help is True or False, not 1"),
        ("apply", {"output": 3}, "output is a path, not 3"),
        ("apply", {"verify": "ort-cpu"}, "verify is True or False, not 'ort-cpu'"),
        ("apply", {"numeric_fixes": None}, "numeric_fixes is True or False, not None"),
        ("apply", {"fix_dims": "batch=1"}, "fix_dims is a dict such as {'batch': 1}, not 'batch=1'"),
        ("apply", {"fix_inputs": [1]}, "fix_inputs is a dict such as {'training': False}, not a list"),
        ("apply", {"graphsurgeon": 3}, "graphsurgeon is a path, or several, not 3"),
        ("apply", {"seed": "7"}, "seed is a whole number, not '7'"),
        ("apply", {"rungs": ["ort"]}, "unknown check 'ort'; choose from"),
        ("apply", {"require": "pytorch"}, "unknown check 'pytorch'; choose from"),
        ("apply", {"require": {}}, "require is a name, or several, not a dict"),
        ("check", {"trt": 0}, "trt is onnxfix.TrtOptions(...), not 0"),
        ("apply", {"trt": False}, "trt is onnxfix.TrtOptions(...), not False"),
        ("layers", {"trt": False}, "trt is onnxfix.TrtOptions(...), not False"),
        ("verify", {"exact": "no"}, "exact is True or False, not 'no'"),
        ("verify", {"batch_sweep": "8"}, "batch_sweep is a whole number, not '8'"),
        ("diagnose", {"against": 3}, "unknown against=3; choose from model, ort-cpu"),
        ("diagnose", {"against": "fp16", "timeout": "1"}, "timeout is a number of seconds, not '1'"),
        ("precision", {"to": "fp8", "max_error": 0.1}, "unknown to='fp8'; choose from fp16, bf16"),
        ("precision", {"to": "fp16", "max_error": "1%"}, "max_error is a number such as 0.01, not '1%'"),
        ("precision", {"to": "fp16", "max_error": 0.1, "keep": 3}, "keep is a name, or several, not 3"),
        ("reduce", {"check": ["ort-cpu"]}, "check is a text such as 'trt-build', not a list"),
        ("lift", {"output": None}, "output is a path, not None"),
        ("layers", {"builds": 0}, "builds is a whole number from 1, not 0"),
        ("check", {"packs": 3}, "packs is a name, or several, not 3"),
        ("apply", {"packs": "mine"}, "no rule pack 'mine'; choose from"),
    ],
)
def test_other_types_are_refused_in_one_line(
    model: Path, verb: str, given: dict[str, Any], said: str
) -> None:
    assert refusal(lambda: getattr(onnxfix, verb)(model, **given)).startswith(said)


def test_numbers_of_numpy_are_numbers() -> None:
    assert keywords.whole("seed", np.int32(7)) == 7
    assert keywords.whole("seed", np.array(7)) == 7
    assert keywords.flag("exact", np.bool_(True)) is True
    assert keywords.seconds("timeout", np.float32(0.5)) == 0.5
    assert refusal(lambda: keywords.whole("seed", True)) == "seed is a whole number, not True"
    long = refusal(lambda: keywords.whole("seed", "x" * 100))
    assert long == f"seed is a whole number, not '{'x' * 40}…'"


def test_options_of_tensorrt_take_texts_and_shapes_by_name() -> None:
    by_name = onnxfix.TrtOptions(min_shapes={"x": (1, 3)}, opt_shapes="x:2x3", max_shapes=["x:4x3"])
    shapes = (by_name.min_shapes, by_name.opt_shapes, by_name.max_shapes)
    assert shapes == (("x:1x3",), ("x:2x3",), ("x:4x3",))


NET = """
g (float[N, 4] x) => (float[N, 4] y)
<float[4] scale = {SCALE}>
{ a = Tanh(x)  b = Mul(a, scale)  y = Exp(b) }
"""


def net(scale: str = "1.0, 2.0, 3.0, 4.0") -> onnx.ModelProto:
    return models.model(NET.replace("SCALE", scale))


def test_two_models_are_compared() -> None:
    steps: list[str] = []
    found = onnxfix.diagnose(net(), net("1.0, 2.0, 3.5, 4.0"), progress=steps.append)
    assert isinstance(found, Diagnosis)
    assert (found.status, found.exit_code, found.against) == ("differ", 1, "model")
    assert [one.error.place.output for one in found.culprits] == ["b"]
    assert steps[0] == "reading"
    assert any(name.startswith("onnxruntime") for name in found.environment)


def test_inputs_are_arrays() -> None:
    samples = [{"x": np.full((size, 4), size, np.float32)} for size in (1, 2, 3)]
    found = onnxfix.diagnose(net(), net(), inputs=samples)
    assert (found.samples, found.status) == (3, "agree")
    assert found.outputs[0].elements == 24


def test_the_rounding_of_a_sequence_is_that_of_its_elements() -> None:
    text = "g (float[N,4] x) => (seq(float[M,4]) y) { a = Exp(x)  b = OP(x)  y = SequenceConstruct(a, b) }"
    found = onnxfix.diagnose(models.model(text.replace("OP", "Neg")), models.model(text.replace("OP", "Abs")))
    (output,) = found.outputs
    assert 0.0 < output.noise < 1e-5 * output.scale
    assert [one.error.place.output for one in found.culprits] == ["b"]


def test_one_side_is_needed_and_no_more() -> None:
    with pytest.raises(UsageError, match="name a second model, or what to compare with"):
        onnxfix.diagnose(net())
    with pytest.raises(UsageError, match="is for one model"):
        onnxfix.diagnose(net(), net(), against="fp16")
    with pytest.raises(UsageError, match="unknown against='gpu'; choose from model, ort-cpu"):
        onnxfix.diagnose(net(), against="gpu")


def test_a_part_in_half_precision_is_explained() -> None:
    """Its tensors have another type than the truth's: the node alone is run on values in that type."""
    right = """
    g (float[N, 64] x) => (float[N, 64] y) <float[64, 64] w>
    { a = MatMul(x, w)  b = MatMul(a, w)  y = Tanh(b) }
    """
    other = right.replace(
        "a = MatMul(x, w)  b = MatMul(a, w)",
        "h = Cast<to=10>(w)  p = Cast<to=10>(x)  a = MatMul(p, h)  q = MatMul(a, h)  b = Cast<to=1>(q)",
    )
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32) / 8
    pair = [models.model(right), models.model(other)]
    for one in pair:
        one.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    found = onnxfix.diagnose(*pair)
    assert found.status == "differ"
    first = {one.error.place.output: one for one in found.culprits[:2]}
    assert first.keys() == {"a", "b"}
    assert {one.cause for one in first.values()} == {"precision"}
    assert all(0.0 < (one.error.effect or 0.0) < 0.01 for one in first.values())
