"""Odd models and small machines: names that are no text, constants as outputs, too little memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxfix
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import build, lift
from onnxfix.tensorrt.build import attempt
from onnxfix.tensorrt.lift import Lifted
from onnxfix.tensorrt.log import logger_of
from onnxfix.tensorrt.package import load
from support import lifted
from support.patience import PATIENCE
from support.real_tensorrt import REAL


@REAL
@pytest.mark.parametrize("count", [2, 2000], ids=["small", "large"])
def test_a_constant_that_is_an_output_keeps_its_name(worker: Worker, tmp_path: Path, count: int) -> None:
    text = f"g (float[2] x) => (float[2] y, float[{count}] c) {{ y = Relu(x) }}"
    model = lifted.text(text, c=np.arange(count, dtype=np.float32))
    lifted.agree(worker, model, tmp_path, {"x": np.array([-1.0, 2.0], np.float32)})
    assert [one.name for one in onnx.load(tmp_path / "lifted.onnx").graph.output] == ["y", "c"]


@REAL
@pytest.mark.parametrize("name", ["part", "stem", "data", "root", "size"])
def test_a_name_that_is_no_text_is_read_as_far_as_it_goes(worker: Worker, tmp_path: Path, name: str) -> None:
    model = lifted.text("g (float[size] data) => (float[size] root) { part = Abs(data)  root = Sqrt(part) }")
    model.graph.node[0].name = "stem"
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(name.encode(), b"a\xff\xfeb"))
    found = lift.attempt(worker, path, tmp_path / "lifted.onnx", package="tensorrt-rtx")
    assert found.lifted, found.reason
    onnx.checker.check_model(found.path, full_check=True)
    [value] = lifted.run(Path(found.path), {found.inputs[0].name: np.array([-4.0, 9.0], np.float32)})
    assert value.tolist() == [2.0, 3.0]
    if name in ("part", "stem"):  # nor does building an engine stumble over it
        assert attempt(worker, path, package="tensorrt-rtx").accepted


@REAL
@pytest.mark.slow
def test_too_little_memory_for_the_parser_is_no_refusal(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    product = "g (float[1,8000] x) => (float[1,8000] y) { y = MatMul(x, w) }"
    onnx.save(lifted.text(product, w=np.ones((8000, 8000), np.float32)), path)
    small = tmp_path / "small.onnx"
    onnx.save(lifted.text("g (float[2] x) => (float[2] y) { y = Relu(x) }"), small)
    with Worker(memory_mb=400) as tight:
        found = lift.attempt(tight, path, tmp_path / "lifted.onnx", package="tensorrt-rtx")
        after = lift.attempt(tight, small, tmp_path / "after.onnx", package="tensorrt-rtx")
    with Worker(memory_mb=400) as tight:
        built = build.attempt(tight, path, package="tensorrt-rtx")
    assert (built.status, built.stage, built.judged) == ("memory", "parse", False)
    assert (found.status, found.path) == ("memory", "")
    assert found.reason.endswith("(memory is limited to 400 MiB: --memory-limit sets it)")
    assert "memory" in found.reason
    assert "\n" not in found.reason
    assert after.lifted, after.reason
    assert sorted(os.listdir(tmp_path)) == ["after.onnx", "model.onnx", "small.onnx"]


@REAL
@pytest.mark.parametrize("name", ["a\0b", "o" * 300], ids=["a zero byte", "too long"])
def test_an_output_that_no_file_can_be_called_is_one_clear_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(lifted.text("g (float[2] x) => (float[2] y) { y = Relu(x) }"), path)
    with pytest.raises(onnxfix.UsageError, match="cannot be written"):
        onnxfix.lift(path, tmp_path / name)
    assert os.listdir(tmp_path) == ["model.onnx"]


def counted(length: int, out: str) -> Lifted:
    """Lift a network of TensorRT's API: a loop of three rounds, with two outputs that are the same last value."""
    trt = load("tensorrt-rtx")
    network = trt.Builder(logger_of(trt)[0]).create_network(
        1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    )
    numbers = [np.array(value, np.int32) for value in (3, length)]  # TensorRT reads weights where they lie
    count, rows = (network.add_constant((), trt.Weights(one)).get_output(0) for one in numbers)
    given = network.add_input("x", trt.float32, (2,))
    loop = network.add_loop()
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    state = loop.add_recurrence(given)
    total = network.add_elementwise(state.get_output(0), given, trt.ElementWiseOperation.SUM).get_output(0)
    state.set_input(1, total)
    ends = [loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE) for _ in range(2)]
    ends.append(loop.add_loop_output(total, trt.LoopOutput.CONCATENATE))
    ends[-1].set_input(1, rows)
    for end in ends:
        network.mark_output(end.get_output(0))
    return lift.write(trt, network, Path(out), Lifted("refused", package="tensorrt-rtx"))


@REAL
@pytest.mark.parametrize("length", [2, 3, 5])
def test_a_loop_made_by_hand(worker: Worker, tmp_path: Path, length: int) -> None:
    outcome = worker.call(
        "test_lift_edge_cases:counted", timeout=PATIENCE, length=length, out=str(tmp_path / "made.onnx")
    )
    assert outcome.ok, outcome.message
    found: Lifted = outcome.value
    if length != 3:
        assert found.status == "unlifted"
        assert f"another length than the trip count: {sorted([3, length])}" in found.reason
        return
    onnx.checker.check_model(found.path, full_check=True)
    x = np.array([1.0, -2.0], np.float32)
    last, again, rows = lifted.run(Path(found.path), {"x": x})
    assert last.tolist() == again.tolist() == (4 * x).tolist()
    assert rows.tolist() == [(n * x).tolist() for n in (2, 3, 4)]


@REAL
def test_a_path_is_of_the_folder_of_the_caller(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(lifted.text("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path / "model.onnx")
    assert worker.call("os:getcwd", timeout=PATIENCE).value != str(tmp_path)  # it runs already
    monkeypatch.chdir(tmp_path)
    found = lift.attempt(worker, "model.onnx", "lifted.onnx", package="tensorrt-rtx")
    assert (found.status, found.path) == ("lifted", "lifted.onnx"), found.reason
    assert Path("lifted.onnx").is_file()


@REAL
@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16", "int32", "bool"])
def test_rows_of_a_loop_that_ends_early_are_of_any_type(worker: Worker, tmp_path: Path, dtype: str) -> None:
    code = TensorProto.DataType.Value({"bfloat16": "BFLOAT16"}.get(dtype, dtype.upper()))
    model = lifted.text(f"""g (float[2] x) => ({dtype}[K,2] s) {{
        n = Constant<value_int = 4>()
        go = Constant<value = bool {{1}}>()
        y, s = Loop(n, go, x) <body = b (int64 i, bool c, float[2] a) => (bool c2, float[2] a2, {dtype}[2] o) {{
            one = Constant<value_int = 1>()
            c2 = Less(i, one)
            a2 = Add(a, x)
            o = Cast<to = {code}>(a2)
        }}>
    }}""")
    [want], [rows] = lifted.both(worker, model, tmp_path, {"x": np.array([0.0, 3.0], np.float32)})
    assert rows.dtype == want.dtype
    assert len(want) == 2
    np.testing.assert_array_equal(rows[:2].astype(np.float32), want.astype(np.float32))
    rest = rows[2:].astype(np.float32)
    assert rest.shape == (2, 2)
    assert (np.isnan(rest) if "float" in dtype else rest == 0).all()
