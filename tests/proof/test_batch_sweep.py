"""Static against dynamic: a model built for batch 1 alone and for a profile of batch sizes."""
# Long because: the sweep by TensorRT, its parts and the engines that stand in share their models and helpers.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof.checks import probe
from onnxfix.proof.checks.batch_sweep import at_batch_one, batch_symbols, sweep
from onnxfix.proof.request import Request
from onnxfix.proof.verdict import Pair, RungResult, SweepResult
from onnxfix.proof.verify import verify
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.records import Issue, Profile, TrtBuild, TrtOptions
from support.cli import output, run
from support.ended import ended
from support.models import external, model, write
from support.paths import FIXTURES
from support.real_tensorrt import FACT, REAL

FROZEN = FIXTURES / "trt" / "hard_coded_batch.onnx"
RELU = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
#: The size that the model was traced with, frozen into a Reshape.
AT_TWO = "g (float[N,3,4] x) => (float[N,12] y) <int64[2] s = {2, 12}> { y = Reshape(x, s) }"
REPAIRED = "g (float[N,3,4] x) => (float[N,12] y) <int64[2] s = {0, 12}> { y = Reshape(x, s) }"
SIZED = "g (float[N,S] x) => (float[N,S] y) { y = Relu(x) }"
#: At batch 1 the batch is squeezed away.
VANISHING = "g (float[N,4] x) => (float[4] y) { y = Squeeze(x) }"


def swept(original: Path, fixed: Path | None = None, greatest: int = 2, **asked: Any) -> RungResult:
    options = TrtOptions(package="tensorrt-rtx", batch_sweep=greatest, **asked)
    return verify(original, fixed or original, exact=True, rungs=["trt-build"], trt=options).rungs[0]


# ------------------------------------------------------------------------------------------------ with TensorRT


@REAL
def test_a_frozen_batch_builds_for_batch_1_alone() -> None:
    rung = ended("failed", swept(FROZEN))
    assert "refuses the model" in rung.reason
    assert rung.reason.endswith("batch sweep failed")
    told = "\n".join(rung.notes)
    assert (
        "between batch 1 alone and a profile of batch 1 to 2 (N): batch 1 alone builds, the profile does not: "
        in told
    )
    assert "change volume 24 to 12" in told, "the profile's usual batch is its greatest"


@REAL
def test_a_sweep_that_fails_is_a_rung_that_fails(tmp_path: Path) -> None:
    """The rung's own profile is the user's, of batch 2, which fits the model."""
    path = write(tmp_path / "m.onnx", AT_TWO)
    assert swept(path, greatest=0, opt_shapes=("x:2x3x4",)).status == "passed"
    rung = swept(path, opt_shapes=("x:2x3x4",))
    assert rung.refutes
    assert "the profile builds, batch 1 alone does not: y: Reshape: " in rung.reason
    assert "[1,3,4] to [2,12]" in rung.reason


@FACT
@REAL
def test_a_profile_that_fits_in_part_only_fails(tmp_path: Path) -> None:
    rung = ended("failed", swept(write(tmp_path / "m.onnx", VANISHING)))
    assert (
        "the profile builds, but not all of its sizes fit: y: Squeeze: Profile kMIN values are not"
        in rung.reason
    )
    assert any(note.startswith("warning for batch 1 to 2 only: y: Squeeze: ") for note in rung.notes)


@REAL
def test_the_repaired_model_is_judged_and_the_original_told(tmp_path: Path) -> None:
    original, fixed = write(tmp_path / "a.onnx", AT_TWO), write(tmp_path / "b.onnx", REPAIRED)
    rung = ended("passed", swept(original, fixed))
    assert "batch sweep passed: the new model is built for batch 1 alone and a profile" in rung.reason
    assert [pair.name for pair in rung.sweep.pairs] == ["the original", "the new model"]
    assert [pair.static.accepted for pair in rung.sweep.pairs] == [False, True]
    assert any(
        note.startswith("batch sweep of the original: batch 1 alone: refused (y: ") for note in rung.notes
    )
    assert any(
        note.startswith("batch sweep of the new model: batch 1 alone: accepted, ") for note in rung.notes
    )


@REAL
def test_a_model_that_is_the_same_both_ways_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe", lambda found: probe.Probe("no NVIDIA GPU found"))
    path = write(tmp_path / "m.onnx", RELU)
    before = path.read_bytes()
    rung = ended("passed", swept(path, greatest=5))
    assert rung.reason.endswith(
        "; batch sweep passed: the model is built for batch 1 alone and a profile of batch 1 to 5 (N); "
        "outputs were not compared: no engine was executed (no NVIDIA GPU found)"
    )
    assert not [note for note in rung.notes if "differ" in note or "warning for" in note]
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


@REAL
def test_without_a_symbolic_batch_there_is_nothing_to_sweep(tmp_path: Path) -> None:
    rung = ended("passed", swept(write(tmp_path / "m.onnx", RELU.replace("N", "3"))))
    assert rung.reason.endswith("batch sweep skipped: the model has no symbolic batch")


@REAL
def test_external_data_is_found(tmp_path: Path) -> None:
    made = model("g (float[N,8] x) => (float[N,8] y) { y = MatMul(x, w) }", w=np.ones((8, 8), np.float32))
    (tmp_path / "data").mkdir()
    path = tmp_path / "m.onnx"
    onnx.save(made, path, save_as_external_data=True, location="data/w.bin", size_threshold=0)
    assert swept(path).status == "passed"
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["data", "m.onnx", "w.bin"]
    (tmp_path / "data" / "w.bin").unlink()
    lost = ended("failed", swept(path))
    assert (
        "batch sweep skipped: the model is built neither for batch 1 alone nor for a profile" in lost.reason
    )


@REAL
def test_the_command_line_sweeps(tmp_path: Path) -> None:
    rungs = ["--rungs", "trt-build", "--batch-sweep"]
    out = output(0, "verify", write(tmp_path / "a.onnx", RELU), *rungs, "--max-batch", "4")
    assert "a profile of batch 1 to 4 (N)" in " ".join(out.split())
    assert run("verify", write(tmp_path / "b.onnx", VANISHING), *rungs)[0] == 3


# ------------------------------------------------------------------------------------------- which symbols, which file


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        ("float[N,4] x", ["N"]),
        ("float[2,4] x", []),
        ("float[2,S] x", []),
        ("float[N,S] x, float[N,T,4] w", ["N"]),
        ("int64[A,S] i, int64[B,S] m", ["A", "B"]),  # one dimension, two names
        ("float[N,K] x, float[K,M] w", ["N"]),  # K is behind as well
        ("float[N,S] x, int64[L] l", ["N"]),  # a list beside something wider
        ("float[N] x", ["N"]),
        ('float[N,4] x, float["N + 1",4] w', ["N"]),
        ('float["batch-size",4] x', ["batch-size"]),
        ("float[?,4] x", ["x.0"]),
    ],
)
def test_the_batch_leads_the_inputs(inputs: str, found: list[str]) -> None:
    made = model(f"g ({inputs}) => (float[A] y) {{ y = Foo(x) }}")
    assert list(batch_symbols(signature(made))) == found


def test_an_input_with_a_default_has_no_batch() -> None:
    text = "g (float[N,4] x, float[M,2] w) => (float[N,4] y) <float[1,2] w = {1, 2}> { y = Relu(x) }"
    assert batch_symbols(signature(model(text))) == ("N",)


def test_the_copy_has_batch_1_in_its_inputs_and_nothing_else_changed(tmp_path: Path) -> None:
    text = 'g (float[N,S] x, float["N*S",4] w, float[M,"2*N"] v) => (float[N,S] y) { y = Relu(x) }'
    path = write(tmp_path / "m.onnx", text)
    folder = tmp_path / "copy"
    folder.mkdir()
    copy = onnx.load(at_batch_one(path, ["N"], folder))
    shapes = [
        [dim.dim_value or dim.dim_param for dim in i.type.tensor_type.shape.dim] for i in copy.graph.input
    ]
    assert shapes == [[1, "S"], ["1*S", 4], ["M", 2]]
    original = onnx.load(path)
    del copy.graph.input[:]
    copy.graph.input.extend(original.graph.input)
    assert copy == original


def test_an_unnamed_batch_is_fixed_too(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "g (float[?,4] x) => (float[?,4] y) { y = Relu(x) }")
    (tmp_path / "copy").mkdir()
    copy = onnx.load(at_batch_one(path, ["x.0"], tmp_path / "copy"))
    assert copy.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1


def test_external_data_outside_the_models_folder_is_left_alone(tmp_path: Path) -> None:
    made = model("g (float[N,2] x) => (float[N,2] y) { y = Add(x, w) }")
    external(made.graph.initializer.add(name="w", data_type=1, dims=[2]), "../outside.bin")
    (tmp_path / "models").mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(8))
    (tmp_path / "work" / "copy").mkdir(parents=True)
    at_batch_one(write(tmp_path / "models" / "m.onnx", made), ["N"], tmp_path / "work" / "copy")
    assert not (tmp_path / "work" / "outside.bin").exists()


# ------------------------------------------------------------------------------- what is built, and what comes of it

GOOD = TrtBuild("accepted", layers=(("ACTIVATION", 3), ("SHAPE", 1)))
BAD = TrtBuild("refused", "build", (Issue("build", "error", "no\nway"),))


def request(path: Path) -> Request:
    return Request(path, path, signature(path), cast(Worker, None), True, 3, {}, None)


class Builds:
    """Stands in for TensorRT: remembers what it was asked, and writes engines."""

    def __init__(self, static: TrtBuild = GOOD, dynamic: TrtBuild = GOOD) -> None:
        self.static, self.dynamic = static, dynamic
        self.asked: list[tuple[str, Profile, bool]] = []

    def __call__(self, path: Path, profiles: Sequence[Profile], save_engine: str) -> TrtBuild:
        self.asked.append((path.name, profiles[0], bool(save_engine)))
        if save_engine:
            Path(save_engine).write_text(path.name, encoding="utf-8")
        return self.static if path.name == "batch1.onnx" else self.dynamic


def test_both_builds_share_all_but_the_batch(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", "g (float[N,S] x, int64[2] s, float[N,T] w) => (float[N,S] y) { y = Relu(x) }"
    )
    asked = Profile({"x": ((2, 5), (4, 6), (8, 7))}, {"s": ((1, 2),) * 3}, strict=True)
    builds = Builds()
    assert sweep(request(path), [asked], builds, greatest=3).status == "passed"
    assert [name for name, _, _ in builds.asked] == ["batch1.onnx", "m.onnx"]
    for _, profile, saved in builds.asked:
        assert profile.symbols == {"N": (1, 3, 3), "S": (5, 6, 7)}
        assert profile.values == asked.values
        assert not profile.shapes
        assert not profile.strict
        assert not saved, "nobody is there to execute an engine"


@pytest.mark.parametrize(
    ("static", "dynamic", "status", "words"),
    [
        (
            GOOD,
            GOOD,
            "passed",
            "is built for batch 1 alone and a profile of batch 1 to 2 (N); outputs were not",
        ),
        (GOOD, BAD, "failed", "(N): batch 1 alone builds, the profile does not: no way"),
        (BAD, GOOD, "failed", "(N): the profile builds, batch 1 alone does not: no way"),
        (BAD, BAD, "skipped", "is built neither for batch 1 alone nor for a profile of batch 1 to 2 (N)"),
        (GOOD, TrtBuild("crash", "build", BAD.errors), "failed", "the profile does not: no way"),
    ],
)
def test_acceptance_decides(
    static: TrtBuild, dynamic: TrtBuild, status: str, words: str, tmp_path: Path
) -> None:
    found = sweep(request(write(tmp_path / "m.onnx", RELU)), None, Builds(static, dynamic))
    assert found.status == status
    assert words in found.reason
    assert not [line for line in found.lines() if "\n" in line]


def warned(*texts: str) -> TrtBuild:
    return replace(GOOD, warnings=tuple(Issue("build", "warning", text) for text in texts))


def test_what_the_builds_have_not_in_common_is_listed() -> None:
    static = replace(warned("both", "mine"), layers=(("CONSTANT", 2), ("SHAPE", 1)))
    pair = Pair("the model", static, warned("yours", "both", "yours"), unproven="were not compared: why")
    found = SweepResult("passed", "fine", ("N",), 2, (pair,)).lines()
    assert found == (
        "batch sweep passed: fine",
        "batch sweep of the model: batch 1 alone: accepted, 3 layers, 2 warnings; "
        "batch 1 to 2: accepted, 4 layers, 3 warnings",
        "imported layers that differ, batch 1 alone against batch 1 to 2: ACTIVATION 0/3, CONSTANT 2/0",
        "warning for batch 1 alone only: mine",
        "warning for batch 1 to 2 only: yours",
        "outputs were not compared: why",
    )


# ----------------------------------------------------------------------------------------- where engines are executed

Engine = Callable[[Mapping[str, Any]], dict[str, Any]]


def executed(path: Path, static: Engine, dynamic: Engine, coarse: str = "") -> SweepResult:
    """Engines that are functions, told apart by the file that they were built from."""
    seen: list[tuple[tuple[int, ...], Any]] = []

    def run(engine: Path, feed: Mapping[str, Any]) -> Ran:
        seen.append((feed["x"].shape, feed["x"].tobytes()))
        return Ran((static if engine.read_text(encoding="utf-8") == "batch1.onnx" else dynamic)(feed))

    used = replace(GOOD, profiles=(Profile({"x": ((1, 1), (2, 6), (2, 8))}),))
    found = sweep(replace(request(path), coarse=coarse), None, Builds(GOOD, used), run=run)
    assert [shape for shape, _ in seen] == [(1, 6), (1, 6)], "batch 1, and the profile's usual sizes"
    assert len({data for _, data in seen}) == 1, "not the same inputs"
    return found


def relu(feed: Mapping[str, Any]) -> dict[str, Any]:
    return {"y": np.maximum(feed["x"], 0)}


@pytest.mark.parametrize(("coarse", "status"), [("", "failed"), ("float16", "passed")])
def test_half_precision_within_is_held_to_its_own_tolerance(tmp_path: Path, coarse: str, status: str) -> None:
    """Seen on a GPU: two engines of a model whose middle is in half precision differ by its rounding."""
    path = write(tmp_path / "m.onnx", SIZED)
    told = executed(path, relu, lambda feed: {"y": relu(feed)["y"] * np.float32(1.001)}, coarse)
    assert told.status == status
    if not coarse:
        assert told.pairs[-1].differing.endswith(" by up to 1.0e-03 of its largest magnitude")


def test_outputs_of_the_two_engines_are_compared_at_batch_1(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", SIZED)
    same = ended("passed", executed(path, relu, relu))
    assert same.reason.endswith("a profile of batch 1 to 2 (N), with the same outputs")
    assert same.lines()[-1] == "outputs of the two engines agree at batch 1"
    for wrong in (
        lambda feed: {"y": relu(feed)["y"] + 1},
        lambda feed: {"y": relu(feed)["y"][0]},
        lambda feed: {"y": relu(feed)["y"].astype(np.float64)},
    ):
        found = ended("failed", executed(path, relu, wrong))
        assert "output y of the engine for the profile " in found.reason
        assert found.lines()[-1].startswith("outputs differ: output y ")
    assert executed(path, relu, lambda feed: {"y": relu(feed)["y"] * np.float32(1 + 1e-7)}).status == "passed"


class FakeSide:
    """Stands in for the sandbox that holds engines; ``odd`` is the file of the one that is off by 1."""

    def __init__(self, odd: str) -> None:
        self.odd, self.over, self.held = odd, False, dict[str, str]()

    def __enter__(self) -> FakeSide:
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True

    def load(self, name: str, path: str) -> str:
        assert Path(path).stat().st_size
        self.held[name] = Path(path).name
        return ""

    def run(self, name: str, feed: Mapping[str, Any]) -> Ran:
        return Ran({"y": np.maximum(feed["x"], 0) + (self.held[name] == self.odd)})


@REAL
@pytest.mark.parametrize("odd", ["", "static.engine"])
def test_the_rung_executes_the_engines_of_a_sweep_where_it_can(
    odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = FakeSide(odd)
    monkeypatch.setattr(probe, "probe", lambda found: probe.Probe())
    monkeypatch.setattr(probe, "engines", lambda *_: side)
    rung = swept(write(tmp_path / "m.onnx", RELU))
    assert sorted(side.held.values()) == ["dynamic.engine", "static.engine"]
    assert side.over
    assert rung.status == ("failed" if odd else "passed")
    assert ("output y of the engine for the profile" in rung.reason) == bool(odd)
    assert rung.reason.endswith("with the same outputs") == (not odd)


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", SIZED)
    failing = ended("passed", sweep(request(path), None, Builds(), run=lambda *_: Ran(error="no device")))
    assert failing.reason.endswith("outputs were not compared: the engine for batch 1 alone fails: no device")
    assert executed(path, relu, lambda feed: {}).reason.endswith("none could be read, or all are random")
    drawn = write(tmp_path / "r.onnx", "g (float[N,S] x) => (float[N,S] y) { y = RandomNormalLike(x) }")
    rng = np.random.default_rng(0)
    found = executed(drawn, relu, lambda feed: {"y": rng.normal(size=feed["x"].shape)})
    assert (found.status, found.reason.endswith("all are random")) == ("passed", True)
