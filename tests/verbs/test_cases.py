"""Models after public reports that once ended badly: each command ends as a person who deploys expects. Decoders with
caches: sizes that only indices tell of are found, and the model is proven by default."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfix
from support.cli import output, run
from support.models import write
from support.paths import FIXTURES
from support.real_tensorrt import FACT, REAL

CASES = FIXTURES / "cases"


def shown(*arguments: object) -> tuple[int, str]:
    """Exit code and output, whose lines are joined."""
    code, out, err = run(*arguments)
    return code, " ".join((out + err).split())


def case(name: str) -> Path:
    return CASES / f"{name}.onnx"


@REAL
@FACT
@pytest.mark.slow
def test_a_decoder_with_three_caches_is_proven_without_any_sizes(tmp_path: Path) -> None:
    model = onnx.load(case("decoder_kv"))
    random = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if not tensor.raw_data:
            tensor.raw_data = random.normal(0, 0.08, tensor.dims).astype(np.float32).tobytes()
    code, text = shown("apply", write(tmp_path / "decoder.onnx", model), "-o", tmp_path / "fixed.onnx")
    assert code == 0, text
    assert (
        "VERIFIED: for all values at 3 shapes (symbolic), ort-cpu bit-identical (4 feeds, 4 shapes)" in text
    )
    assert "builds it; its imported network computes the same" in text
    assert (tmp_path / "fixed.onnx").exists()


@REAL
@FACT
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["attention_float32", "attention_shared_operands", "attention_in_loop_float32", "attention_in_if"]
)
def test_a_refused_attention_is_repaired_for_the_tensorrt_that_judges_it(name: str, tmp_path: Path) -> None:
    """TensorRT 11 is said to build it; TensorRT-RTX does not."""
    path, out = case(name), tmp_path / "fixed.onnx"
    code, text = shown("apply", path, "-o", out)
    assert code == 1
    assert f"there is a fix (OPS050): onnxfix apply {path} --target rtx --numeric-fixes" in text
    for target in ("trt11", "rtx"):
        code, text = shown("apply", path, "-o", out, "--numeric-fixes", "--target", target)
        assert code == 0, text
        assert "and accepts the result" in text
        assert re.search(r"VERIFIED: .*\b(bit-identical|within tolerance)", text), text
        note = "fixed for TensorRT-RTX 1.x, which refuses the result of the other fixes: OPS050"
        assert (note in text) == (target == "trt11")


@REAL
@pytest.mark.parametrize("target", ["trt11", "rtx"])
def test_an_attention_is_proven_with_masks_as_long_as_cache_and_keys(target: str, tmp_path: Path) -> None:
    code, text = shown(
        "apply",
        case("attention_gqa_mask"),
        "-o",
        tmp_path / "fixed.onnx",
        "--numeric-fixes",
        "--target",
        target,
    )
    assert code == 0, text
    assert "OPS050 operator-with-function-body (numeric)" in text
    assert "VERIFIED: for all values at 3 shapes (symbolic)" in text
    assert "withdrawn" not in text


@REAL
@pytest.mark.parametrize("name", ["topk_unsorted", "half_softplus_overflow"])
def test_what_onnx_leaves_open_and_what_the_runtime_overflows_raise_no_alarm(name: str) -> None:
    code, text = shown("check", "--trt", case(name))
    assert code == 0
    assert "accepts it" in text
    assert "its imported network computes the same" in text
    assert not {"error", "warning", "TRT004"} & set(text.split())


@REAL
def test_unsorted_nodes_are_judged_in_order(tmp_path: Path) -> None:
    code, text = shown("apply", case("nvfp4_unsorted"), "-o", tmp_path / "fixed.onnx")
    assert code == 0, text
    assert "VERIFIED: for all values at 3 shapes (symbolic), reference bit-identical" in text
    assert "GRA004 unsorted-nodes: sort the nodes" in text
    onnx.checker.check_model(onnx.load(tmp_path / "fixed.onnx"))


@REAL
def test_a_call_of_an_overload_is_found_and_repaired(tmp_path: Path) -> None:
    code, text = shown("check", case("overloaded_function"))
    assert code == 1
    assert "n2: TensorRT calls loc.Act in the place of loc.Act:v2" in text
    code, text = shown("apply", case("overloaded_function"), "-o", tmp_path / "fixed.onnx")
    assert code == 0, text
    assert "OPS102 function-named-like-another: inline the function, at n2" in text


@pytest.mark.parametrize("target", ["10.6", "11.2"])
def test_a_plugin_that_is_gone_and_an_operator_that_nobody_has_are_errors(
    target: str, tmp_path: Path
) -> None:
    code, text = shown("check", case("batched_nms_plugin"), "--target", target)
    if target == "10.6":
        assert (code, "no findings" in text) == (0, True)
    else:
        assert code == 1
        assert "gone since TensorRT 11.0; use EfficientNMS_TRT or ONNX's NonMaxSuppression" in text
    unknown = write(tmp_path / "unknown.onnx", "g (float[N] x) => (float[N] y) { y = FooBar(x) }")
    assert shown("check", unknown, "--target", target)[0] == 1


def test_a_form_that_came_later_is_an_error_for_an_older_target() -> None:
    code, text = shown("check", case("gridsample_5d"), "--target", "10.6")
    assert code == 1
    assert "y: TensorRT 10.6 has GridSample of two dimensions only" in text


def test_the_nodes_of_a_determinant_are_credited_to_its_rule() -> None:
    _, text = shown("apply", case("det"), "--diff", "--numeric-fixes", "--no-verify", "-v")
    assert "+ Gather /Det_output_0_gather OPS056" in text
    assert "~ Det /Det Det → ReduceSum" in text
    added = [line for line in text.split(" + ")[1:] if line.startswith(("Gather", "Mul", "Sub"))]
    assert len(added) == 12
    assert all("OPS056" in one for one in added)


def test_an_outer_value_that_a_branch_names_as_its_input_is_no_dead_node(tmp_path: Path) -> None:
    """ONNX has no such inputs, but TensorRT and onnx.reference take them for the outer values."""
    path, out = case("if_branch_declares_input"), tmp_path / "fixed.onnx"
    code, text = shown("apply", path, "-o", out, "--no-verify")
    assert (code, "dead-node" in text) == (2, False)
    assert "'v' in y.then_branch hides the value of that name around it; nothing is fixed" in text
    assert out.read_bytes() == path.read_bytes()


def test_a_node_with_an_axis_that_the_opset_lacks_is_left_alone(tmp_path: Path) -> None:
    """TensorRT reads the axis of a DequantizeLinear of opset 12, and ONNX has none there."""
    path, out = case("dequantize_axis_opset12"), tmp_path / "fixed.onnx"
    shown("apply", path, "-o", out, "--no-verify")
    assert out.read_bytes() == path.read_bytes()


def test_an_operator_that_the_opset_lacks_is_left_alone(tmp_path: Path) -> None:
    path, out = case("dequantize_opset4"), tmp_path / "fixed.onnx"
    assert shown("apply", path, "-o", out, "--no-verify")[0] == 0
    assert out.read_bytes() == path.read_bytes()


@REAL
@FACT
@pytest.mark.slow
def test_a_choice_that_hangs_on_rounding_is_no_misread(tmp_path: Path) -> None:
    """As in RT-DETR with random weights: of masked places, whose scores are the same, TopK chooses some."""
    code, text = shown("apply", case("topk_of_ties"), "-o", tmp_path / "fixed.onnx", "-v")
    assert "in part, 8 of 9 nodes; TopK ×1 not judged: " in text
    assert "error TRT004" not in text
    assert code in (0, 1), text


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
