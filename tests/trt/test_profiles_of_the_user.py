"""Optimization profiles in the user's own numbers: shapes, and values of shape tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds.profiles import given_profiles
from onnxfix.proof.verdict import RungResult
from onnxfix.proof.verify import verify
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.records import Profile, TrtOptions
from support.cli import errors, run
from support.ended import ended
from support.models import write
from support.profiled import PAST, RELU, RESHAPE, TWO, known
from support.real_tensorrt import REAL

RANGE = "g (int64 n) => (int64[M] y) <int64 zero = {0}, int64 one = {1}> { y = Range(zero, n, one) }"
DEFAULT = "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
#: Plain data: TensorRT asks for no values of these.
DATA = "g (int64[3] k, int64[N] m, int64 e) => (int64[3] y, int64[N] z, int64 f) { y = Abs(k) z = Abs(m) f = Abs(e) }"


def given(text: str, least: str = "", usual: str = "", most: str = "") -> Profile:
    specs = {"min_shapes": least, "opt_shapes": usual, "max_shapes": most}
    options = TrtOptions(**{name: (spec,) for name, spec in specs.items() if spec})  # type: ignore[arg-type]
    (found,) = given_profiles(options, known(text)) or ()
    return found


def climbed(path: Path, **asked: Any) -> RungResult:
    options = TrtOptions(package="tensorrt-rtx", **asked)
    return verify(path, path, exact=True, rungs=["trt-build"], trt=options).rungs[0]


# ------------------------------------------------------------------------------------------------ the user's profile


def test_without_shapes_there_is_no_profile() -> None:
    assert given_profiles(TrtOptions(), known(RELU)) is None


@pytest.mark.parametrize("spec", ["x:2x4", "x:2,4", "x:[2,4]", "x:[2, 4]"])
@pytest.mark.parametrize("which", range(3))
def test_one_of_three_is_all_three(spec: str, which: int) -> None:
    found = given(RELU, *("" if number != which else spec for number in range(3)))
    assert found == Profile({"x": ((2, 4),) * 3}, strict=True)


def test_three_are_taken_as_they_are() -> None:
    found = given(TWO, "x:1x2x4,w:1x3", "x:2x3x4,w:2x3", "x:8x9x4,w:8x3")
    assert found.shapes == {"x": ((1, 2, 4), (2, 3, 4), (8, 9, 4)), "w": ((1, 3), (2, 3), (8, 3))}
    assert not found.values
    assert not found.derived


@pytest.mark.parametrize(
    ("least", "usual", "most", "lacking"),
    [("x:1x4", "", "x:2x4", "opt"), ("x:1x4", "x:2x4", "", "max"), ("", "x:1x4", "x:2x4", "min")],
)
def test_of_two_the_third_is_not_guessed(least: str, usual: str, most: str, lacking: str) -> None:
    with pytest.raises(
        UsageError, match=f"input x has no --trt-{lacking}-shapes: give one of .*, or all three"
    ):
        given(RELU, least, usual, most)


@pytest.mark.parametrize(
    ("text", "least", "usual", "most", "words"),
    [
        (
            RELU,
            "x:3x4",
            "x:2x4",
            "x:4x4",
            "input x: min, opt and max shapes are not in order: 3x4 ≤ 2x4 ≤ 4x4",
        ),
        (RELU, "x:1x4", "x:5x4", "x:4x4", "not in order"),
        (RELU, "x:1x4", "x:4", "x:4x4", "input x is given different ranks"),
        (RELU, "", "x:4", "", "input x has rank 2"),
        (RELU, "", "x:2x5", "", "input x has size 4 in dimension 1"),
        (RELU, "", "", "x:-1x4", "sizes of input x must be from 0 to 2147483647"),
        (RELU, "", "", "x:2147483648x4", "sizes of input x must be from 0 to 2147483647"),
        (RELU, "", "", "z:2x4", "--trt-max-shapes: cannot read the input shape 'z:2x4'"),
        (RELU, "x:a", "", "", "--trt-min-shapes: cannot read"),
        (TWO, "", "x:2x3x4,w:3x5", "", "dimension N of input w is 3, but 2 elsewhere"),
        (
            TWO,
            "x:1x3x4,w:1x5",
            "x:2x3x4,w:2x5",
            "x:4x3x4,w:3x5",
            "dimension N of input w is 3, but 4 elsewhere",
        ),
        (PAST, "", "x:2x3,p:2x5", "", "dimension S . 1 of input p is 5, but must be 4"),
        (RESHAPE, "", "s:2x3x4", "", "input s has rank 1"),
        (
            "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }",
            "",
            "w:2",
            "",
            "default",
        ),
    ],
)
def test_a_profile_that_cannot_be_is_one_line(
    text: str, least: str, usual: str, most: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        given(text, least, usual, most)
    assert "\n" not in str(caught.value)


def test_a_wrong_profile_is_found_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "call", lambda *_, **__: pytest.fail("work was done all the same"))
    path = write(tmp_path / "m.onnx", RELU)
    with pytest.raises(UsageError, match="optimization profile: input x has rank 2"):
        verify(path, path, exact=True, rungs=["ort-cpu", "trt-build"], trt=TrtOptions(opt_shapes=("x:4",)))
    code, _, told = run("verify", path, "--optShapes", "x:4")
    assert (code, len(told.splitlines())) == (2, 1)


def test_only_profiles_take_negative_numbers(tmp_path: Path) -> None:
    told = errors(2, "verify", write(tmp_path / "m.onnx", RELU), "--input-shapes", "x:-1x4")
    assert "cannot read the input shape 'x:-1x4'" in told


# ---------------------------------------------------------------------------------------- shapes and values


@pytest.mark.parametrize(
    ("spec", "shape", "values"),
    [
        ("s:3x4", False, True),  # two numbers: no shape of a list
        ("s:-1x4", False, True),
        ("s:2", True, False),  # one number: not two values
        ("x:5", True, False),  # floats are no shape tensor
    ],
)
def test_numbers_are_read_as_what_they_can_be(spec: str, shape: bool, values: bool) -> None:
    found = given(RESHAPE, usual=spec)
    assert (spec[0] in found.shapes, spec[0] in found.values) == (shape, values)


def test_both_readings_are_kept_where_both_can_be() -> None:
    text = "g (int64[1] s, int64[N] m, int32 n, float[N,2] x) => (int64[1] y) { y = Identity(s) }"
    assert given(text, usual="s:1") == Profile({"s": ((1,),) * 3}, {"s": ((1,),) * 3}, strict=True)
    assert given(text, usual="m:7") == Profile({"m": ((7,),) * 3}, {"m": ((7,),) * 3}, strict=True)
    assert given(text, usual="n:7") == Profile({}, {"n": ((7,),) * 3}, strict=True)
    assert given(text, usual="n:") == Profile({"n": ((),) * 3}, {}, strict=True)
    # As a shape the list would contradict x: so these are values.
    assert given(text, usual="m:7,x:3x2") == Profile({"x": ((3, 2),) * 3}, {"m": ((7,),) * 3}, strict=True)
    assert given(text, usual="m:3,x:3x2").shapes["m"] == ((3,),) * 3


@REAL
def test_values_of_a_shape_tensor_are_given_as_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", RESHAPE)
    rung = ended("passed", climbed(path, opt_shapes=("s:2x3,x:6",)))
    assert rung.builds[0].profiles[0].values == {"s": ((2, 3),) * 3}
    assert rung.builds[0].profiles[0].shapes == {"x": ((6,),) * 3}
    assert climbed(path, opt_shapes=("s:-1x3,x:6",)).status == "passed"
    assert climbed(path, opt_shapes=("s:4x3,x:6",)).status == "failed"
    alone = climbed(path, opt_shapes=("s:2,x:6",)).builds[0].profiles[0]
    assert alone.values == {"s": ((-1, 1),) * 3}, "a shape leaves the values to onnxfix"


@REAL
def test_a_shape_tensor_may_be_a_table(tmp_path: Path) -> None:
    text = "g (int64[2,2] s, float[N] x) => (float[A,B] y) <int64 i = {1}> { t = Gather(s, i)  y = Reshape(x, t) }"
    path = write(tmp_path / "m.onnx", text)
    rung = ended("passed", climbed(path, opt_shapes=("s:4x4x2x3,x:6",)))
    assert rung.builds[0].profiles[0].values == {"s": ((4, 4, 2, 3),) * 3}
    with pytest.raises(UsageError, match="input s has rank 2"):
        climbed(path, opt_shapes=("s:2x2x2,x:6",))


@REAL
def test_of_plain_data_the_numbers_are_the_shape(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", DATA)
    rung = ended("passed", climbed(path, opt_shapes=("k:3,m:7,e:",)))
    assert rung.builds[0].profiles[0].shapes == {"m": ((7,),) * 3}
    assert not rung.builds[0].profiles[0].values
    for spec, told in (
        ("k:2x3x4", "k is not a shape tensor .* shape 3, not values 2x3x4"),
        ("e:5", "e is not a shape"),
    ):
        with pytest.raises(UsageError, match=told):
            climbed(path, opt_shapes=(spec,))
    code, _, told = run("verify", path, "--rungs", "trt-build", "--optShapes", "k:2x3x4")
    assert (code, len(told.splitlines())) == (2, 1)


@REAL
def test_what_the_user_leaves_out_is_derived_to_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", TWO)
    rung = climbed(path, min_shapes=("x:2x3x4",), opt_shapes=("x:4x3x4",), max_shapes=("x:6x3x4",))
    assert rung.status == "passed"
    assert rung.builds[0].profiles[0].shapes["w"] == ((2, 1), (4, 3), (6, 8))


@REAL
def test_the_fixed_model_is_built_with_the_originals_profile(tmp_path: Path) -> None:
    """The original takes even sizes only, the fixed model would take others."""
    reshaped = "g (float[N,S] x) => (float[N,A,2] y) <int64[3] s = {0, -1, 2}> { y = Reshape(x, s) }"
    original = write(tmp_path / "a.onnx", reshaped)
    fixed = write(tmp_path / "b.onnx", "g (float[N,S] x) => (float[N,S] y) { y = Relu(x) }")
    before, after = verify(original, fixed, exact=True, rungs=["trt-build"]).rungs[0].builds
    assert before.attempts == after.attempts == 1
    assert after.profiles[0].shapes == before.profiles[0].shapes
    alone = verify(fixed, fixed, exact=True, rungs=["trt-build"]).rungs[0].builds[0]
    assert alone.profiles[0].shapes != before.profiles[0].shapes, "the test shows nothing"


@REAL
def test_a_shape_tensor_that_is_none_any_more_is_no_mistake_of_the_users(tmp_path: Path) -> None:
    original = write(
        tmp_path / "a.onnx", "g (int64[2] s, float[N] x) => (float[A,B] y) { y = Reshape(x, s) }"
    )
    fixed = write(tmp_path / "b.onnx", "g (int64[2] s, float[N] x) => (float[N] y) { y = Relu(x) }")
    options = TrtOptions(package="tensorrt-rtx", opt_shapes=("s:2x3,x:6",))
    rung = verify(original, fixed, exact=True, rungs=["trt-build"], trt=options).rungs[0]
    assert rung.status == "passed", rung.reason
    assert rung.builds[1].profiles[0].shapes == {"x": ((6,),) * 3}
