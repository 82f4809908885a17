"""The rung ort-cuda without a GPU: what it says here, and what it does where a provider claims to be CUDA."""
# Long because: each way in which a GPU can be missing, fall back or fail has its own words

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof import remote
from onnxfix.proof.compare.compare import Terms
from onnxfix.proof.execution import run_check
from onnxfix.proof.request import Request
from onnxfix.proof.verdict import RungResult
from onnxfix.runtime import backends, nvidia
from onnxfix.runtime.backends import ort_cuda
from onnxfix.runtime.sandbox import Worker
from support import fake_cuda
from support.ended import ended
from support.models import write

pytestmark = pytest.mark.slow

ADD = "g (float[N, 2] x) => (float[N, 2] y) { y = Add(x, x) }"
MUL = "g (float[N, 2] x) => (float[N, 2] y) <float two = {2}> { y = Mul(x, two) }"
RELU = "g (float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }"
SHAPES = "g (float[N, 2] x) => (float[N, 2] y) { s = Shape(x) y = Reshape(x, s) }"
Rung = Callable[..., RungResult]
Install = Callable[..., Any]


@pytest.fixture
def worker() -> Iterator[Worker]:
    """One for each test: the child reads its environment when it starts."""
    with Worker() as started:
        yield started


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """Put a fake GPU in place, which is as its name says."""
    return partial(fake_cuda.install, monkeypatch, tmp_path)


@pytest.fixture
def rung(tmp_path: Path, worker: Worker) -> Rung:
    """Climb ort-cuda with two models in ONNX text."""

    def call(original: str, fixed: str, **more: Any) -> RungResult:
        paths = []
        for name, text in (("original", original), ("fixed", fixed)):
            (tmp_path / name).mkdir(exist_ok=True)
            paths.append(tmp_path / name / "m.onnx")
            write(paths[-1], text, 17)
        request = Request(paths[0], paths[1], signature(paths[0]), worker, True, 0, {}, None)
        return run_check(replace(request, **more), "ort-cuda")

    return call


# ------------------------------------------------------------------------------------------------ this machine


def package(monkeypatch: pytest.MonkeyPatch, folder: Path | None, gpu_metadata: bool = False) -> None:
    """Let ``missing`` see a driver and this package of onnxruntime."""
    monkeypatch.setattr(ort_cuda, "has_driver", lambda: True)
    spec = None
    if folder is not None:
        spec = importlib.util.spec_from_file_location(
            "onnxruntime", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

    def version(name: str) -> str:
        if gpu_metadata and name == "onnxruntime-gpu":
            return "1.31.1"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_no_driver(monkeypatch: pytest.MonkeyPatch, rung: Rung, worker: Worker) -> None:
    monkeypatch.setattr(ort_cuda, "has_driver", lambda: False)
    result = rung(ADD, ADD)
    assert (result.name, result.status) == ("ort-cuda", "skipped")
    assert result.reason == "no NVIDIA driver found"
    assert worker.pid is None, "no child is needed to say so"


def test_the_package_for_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rung: Rung) -> None:
    (tmp_path / "ort" / "capi").mkdir(parents=True)
    package(monkeypatch, tmp_path / "ort")
    told = 'onnxruntime-gpu is not installed: pip uninstall -y onnxruntime; pip install "onnxfix[gpu]"'
    assert rung(ADD, ADD).reason == told
    assert rung(ADD, ADD).status == "skipped"


@pytest.mark.parametrize("by_file", [True, False])
def test_what_may_be_the_package_for_the_gpu_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_file: bool
) -> None:
    package(monkeypatch, None)
    assert ort_cuda.missing() == 'onnxruntime-gpu is not installed: pip install "onnxfix[gpu]"'
    (tmp_path / "ort" / "capi").mkdir(parents=True)
    if by_file:
        (tmp_path / "ort" / "capi" / "libonnxruntime_providers_cuda.so").touch()
    package(monkeypatch, tmp_path / "ort", gpu_metadata=not by_file)
    assert ort_cuda.missing() is None


@pytest.mark.skipif(
    ort_cuda.PROVIDER in onnxruntime.get_available_providers(), reason="this onnxruntime has a CUDA provider"
)
def test_the_real_package_without_the_provider(monkeypatch: pytest.MonkeyPatch, rung: Rung) -> None:
    monkeypatch.setattr(ort_cuda, "missing", lambda: None)
    result = skipped(rung)
    assert result.reason == (
        f"this onnxruntime ({onnxruntime.__version__}) has no CUDA provider: "
        'pip uninstall -y onnxruntime onnxruntime-gpu; pip install "onnxfix[gpu]"'
    )


def skipped(rung: Rung) -> RungResult:
    return ended("skipped", rung(ADD, ADD))


# ------------------------------------------------------------------------------------------------ falling back


def test_a_silent_fallback_is_a_skip(install: Install, rung: Rung) -> None:
    install("falls back")
    result = skipped(rung)
    expected = "onnxruntime falls back to the CPU" if nvidia.gpus() else "no NVIDIA GPU found"
    assert result.reason.startswith(expected)
    assert not result.feeds


def test_a_model_for_which_it_falls_back_is_no_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The probe may work, and the session of a large model go on without CUDA."""
    session = types.SimpleNamespace(
        get_inputs=list,
        get_outputs=list,
        get_overridable_initializers=list,
        get_providers=lambda: ["CPUExecutionProvider"],
    )
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: session)
    with pytest.raises(backends.Unsupported, match="fell back to the CPU"):
        ort_cuda.CudaSession("m.onnx", tf32=False)


def test_a_provider_that_raises_is_a_skip(install: Install, rung: Rung) -> None:
    fake = install("fails to load")
    result = skipped(rung)
    assert result.reason == (
        "the CUDA provider does not work: CUDA failure 35: CUDA driver version is insufficient"
    )
    assert len(fake.records("options")) == 1


def test_no_node_on_cuda_proves_nothing(install: Install, rung: Rung) -> None:
    install("computes nothing")
    result = skipped(rung)
    assert "no CUDA kernel for any node" in result.reason


# ------------------------------------------------------------------------------------------------ verifying


def test_options_and_order(install: Install, rung: Rung) -> None:
    fake = install()
    ended("passed", rung(ADD, MUL))
    probe, original, fixed, *tf32 = fake.records("options")
    assert probe["path"] == "probe"
    for record in (probe, original, fixed):
        assert record["options"]["use_tf32"] == "0"
        assert record["options"]["cudnn_conv_algo_search"] == "HEURISTIC"
        assert record["providers"] == ["CUDAExecutionProvider", "CPUExecutionProvider"]
        assert record["tf32"] == "0", "the provider alone does not keep cuDNN from TF32"
        assert record["more"] == {"enable_fallback": 0}, "or Python's wrapper would try again on the CPU"
    assert original["deterministic"]
    assert [Path(one["path"]).parent.name for one in (original, fixed, *tf32)] == ["original", "fixed"] * 2
    assert [record["options"]["use_tf32"] for record in tf32] == ["0", "1"]
    assert {record["tf32"] for record in tf32} == {None}, "TF32 must not be forbidden where it is measured"
    assert {record["pid"] for record in tf32}.isdisjoint({probe["pid"]})
    # Once in every folder that has libraries of CUDA.
    preloading = dict.fromkeys(record["pid"] for record in fake.records("preload"))
    assert list(preloading) == [probe["pid"], tf32[0]["pid"]]
    places = [place for place, record in enumerate(fake.records()) if "gone" in record]
    assert max(places[:2]) < fake.records().index(tf32[0]), "the GPU must have room for the next pair"


def test_equal_models_pass_and_say_where_they_ran(install: Install, rung: Rung) -> None:
    install()
    result = ended("passed", rung(SHAPES, RELU.replace("Relu", "Identity")))
    assert result.reason.startswith("identical on ")
    assert any(
        note.startswith("of the original's nodes 1 of 2 ran on the CPU, of the new model's 0 of 1:")
        for note in result.notes
    )
    assert {one.feed.kind for one in result.feeds if one.feed is not None} >= {"normal", "edge", "extreme"}


def test_a_wrong_fix_fails(install: Install, rung: Rung) -> None:
    install()
    result = ended("failed", rung(ADD, RELU))
    assert result.reason.startswith("output y: ")
    assert result.feeds[-1].status == "different"
    assert "every node ran on CUDA" in result.notes


def test_what_the_cpu_refuses_does_not_count(install: Install, rung: Rung) -> None:
    """CUDA's kernels check no index, so that the original would be held to what memory happened to hold."""
    install("reads beyond")
    text = "g (float[3] x, int64[N] i) => (float[N] y) { y = Gather(x, i) }"
    values = np.array([1, 2, 3], np.float32)
    given = [{"x": values, "i": np.array(index)} for index in ([0, 2], [7, 1])]
    result = ended("passed", rung(text, text, given=given))
    assert [one.status for one in result.feeds] == ["identical", "not counted"]
    assert "must be within the inclusive range" in result.feeds[1].reason
    assert len(result.informative) == 1


def test_the_last_bits_may_differ(install: Install, rung: Rung) -> None:
    """Exact on paper; CUDA's kernels may differ by the shape, so the claim is put to ort-cpu and not here."""
    install()
    other = "g (float[N, 2] x) => (float[N, 2] y) <float k = {2.000001}> { y = Mul(x, k) }"
    result = ended("passed", rung(ADD, other))
    assert result.reason.startswith("within tolerance on ")
    assert any(note.startswith("the largest error is ") for note in result.notes)


@pytest.mark.parametrize(("coarse", "status"), [("float16", "passed"), ("", "failed")])
def test_half_precision_inside_single_is_judged_as_half(
    install: Install, rung: Rung, coarse: str, status: str
) -> None:
    """The caller says by ``coarse`` that values went through float16: rounded twice or once is no fault."""
    install()
    graph = "g (float[N, 8] x) => (float[N, 8] y) { a = Cast<to = 10>(x) BODY y = Cast<to = 1>(d) }"
    twice, once = "b = Cast<to = 1>(a) c = Cast<to = 10>(b) d = Exp(c)", "d = Exp(a)"
    result = rung(graph.replace("BODY", twice), graph.replace("BODY", once), coarse=coarse)
    assert result.status == status


def test_overflow_by_order_does_not_count(install: Install, rung: Rung) -> None:
    install()
    early = "g (float[N, 2] x) => (float[N, 2] y) <float h = {0.5}> { a = Add(x, x) y = Mul(a, h) }"
    result = ended("passed", rung(early, RELU.replace("Relu", "Identity")))
    extreme = [one for one in result.feeds if one.feed is not None and one.feed.kind == "extreme"]
    assert extreme
    assert {one.status for one in extreme} == {"not counted"}
    assert "do not count" in result.reason
    assert "refused" not in result.reason
    assert any("depends on its order" in note for note in result.notes)


def test_the_original_may_differ_from_itself(install: Install, rung: Rung) -> None:
    """Sums by atomics: the last bits change from run to run, and the output is judged all the same."""
    install("wobbles")
    result = ended("passed", rung(ADD, ADD))
    assert result.excluded == ()
    assert any(
        note.startswith("from run to run the original itself differs by up to") for note in result.notes
    )
    assert rung(ADD, RELU).status == "failed"


def test_an_output_that_is_random_is_left_out(install: Install, rung: Rung) -> None:
    install("wobbles")
    two = "g (float[N, 2] x) => (float[N, 2] y, float[N, 2] wild) { y = Add(x, x) wild = Relu(x) }"
    result = ended("passed", rung(two, two))
    assert result.excluded == ("wild",)
    assert {part.name for one in (*result.feeds, *result.informative) for part in one.metrics} == {"y"}


# ------------------------------------------------------------------------------------------------ TF32


def test_tf32_informs_and_does_not_decide(install: Install, rung: Rung) -> None:
    install()
    result = ended("passed", rung(ADD, MUL))
    assert {one.status for one in result.feeds} == {"identical"}
    assert len(result.informative) == 3
    for one in result.informative:
        assert one.label.startswith("TF32 on: ")
        assert one.status == "different", "2**-11 is more than float32's tolerance"
        assert one.feed.kind != "extreme"
        (metric,) = one.metrics
        assert metric.relative == pytest.approx(2**-11, rel=1e-3)
    (note,) = [note for note in result.notes if "TF32" in note]
    assert note.startswith("with TF32 on, onnxruntime's default, the largest error is ")
    assert note.endswith("(relative 0.00049) in output y")


def test_tf32_with_the_users_own_inputs(install: Install, rung: Rung) -> None:
    install()
    given = [{"x": np.full((size, 2), size, np.float32)} for size in (1, 5, 2, 4)]
    result = rung(ADD, MUL, given=given)
    assert [one.label for one in result.informative] == [
        f"TF32 on: inputs {number} of 4" for number in (2, 4, 3)
    ]
    assert [one.metrics[0].scale for one in result.informative] == [10.0, 8.0, 4.0]


def test_tf32_is_not_tried_where_the_user_forbids_it(
    install: Install, monkeypatch: pytest.MonkeyPatch, rung: Rung
) -> None:
    fake = install()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    result = ended("passed", rung(ADD, ADD))
    assert result.informative == ()
    assert "TF32 was not tried: NVIDIA_TF32_OVERRIDE=0 forbids it" in result.notes
    assert {record["options"]["use_tf32"] for record in fake.records("options")} == {"0"}


# ------------------------------------------------------------------------------------------------ the GPU fails


def test_a_lost_gpu_costs_the_process_and_not_the_model(install: Install, rung: Rung, worker: Worker) -> None:
    install("breaks")
    result = skipped(rung)
    assert result.reason == "the original fails: CUDA failure 700: an illegal memory access"
    assert worker.generation == 3, "a new process for each try, and an end to it"


@pytest.mark.parametrize("when", ["is small", "is small at run time"])
def test_a_gpu_too_small_for_both_refutes_nothing(install: Install, rung: Rung, when: str) -> None:
    install(when)
    result = skipped(rung)
    assert result.reason.startswith("the new model")
    assert "not enough memory on the GPU" in result.reason


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDNN failure 4: CUDNN_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=h", backends.Unsupported),
        ("CUDA failure 2: out of memory ; GPU=0 ; hostname=h", backends.Unsupported),
        ("CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0 ; hostname=h", backends.Broken),
        ("CUDA failure 700: an illegal memory access ; GPU=0 ; hostname=h ; file=/x", backends.Broken),
        ("CUDNN_FE failure 11: CUDNN_BACKEND_API_FAILED ; GPU=0 ; hostname=h", RuntimeError),
        ("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions", RuntimeError),
    ],
)
def test_errors_are_told_apart(text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, ort_cuda._translated():
        raise RuntimeError(text)
    assert "hostname" not in str(caught.value)


@pytest.mark.parametrize("failing", [False, True])
def test_models_are_let_go_before_others_are_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: bool
) -> None:
    """A GPU holds two models at a time, not four. By reference counts: nobody waits for a garbage collection."""
    alive: list[weakref.ref[Any]] = []
    seen: list[int] = []

    class Model:
        outputs = ("y",)

        def run(self, feed: dict[str, Any]) -> list[Any]:
            if failing:
                raise backends.Broken("gone")
            return [np.zeros(1, np.float32)]

    def load(name: str, path: str, **options: Any) -> Model:
        seen.append(sum(ref() is not None for ref in alive))
        alive.append(weakref.ref(model := Model()))
        return model

    monkeypatch.setattr(backends, "load", load)
    gc.disable()
    try:
        for _ in range(2):
            remote.load("toy", "a", "b")
            ran = remote.run({}, again=True, drawn=(), terms=Terms(exact=True), skip=())
            assert ran.broken == failing
        assert seen == [0, 1, 0, 1]
        remote.drop()
        assert [ref() for ref in alive] == [None] * 4
    finally:
        gc.enable()


# ------------------------------------------------------------------------------------------------ parts


def test_libraries_that_pip_put_elsewhere_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for part in ("cu13/lib", "cudnn/lib", "nccl/lib"):
        (tmp_path / "venv" / "nvidia" / part).mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "empty"), str(tmp_path / "venv")])
    found = ort_cuda._library_folders(tmp_path / "site", "13.0")
    assert found == [tmp_path / "venv" / "nvidia" / part / "lib" for part in ("cu13", "cudnn")]
    assert ort_cuda._library_folders(tmp_path / "site", "12.8") == [tmp_path / "venv/nvidia/cudnn/lib"]
    assert ort_cuda._library_folders(tmp_path / "venv", "13.0") == [], "preload_dlls looks there by itself"
