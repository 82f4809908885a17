"""TensorRT's real parser and builder behind one interface, on the models of fixtures/trt and on some more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.place import Place
from onnxfix.runtime import nvidia
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.build import attempt
from onnxfix.tensorrt.profiles import BASE
from onnxfix.tensorrt.records import Profile, TrtBuild
from support.models import model, write
from support.patience import PATIENCE
from support.real_tensorrt import REAL, older_than, since
from support.refused_models import CASES, FOLDER, MAKE


def built(worker: Worker, subject: Path | str, tmp_path: Path, **options: Any) -> TrtBuild:
    path = subject if isinstance(subject, Path) else write(tmp_path / "model.onnx", subject)
    return attempt(worker, path, package="tensorrt-rtx", **options)


# ------------------------------------------------------------------------------------- the refused models


def test_the_folder_is_what_its_script_makes() -> None:
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == MAKE.readme()
    assert {path.stem for path in FOLDER.glob("*.onnx")} == {case.name for case in MAKE.CASES}
    for case in MAKE.CASES:
        assert onnx.load(FOLDER / f"{case.name}.onnx") == case.model(), case.name


#: What an older TensorRT-RTX says instead: case -> the release from which on it says what the table has, and that.
OLDER_WORDS = {
    "reduce_axes_from_range": ("1.6", "Axis input must be an initializer!"),
    "unknown_operator": ("1.7", "Op type Mystery is not supported in TensorRT-RTX."),
}


@REAL
@CASES
def test_a_refusal_has_tensorrts_words_and_the_nodes_place(case: Any, worker: Worker, tmp_path: Path) -> None:
    found = built(worker, FOLDER / f"{case.name}.onnx", tmp_path)
    assert (found.status, found.stage) == ("refused", case.stage)
    assert found.errors[0].place.text == case.place
    release, older = OLDER_WORDS.get(case.name, ("0", ""))
    words = older if older_than(release) else case.words
    assert words in f"{found.errors[0]} {found.errors[0].text}"
    assert found.engine_bytes == 0


@REAL
@CASES
def test_what_a_rule_repairs_is_accepted(case: Any, worker: Worker, tmp_path: Path) -> None:
    report = onnxfix.apply(FOLDER / f"{case.name}.onnx", verify=False, unsafe_fixes=case.unsafe)
    if not case.fix:
        return  # whether some rule will repair it one day is not this test's business
    assert case.fix in {fix.code for fix in report.applied}
    assert report.model is not None
    path = write(tmp_path / "fixed.onnx", report.model)
    found = built(worker, path, tmp_path)
    assert found.accepted, found.reason
    assert found.engine_bytes > 0


# --------------------------------------------------------------------------------------------- the builds


@REAL
def test_an_accepted_model_is_described(worker: Worker, tmp_path: Path) -> None:
    found = built(worker, "g (float[N,4] x) => (float[N,4] y) { a = Relu(x)  y = Sigmoid(a) }", tmp_path)
    assert found.accepted
    assert dict(found.layers) == {"ACTIVATION": 2}
    assert found.profiles == (Profile({"x": ((1, 4), (3, 4), (8, 4))}, derived=True),)
    assert (found.attempts, found.stage, found.reason) == (1, "", "")


@REAL
@since("1.7", "squeeze without axes, of which it warns")
def test_a_warning_has_its_place(worker: Worker, tmp_path: Path) -> None:
    text = "g (int64[N,1,4] x) => (int64[N,4] y) { a = Abs(x)  [cut] y = Squeeze(a) }"
    found = built(worker, text, tmp_path)
    assert found.accepted
    places = {warning.place.text for warning in found.warnings}
    assert {"x", "y (cut)"} <= places, found.warnings


@REAL
def test_a_warning_of_one_build_is_not_in_the_next(worker: Worker, tmp_path: Path) -> None:
    assert built(worker, "g (int64[4] x) => (int64[4] y) { y = Abs(x) }", tmp_path).warnings
    assert not built(worker, "g (float[4] x) => (float[4] y) { y = Abs(x) }", tmp_path).warnings


@REAL
def test_sizes_are_what_the_operators_demand(worker: Worker, tmp_path: Path) -> None:
    text = "g (float[N,S] x) => (float[N,A,2] y) <int64[3] s = {0, -1, 2}> { a = Relu(x)  y = Reshape(a, s) }"
    found = built(worker, text, tmp_path)
    assert found.accepted, found.reason
    assert found.attempts == 1
    assert found.profiles[0].shapes["x"] == ((BASE[0], 2), (BASE[1], 4), (BASE[2], 8))


@REAL
def test_larger_sizes_are_tried_where_the_model_wants_them(worker: Worker, tmp_path: Path) -> None:
    """What a local function demands is not known before."""
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
        g (float[N,S] x) => (float[N,A,2] y) { a = Relu(x)  y = my.Pairs(a) }
        <domain: "my", opset_import: ["" : 20]>
        Pairs (v) => (w) { s = Constant<value_ints = [0, -1, 2]>()  w = Reshape(v, s) }"""
    found = built(worker, write(tmp_path / "model.onnx", text), tmp_path)
    assert found.accepted, found.reason
    assert found.attempts > 1
    assert found.profiles[0].shapes["x"][1] == (BASE[1], 4)


@REAL
def test_an_image_network_is_built_for_images(worker: Worker, tmp_path: Path) -> None:
    text = "g (float[N,3,H,W] x) => (float[N,3,A,B] y) { y = Conv<group=3, strides=[2,2]>(x, w) }"
    conv = write(tmp_path / "conv.onnx", model(text, w=np.ones((3, 1, 5, 5), np.float32)))
    found = built(worker, conv, tmp_path)
    assert found.accepted, found.reason
    assert found.profiles[0].shapes["x"] == ((1, 3, 32, 32), (3, 3, 64, 64), (8, 3, 128, 128))


@REAL
def test_sizes_that_contradict_the_model_are_refused(worker: Worker, tmp_path: Path) -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
    found = built(worker, text, tmp_path, profiles=[Profile({"x": ((1, 5), (2, 5), (4, 5))})])
    assert (found.status, found.attempts) == ("refused", 1)
    assert "x" in found.reason


@REAL
def test_a_shape_tensor_gets_values(worker: Worker, tmp_path: Path) -> None:
    text = "g (int64[2] s, float[N] x) => (float[A,B] y) { y = Reshape(x, s) }"
    assert built(worker, text, tmp_path).profiles[0].values == {"s": ((-1, 1),) * 3}
    feed = {"s": np.array([2, 3]), "x": np.zeros(6, np.float32)}
    found = built(worker, text, tmp_path, profiles=[Profile.of_feeds([feed])])
    assert found.accepted, found.reason
    assert found.profiles[0].values == {"s": ((2, 3),) * 3}


@REAL
@pytest.mark.parametrize(("place", "value"), [("t = Add(a, r)", (0, 1)), ("t = Identity(a)", (0, 0))])
def test_axes_that_a_table_is_looked_up_by_are_axes(
    place: str, value: tuple[int, int], worker: Worker, tmp_path: Path
) -> None:
    text = f"""g (int64[2] a, float[6] x) => (float[A] y) <int64[1] r = {{2}}, int64[4] s = {{1, 2, 1, 2}},
        int64[1] z = {{0}}> {{ {place}  g = Gather(s, t)  h = ReduceSum(g, z)  y = Slice(x, z, h) }}"""
    found = built(worker, text, tmp_path)
    assert found.accepted, found.reason
    assert found.profiles[0].values == {"a": (value,) * 3}


@REAL
def test_external_data_is_found(worker: Worker, tmp_path: Path) -> None:
    text = "g (float[2,64] x) => (float[2,64] y) { y = MatMul(x, w) }"
    product = model(text, w=np.ones((64, 64), np.float32))
    path = tmp_path / "model.onnx"
    onnx.save(product, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert built(worker, path, tmp_path).accepted
    (tmp_path / "w.bin").unlink()
    lost = built(worker, path, tmp_path)
    assert (lost.status, lost.stage) == ("refused", "parse")
    assert "w.bin" in lost.reason or "w" in lost.reason


@REAL
def test_a_file_that_is_no_model_is_a_result(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "junk.onnx").write_bytes(b"no model")
    assert built(worker, tmp_path / "junk.onnx", tmp_path).status == "refused"
    assert built(worker, tmp_path / "none.onnx", tmp_path).status == "refused"


@REAL
def test_the_engine_is_saved(worker: Worker, tmp_path: Path) -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }"
    engine = tmp_path / "model.engine"
    for _ in range(2):  # the second time it replaces the first
        found = built(worker, text, tmp_path, save_engine=str(engine))
        assert found.accepted, found.reason
        assert engine.stat().st_size == found.engine_bytes
    assert {path.name for path in tmp_path.iterdir()} == {"model.engine", "model.onnx"}


# ---------------------------------------------------------------------------------------- ends of the child

SLOW = FOLDER.parent / "swin.legacy.op13.onnx"


@REAL
@pytest.mark.slow
def test_a_build_that_takes_too_long_is_a_result(worker: Worker, tmp_path: Path) -> None:
    assert built(worker, SLOW, tmp_path).accepted
    found = built(worker, SLOW, tmp_path, timeout=0.6)
    doing = {"parse": "the parser", "build": "the builder"}[found.stage]  # as busy as the machine is
    assert (found.status, found.reason) == ("timeout", f"{doing} took more than 0.6 s and was stopped")
    assert built(worker, SLOW, tmp_path).accepted


@REAL
@pytest.mark.slow
def test_a_build_that_takes_too_much_memory_is_a_result(tmp_path: Path) -> None:
    with Worker(memory_mb=160) as small:
        found = built(small, SLOW, tmp_path, timeout=10.0)
    # TensorRT says so, dies of it, or waits for ever for the thread that it could not start.
    assert found.status in ("memory", "crash", "timeout")
    assert found.reason


@REAL
def test_an_unsorted_function_is_refused_and_repaired(worker: Worker, tmp_path: Path) -> None:
    """No file in fixtures/: nothing but TensorRT and onnxfix reads such a model, so it cannot be verified."""
    text = (
        '<ir_version: 10, opset_import: ["" : 20, "my" : 1]>\ng (float[2,3] x) => (float[2,3] y) { y = my.F(x) }\n'
        '<domain: "my", opset_import: ["" : 20]> F (x) => (y) { y = Neg(b)  b = Relu(x) }'
    )
    path = write(tmp_path / "model.onnx", text)
    found = built(worker, path, tmp_path)
    assert (found.stage, found.errors[0].place.text) == ("parse", "fn my::F / y")
    assert found.errors[0].place.around == Place(output="y")
    report = onnxfix.apply(path, verify=False)
    assert [fix.code for fix in report.applied] == ["GRA004"]
    onnx.save(report.model, path)
    assert built(worker, path, tmp_path).accepted


@REAL
@pytest.mark.skipif(bool(nvidia.gpus()), reason="this machine has a GPU; the test is for one without")
def test_without_a_gpu_the_real_modules_end_in_an_error(worker: Worker, tmp_path: Path) -> None:
    engine = tmp_path / "model.engine"
    text = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    assert built(worker, text, tmp_path, save_engine=str(engine)).accepted
    feeds = [{"x": np.zeros(2, np.float32)}]
    with Worker() as other:
        outcome = other.call(
            "onnxfix.tensorrt.engine:run",
            timeout=PATIENCE,
            engine=str(engine),
            feeds=feeds,
            package="tensorrt-rtx",
        )
    assert outcome.status in ("error", "crash")
    assert outcome.message
