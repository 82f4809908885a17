"""Rung trt-build: what it says, and that it outlives whatever it asks. No TensorRT is needed."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from onnxfix.cli.app import app
from onnxfix.errors import UsageError
from onnxfix.place import Place
from onnxfix.proof.checks import build as trt_build
from onnxfix.proof.checks.build import judge
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.verify import verify
from onnxfix.runtime.nvidia import Gpu, Missing
from onnxfix.runtime.sandbox import Outcome, Worker
from onnxfix.tensorrt import package
from onnxfix.tensorrt.build import attempt
from onnxfix.tensorrt.messages import memory_errors
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import Issue, TrtBuild, TrtOptions
from support.models import model, write

RELU = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"


def build(status: Any = "accepted", stage: Any = "", text: str = "", layers: int = 7) -> TrtBuild:
    errors = (Issue("build", "error", text, Place(op_type="Relu", output="y")),) if text else ()
    return TrtBuild(status, stage, errors, layers=(("ACTIVATION", layers),), compute_capability="8.9")


RTX = Choice("tensorrt-rtx", "1.7.1.116", "8.9")


def builder(choice: Choice = RTX, limit_mb: int | None = None, **options: Any) -> Builder:
    worker = Worker()  # never started
    worker.limit_mb = limit_mb
    return Builder(choice, TrtOptions(**options), worker)


def said(*builds: TrtBuild, **options: Any) -> str:
    result = judge(builds, builder(**options), inherit=False)
    assert "\n" not in result.reason
    assert len(result.reason) < 400
    return result.reason


def test_who_judged_and_for_what_is_said() -> None:
    assert said(build()) == "TensorRT-RTX 1.7.1 accepts it, built ahead of time for compute capability 8.9"
    here = builder(Choice("tensorrt", "10.14.1.48", "8.9", Gpu("L4", "8.9")))
    assert judge((build(),), here, inherit=False).reason == (
        "TensorRT 10.14.1 accepts it, built for compute capability 8.9"
    )
    assert said(build(), build(layers=5)).endswith(", 7 → 5 layers")
    assert said(build("refused", "parse", "no"), build()).endswith("; it refused the original: y: Relu: no")
    assert "gave no result for the original" in said(build("error", "", "libfoo is missing"), build())
    assert said(build("refused", "build", "word " * 500)).startswith("TensorRT-RTX 1.7.1 refuses the model: ")


def test_another_product_than_the_target_is_named_in_the_line() -> None:
    reason = said(build(), target="trt11")
    assert reason.startswith("TensorRT-RTX 1.7.1, which is not the target TensorRT 11.x, accepts it, built")
    refused = said(build("refused", "parse", "no"), target="trt11")
    assert refused.startswith(
        "TensorRT-RTX 1.7.1, which is not the target TensorRT 11.x, refuses the model: "
    )
    assert said(build(), target="rtx").startswith("TensorRT-RTX 1.7.1 accepts it")
    assert "judged the model, not the target TensorRT 11.x" in builder(target="trt11").notes()[0]


@pytest.mark.parametrize(
    ("builds", "words"),
    [
        ([build("refused", "parse", "no")], "refuses the model: y: Relu: no"),
        ([build("timeout", "build", "slow")], "fails on the model: y: Relu: slow"),
        (
            [build(), build("refused", "parse", "no")],
            "accepts the original and refuses the new model: y: Relu: no",
        ),
        (
            [build("crash", "build", "no"), build("crash", "build", "no")],
            "crashes on the new model as it does the",
        ),
        (
            [build("refused", "parse", "a"), build("timeout", "build", "late")],
            "fails on the new model: y: Relu: late (the original: y: Relu: a)",
        ),
    ],
)
def test_a_failure_has_its_words(builds: list[TrtBuild], words: str) -> None:
    result = judge(builds, builder(), inherit=False)
    assert (result.status, result.refutes) == ("failed", True)
    assert result.reason.startswith(f"TensorRT-RTX 1.7.1 {words}")
    inherited = not builds[0].accepted
    assert judge(builds, builder(), inherit=True).refutes != inherited


def test_a_lack_of_memory_says_nothing_about_a_model() -> None:
    good, starved = build(), build("memory", "build", "bad_alloc")
    for builds in ((starved,), (starved, starved), (good, starved)):
        result = judge(builds, builder(), inherit=False)
        assert (result.status, result.refutes) == ("skipped", False)
        assert result.reason == "TensorRT-RTX 1.7.1 gave no result: out of memory: y: Relu: bad_alloc"
    # Unless the original is known to do with half of what is not enough for the fixed model.
    result = judge((good, starved), builder(), inherit=True, harmed=True)
    assert (result.status, result.refutes) == ("failed", True)
    assert "accepts the original and fails on the new model: out of memory: y: Relu" in result.reason
    assert judge((starved, good), builder(), inherit=False).status == "passed"


@pytest.mark.parametrize("status", ["memory", "crash", "timeout", "refused"])
def test_a_build_that_probably_lacks_memory_is_told_of_the_limit(
    status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m.onnx", RELU)  # about 256 MiB, by the rule of thumb
    monkeypatch.setattr("onnxfix.tensorrt.build.attempt", lambda *_, **__: build(status, "build", "no"))
    tight = builder(limit_mb=100).build(path)
    assert (tight.status, tight.judged) == ("memory", False)
    assert tight.reason.endswith("y: Relu: no (memory is limited to 100 MiB: --memory-limit sets it)")
    assert ("probably out of memory" in tight.reason) == (status != "memory")
    assert builder(limit_mb=None).build(path).reason == "y: Relu: no"
    wide = builder(limit_mb=1000).build(path)
    assert wide.status == status
    assert ("limited to 1000 MiB" in wide.reason) == (status == "memory")
    # What the parser refuses it refuses with any memory.
    monkeypatch.setattr("onnxfix.tensorrt.build.attempt", lambda *_, **__: build("refused", "parse", "no"))
    assert builder(limit_mb=100).build(path).status == "refused"


@pytest.mark.parametrize(
    ("original", "fixed", "status", "halves"),
    [
        (400, 2000, "failed", 1),
        (900, 2000, "skipped", 1),
        (2000, 2000, "skipped", 0),
        (900, 900, "passed", 0),
    ],
)
def test_a_fixed_model_that_takes_more_than_twice_the_memory_is_refuted(
    original: int, fixed: int, status: str, halves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of 1000 MiB: one that takes a little more than the original may lie beyond it by chance."""
    needs = {"original.onnx": original, "fixed.onnx": fixed}
    asked: list[int | None] = []

    def attempt(worker: Worker, path: Path, **_: Any) -> TrtBuild:
        asked.append(worker.limit_mb)
        enough = needs[path.name] <= (worker.limit_mb or 0)
        return build() if enough else build("memory", "build", "bad_alloc")

    monkeypatch.setattr("onnxfix.tensorrt.build.attempt", attempt)
    monkeypatch.setattr(trt_build, "builder", lambda options: builder(limit_mb=1000))
    monkeypatch.setattr(trt_build, "_LAST", [])
    paths = [write(tmp_path / name, RELU) for name in needs]
    (found,) = verify(*paths, exact=True, rungs=["trt-build"], inherit=True).rungs
    assert (found.status, found.refutes) == (status, status == "failed")
    assert asked.count(500) == halves
    assert ("memory is limited to 1000 MiB" in found.reason) == (status != "passed")


def test_tensorrt_that_does_not_start_says_nothing_about_the_model() -> None:
    broken = TrtBuild("error", "", (Issue("", "error", "ImportError: libcudart"),))
    result = judge((build(), broken), builder(), inherit=False)
    assert (result.status, result.cause, result.refutes) == ("skipped", "not-loadable", False)
    assert result.reason == "TensorRT-RTX 1.7.1 gave no result: ImportError: libcudart"
    late = replace(broken, stage="build")
    assert judge((build(), late), builder(), inherit=False).status == "failed"


@pytest.mark.parametrize(
    ("outcome", "status", "stage", "words"),
    [
        (
            Outcome("crash", None, "killed by SIGSEGV", "build", killed=True),
            "crash",
            "build",
            "the builder was killed by SIGSEGV",
        ),
        (Outcome("timeout", None, "took long", "saving"), "timeout", "build", "the builder took long"),
        (
            Outcome("crash", None, "exited: why", "", died=True, printed="Memory allocation failed"),
            "memory",
            "",
            "TensorRT exited: why",
        ),
        (Outcome("crash", None, "exited: out of memory", "", died=True), "crash", "", "TensorRT exited"),
        (Outcome("memory", None, "MemoryError: failed to map", ""), "memory", "", "failed to map"),
        (Outcome("error", None, "ImportError: no", ""), "error", "", "ImportError: no"),
        (Outcome("error", None, "ValueError: odd", "parse"), "error", "parse", "ValueError: odd"),
    ],
)
def test_an_end_of_the_child_has_its_place(outcome: Outcome, status: str, stage: str, words: str) -> None:
    dying = SimpleNamespace(call=lambda *_, **__: outcome)
    found = attempt(cast(Worker, dying), "model.onnx", package="tensorrt-rtx")
    assert (found.status, found.stage) == (status, stage)
    assert words in found.reason


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ImportError("libnvinfer.so: failed to map segment"), MemoryError),
        (RuntimeError("OutOfMemory"), MemoryError),
        (RuntimeError("no such layer"), RuntimeError),
        (UsageError("no optimization profile: out of memory"), UsageError),
    ],
)
def test_a_lack_of_memory_that_tensorrt_raises_is_one(raised: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected, match=str(raised)), memory_errors():
        raise raised


@pytest.mark.parametrize(("text", "cause"), [("failed to map segment", "memory"), ("no", "not-loadable")])
def test_why_a_package_does_not_load_is_data(monkeypatch: pytest.MonkeyPatch, text: str, cause: str) -> None:
    monkeypatch.setattr(package, "not_installed", lambda name="auto": None)
    monkeypatch.setattr(importlib, "import_module", _raise(ImportError(text)))
    found = package.choose("tensorrt-rtx")
    assert isinstance(found, Missing)
    assert found.cause == cause


def _raise(error: Exception) -> Any:
    def call(*_: Any) -> Any:
        raise error

    return call


def test_without_a_package_a_required_rung_ends_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if "tensorrt" in name else real(name, *rest)
    )
    path = write(tmp_path / "m.onnx", RELU)
    command = 'pip install "onnxfix[tensorrt-rtx]"'
    rung = verify(path, path, exact=True, rungs=["trt-build"]).rungs[0]
    assert rung.status == "skipped"
    assert rung.reason.endswith(command)
    for arguments in (["verify", path], ["apply", path]):
        found = CliRunner().invoke(app, [*map(str, arguments), "--require", "trt-build"])
        assert found.exit_code == 3, found.output
        assert command in " ".join(found.stdout.split())
    assert not (tmp_path / "m.fixed.onnx").exists()


# -------------------------------------------------------------------------------------------------- its sandbox


def test_a_refusal_of_what_a_fix_made_is_not_inherited() -> None:
    """The original is refused elsewhere: that is no excuse for a node that it does not have."""
    original = model(RELU)
    refused = build("refused", "parse", "of old")
    for place, blamed in (
        (Place(output="b_cast", op_type="Cast"), True),
        (Place(output="y", op_type="Cast"), True),
        (Place(output="y", op_type="Relu"), False),
        (Place(), False),
    ):
        after = TrtBuild("refused", "parse", (Issue("parse", "error", "t", place),))
        result = judge((refused, after), builder(), inherit=True, original=original)
        assert (result.status, result.refutes) == ("failed", blamed)


def test_a_refused_node_of_another_name_is_the_same_node(tmp_path: Path) -> None:
    """Identity at the end goes, and Det has its name; another Det, or one that is another, a fix has made."""
    original = model("g (float[2,2] x) => (float y) { q = ReduceSum<keepdims = 0>(x)  y = Identity(q) }")
    refused = build("refused", "parse", "q: ReduceSum")
    place = Place(output="y", op_type="ReduceSum")
    after = TrtBuild("refused", "parse", (Issue("parse", "error", "t", place),))
    for text, blamed in (
        ("{ y = ReduceSum<keepdims = 0>(x) }", False),
        ("{ y = ReduceSum<keepdims = 1>(x) }", True),
        ("{ a = ReduceSum<keepdims = 0>(x)  y = ReduceSum<keepdims = 0>(a) }", True),
    ):
        path = write(tmp_path / "fixed.onnx", f"g (float[2,2] x) => (float y) {text}")
        result = judge((refused, after), builder(), inherit=True, original=original, fixed=path)
        assert (result.status, result.refutes) == ("failed", blamed), text


@pytest.mark.parametrize(
    ("original", "status", "asked"),
    [(build(), "passed", [10.0, 10.0, 20.0]), (build("timeout", "build", "late"), "failed", [10.0, 10.0])],
)
def test_a_fixed_model_that_takes_too_long_once_is_tried_again(
    original: TrtBuild, status: str, asked: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the original takes too long as well, no fix hangs on it."""
    ends = [original, build("timeout", "build", "late"), build()]
    patience = []

    def attempt(*_: Any, timeout: float, **__: Any) -> TrtBuild:
        patience.append(timeout)
        return ends.pop(0)

    monkeypatch.setattr("onnxfix.tensorrt.build.attempt", attempt)
    monkeypatch.setattr(trt_build, "builder", lambda options: builder(timeout=10.0))
    paths = [write(tmp_path / name, RELU) for name in ("original.onnx", "fixed.onnx")]
    assert verify(*paths, exact=True, rungs=["trt-build"]).rungs[0].status == status
    assert patience == asked
