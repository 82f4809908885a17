"""Optimization profiles of the inputs and the input shapes that models are verified with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds.profiles import bound_profile, chosen_profiles, of_one_rank, symbols_of
from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof.verdict import RungResult
from onnxfix.proof.verify import verify
from onnxfix.runtime.sandbox import Outcome, Worker
from onnxfix.tensorrt.build import attempt
from onnxfix.tensorrt.records import Profile, TrtOptions
from support.cli import output, run
from support.ended import ended
from support.models import model, write
from support.paths import FIXTURES
from support.profiled import PAST, RELU, RESHAPE, TWO, known
from support.real_tensorrt import REAL

FROZEN = FIXTURES / "trt" / "hard_coded_batch.onnx"
NO_OPTIONS = TrtOptions()


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def climbed(path: Path, fixed: Path | None = None, *, asked: Any = None, **given: Any) -> RungResult:
    options = TrtOptions(package="tensorrt-rtx", **asked or {})
    return verify(path, fixed or path, exact=True, rungs=["trt-build"], trt=options, **given).rungs[0]


# ---------------------------------------------------------------------------------------------- which profile


def test_input_shapes_bind_their_symbols_and_leave_the_others() -> None:
    found, told = chosen_profiles(NO_OPTIONS, known(TWO), {"N": 1, "S": 3}, None)
    # w is left open: T is to be derived.
    symbols = {"N": (1, 1, 1), "S": (3, 3, 3)}
    assert found == (Profile({"x": ((1, 3, 4),) * 3}, symbols=symbols),)
    assert told == (
        "the optimization profile has the sizes of the given input shapes: N=1, S=3; other sizes are derived"
    )
    assert symbols_of(found[0], known(TWO)) == symbols
    _, told = chosen_profiles(NO_OPTIONS, known(RELU), {"N": 1}, None)
    assert told.endswith("given input shapes: N=1")


@pytest.mark.parametrize(
    ("text", "sizes", "shapes"),
    [
        (
            "g (float[N,4] x, float[4] b, float s) => (float[N,4] y) { y = Add(x, b) }",
            {"N": 1},
            {"x": (1, 4)},
        ),
        (PAST, {"N": 2, "S": 5}, {"x": (2, 5), "p": (2, 6)}),
        (
            "g (float[N,4] x, float[N,1] w) => (float[N,4] y) <float[1,1] w = {1}> { y = Add(x, w) }",
            {"N": 1},
            {"x": (1, 4)},
        ),
    ],
    ids=["open inputs only", "sizes that follow from others", "no input with a default"],
)
def test_what_a_profile_binds(text: str, sizes: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
    profile = bound_profile(known(text), sizes)
    assert profile is not None
    assert profile.shapes == {name: (shape,) * 3 for name, shape in shapes.items()}


def test_a_model_without_open_sizes_or_without_a_rank_binds_nothing() -> None:
    assert chosen_profiles(NO_OPTIONS, known(RELU.replace("N", "3")), {}, None) == (None, "")
    proto = model(RELU)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert bound_profile(signature(proto), {"x.rank": 2, "x.0": 1, "x.1": 4}) is None


def test_given_inputs_are_covered() -> None:
    feeds = [{"x": zeros(5, 4)}, {"x": zeros(1, 4)}, {"x": zeros(2, 4)}]
    found, told = chosen_profiles(NO_OPTIONS, known(RELU), {"N": 7}, feeds)
    assert found == (Profile({"x": ((1, 4), (2, 4), (5, 4))}),)
    assert told == "the optimization profile covers the 3 inputs that were given"
    assert chosen_profiles(NO_OPTIONS, known(RELU), {}, feeds[:1])[1].endswith(
        "covers the inputs that were given"
    )


def test_inputs_of_another_rank_than_the_last_are_left_out() -> None:
    feeds: list[dict[str, Any]] = [{"x": zeros(5)}, {"x": zeros(1, 4), "k": [zeros(1), zeros(2)]}]
    assert of_one_rank(feeds) == feeds[1:]
    found, told = chosen_profiles(NO_OPTIONS, known(RELU), {}, feeds)
    assert found == (Profile({"x": ((1, 4),) * 3}),)
    assert told == (
        "the optimization profile covers 1 of the 2 inputs, which have different ranks, that were given"
    )


def test_the_options_win() -> None:
    options = TrtOptions(opt_shapes=("x:2x4",))
    for shapes, feeds in (({"N": 1}, None), ({}, [{"x": zeros(1, 4)}])):
        found = chosen_profiles(options, known(RELU), shapes, feeds)
        assert found == ((Profile({"x": ((2, 4),) * 3}, strict=True),), "")
    with pytest.raises(UsageError, match="has rank 2"):
        chosen_profiles(TrtOptions(opt_shapes=("x:2",)), known(RELU), {"N": 1}, None)


# ------------------------------------------------------------------------------------------------ with TensorRT


@REAL
def test_a_frozen_batch_is_built_at_the_shape_that_was_given(tmp_path: Path) -> None:
    assert climbed(FROZEN).status == "failed"
    given = tmp_path / "one.npz"
    np.savez(given, x=zeros(1, 3, 4))
    for how, told in (
        ({"input_shapes": ["x:1x3x4"]}, "has the sizes of the given input shapes: N=1"),
        ({"inputs": given}, "covers the inputs that were given"),
    ):
        rung = ended("passed", climbed(FROZEN, **how))
        assert rung.notes == (f"the optimization profile {told}",)
        assert rung.builds[0].profiles[0].shapes == {"x": ((1, 3, 4),) * 3}
        assert not rung.builds[0].profiles[0].derived
    for argument in (["--input-shapes", "x:1x3x4"], ["--inputs", given]):
        assert run("verify", FROZEN, "--rungs", "trt-build", *argument)[0] == 0


@REAL
def test_what_tensorrt_refuses_of_the_given_shape_is_refused() -> None:
    rung = ended("failed", climbed(FROZEN, input_shapes=["x:2x3x4"]))
    assert "[2,3,4] to [1,12]" in rung.reason
    wins = ended("failed", climbed(FROZEN, input_shapes=["x:1x3x4"], asked={"opt_shapes": ("x:2x3x4",)}))
    assert not [note for note in wins.notes if "optimization profile" in note]


@REAL
def test_what_is_not_given_is_derived(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", TWO)
    fixed = write(tmp_path / "f.onnx", TWO.replace("g (", "h ("))
    rung = ended("passed", climbed(path, fixed, input_shapes=["x:2x5x4"]))
    for build in rung.builds:
        (profile,) = build.profiles
        assert profile.shapes == {"x": ((2, 5, 4),) * 3, "w": ((2, 1), (2, 3), (2, 8))}
        assert profile.derived


@REAL
def test_values_of_shape_tensors_are_those_of_the_inputs(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", RESHAPE)
    feeds = [{"s": np.array([2, 3]), "x": zeros(6)}]
    rung = ended("passed", climbed(path, inputs=feeds))
    assert rung.builds[0].profiles[0].values == {"s": ((2, 3),) * 3}
    assert rung.builds[0].profiles[0].shapes == {"x": ((6,),) * 3}


# -------------------------------------------------------------------------------------------- the sweep's range


@REAL
@pytest.mark.parametrize(
    ("least", "more", "greatest", "told"),
    [
        (2, [], 8, "its greatest batch, 8, is that of the optimization profile given"),
        (
            2,
            ["--max-batch", "3"],
            3,
            "it has its own range, batch 1 to 3; the optimization profile given has",
        ),
        (1, ["--max-batch", "8"], 8, ""),
    ],
)
def test_a_sweep_takes_the_users_range_or_says_that_it_does_not(
    least: int, more: list[str], greatest: int, told: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.onnx", RELU)
    shapes = ["--trt-min-shapes", f"x:{least}x4", "--trt-opt-shapes", "x:8x4", "--trt-max-shapes", "x:8x4"]
    out = output(0, "verify", path, "--rungs", "trt-build", *shapes, "--batch-sweep", *more, "--verbose")
    words = " ".join(out.split())
    assert f"a profile of batch 1 to {greatest} (N)" in words
    assert f"batch sweep: {told}" in words if told else "batch sweep: it" not in words


@REAL
def test_a_sweep_keeps_the_sizes_of_the_input_shapes(tmp_path: Path) -> None:
    """The model takes no other length than 5."""
    text = "g (float[N,S,4] x) => (float[N,20] y) <int64[2] s = {0, 20}> { y = Reshape(x, s) }"
    rung = climbed(write(tmp_path / "m.onnx", text), input_shapes=["x:1x5x4"], asked={"batch_sweep": 2})
    assert rung.status == "passed"
    assert any("its own range" in note and note.endswith(" has batch 1") for note in rung.notes)


# ---------------------------------------------------------------------------------------- where a child ended


@pytest.mark.parametrize(
    ("status", "note", "stage", "who"),
    [
        ("timeout", "", "", "TensorRT"),
        ("memory", "parse", "parse", "the parser"),
        ("crash", "planning", "profile", "TensorRT"),
        ("timeout", "saving", "build", "the builder"),
    ],
)
def test_every_end_of_the_child_is_a_result_with_its_stage(
    status: Any, note: str, stage: str, who: str
) -> None:
    outcome = Outcome(status, None, "took more than 1 s and was stopped", note)
    dying = SimpleNamespace(call=lambda *_, **__: outcome)
    found = attempt(cast(Worker, dying), "model.onnx", package="tensorrt-rtx")
    assert (found.status, found.stage, found.errors[0].stage) == (status, stage, stage)
    assert found.reason == f"{who} took more than 1 s and was stopped"
