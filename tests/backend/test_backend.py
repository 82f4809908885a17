"""ONNX's backend interface. Device CPU asks the real TensorRT-RTX; engines are ONNX models (``fake_engines``)."""

from __future__ import annotations

import gc
import json
import shutil
import unittest
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.backend.test import BackendTest

import onnxfix.backend
from onnxfix import OnnxfixError, TrtOptions, UsageError
from onnxfix.backend import AsIs, BackendError, NumericallyRepaired, Repaired, devices
from onnxfix.proof.checks import probe
from onnxfix.proof.checks.probe import Probe
from onnxfix.runtime.nvidia import Gpu, Missing
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import Issue, Profile, TrtBuild
from support import fake_engines
from support.models import of_opset, write
from support.patience import PATIENCE
from support.real_tensorrt import REAL

model_of = of_opset(18, 8)
UPPER = "g (float[2, 3] x) => (float[2, 3] y) { y = Trilu<upper = 1>(x) }"
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def upper() -> ModelProto:
    """TensorRT reads an upper triangle that is spelled by default as the lower one."""
    return model_of("g (float[2, 3] x) => (float[2, 3] y) { y = Trilu(x) }")


# ------------------------------------------------------------------------------------------------- device CPU


@REAL
def test_the_cpu_runs_what_tensorrt_understood() -> None:
    wrong = AsIs.prepare(upper(), "CPU")
    right = onnxfix.backend.prepare(upper(), "CPU")
    (expected,) = (np.triu(X),)
    assert not np.array_equal(wrong.run([X])[0], expected)
    assert (wrong.changed, wrong.report) == (False, None)
    found = right.run([X])
    assert np.array_equal(found["y"], expected)
    assert right.changed
    assert {fix.code for fix in right.report.applied} == {"OPS010"}
    assert right.report.target == "rtx"


@REAL
def test_a_repair_without_need_changes_nothing() -> None:
    model = model_of(UPPER)
    before = model.SerializeToString()
    prepared = Repaired.prepare(model, "CPU")
    assert not prepared.changed
    assert np.array_equal(prepared.run({"x": X})[0], np.triu(X))
    assert model.SerializeToString() == before


@REAL
def test_float64_is_computed_in_float32_and_given_back_as_declared(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", model_of("g (double[2, 3] x) => (double[2, 3] y) { y = Sqrt(x) }"))
    (y,) = AsIs.run_model(path, X.astype(np.float64), "CPU")
    assert y.dtype == np.float64
    assert np.array_equal(y, np.sqrt(X).astype(np.float64))
    with pytest.raises(
        BackendError, match="input x is float32 in the network and was given as int64"
    ) as caught:
        AsIs.run_model(path, [X.astype(np.int64)], "CPU")
    assert caught.value.stage == "inputs"


@REAL
def test_a_path_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes are shared, and stay in the folder that they were started in."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        onnx.save(upper(), "m.onnx")
        assert AsIs.run_model("m.onnx", [X], "CPU")[0].shape == X.shape


@REAL
def test_what_tensorrt_refuses_is_said_with_its_reason() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = ImaginaryOp(x) }")
    with pytest.raises(BackendError, match="ImaginaryOp") as caught:
        AsIs.prepare(model, "CPU")
    assert (caught.value.stage, caught.value.cause) == ("parse", "refused")
    assert isinstance(caught.value, OnnxfixError)
    assert not onnxfix.backend.is_compatible(model)
    assert onnxfix.backend.is_compatible(upper())


@REAL
def test_a_single_node() -> None:
    add = helper.make_node("Add", ["a", "", "b"][::2], ["c"])
    (c,) = AsIs.run_node(add, [X, X], "CPU")
    assert np.array_equal(c, X + X)
    twice = helper.make_node("Mul", ["a", "a"], ["c"])
    (c,) = AsIs.run_node(twice, X, "CPU", outputs_info=[(np.float32, (2, 3))], opset_version=13)
    assert np.array_equal(c, X * X)


def test_a_single_node_that_is_not_one() -> None:
    with pytest.raises(BackendError, match="Add has 2 inputs, and 1 were given"):
        AsIs.run_node(helper.make_node("Add", ["a", "b"], ["c"]), [X], "CPU")
    with pytest.raises(OnnxfixError, match="no operator Nonsense in ONNX"):
        AsIs.run_node(helper.make_node("Nonsense", ["a"], ["c"]), [X], "CPU")
    with pytest.raises(OnnxfixError, match="outputs of MatMul cannot be inferred; give outputs_info"):
        AsIs.run_node(helper.make_node("MatMul", ["a", "b"], ["c"]), [X, X], "CPU")


# ----------------------------------------------------------------------------------------------------- options


def test_options_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match="prepare has no repairs; it has repair, target"):
        AsIs.prepare(upper(), "CPU", repairs="exact")
    with pytest.raises(UsageError, match="unknown repair 'all'; choose one of none, exact, numeric"):
        AsIs.prepare(upper(), "CPU", repair="all")


@pytest.mark.parametrize("device", ["TPU", "CUDA:1", "CUDA:x", "CPU:1", ""])
def test_devices_that_do_not_exist(device: str) -> None:
    assert not onnxfix.backend.supports_device(device)
    with pytest.raises(BackendError, match=r"choose CUDA .* or CPU") as caught:
        Repaired.prepare(upper(), device)
    assert (caught.value.stage, caught.value.cause) == ("device", "")


@REAL
def test_without_a_gpu_there_is_one_clear_error() -> None:
    assert not onnxfix.backend.supports_device("CUDA")
    with pytest.raises(BackendError, match=r"^CUDA: no NVIDIA GPU found$") as caught:
        onnxfix.backend.prepare(upper())
    assert (caught.value.stage, caught.value.cause) == ("device", "no-gpu")


def test_without_tensorrt_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Missing("neither tensorrt nor tensorrt-rtx is installed", "not-installed")
    monkeypatch.setattr(devices, "builder", lambda options: lacking)
    with pytest.raises(BackendError, match="CPU: neither tensorrt nor") as caught:
        AsIs.prepare(upper(), "CPU")
    assert caught.value.cause == "not-installed"


# -------------------------------------------------------------------------------------------------- device CUDA


HERE = Choice("tensorrt", "11.0.0", "8.9", Gpu("L4", "8.9"))


@dataclass
class Copying:
    """A builder whose engines are the models themselves; ``asked`` are the profiles that it was asked for."""

    worker: Worker = field(default_factory=Worker)
    choice: Choice = HERE
    options: TrtOptions = field(default_factory=TrtOptions)
    refuses: str = ""
    tricks: dict[str, Any] = field(default_factory=dict)
    asked: list[Any] = field(default_factory=list)

    def close(self) -> None:
        pass

    def build(
        self,
        path: Path,
        profiles: Sequence[Profile] | None = None,
        *,
        save_engine: str = "",
        parse_only: bool = False,
    ) -> TrtBuild:
        self.asked.append("parsed" if parse_only else profiles)
        if self.refuses:
            stage: Any = self.refuses
            return TrtBuild("refused", stage, errors=(Issue(stage, "error", "not this one"),))
        if save_engine:
            shutil.copy(path, save_engine)
            model = onnx.load(save_engine)
            helper.set_model_props(model, {"fake": json.dumps(self.tricks)})
            onnx.save(model, save_engine)
        return TrtBuild("accepted", profiles=tuple(profiles or ()))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Copying:
    builder = Copying()
    monkeypatch.setattr(devices, "builder", lambda options: builder)
    monkeypatch.setattr(devices, "probe", lambda found: Probe(precision="float32", card=builder.choice.gpu))
    monkeypatch.setattr(probe, "RUN", fake_engines.__name__)
    return builder


def test_a_static_model_is_built_once(gpu: Copying) -> None:
    prepared = Repaired.prepare(upper(), "CUDA:0")
    assert gpu.asked == [None]
    for _ in range(2):
        assert np.array_equal(prepared.run([X])[0], np.triu(X))
    assert gpu.asked == [None]
    assert prepared.report.target == "trt11.0", "the release of the TensorRT that is here"


def test_an_engine_for_each_set_of_sizes(gpu: Copying) -> None:
    prepared = AsIs.prepare(model_of("g (float[N] x) => (float[N] y) { y = Exp(x) }"))
    assert gpu.asked == ["parsed"]
    for size in (2, 3, 2):
        assert prepared.run([np.zeros(size, np.float32)])[0].shape == (size,)
    assert [one[0].shapes["x"][1] for one in gpu.asked[1:]] == [(2,), (3,)]


def test_sizes_as_values_are_built_for(gpu: Copying) -> None:
    prepared = AsIs.prepare(model_of("g (float[2,3] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }"))
    assert gpu.asked == ["parsed"]
    for shape in ((3, 2), (1, 6)):
        assert prepared.run([X, np.array(shape)])[0].shape == shape
    assert [one[0].values["s"][1] for one in gpu.asked[1:]] == [(3, 2), (1, 6)]


def test_a_profile_of_the_user_is_the_only_one(gpu: Copying) -> None:
    given = TrtOptions(min_shapes=("x:1",), opt_shapes=("x:2",), max_shapes=("x:4",))
    prepared = AsIs.prepare(model_of("g (float[N] x) => (float[N] y) { y = Exp(x) }"), trt=given)
    assert prepared.run([np.zeros(3, np.float32)])[0].shape == (3,)
    with pytest.raises(
        BackendError, match=r"input x of shape \[5\] is outside the optimization profile"
    ) as caught:
        prepared.run([np.zeros(5, np.float32)])
    assert caught.value.stage == "inputs"
    assert len(gpu.asked) == 1


@pytest.mark.parametrize("stage", ["parse", "build"])
def test_a_refusal_says_where(gpu: Copying, stage: str) -> None:
    gpu.refuses = stage
    with pytest.raises(BackendError, match="not this one") as caught:
        AsIs.prepare(upper())
    assert (caught.value.stage, caught.value.cause) == (stage, "refused")


def test_engines_that_do_not_load_or_run(gpu: Copying) -> None:
    gpu.tricks = {"refused": "no kernel for it"}
    with pytest.raises(BackendError, match="the engine does not load: no kernel for it") as caught:
        AsIs.prepare(upper())
    assert caught.value.stage == "load"
    for tricks, words in (
        ({"fails": "an illegal memory access"}, "illegal"),
        ({"unread": ["y"]}, "y is INT4"),
    ):
        gpu.tricks = tricks
        with pytest.raises(BackendError, match=words) as caught:
            AsIs.prepare(upper()).run([X])
        assert caught.value.stage == "run"
    gpu.tricks = {}
    assert np.array_equal(AsIs.prepare(upper()).run([X])[0], np.triu(X)), "it lasted"


def test_engines_that_nobody_can_run_any_more_are_released(gpu: Copying) -> None:
    prepared = AsIs.prepare(upper())
    prepared.run([X])
    for _ in range(3):
        AsIs.prepare(upper()).run([X])
        gc.collect()
    prepared.run([X])
    worker = probe.engines(gpu.choice, gpu.options, 1.0)._worker
    held = worker.call(f"{fake_engines.__name__}:held", timeout=PATIENCE).value
    assert len([name for name in held if name.startswith("backend-")]) <= 2
    assert np.array_equal(prepared.run([X])[0], np.triu(X)), "the first is still there"


def test_inputs_that_are_not_the_models(gpu: Copying) -> None:
    prepared = AsIs.prepare(model_of("g (float[2] x, float[2] z) => (float[2] y) { y = Add(x, z) }"))
    one = np.zeros(2, np.float32)
    for inputs, words in (
        ([one], r"2 inputs \(x, z\), and 1 were given"),
        ({"x": one, "w": one}, "differ: w, z"),
        ([one, [1.0, 2.0]], "input z is no array"),
    ):
        with pytest.raises(BackendError, match=words) as caught:
            prepared.run(inputs)
        assert caught.value.stage == "inputs"
    with pytest.raises(UsageError, match="run takes no device"):
        prepared.run([one, one], device="CPU")


def test_an_initializer_that_is_an_input_is_a_constant(gpu: Copying) -> None:
    model = upper()
    model.graph.input.append(helper.make_tensor_value_info("k", TensorProto.INT64, []))
    model.graph.initializer.append(helper.make_tensor("k", TensorProto.INT64, [], [1]))
    model.graph.node[0].input.append("k")
    (y,) = AsIs.run_model(model, [X])
    assert np.array_equal(y, np.triu(X, 1))


# ------------------------------------------------------------------------------------- onnx's own BackendTest


@REAL
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the code that makes their data
@pytest.mark.parametrize(
    "backend",
    [pytest.param(one, marks=pytest.mark.long) for one in (AsIs, NumericallyRepaired, Repaired)]
    + [onnxfix.backend],
)
def test_onnx_tests_run_against_it(backend: Any) -> None:
    chosen = (
        BackendTest(backend, __name__).include("^test_(triu|abs|einsum_sum)_cpu$").include("^test_abs_cuda$")
    )
    result = unittest.TestResult()
    chosen.test_suite.run(result)
    skipped = {why for _, why in result.skipped if "pattern" not in why}
    assert skipped == {"Backend doesn't support device CUDA"}
    failed = [test.id().rpartition(".")[2] for test, _ in (*result.failures, *result.errors)]
    assert failed == (["test_triu_cpu"] if backend is AsIs else [])
