"""Exports of each kind that a rule repairs (benchmarks/exports/kinds.py), and the models of fixtures/misread: what a
user of ``onnxfix apply`` sees."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfix
from support.cli import run
from support.paths import FIXTURES
from support.real_tensorrt import FACT, REAL
from support.scripts import script

KINDS = FIXTURES / "kinds"
REPAIRED = {
    "OPS105": "mean_half.dynamo.op18 mean_bfloat16.dynamo.op20 mean_half_broadcast.dynamo.op18",
    "OPS106": "clipped_above.dynamo.op18 clipped_above_by_input.dynamo.op20 clipped_below_by_input.dynamo.op18",
    "OPS050": "attention_causal.dynamo.op23 attention_groups.dynamo.op24 attention_mask.dynamo.op23 "
    "attention_cache.dynamo.op24",
    "OPS043": "standardized.legacy.op13 standardized_half.legacy.op17 normalized_by_batch.legacy.op17",
    "OPS107": "uint8_channels_last.legacy.op13 uint8_channels_last.dynamo.op18 uint8_alpha.dynamo.op18",
    "OPS032": "uint8_enlarged.legacy.op17 uint8_enlarged.dynamo.op18 uint8_padded.legacy.op17 uint8_padded.dynamo.op18",
    "OPS110": "mask_assign.dynamo.op18 mask_assign_rows.dynamo.op18 mask_add.legacy.op13 mask_add.dynamo.op18 "
    "mask_copy.legacy.op13 mask_copy.dynamo.op18 mask_scatter.legacy.op17 mask_scatter.dynamo.op18",
    "OPS111": "mask_count.legacy.op13 mask_count.dynamo.op18 mask_share.legacy.op13 mask_share.dynamo.op18",
    "CTL021": "bags_of_any_number.legacy.op17",
    "OPS112": "mask_mean.legacy.op13 mask_mean.dynamo.op18 "
    "mask_sum.legacy.op13 mask_sum.dynamo.op18 mask_sum_of_rows.legacy.op13 mask_sum_of_rows.dynamo.op18",
    "CTL011": "if_with_cache.legacy.op17",
    "CTL014": "loop_while.legacy.op17 bag_sum.legacy.op17 bag_mean.legacy.op17 bag_max.legacy.op17 "
    "bag_dynamic.legacy.op17",
    "CTL017": "if_by_size.legacy.op13 if_by_size.legacy.op17 if_by_flag.legacy.op17 if_of_experts.dynamo.op18 "
    "if_of_activations.dynamo.op18 "
    "bag_sum.dynamo.op18 bag_mean.dynamo.op18 bag_max.dynamo.op18 bag_mean_dynamic.dynamo.op18",
    "CTL020": "loop_of_pools.legacy.op13 loop_of_pools.legacy.op17 loop_of_cells.legacy.op17 "
    "split_in_thirds.legacy.op17 split_at_class_token.legacy.op17",
    "PRC005": "softmax_of_keys.legacy.op17 softmax_of_keys.dynamo.op18 softmax_of_pixels.legacy.op17",
    "RSH010": "batch_expanded.legacy.op13 batch_expanded.legacy.op17 batch_tiled.legacy.op17 "
    "batch_of_states.legacy.op17",
    "RSH008": "batch_viewed.legacy.op17 batch_of_pairs.legacy.op17 batch_flattened.legacy.op13",
    "OPS038": "transposed_and_dilated.legacy.op17 transposed_and_dilated.dynamo.op18 "
    "transposed_in_groups.legacy.op17",
    "OPS039": "scatter_add.legacy.op17 scatter_add.dynamo.op18",
    "OPS118": "folded.legacy.op18 folded.dynamo.op18 folded_with_overlap.legacy.op18 "
    "folded_with_overlap.dynamo.op18",
    "OPS119": "max_pool_indices.legacy.op17 max_pool_indices.dynamo.op18",
    "OPS031": "antialiased.dynamo.op18 antialiased_cubic.dynamo.op18 antialiased_up.dynamo.op18",
    "INT006": "matmul_of_integers.legacy.op17 matmul_of_integers.dynamo.op18 relu_of_integers.legacy.op17 "
    "relu_of_integers.dynamo.op18",
    "OPS056": "determinant.legacy.op17 determinant.dynamo.op18 determinant_of_gram.dynamo.op18",
    "OPS115": "lstm_lower_case.legacy.op17 lstm_lower_case.dynamo.op18 gru_lower_case.legacy.op13",
    "OPS116": "sliced_by_scalars.legacy.op17 sliced_by_scalars.dynamo.op18 sliced_from_the_end.dynamo.op20",
    "OPS117": "squeezed_twice.dynamo.op18 squeezed_by_both_names.dynamo.op18 squeezed_pair.dynamo.op20",
    "OPS102": "overloaded.dynamo.op18 overloaded_twice.legacy.op17 overloaded_in_if.legacy.op17",
    "GRA003": "declared_batch.dynamo.op18 declared_images.dynamo.op20 declared_sums.dynamo.op20",
    "GRA004": "nvfp4.dynamo.op23 nvfp4_perceptron.dynamo.op23 nvfp4_residual.dynamo.op23",
    "GRA020": "opset6_perceptron.legacy.op7 opset6_convolutions.legacy.op8 opset6_softmax.legacy.op7",
    "IFC008": "untyped.dynamo.op18 untyped_indices.legacy.op17 untyped_mask.legacy.op13",
    "QDQ005": "static_asymmetric.ort.op17 static_symmetric.ort.op17 static_symmetric.ort.op13",
    "QDQ002": "few_bits_as_qdq.ort.op21 static_16_bits.ort.op21 static_uint8_per_channel.ort.op17",
    "QDQ003": "static_operators.ort.op17 static_uint8_weights.ort.op17 static_int8_asymmetric.ort.op17 "
    "static_asymmetric_perceptron.ort.op17",
    "QDQ007": "dynamic.ort.op17 dynamic_convolutions.ort.op17 dynamic_per_channel.ort.op17",
    "QDQ022": "mxfp8.dynamo.op24 mxfp8_perceptron.dynamo.op24 mxfp8_residual.dynamo.op24",
    "QDQ023": "few_bits_symmetric.ort.op17 few_bits_asymmetric.ort.op17 few_bits_of_8.ort.op17",
}
"""The rule that makes a kind build, with the exports of the kind."""
CASES = [(code, name) for code, names in REPAIRED.items() for name in names.split()]


@REAL
@FACT
@pytest.mark.corpus(every=3)
@pytest.mark.parametrize(("code", "name"), CASES, ids=[name for _, name in CASES])
def test_an_export_is_repaired_and_proven(code: str, name: str, tmp_path: Path) -> None:
    out = tmp_path / "fixed.onnx"
    unsafe = ["--unsafe-fixes"] if name.startswith("batch_") else []
    unproven = ["--no-verify"] if name.startswith("sliced_") else []  # no runtime takes the original
    more = ["--ignore", "GRA013"] if name.startswith("untyped") else []  # the original is not valid
    proven = unproven or ["--rungs", "contract,symbolic,reference,ort-cpu,trt-build"]
    options = ("--numeric-fixes", "--target", "rtx", *(*unsafe, *proven, *more))
    status, text, errors = run("apply", KINDS / f"{name}.onnx", "-o", out, *options)
    assert status == 0, text + errors
    assert re.search(rf"^  (fixed|   ) .*\b{code}\b", text, re.MULTILINE), text
    assert re.search(r"^  (error|warning|withdrawn|failed) ", text, re.MULTILINE) is None, text
    if unsafe:  # batches at which the original fails or is wrong
        x = np.zeros((3, 5, 8), np.float32)
        assert len(onnxruntime.InferenceSession(out).run(None, {"x": x})[0]) == 3
    elif not unproven:
        assert re.search(r"^  VERIFIED: ", text, re.MULTILINE), text
    assert unproven or "builds it" in text
    status, text, _ = run("check", out, "--select", code, "--target", "rtx")
    assert status == 0, text
    assert code not in text


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("static_asymmetric.ort.op17", 3),
        ("static_int8_asymmetric.ort.op17", 3),
        ("static_asymmetric_perceptron.ort.op17", 2),
        ("static_uint8_weights.ort.op17", 2),
    ],
)
def test_products_of_asymmetric_data_stay_in_int8(name: str, count: int, tmp_path: Path) -> None:
    out = tmp_path / "fixed.onnx"
    status, text, errors = run("apply", KINDS / f"{name}.onnx", "-o", out, "--numeric-fixes", "--no-verify")
    assert status == 0, text + errors
    model = onnx.load(out)
    producers = {node.output[0]: node.op_type for node in model.graph.node}
    products = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    for node in products:
        assert [producers.get(value) for value in node.input[:2]] == ["DequantizeLinear"] * 2, node.name
    assert len(products) == count


def test_every_export_is_tried() -> None:
    assert sorted(path.stem for path in KINDS.glob("*.onnx")) == sorted(name for _, name in CASES)


FOLDER = FIXTURES / "misread"


def test_the_files_are_what_make_writes() -> None:
    models = script(FOLDER / "make.py").MODELS
    assert {path.stem for path in FOLDER.glob("*.onnx")} == set(models)
    for name, model in models.items():
        assert (FOLDER / f"{name}.onnx").read_bytes() == model().SerializeToString(deterministic=True)


@REAL
def test_the_decoder_is_found_repaired_and_proven(tmp_path: Path) -> None:
    report = onnxfix.apply(FOLDER / "decoder.onnx", tmp_path / "fixed.onnx")
    assert [one.code for one in report.applied] == ["OPS013"]
    assert report.applied[0].confirmed.startswith("ConvTranspose: tensor upsampled at [0, 0, 10, 8] is -1.48")
    assert not report.findings
    assert report.verdict is not None
    rung = report.verdict.rung("trt-network")
    assert rung is not None
    assert rung.status == "passed"
    assert "TensorRT reads the original differently: upsampled (decode): ConvTranspose" in rung.reason
    assert report.exit_code == 0


@REAL
def test_without_its_rule_the_decoder_is_left_and_reported(tmp_path: Path) -> None:
    report = onnxfix.apply(FOLDER / "decoder.onnx", tmp_path / "fixed.onnx", ignore=["OPS013"])
    assert [(one.code, one.severity) for one in report.findings] == [("TRT004", "error")]
    assert report.exit_code == 1


@REAL
def test_check_names_the_rule_that_mends_it() -> None:
    """One finding for one cause at one node: the rule's, with TensorRT's words."""
    [found] = onnxfix.check(FOLDER / "decoder.onnx", trt=True).findings
    assert (found.code, found.place.node) == ("OPS013", "decode")
    assert found.confirmed.startswith("ConvTranspose: tensor upsampled at [0, 0, 10, 8] is -1.48")
    [alone] = onnxfix.check(FOLDER / "decoder.onnx", select=["TRT"], trt=True).findings
    assert (alone.code, alone.message, alone.pointer) == ("TRT004", found.confirmed, "")
