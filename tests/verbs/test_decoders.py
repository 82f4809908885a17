"""Decoders with caches: sizes that only indices tell of are found, and the model is proven by default."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxfix
from support.cli import output
from support.models import write
from support.paths import FIXTURES
from support.real_tensorrt import REAL

DECODER = FIXTURES / "decoders" / "qwen3.legacy.op17.onnx"


def named(own: bool) -> onnx.ModelProto:
    """The decoder; with ``own`` names, each input has symbols of its own."""
    model = onnx.load(DECODER)
    for info in model.graph.input if own else ():
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = f"{info.name}.{dim.dim_param}"
    for info in model.graph.output if own else ():
        for dim in info.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    return model


@REAL
@pytest.mark.parametrize(
    "own",
    [
        pytest.param(False, id="shared symbols"),
        pytest.param(True, id="symbols of each input", marks=pytest.mark.slow),
    ],
)
def test_a_decoder_with_a_cache_is_proven_by_default(own: bool, tmp_path: Path) -> None:
    report = onnxfix.apply(named(own), tmp_path / "fixed.onnx")
    assert report.verdict.passed
    ran = {one.name: one for one in report.verdict.rungs}
    for name in ("ort-cpu", "trt-build", "trt-network"):
        assert ran[name].status == "passed", ran[name].reason
    sizes = [
        one.feed.assignment
        for one in ran["ort-cpu"].feeds
        if one.feed is not None and one.status == "identical"
    ]
    assert len({tuple(one.items()) for one in sizes}) > 2
    # Where the mask has a batch of its own, a larger one makes up for a shorter mask.
    assert own or all(one["total"] >= one["past"] + one["seq"] for one in sizes)


@REAL
@pytest.mark.slow
def test_the_profile_is_one_that_the_decoder_takes() -> None:
    build = onnxfix.check(DECODER, trt=True).build
    shapes = build.profiles[0].shapes
    for column in range(3):
        new, total, past = (shapes[name][column] for name in ("input_ids", "attention_mask", "past.0.k"))
        assert total[1] >= past[2] + new[1]


@REAL
@pytest.mark.parametrize(("total", "compared"), [(9, True), (2, False)])
def test_check_compares_the_imported_network_at_given_sizes(total: int, compared: bool) -> None:
    sizes = f"input_ids:2x3,attention_mask:2x{total},past.0.k:2x2x5x16"
    shown = output(0, "check", DECODER, "--trt", "--input-shapes", sizes)
    assert ("its imported network computes the same" in " ".join(shown.split())) == compared, shown


def test_the_help_for_inputs_says_how_long_the_mask_must_be() -> None:
    shown = output(0, "check", DECODER, "--inputs-help")
    assert "  total must be at least past + seq\n" in shown


def test_indices_that_are_summed_in_another_order_exclude_no_size(tmp_path: Path) -> None:
    """0, 1, 2, 3 and 3, 2, 1, 0 are 3 everywhere, not up to 6."""
    text = """g (float[M,2] t, float[N] q) => (float[4,2] y) <int64 z = {0}, int64 o = {1}, int64[4] c = {3,2,1,0},
        int64[1] ax = {0}> { s = Shape(q)  n = Squeeze(s, ax)  r = Range(z, n, o)  i = Add(r, c)  y = Gather(t, i) }"""
    path = write(tmp_path / "m.onnx", text)
    report = onnxfix.verify(path, input_shapes={"t": (4, 2)}, rungs=["ort-cpu"])
    assert report.exit_code == 0


@REAL
def test_check_builds_for_given_sizes() -> None:
    shapes = {"input_ids": (2, 3), "attention_mask": (2, 9), "past.0.k": (2, 2, 5, 16)}
    build = onnxfix.check(DECODER, trt=True, input_shapes=shapes).build
    assert build.accepted
    assert {name: build.profiles[0].shapes[name] for name in shapes} == {
        n: (s,) * 3 for n, s in shapes.items()
    }
