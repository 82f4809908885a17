"""The rung trt-gpu without a GPU that TensorRT serves. No engine of TensorRT is executed here.

With the real modules: everything up to the point where an engine is loaded, which ends with the driver's or TensorRT's
reason, and Polygraphy's own runner on a device that is the host's memory. The rung around it runs on engines that are
ONNX models (``fake_engines``).
"""
# Long because: each way in which two engines and ONNX Runtime can agree or not has its own verdict

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof.checks import build as trt_build
from onnxfix.proof.checks import gpu, probe, rest
from onnxfix.proof.checks.judge import REPAIRED, Terms, judge
from onnxfix.proof.checks.probe import Probe
from onnxfix.proof.checks.trials import outside
from onnxfix.proof.compare.tolerance import Allowed
from onnxfix.proof.request import Networks, Request
from onnxfix.proof.verdict import RungResult
from onnxfix.proof.verify import verify
from onnxfix.runtime import nvidia
from onnxfix.runtime.backends import Unsupported
from onnxfix.runtime.nvidia import Gpu
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import engine
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import Issue, Profile, TargetOnly, TrtBuild, TrtOptions
from support import fake_cuda, fake_engines
from support.ended import ended
from support.fake_engines import save
from support.patience import PATIENCE
from support.real_tensorrt import INSTALLED, REAL, older_than


@pytest.fixture
def fresh() -> Iterator[Worker]:
    """A child that has loaded nothing yet."""
    with Worker() as one:
        yield one


# ------------------------------------------------------------------------------------- the lines around the runner


class FakeRunner:
    """Behaves like Polygraphy's: one buffer of bytes for all inferences, which the device writes when the stream comes
    to rest, and which the next inference overwrites. ``compute`` is what the engine computes, as an array."""

    def __init__(
        self,
        compute: Callable[[dict[str, Any]], Any] = lambda feed: feed["x"] * 2,
        *,
        kinds: tuple[str, str] = ("FLOAT", "FLOAT"),
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.compute = compute
        self.given: dict[str, Any] = {}
        self.raw = np.zeros(0, np.uint8)
        self.stream = SimpleNamespace(synchronize=self._settle)
        modes = {"x": "INPUT", "y": "OUTPUT"}
        types = dict(zip(("x", "y"), kinds, strict=True))
        self.engine = SimpleNamespace(
            num_io_tensors=2,
            get_tensor_name=lambda number: "xy"[number],
            get_tensor_mode=lambda name: SimpleNamespace(name=modes[name]),
            get_tensor_dtype=lambda name: SimpleNamespace(name=types[name]),
        )
        self.context = SimpleNamespace(get_tensor_shape=lambda name: shape or self.shape)

    def _settle(self) -> None:
        self.raw[:] = np.frombuffer(self.pending, np.uint8)

    def infer(self, feed: dict[str, Any], **options: Any) -> dict[str, Any]:
        assert options == {"check_inputs": False, "copy_outputs_to_host": True, "return_raw_buffers": True}
        self.given = feed
        result = np.asarray(self.compute(feed))
        self.shape, self.pending = result.shape, result.tobytes()
        self.raw.resize(result.nbytes, refcheck=False)
        self.raw[:] = 0xEE
        return {"y": SimpleNamespace(array=self.raw, shape=self.shape)}


TYPES = {
    "FLOAT": ("float", np.float32),
    "HALF": ("float16", np.float16),
    "BF16": ("bfloat16", ml_dtypes.bfloat16),
    "FP8": ("float8e4m3fn", ml_dtypes.float8_e4m3fn),
    "E8M0": ("float8e8m0", ml_dtypes.float8_e8m0fnu),
    "INT64": ("int64", np.int64),
    "INT32": ("int32", np.int32),
    "INT8": ("int8", np.int8),
    "UINT8": ("uint8", np.uint8),
    "BOOL": ("bool", np.bool_),
}


@REAL
def test_the_types_are_all_that_tensorrt_has(worker: Worker) -> None:
    outcome = worker.call("support.real_tensorrt:sizes_of_types", timeout=PATIENCE)
    sizes = {name: size for name, size in outcome.value.items() if size is None or size >= 1}
    assert sizes.keys() == TYPES.keys() == engine._DTYPES.keys()
    assert all(size in (None, np.dtype(TYPES[name][1]).itemsize) for name, size in sizes.items())


@pytest.mark.parametrize(
    ("runner", "words"),
    [
        (FakeRunner(kinds=("FLOAT", "HALF")), "y comes back as 8 bytes, where float16 of shape (2,) has 4"),
        (FakeRunner(kinds=("FLOAT", "INT64")), "int64 of shape (2,) has 16 bytes"),
        (FakeRunner(shape=(1, 2)), "y has shape (1, 2) in the engine and comes back with (2,)"),
        (FakeRunner(kinds=("FLOAT", "INT4")), "y is INT4 in the engine"),
    ],
)
def test_a_wrong_type_or_shape_is_not_passed_on(runner: FakeRunner, words: str) -> None:
    found = engine.infer(runner, {"x": np.zeros(2, np.float32)})
    assert found.outputs == {}
    assert words in found.unread["y"]


def test_inputs_are_given_as_the_engine_takes_them() -> None:
    runner = FakeRunner()
    engine.infer(runner, {"x": np.arange(6.0).reshape(2, 3).T, "unused": np.zeros(1)})
    assert list(runner.given) == ["x"]
    assert runner.given["x"].dtype == np.float32
    assert runner.given["x"].flags.c_contiguous
    assert runner.given["x"].tolist() == [[0, 3], [1, 4], [2, 5]]
    engine.infer(runner, {"x": np.float32(3)})
    assert runner.given["x"].shape == ()
    with pytest.raises(Unsupported, match="input x is float32 in the engine and int32 in the model"):
        engine.infer(runner, {"x": np.zeros(2, np.int32)})
    with pytest.raises(Unsupported, match="has an input x"):
        engine.infer(runner, {"y": np.zeros(2, np.float32)})


@REAL
@pytest.mark.parametrize(("word", "dtype"), TYPES.values(), ids=TYPES)
def test_polygraphys_own_runner_gives_what_was_computed(
    worker: Worker, tmp_path: Path, word: str, dtype: Any
) -> None:
    """Polygraphy's TrtRunner is real; its engine, and the CUDA under it, are the host's memory."""
    feeds = [{"x": np.arange(1, 2 * rows + 1).reshape(rows, 2).astype(dtype)} for rows in (1, 3, 2)]
    text = f"""g ({word}[N,2] x) => ({word}[N,2] y, int64[2] n, float s) {{
        y = Identity(x)  n = Shape(x)  size = Size(x)  s = Cast<to = 1>(size) }}"""
    told = {"path": str(save(tmp_path / "engine", text)), "feeds": feeds}
    outcome = worker.call("support.fake_gpu:through_the_real_runner", timeout=PATIENCE, **told)
    assert outcome.ok, outcome.message
    said, runs, held = outcome.value
    assert (said, held) == ("", [])
    for feed, ran in zip(feeds, runs, strict=True):
        assert ran.unread == {}
        assert ran.outputs["y"].dtype == dtype
        assert ran.outputs["y"].tobytes() == feed["x"].tobytes()
        assert ran.outputs["n"].tolist() == list(feed["x"].shape)
        assert (ran.outputs["s"].shape, float(ran.outputs["s"])) == ((), feed["x"].size)


@REAL
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other folders")
@pytest.mark.parametrize(
    "place", ["nvidia/cu13/lib/libcudart.so.13", "nvidia/cuda_runtime/lib/libcudart.so.12", ""]
)
def test_polygraphy_is_shown_the_cuda_runtime_that_pip_installed(
    fresh: Worker, tmp_path: Path, place: str
) -> None:
    if place:
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch()
    (tmp_path / "engine").touch()
    outcome = fresh.call(
        "support.real_tensorrt:find_cuda_runtime",
        timeout=PATIENCE,
        path=str(tmp_path / "engine"),
        site=str(tmp_path),
    )
    assert outcome.ok, outcome.message
    assert outcome.value == (
        place
        or "Polygraphy finds no CUDA runtime (libcudart.so: cannot open shared object file): "
        "pip install nvidia-cuda-runtime, or nvidia-cuda-runtime-cu12 for CUDA 12"
    )


# --------------------------------------------------------------------------- the real modules, up to the missing GPU


NO_DRIVER = pytest.mark.skipif(
    INSTALLED and bool(nvidia.gpus()), reason="the driver shows a GPU: what it says is another text"
)


@REAL
@NO_DRIVER
def test_an_engine_that_does_not_load_has_tensorrts_reason(fresh: Worker, tmp_path: Path) -> None:
    found = trt_build.builder(TrtOptions(package="tensorrt-rtx"))
    assert isinstance(found, trt_build.Builder)
    save(tmp_path / "m.onnx", "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    assert found.build(tmp_path / "m.onnx", save_engine=str(tmp_path / "m.engine")).accepted
    texts = [load(fresh, tmp_path / name) for name in ("m.engine", "m.onnx", "none.engine")]
    assert "IRuntime::deserializeCudaEngine" in texts[0]
    # An older one says it twice in one breath.
    assert texts[0].count("Cuda Runtime") == (2 if older_than("1.6") else 1), "one cause, once"
    assert "Serialization" in texts[1], "not what was said of the engine before"
    assert texts[2].startswith("FileNotFoundError")
    assert not any("\n" in text or "See log" in text for text in texts)


def load(worker: Worker, path: Path) -> str:
    outcome = worker.call(
        f"{engine.__name__}:load", timeout=PATIENCE, name="a", path=str(path), package="tensorrt-rtx"
    )
    assert outcome.ok, outcome.message
    return str(outcome.value)


@REAL
@NO_DRIVER
def test_without_a_gpu_the_rung_is_skipped(tmp_path: Path, worker: Worker) -> None:
    options = TrtOptions(package="tensorrt-rtx")
    absent = probe.unavailable(options)
    assert absent.reason == "no NVIDIA GPU found"
    result = gpu.run(request(tmp_path, worker, RELU, RELU, trt=options))
    assert (result.name, result.status, result.reason) == ("trt-gpu", "skipped", "no NVIDIA GPU found")


@REAL
@NO_DRIVER
def test_on_a_gpu_that_is_not_served_tensorrt_itself_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, worker: Worker
) -> None:
    """The card is made up, TensorRT's refusal is not: here it is that there is no driver."""
    monkeypatch.setattr(probe, "_cards", lambda found: [Gpu("H100", "9.0")])
    probe._ask.cache_clear()
    result = gpu.run(request(tmp_path, worker, RELU, RELU, trt=TrtOptions(package="tensorrt-rtx")))
    assert result.status == "skipped"
    assert result.reason.startswith("TensorRT-RTX ")
    where = "H100 (compute capability 9.0, which NVIDIA does not list)"
    assert f"cannot execute engines on {where}: IRuntime::deserialize" in result.reason
    assert "Cuda Runtime" in result.reason
    assert result.builds == (), "the model need not be built for that"


@REAL
@NO_DRIVER
def test_engines_are_built_and_refused_when_they_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, worker: Worker
) -> None:
    """All of the rung up to the GPU: inputs, profiles, both builds, loading."""
    monkeypatch.setattr(probe, "probe", lambda found: RUNS)
    options = TrtOptions(package="tensorrt-rtx")
    result = ended("skipped", gpu.run(request(tmp_path, worker, RELU, RELU_CAST, trt=options)))
    assert result.reason.startswith("the engine of the new model does not load: IRuntime::deserialize")
    assert [one.accepted for one in result.builds] == [True, True]
    assert [one.profiles for one in result.builds] == [(Profile({"x": ((1, 2), (16, 2), (16, 2))}),)] * 2


# ------------------------------------------------------------------------- the rung, on ONNX models as engines


RUNS = Probe(precision="float32", card=Gpu("L4", "8.9"))
RELU = "g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }"
RELU_CAST = "g (float[N,2] x) => (float[N,2] y) { a = Cast<to=1>(x)  y = Relu(a) }"
ABS = "g (float[N,2] x) => (float[N,2] y) { y = Abs(x) }"


def request(folder: Path, worker: Worker, original: str, fixed: str, **more: Any) -> Request:
    paths = [save(folder / "original.onnx", original)]
    paths.append(paths[0] if fixed == original else save(folder / "fixed.onnx", fixed))
    given, shapes = more.pop("given", None), more.pop("shapes", {})
    return Request(paths[0], paths[1], signature(paths[0]), worker, True, 0, shapes, given, **more)


@dataclass
class Rung:
    """The rung on a machine where TensorRT runs: models are built to ONNX models, and those are executed.

    By file name, "original" and "fixed": ``engines`` are what is built (else the model itself), with ``tricks`` of
    ``fake_engines``; ``refusals`` are why there is no engine. ``unfit`` is how many builds fail for the sizes of their
    profile, ``asked`` what was to be built with which profiles. This is also the builder.
    """

    folder: Path
    worker: Worker
    engines: dict[str, str] = field(default_factory=dict)
    tricks: dict[str, dict[str, Any]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    unfit: int = 0
    asked: list[tuple[str, tuple[Profile, ...] | None]] = field(default_factory=list)
    choice: Choice = field(default_factory=lambda: Choice("tensorrt", "10.9.0", "8.9", Gpu("L4", "8.9")))
    product: str = "TensorRT 10.9.0"
    options: TrtOptions = field(default_factory=TrtOptions)

    def __call__(self, original: str, fixed: str, **more: Any) -> RungResult:
        self.texts = {"original": original, "fixed": fixed}
        return gpu.run(request(self.folder, self.worker, original, fixed, **more))

    def notes(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        self.closed = True

    def build(
        self, path: Path, profiles: Sequence[Profile] | None = None, *, save_engine: str = ""
    ) -> TrtBuild:
        self.asked.append((path.stem, tuple(profiles) if profiles is not None else None))
        used = tuple(profiles) if profiles is not None else (Profile({"x": ((1, 2), (3, 2), (8, 2))}),)
        error = self.refusals.get(path.stem, "")
        if len(self.asked) <= self.unfit:
            error = "kOPT values for profile 0 violate shape constraints"
        if error:
            return TrtBuild("refused", "build", errors=(Issue("build", "error", error),), profiles=used)
        text = self.engines.get(path.stem, self.texts[path.stem])
        save(Path(save_engine), text, **self.tricks.get(path.stem, {}))
        return TrtBuild("accepted", profiles=used)


def served(monkeypatch: pytest.MonkeyPatch, made: Rung) -> Rung:
    """The rung on a machine with a GPU on which engines run in float32."""
    monkeypatch.setattr(gpu, "builder", lambda options: made)
    monkeypatch.setattr(probe, "probe", lambda found: RUNS)
    monkeypatch.setattr(probe, "RUN", fake_engines.__name__)
    return made


@contextmanager
def on_a_gpu(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Rung]:
    """The same with a sandbox of its own, and nothing kept of the original before."""
    with Worker() as worker:
        gpu._LAST.clear()
        yield served(monkeypatch, Rung(folder, worker))


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, worker: Worker) -> Rung:
    return served(monkeypatch, Rung(tmp_path, worker))


def labels(result: RungResult, status: str) -> set[str]:
    return {one.label.split(":")[0] for one in result.feeds if one.status == status}


WHO = "executed by TensorRT 10.9.0 on L4 (compute capability 8.9)"
BOTH = {"engines", "engine against ort-cpu"}
AGREE = "the engines of the original and of the new model agree with each other"


def test_engines_that_agree_pass(rung: Rung) -> None:
    result = ended("passed", rung(RELU, RELU_CAST))
    assert result.reason == f"{AGREE} and with ONNX Runtime on the CPU: identical on 6 feeds over 4 shapes"
    assert labels(result, "identical") == BOTH
    assert len(result.feeds) == 12
    assert (result.excluded, result.notes) == ((), (WHO,))
    assert [one.accepted for one in result.builds] == [True, True]


def test_both_are_built_for_the_feeds(rung: Rung) -> None:
    result = rung(RELU, RELU_CAST)
    sizes = [one.feed.assignment["N"] for one in result.feeds if one.feed is not None]
    assert 0 not in sizes
    assert {one.feed.kind for one in result.feeds if one.feed is not None} == {"normal", "edge"}
    covering = (Profile({"x": ((min(sizes), 2), (sizes[-1], 2), (max(sizes), 2))}),)
    assert rung.asked == [("original", covering), ("fixed", covering)]


def left(folder: Path, *sizes: int) -> Networks:
    """What the rung trt-build leaves: engines whose profile has these sizes."""
    found = Networks(folder)
    for name, text in (("original", RELU), ("fixed", RELU_CAST)):
        path = folder / f"{name}.onnx"
        found.builds[path] = TrtBuild(
            "accepted", profiles=(Profile({"x": tuple((size, 2) for size in sizes)}),)
        )
        save(found.engine(path), text)
    return found


def test_engines_that_are_there_are_not_built_again(rung: Rung, tmp_path: Path) -> None:
    result = rung(RELU, RELU_CAST, networks=left(tmp_path, 1, 3, 8))
    assert (result.status, rung.asked) == ("passed", [])
    assert [one.feed.assignment["N"] for one in result.feeds if one.label.startswith("engines")] == [1, 8, 3]
    assert len(result.builds) == 2


@pytest.mark.parametrize(
    ("reason", "again"), [("no importer for Relu", False), ("kOPT values violate shape constraints", True)]
)
def test_what_tensorrt_refused_is_not_built_again(
    rung: Rung, tmp_path: Path, reason: str, again: bool
) -> None:
    """Unless it was for the profile."""
    networks = left(tmp_path, 1, 3, 8)
    refused = TrtBuild("refused", "build", errors=(Issue("build", "error", reason),))
    networks.builds[tmp_path / "fixed.onnx"] = refused
    result = rung(RELU, RELU_CAST, networks=networks)
    names = [name for name, _ in rung.asked]
    assert (names, result.status) == ((["fixed"], "passed") if again else ([], "failed"))


def test_engines_of_other_sizes_are_built_anew(rung: Rung, tmp_path: Path) -> None:
    given = [{"x": np.ones((5, 2), np.float32)}]
    ended("passed", rung(RELU, RELU_CAST, networks=left(tmp_path, 1, 2, 3), given=given))
    assert [name for name, _ in rung.asked] == ["original", "fixed"]


def test_the_files_are_gone_and_the_engines_dropped(
    rung: Rung, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert rung(RELU, RELU_CAST).status == "passed"
    assert {path.name for path in tmp_path.iterdir()} == {"original.onnx", "fixed.onnx"}
    child = probe.engines(rung.choice, TrtOptions(), 1.0)._worker
    assert child.call(f"{fake_engines.__name__}:held", timeout=PATIENCE).value == []


def test_a_fixed_model_whose_engine_differs_fails(rung: Rung) -> None:
    rung.engines["fixed"] = ABS
    result = rung(RELU, RELU_CAST, inherit=True)
    assert (result.status, result.inherited) == ("failed", False)
    assert result.reason.startswith("the engines of the original and of the new model differ: output y: ")
    assert "; the new model's engine differs from ONNX Runtime on the CPU: output y: " in result.reason
    assert "worst at [0, " in result.reason
    assert result.reason.endswith("normal values; seed 0]")
    assert labels(result, "different") == BOTH
    assert len(result.feeds) == 2, "the first that differs is enough"


@pytest.mark.parametrize("inherit", [False, True])
def test_what_tensorrt_computes_alike_for_both_is_not_the_fixs_fault(rung: Rung, inherit: bool) -> None:
    """Both engines are wrong: fixes are not to blame, and what is wrong is data for a finding."""
    rung.engines = {"original": ABS, "fixed": ABS}
    result = rung(RELU, RELU_CAST, inherit=inherit)
    assert (result.status, result.refutes) == (("passed", False) if inherit else ("failed", True))
    assert "the new model's engine differs from ONNX Runtime on the CPU: output y" in result.reason
    assert "; so does the original's engine, which agrees with it [" in result.reason
    assert (result.executed.outcome, result.executed.version) == ("alike", "10.9.0")
    assert result.executed.output == "y"
    assert labels(result, "identical") == {"engines"}
    assert labels(result, "different") == {"engine against ort-cpu"}


def test_a_fix_may_repair_what_tensorrt_computes(rung: Rung) -> None:
    """TensorRT reads some models in another way than ONNX; a fixed model that it reads right is no failure."""
    rung.engines["original"] = ABS
    result = ended("passed", rung(RELU, RELU_CAST))
    assert result.reason.startswith(
        "the new model's engine agrees with ONNX Runtime on the CPU: identical on 6 "
    )
    assert f"; {REPAIRED}: output y: " in result.reason
    assert (result.executed.outcome, result.executed.output) == ("repaired", "y")
    assert labels(result, "not counted") == {"engines"}
    assert labels(result, "identical") == {"engine against ort-cpu"}
    some = rung(RELU, RELU_CAST, given=[{"x": np.ones((1, 2), np.float32)}, feed(3)])
    assert labels(some, "identical") == BOTH
    assert some.reason.startswith(
        "the new model's engine agrees with ONNX Runtime on the CPU: identical on 2 "
    )


def test_an_original_without_an_engine_is_said(rung: Rung) -> None:
    rung.refusals["original"] = "no such plugin"
    result = ended("passed", rung(RELU, RELU_CAST))
    assert result.reason == (
        "the new model's engine agrees with ONNX Runtime on the CPU: identical on 6 feeds over 4 shapes; "
        "TensorRT 10.9.0 builds no engine of the original: no such plugin"
    )
    assert labels(result, "identical") == {"engine against ort-cpu"}
    rung.engines["fixed"] = ABS
    result = rung(RELU, RELU_CAST, inherit=True)
    assert (result.status, result.inherited) == ("failed", False)
    assert result.reason.startswith("the new model's engine differs from ONNX Runtime on the CPU: ")


def test_a_fixed_model_without_an_engine_fails_if_the_original_has_one(rung: Rung) -> None:
    rung.refusals["fixed"] = "no such plugin"
    result = rung(RELU, RELU_CAST)
    assert (result.status, result.feeds) == ("failed", ())
    words = "TensorRT 10.9.0 builds no engine of the new model: no such plugin"
    assert result.reason == f"{words}; it builds one of the original"
    rung.refusals["original"] = "this one not either"
    result = rung(RELU, RELU_CAST)
    assert (result.status, result.reason) == ("skipped", words)
    assert [one.accepted for one in result.builds] == [False, False]


def test_engines_that_do_not_load(rung: Rung) -> None:
    rung.tricks["original"] = {"refused": "no memory left"}
    result = ended("passed", rung(RELU, RELU_CAST))
    assert result.reason.endswith("; the original's engine does not load: no memory left")
    rung.tricks = {"fixed": {"refused": "no memory left"}}
    result = rung(RELU, RELU_CAST)
    words = "the engine of the new model does not load: no memory left"
    assert (result.status, result.reason) == ("failed", f"{words}; the original's does")
    rung.tricks["original"] = rung.tricks["fixed"]
    assert (rung(RELU, RELU_CAST).status, rung(RELU, RELU_CAST).reason) == ("skipped", words)


def test_one_model_alone_is_held_against_onnx_runtime(rung: Rung) -> None:
    result = rung(RELU, RELU)
    assert (
        result.reason == "the engine agrees with ONNX Runtime on the CPU: identical on 6 feeds over 4 shapes"
    )
    assert len(result.builds) == 1
    rung.engines["original"] = ABS
    result = rung(RELU, RELU, inherit=True)
    assert (result.status, result.inherited) == ("failed", True)
    assert result.reason.startswith("the engine differs from ONNX Runtime on the CPU: output y: ")


# -- outputs that are not compared

TWO = "g (float[N,2] x) => (float[N,2] y, float[N,2] z) { y = Relu(x)  z = Neg(x) }"
NOISY = """g (float[N,2] x) => (float[N,2] y, float[N,2] z)
    { y = Relu(x)  r = RandomUniformLike(x)  z = Add(x, r) }"""


def test_outputs_that_differ_in_two_runs_are_left_out(rung: Rung) -> None:
    rung.engines = {"original": NOISY, "fixed": NOISY}
    result = ended("passed", rung(TWO, TWO + " "))
    assert result.excluded == ("z",)
    assert result.notes[-1] == "not compared, since the original is not deterministic there: z"
    assert {part.name for one in result.feeds for part in one.metrics} == {"y"}


def test_a_little_noise_is_no_reason_to_leave_an_output_out(rung: Rung) -> None:
    little = NOISY.replace("z = Add(x, r)", "s = Mul(r, k)  z = Sub(s, x)").replace(
        "z)\n", "z) <float k = {1e-9}>\n"
    )
    rung.engines = {"original": little, "fixed": little}
    result = rung(TWO, TWO + " ")
    assert (result.status, result.excluded) == ("passed", ())
    assert "within tolerance on 6 feeds" in result.reason


def test_random_outputs_are_left_out_from_the_start(rung: Rung) -> None:
    rung.refusals["original"] = "no such plugin"  # so that nothing is there to run twice
    result = rung(NOISY, NOISY + " ")
    assert (result.status, result.excluded) == ("passed", ("z",))


def test_outputs_that_cannot_be_read_are_named(rung: Rung) -> None:
    rung.tricks = {name: {"unread": ["z"]} for name in ("original", "fixed")}
    result = ended("passed", rung(TWO, TWO + " "))
    assert result.notes == (WHO, "not compared: output z is INT4 in the engine")
    del rung.tricks["fixed"]
    result = rung(TWO, TWO + " ")
    assert {part.name for one in result.feeds for part in one.metrics if one.label.startswith("engines")} == {
        "y"
    }
    assert {part.name for one in result.feeds for part in one.metrics} == {"y", "z"}
    rung.tricks = {name: {"unread": ["y", "z"]} for name in ("original", "fixed")}
    result = rung(TWO, TWO + " ")
    assert (result.status, result.reason) == ("skipped", "no output could be compared")


def test_a_type_of_output_that_is_wrong_is_a_difference(rung: Rung) -> None:
    rung.engines["fixed"] = "g (float[N,2] x) => (float16[N,2] y) { a = Relu(x)  y = Cast<to=10>(a) }"
    assert "output y has type float32 in the original, float16 in" in rung(RELU, RELU_CAST).reason
    rung.engines["fixed"] = (
        "g (float[N,2] x) => (float[M] y) <int64[1] s = {-1}> { a = Relu(x)  y = Reshape(a, s) }"
    )
    assert "output y has shape (1, 2) in the original, (2,) in" in rung(RELU, RELU_CAST).reason


def test_float64_is_judged_as_the_float32_that_tensorrt_makes_of_it(rung: Rung) -> None:
    narrow = "g (double[N,2] x) => (float[N,2] y) { a = Cast<to=1>(x)  y = Sqrt(a) }"
    rung.engines = {"original": narrow, "fixed": narrow}
    wide = "g (double[N,2] x) => (double[N,2] y) { y = Sqrt(x) }"
    result = ended("passed", rung(wide, wide + " "))
    assert "TensorRT computes float64 as float32, and was compared as such" in result.notes


# -- tolerance

SCALED = "g (float[N,2] x) => (float[N,2] y) <float k = {1}> { y = Mul(x, k) }"


@pytest.mark.parametrize(
    ("factor", "tf32", "status"),
    [
        ("1.00001", False, "passed"),
        ("1.001", False, "failed"),
        ("1.001", True, "passed"),
        ("1.1", True, "failed"),
    ],
)
def test_tolerance_is_that_of_the_type(rung: Rung, factor: str, tf32: bool, status: str) -> None:
    rung.engines = {"original": SCALED, "fixed": SCALED.replace("{1}", f"{{{factor}}}")}
    result = rung(SCALED, SCALED + " ", trt=TrtOptions(tf32=tf32))
    assert result.status == status, result.reason
    if status == "passed":
        assert ": within tolerance on 6 feeds" in result.reason
        assert any("TF32 was allowed" in note for note in result.notes) == tf32


def test_engines_on_both_sides_of_the_truth_agree_with_it() -> None:
    """Each is within tolerance of ONNX Runtime, and they are not of each other."""
    value = np.ones(4, np.float32)
    sides = [Ran({"y": value * np.float32(one)}) for one in (1, 1 - 8e-5, 1 + 8e-5)]
    found = judge(Terms(["y"]), "label", None, *sides)
    assert (found.finding, found.reason) == ("agree", "")
    assert [one.status for one in found.results] == ["not counted", "within"]
    found = judge(Terms(["y"], slack={"y": 4e-3}), "label", None, *sides)
    assert [one.status for one in found.results] == ["within", "within"]
    alone = judge(Terms(["y"]), "label", None, None, *sides[1:])
    assert alone.finding == "wrong"
    assert judge(Terms(["y"], excluded={"y"}), "label", None, *sides).finding == "nothing"


def _off(by: float, *, elements: int = 1000, dtype: Any = np.float32) -> tuple[Ran, Ran]:
    """The truth, and an engine that is off in one element that is near 0, by a share of the largest magnitude."""
    truth = np.linspace(-1, 1, elements, dtype=dtype)
    found = truth.copy()
    found[elements // 2] += dtype(by)
    return Ran({"y": truth}), Ran({"y": found})


def test_what_float32_kernels_cost_is_no_error() -> None:
    """Seen on a GPU: one of 1,536 elements of BERT's output was 5.8e-5 off, where the largest was 0.7."""
    truth, found = _off(8e-5)
    for before, most in ((found, "0.0004"), (None, "0.0002")):
        told = judge(Terms(["y"]), "label", None, truth, before, found)
        assert told.finding == "agree"
        assert "1 of 1,000 elements are out of tolerance" in told.reason
        assert told.reason.endswith(f"; that is at most {most} of the output's largest magnitude")
        assert told.results[-1].status == "within"


USERS = Terms(["y"], allowed=Allowed(rtol=1e-6, atol=1e-6))


@pytest.mark.parametrize(
    ("before", "after", "terms", "finding"),
    [
        (5e-4, 5e-4, Terms(["y"]), "alike"),
        (None, 5e-4, Terms(["y"]), "wrong"),
        (np.inf, np.inf, Terms(["y"]), "alike"),
        (None, np.inf, Terms(["y"]), "wrong"),
        # Seen on a GPU: FCN's sums of 18,433 terms are 2.7e-4 off, in the engines of original and fixed model alike.
        (2.7e-4, 2.7e-4, Terms(["y"]), "agree"),
        (None, 2.7e-4, Terms(["y"], single=True), "agree"),
        (None, 2.7e-4, Terms(["y"]), "wrong"),
        (0, 2.7e-4, Terms(["y"]), "wrong"),
        # Seen on a GPU: engines of CoaT and of InceptionNeXt differ by up to 1.6e-4, from build to build.
        (0, 8e-5, Terms(["y"]), "agree"),
        (8e-5, 0, Terms(["y"]), "agree"),
        (8e-5, -1e-4, Terms(["y"]), "agree"),
        (3e-4, 0, Terms(["y"]), "repaired"),
        (8e-5, 9e-4, Terms(["y"]), "wrong"),
        (8e-5, 8e-5, USERS, "alike"),
    ],
)
def test_what_kernels_explain(before: float | None, after: float, terms: Terms, finding: str) -> None:
    sides = [_off(one)[1] if one is not None else None for one in (0, before, after)]
    assert judge(terms, "label", None, *sides).finding == finding


def test_kernels_explain_nothing_of_few_elements_in_float64_or_where_the_truth_is_unknown() -> None:
    for truth, found in (_off(8e-5, elements=200), _off(8e-5, dtype=np.float64)):
        assert judge(Terms(["y"]), "label", None, truth, found, found).finding == "alike"
        assert judge(Terms(["y"]), "label", None, truth, None, found).finding == "wrong"
    truth, found = _off(8e-5)
    assert judge(Terms(["y"]), "label", None, None, truth, found).finding == "wrong"


def test_a_few_large_elements_do_not_excuse_the_others() -> None:
    """Masked logits of -1e4 beside others of about 1."""
    truth = np.linspace(-1, 1, 512, dtype=np.float32)
    truth[:3] = -1e4
    found = truth + (np.arange(512) > 2).astype(np.float32)
    expected, after = Ran({"y": truth}), Ran({"y": found})
    for before in (expected, None):
        assert judge(Terms(["y"]), "label", None, expected, before, after).finding == "wrong"


# -- runs that fail


@pytest.mark.slow
def test_an_engine_that_fails_where_the_originals_runs(rung: Rung) -> None:
    rung.tricks["fixed"] = {"fails": "out of memory"}
    result = ended("failed", rung(RELU, RELU_CAST))
    assert result.reason.startswith("the original's engine runs, the new model's does not: out of memory [")
    rung.tricks["fixed"] = {"dies": True}
    assert "the new model's does not: killed by SIGABRT" in rung(RELU, RELU_CAST).reason
    rung.tricks["fixed"] = {"hangs": True}
    result = rung(RELU, RELU_CAST, step=2.0)
    assert "does not: TensorRT 10.9.0 took more than 2 s and was stopped [" in result.reason


@pytest.mark.parametrize("trick", ["fails", "dies"])
def test_the_originals_failure_is_not_the_fixs(rung: Rung, trick: str) -> None:
    """After an error of the device nothing works in that process: the fixed model's engine gets another."""
    rung.tricks["original"] = {trick: "illegal access"}
    result = ended("passed", rung(RELU, RELU_CAST))
    assert (
        result.reason
        == "the new model's engine agrees with ONNX Runtime on the CPU: identical on 6 feeds over 4 shapes"
    )
    failed = [note for note in result.notes if note.startswith("the original's engine fails: ")]
    assert len(failed) == 6
    assert "illegal access" in failed[0] or "SIGABRT" in failed[0]
    assert all("it failed 3 times before" in note for note in failed[3:]), "each costs the child"


def test_nothing_is_proven_where_both_fail(rung: Rung) -> None:
    rung.tricks = {name: {"fails": "out of memory"} for name in ("original", "fixed")}
    result = rung(RELU, RELU_CAST)
    assert (result.status, result.reason) == ("skipped", "the engine of the new model fails: out of memory")
    rung.refusals["original"] = "no such plugin"
    assert rung(RELU, RELU_CAST).status == "skipped"


# -- inputs and profiles


def feed(rows: int) -> dict[str, Any]:
    return {"x": np.linspace(-1, 1, 2 * rows, dtype=np.float32).reshape(rows, 2)}


def test_the_users_inputs_and_profile(rung: Rung) -> None:
    options = TrtOptions(min_shapes=("x:1x2",), opt_shapes=("x:2x2",), max_shapes=("x:4x2",))
    result = ended("passed", rung(RELU, RELU_CAST, given=[feed(1), feed(5), feed(4)], trt=options))
    assert rung.asked[0][1][0].shapes == {"x": ((1, 2), (2, 2), (4, 2))}
    counted = [one.label for one in result.feeds if one.status == "identical"]
    assert [one for one in counted if one.startswith("engines")] == [
        "engines: inputs 1 of 3",
        "engines: inputs 3 of 3",
    ]
    refused = [one for one in result.feeds if one.status == "not counted"]
    assert [one.label for one in refused] == ["inputs 2 of 3"]
    assert refused[0].reason == "input x of shape [5, 2] is outside the optimization profile"
    assert result.notes == (f"1 feed does not count: {refused[0].reason}", WHO)


def test_made_inputs_have_the_sizes_of_the_users_profile(rung: Rung) -> None:
    options = TrtOptions(min_shapes=("x:20x2",), opt_shapes=("x:30x2",), max_shapes=("x:40x2",))
    result = ended("passed", rung(RELU, RELU_CAST, trt=options))
    assert [one.feed.assignment["N"] for one in result.feeds[::2] if one.feed] == [20, 40, 30]
    assert {one.feed.kind for one in result.feeds if one.feed} == {"normal", "edge"}


def test_a_profile_that_does_not_fit_is_made_smaller(rung: Rung) -> None:
    rung.unfit = 1
    result = ended("passed", rung(RELU, RELU_CAST))
    one_size = (Profile({"x": ((16, 2), (16, 2), (16, 2))}),)
    assert [profile for _, profile in rung.asked[1:]] == [one_size, one_size]
    assert "on 3 feeds" in result.reason
    assert "outside the optimization profile" in result.notes[0]
    rung.unfit, rung.asked = 2, []
    assert rung(RELU, RELU_CAST).status == "passed"
    assert rung.asked[2] == ("original", None)
    rung.unfit, rung.asked = 9, []
    result = ended("skipped", rung(RELU, RELU_CAST))
    assert "builds no engine of the new model: kOPT values" in result.reason


def test_sizes_that_the_user_fixed_are_not_derived(rung: Rung) -> None:
    rung.unfit = 2
    assert rung(RELU, RELU_CAST, shapes={"N": 5}).status == "passed"
    assert rung.asked[2] == ("original", (Profile({"x": ((5, 2),) * 3}, symbols={"N": (5, 5, 5)}),))


def test_what_the_original_refuses_is_not_run(rung: Rung) -> None:
    text = "g (float[3] x, int64[N] i) => (float[N] y) { y = Gather(x, i) }"
    given = [{"x": np.ones(3, np.float32), "i": np.array(index)} for index in ([0, 2], [7, 1])]
    result = ended("passed", rung(text, text + " ", given=given))
    assert labels(result, "not counted") == {"inputs 2 of 2"}
    result = ended("skipped", rung(text, text + " ", given=given[1:]))
    assert result.reason.startswith("the original fails: ")


def test_empty_tensors_and_defaults_are_not_for_engines(rung: Rung) -> None:
    result = rung(RELU, RELU_CAST, given=[feed(0)])
    assert (result.status, result.reason) == ("skipped", "input x is empty")
    text = "g (float[N,2] x, float[2] w) => (float[N,2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }"
    result = ended("passed", rung(text, text + " "))
    assert not any(one.feed is not None and one.feed.override for one in result.feeds)
    result = rung(text, text + " ", given=[{**feed(1), "w": np.ones(2, np.float32)}])
    assert result.reason == "TensorRT keeps the default of input w: it takes no other value"


def test_no_value_compared_is_no_proof(rung: Rung) -> None:
    text = "g (float[N,2] x) => (float[N,0] y) <int64[1] a = {0}, int64[1] b = {1}> { y = Slice(x, a, a, b) }"
    assert rung(text, text + " ").reason == "every output is empty, so no value was compared"


def test_values_of_shape_tensors_are_held_to_the_profile() -> None:
    profile = (Profile({}, {"k": ((1, 1), (2, 2), (4, 4))}),)
    assert outside(profile, {"k": np.array([4, 1])}) == ""
    assert (
        outside(profile, {"k": np.array([5, 1])})
        == "the values of input k are outside the optimization profile"
    )
    assert outside((), {"k": np.array([5, 1])}) == ""


# -- who says what is right


def test_without_onnx_runtime_the_engines_are_held_against_each_other(rung: Rung) -> None:
    foreign = "g (float[N,2] x) => (float[N,2] y) { y = far.away.Relu(x) }"
    rung.engines = {"original": RELU, "fixed": RELU_CAST}
    result = ended("passed", rung(foreign, foreign + " "))
    assert result.reason.startswith(
        f"{AGREE}: identical on 6 feeds over 4 shapes; there is no reference result: ONNX Runtime: "
    )
    assert labels(result, "identical") == {"engines"}
    rung.engines["fixed"] = ABS
    result = ended("failed", rung(foreign, foreign + " "))
    assert result.reason.startswith("the engines of the original and of the new model differ: output y: ")
    rung.refusals["original"] = "no such plugin"
    result = ended("skipped", rung(foreign, foreign + " "))
    assert result.reason.startswith(
        "there is nothing to compare the engine with: TensorRT 10.9.0 builds no engine "
    )


def test_cuda_says_what_is_right_where_it_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = fake_cuda.install(monkeypatch, tmp_path)
    with on_a_gpu(monkeypatch, tmp_path) as rung:
        result = rung(RELU, RELU_CAST)
    assert result.reason.startswith(f"{AGREE} and with ONNX Runtime on CUDA: identical on 6 feeds")
    assert labels(result, "identical") == {"engines", "engine against ort-cuda"}
    assert [one["options"]["use_tf32"] for one in fake.records("path") if one["path"] != "probe"] == ["0"]


def test_cuda_is_not_asked_what_the_cpu_refuses(
    rung: Rung, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_cuda.install(monkeypatch, tmp_path, "reads beyond")
    text = "g (float[3] x, int64[N] i) => (float[N] y) { y = Gather(x, i) }"
    given = [{"x": np.ones(3, np.float32), "i": np.array(index)} for index in ([0, 2], [7, 1])]
    result = rung(text, text + " ", given=given)
    assert [one.label for one in result.feeds if one.status == "not counted"] == ["inputs 2 of 2"]


def test_the_cpu_says_what_is_right_where_cuda_does_not_load_the_model(
    rung: Rung, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_cuda.install(monkeypatch, tmp_path, "fails to load")
    assert "and with ONNX Runtime on the CPU: " in rung(RELU, RELU_CAST).reason


# ------------------------------------------------------------------------------- on what TensorRT can judge of models


SELECT = """
    g (float[N,2] x) => (float[M] y) <float z = {0}>
    { a = Max(x, z)  n = NonZero(a)  t = Transpose<perm = [1, 0]>(n)  y = GatherND(a, t) }
"""


class Lacking(Rung):
    """Without NonZero, which the target has. Engines are the models that are built, with an Abs for each Neg."""

    def lacks(self, name: str) -> str:
        return "only the target has it" if name == "NonZero" else ""

    def build(
        self, path: Path, profiles: Sequence[Profile] | None = None, *, save_engine: str = ""
    ) -> TrtBuild:
        model = onnx.load(path)
        if any(node.op_type == "NonZero" for node in model.graph.node):
            return TrtBuild("refused", "parse", (TargetOnly("parse", "error", "only the target has it"),))
        for node in model.graph.node:
            node.op_type = "Abs" if node.op_type == "Neg" else node.op_type
        onnx.save(model, save_engine)
        return TrtBuild("accepted", profiles=tuple(profiles or ()))


@pytest.mark.parametrize(
    ("way", "status"),
    [("b = Relu(x)  a = Relu(b)", "passed"), ("b = Neg(x)  c = Min(b, z)  a = Neg(c)", "failed")],
)
def test_engines_of_models_without_what_only_the_target_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, worker: Worker, way: str, status: str
) -> None:
    lacking = served(monkeypatch, Lacking(tmp_path, worker))
    monkeypatch.setattr(rest, "builder", lambda options: lacking)
    original = save(tmp_path / "original.onnx", SELECT)
    fixed = save(tmp_path / "fixed.onnx", SELECT.replace("a = Max(x, z)", way))
    [result] = verify(original, fixed, exact=False, rungs=["trt-gpu"], worker=worker).rungs
    assert (result.status, result.inherited, result.part.of) == (status, False, 4 + way.count("=") - 1)
    assert result.reason.startswith(f"in part, {result.part.words}: ")
    assert {one.feed.kind for one in result.feeds if one.feed is not None} >= {"normal"}
    assert all(build.part is not None for build in result.builds)
