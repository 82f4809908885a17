"""What check says of ONNX's node models against what TensorRT did with them (fixtures/node_truth.tsv)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx
import pytest
from corpus import node_cases

import onnxfix

TRUTH = Path(__file__).parent.parent / "fixtures" / "node_truth.tsv"
TARGETS = ("trt8.6", "trt10.6", "trt11")
#: Models that TensorRT does not take and no error is reported for. It may only shrink.
MISSED = {
    "trt8.6": """range_float16_type_positive_delta_expanded resize_upsample_scales_cubic resize_upsample_scales_linear
        upsample_nearest""",
    "trt10.6": """bernoulli_expanded range_bfloat16_type_positive_delta_expanded
        range_float16_type_positive_delta_expanded range_float_type_positive_delta_expanded roialign_aligned_false
        roialign_aligned_true roialign_mode_max""",
    "trt11": """bernoulli_expanded dequantizelinear_float4e2m1 range_bfloat16_type_positive_delta_expanded
        range_float16_type_positive_delta_expanded range_float_type_positive_delta_expanded""",
}
#: How many models that TensorRT imports, or computes right, get an error: not measured further (int4, float8) or read
#: as something else by the import (OPS010, OPS015).
WRONGLY_REFUSED = {"trt8.6": 6, "trt10.6": 0, "trt11": 71}
EACH = pytest.mark.parametrize(
    "target", TARGETS[::-1]
)  # the default first: of the others, the rest lane has samples
pytestmark = [
    pytest.mark.corpus(every=3),
    pytest.mark.xdist_group("nodes"),
    pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="the models are those of onnx 1.23"),
]


@cache
def models() -> dict[str, bytes]:
    return {case.name.removeprefix("test_"): case.data for case in node_cases()}


def truth(target: str) -> dict[str, str]:
    """Model -> what this TensorRT did with it."""
    lines = [line.split("\t") for line in TRUTH.read_text().splitlines() if not line.startswith("#")]
    return {name: states[TARGETS.index(target)] for name, states in lines}


def compare(target: str, stride: int) -> tuple[set[str], set[str], set[str]]:
    """Models that are refused without an error, taken with an error, and wrong without any finding."""
    missed, refused, silent = set(), set(), set()
    for name, state in list(truth(target).items())[::stride]:
        if state == "-":
            continue
        found = onnxfix.check(onnx.load_from_string(models()[name]), target=target).findings
        errors = [finding for finding in found if finding.severity == "error"]
        if state in "xbc" and not errors:
            missed.add(name)
        elif state in "ri" and errors:
            refused.add(name)
        elif state == "w" and not found:
            silent.add(name)
    return missed, refused, silent


@EACH
@pytest.mark.corpus(every=1)
def test_a_sample_is_judged_as_tensorrt_judged_it(target: str) -> None:
    missed, refused, silent = compare(target, 16)
    assert missed <= set(MISSED[target].split())
    assert len(refused) <= WRONGLY_REFUSED[target]
    assert not silent


@EACH
def test_every_model_is_judged_as_tensorrt_judged_it(target: str) -> None:
    missed, refused, silent = compare(target, 1)
    assert missed == set(MISSED[target].split())
    assert len(refused) == WRONGLY_REFUSED[target]
    assert not silent
