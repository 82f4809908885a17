"""Parts of the rung trt-network: the child's side, ONNX Runtime's words, and the search for the first difference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxfix.errors import Fault
from onnxfix.proof.checks import sessions
from onnxfix.proof.checks.sessions import Bench
from onnxfix.proof.compare.tolerance import shaken
from onnxfix.proof.readback.locate import downstream, lacks, locate_node, node_of, settled, upstream
from onnxfix.proof.readback.values import aligned, partners
from onnxfix.runtime.backends.ort_messages import without_status
from onnxfix.runtime.sandbox import Worker
from support import networks
from support.models import model

CHAIN = "g (float[2,3] x) => (float[2,3] y) { a = Neg(x) b = Abs(a) y = Sqrt(b) }"


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    sessions.drop()
    yield
    sessions.drop()


# ------------------------------------------------------------------------------------------------ the child


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_inputs_are_moved_by_a_last_place(dtype: Any) -> None:
    value = np.linspace(-3.0, 3.0, 101).astype(dtype)
    moved = shaken({"x": value})["x"]
    assert (moved.dtype, moved.shape) == (value.dtype, value.shape)
    wide, other = value.astype(np.float64), moved.astype(np.float64)
    where = wide != 0
    step = np.abs(other - wide)[where] / np.abs(wide)[where]
    most = {"float64": 1.1e-7, "float32": 2.4e-7, "float16": 2.0**-10, "bfloat16": 2.0**-7}[value.dtype.name]
    assert (step > 0).all()
    assert step.max() <= most
    assert (other > wide).any()
    assert (other < wide).any()
    assert (other[~where] == 0).all()


def test_what_cannot_be_moved_stays() -> None:
    greatest = np.array([65504.0, -65504.0, 0.0, np.inf], np.float16)
    moved = shaken({"x": greatest})["x"]
    assert np.isfinite(moved[:3]).all()
    assert moved[3] == np.inf
    ints = np.arange(4)
    assert shaken({"x": ints})["x"] is ints
    assert isinstance(shaken({"x": np.array(2.0, np.float32)})["x"], np.ndarray)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (np.float64, np.float32, "float32"),
        (np.float32, np.float16, "float16"),
        (np.uint8, np.int8, "int64"),
        (np.int64, np.float32, "float64"),
        (np.bool_, np.int32, "int64"),
        (np.float32, np.float32, "float32"),
    ],
)
def test_two_types_become_one(one: Any, other: Any, common: str) -> None:
    a, b = aligned(np.ones(3, one), np.ones(3, other))
    assert (a.dtype.name, b.dtype.name) == (common, common)


def test_a_byte_and_its_reading_differ() -> None:
    a, b = aligned(np.array([200], np.uint8), np.array([-56], np.int8))
    assert (a[0], b[0]) == (200, -56)
    assert aligned(["x"], np.ones(1))[0] == ["x"]


def weighty(path: Path, *, external: bool) -> Path:
    """A model with a weight of 16 kB, in itself or in a file."""
    text = "g (float[N,64] x) => (float[N,64] y) { a = MatMul(x, w)  y = Neg(a) }"
    path.parent.mkdir(exist_ok=True)
    proto = model(text, w=np.eye(64, dtype=np.float32) * 2)
    onnx.save(proto, path, save_as_external_data=external, location="w.bin", size_threshold=0)
    return path


@pytest.mark.parametrize("backend", ["ort-cpu", "reference"])
@pytest.mark.parametrize("external", [False, True])
def test_tensors_inside_become_outputs_and_weights_stay_where_they_are(
    tmp_path: Path, external: bool, backend: str
) -> None:
    path = weighty(tmp_path / "model" / "m.onnx", external=external)
    before = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    feed = {"x": np.ones((2, 64), np.float32)}
    for names in (["a"], ["y", "a"], ["x", "w"]):
        assert not sessions.load("m", str(path), backend=backend, names=names, scratch=str(scratch)).error
        ran = sessions.run("m", feed)
        assert (ran.error, sorted(ran.outputs)) == ("", sorted(names))
    np.testing.assert_array_equal(ran.outputs["w"], np.eye(64) * 2)
    assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == before
    if backend == "ort-cpu" and not external:
        assert [one.stat().st_size for one in scratch.iterdir()] == [64 * 64 * 4]
        second = weighty(tmp_path / "second" / "m.onnx", external=False)  # it has a file of its own
        assert not sessions.load("m", str(second), backend=backend, names=["a"], scratch=str(scratch)).error
        assert len(list(scratch.iterdir())) == 2


# ------------------------------------------------------------------------------------------------ the sandbox


def test_a_child_that_dies_is_a_result_and_loads_the_model_again(tmp_path: Path) -> None:
    path = networks.write(tmp_path / "m.onnx", CHAIN)
    feed = {"x": np.ones((2, 3), np.float32)}
    with Worker() as worker:
        side = Bench(worker, str(tmp_path))
        side.limit(30.0)
        assert side.put("ort-cpu", str(path)).error == ""
        assert side.compute(feed).outputs["y"].shape == (2, 3)
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(side, "_module", "os")
            with pytest.raises(Fault):
                side.compute(feed)
        worker.call("os:abort", timeout=30.0)
        assert side.compute(feed).outputs["y"].shape == (2, 3)


# ------------------------------------------------------------------------------------------------ words


NAMED = networks.model(
    "g (float[2,3] x, int64[1] n) => (float[2,3] y) { [first] a = Neg(x) b = my.Gather(a) [third] y = Sqrt(b) }"
    .replace("g (", '<ir_version: 10, opset_import: ["" : 20, "my" : 1]> g (')
).graph  # fmt: skip


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("Non-zero status code returned while running Neg node. Name:'first' Status Message: no", "a"),
        ("Non-zero status code returned while running Sqrt node. Name:'' Status Message: no", "y"),
        (
            "Type Error: Type 'tensor(x)' of input parameter (b) of operator (Sqrt) in node (third) is invalid.",
            "y",
        ),
        ("Type Error: Type (tensor(int64)) of output arg (b) of node () does not match expected type", "b"),
        ('In Node, ("", Gather, "my", -1) : ("a": tensor(float),) -> ("b": tensor(float),) , Error', "b"),
        ("Node (third) Op (Sqrt) [ShapeInferenceError] no", "y"),
        ("Fatal error: my:Gather(-1) is not a registered function/op", "b"),
        ("something else", ""),
    ],
)
def test_the_node_that_onnx_runtime_names(words: str, output: str) -> None:
    assert locate_node(node_of(words, NAMED), NAMED).output == output


def test_a_node_in_a_body_is_that_of_the_main_graph() -> None:
    graph = networks.model("""g (float[2] x, bool k) => (float[2] y) {
        [outer] y = If(k)<then_branch = t () => (float[2] p) { [inner] p = Exp(x) },
                          else_branch = e () => (float[2] q) { q = Abs(x) }> }""").graph
    assert locate_node(node_of("running Exp node. Name:'inner'", graph), graph).text == "y (outer)"


@pytest.mark.parametrize(
    ("words", "lacking"),
    [
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Neg(13)", True),
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no", True),
        ("Opset 28 is under development and support for this is limited", True),
        ("Unsupported model IR version: 99, max supported IR version: 11", True),
        ("Exception during initialization: lstm_base.h:53 layout_ == 0 was false", True),
        ("Fatal error: my:Gather(-1) is not a registered function/op", False),
        ("Fatal error: ai.onnx:NoSuch(20) is not a registered function/op", True),
        ("Non-zero status code returned while running Neg node. Name:'first' Status Message: no", False),
        ('In Node, ("first", Neg, "", -1) : Error Unrecognized attribute: axis for operator Neg', False),
        ('In Node, ("third", Sqrt, "", -1) : Error Unrecognized attribute: upper for operator Trilu', True),
    ],
)
def test_what_onnx_runtime_lacks_is_no_word_on_the_model(words: str, lacking: bool) -> None:
    assert lacks(words, NAMED) == lacking


def test_words_without_their_status() -> None:
    said = "Fail: [ONNXRuntimeError] : 1 : FAIL : Load model from /x/m.onnx failed:This is wrong"
    assert without_status(said) == "This is wrong"
    assert without_status("InvalidArgument: no") == "no"
    assert without_status("") == ""


GATHER = "running Gather node. Name:''"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g (float[2] x) => (float[1] y) <int64[1] i = {7}> { y = Gather(x, i) }", True),
        ("g (float[M] x) => (float[1] y) <int64[1] i = {7}> { y = Gather(x, i) }", False),
        ("g (float[2] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }", False),
        ("g (float[2] x) => (float[1] y) { i = ArgMax(x) y = Gather(x, i) }", False),
        ("g (float[2] x) => (float[1] y) { a = Abs(x) i = Shape(a) y = Gather(a, i) }", True),
        ("g (float[2] x, int64[3] n) => (float[1] y) { i = Shape(n) y = Gather(x, i) }", True),
        ("g (int64[2] x) => (int64[1] y) <int64[1] i = {7}> { y = Gather(x, i) }", False),
    ],
)
def test_whether_a_model_fails_whatever_it_is_fed(text: str, expected: bool) -> None:
    assert settled(GATHER, networks.model(text).graph) == expected


# ------------------------------------------------------------------------------------------------ graphs


def test_up_and_down_the_graph() -> None:
    graph = networks.model("""g (float[2] x, bool k) => (float[2] y, float[2] z) { a = Neg(x) b = Abs(x)
        y = If(k)<then_branch = t () => (float[2] p) { p = Exp(a) },
                  else_branch = e () => (float[2] q) { q = Identity(b) }>
        z = Sqrt(b) }""").graph
    assert upstream(graph, ["z"]) == {"z", "b", "x"}
    assert {"a", "b", "k", "x", "y"} <= upstream(graph, ["y"])
    assert downstream(graph, graph.node[0]) == {"a", "y"}
    assert downstream(graph, graph.node[1]) == {"b", "y", "z"}


@pytest.mark.parametrize(
    ("declared", "found", "pairs"),
    [
        (["x", "cond"], ["x", "cond_in"], {"x": 0, "cond": 1}),
        (["x", "y"], ["y", "x"], {"x": 1, "y": 0}),
        (["x", "y"], ["y"], {"y": 0}),
        (["x", "y"], ["u", "v"], {"x": 0, "y": 1}),
        (["x", "y"], ["u", "v", "w"], {}),
    ],
)
def test_partners(declared: list[str], found: list[str], pairs: dict[str, int]) -> None:
    assert partners(declared, found) == pairs
