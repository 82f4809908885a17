"""OPS039, OPS051 to OPS057 and OPS061 to OPS067 on ONNX's own test models, and what TensorRT-RTX makes of them.

The models are refused before and build after; the outputs are those that ONNX expects; what the parser imports is read
back and computed in numpy. No engine is executed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from onnx_cases import onnx_cases

from onnxfix.rule import Safety
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.records import Profile, TrtBuild
from support.real_tensorrt import FACT, REAL, built
from support.trt_reading import reading
from test_integer_expansions import after, edges, model, run

EXACT = re.compile(
    r"bitshift_.*int(8|32|64)(_.*)?|bitwise_.*(i32_2d|ui8.*|not_[24]d|or_i16_4d)|cumprod_.*int32.*|tensorscatter_.+"
    r"|(greater|less)(_equal)?_uint8(_expanded)?|(add|sub|mul|div|mod|max|min|maxpool_2d)_uint8|mod_mixed_sign_int8"
    r"|clip_default_int8_(min|max|inbounds)|bitcast_(int8|bool)_to_uint8|optional_get_element_tensor"
    r"|optional_has_element_empty_no_input.*"
)
NUMERIC = re.compile(
    r"cumprod_(1d|1d_exclusive|1d_reverse|1d_reverse_exclusive|2d_.*axis.*)|mod_float.*fmod_0.*|det_.*|dft.*"
    r"|scatternd_.*|scatter_elements_with_(dupl|reduction).*|matmul_1d_3d|averagepool_.*dilations.*"
    r"|lppool_(.d_default|2d_(same_lower|pads|dilations))"
)


def _names() -> list[str]:
    names = []
    for name in onnx_cases():
        short = name.removeprefix("test_")
        if (EXACT.fullmatch(short) or NUMERIC.fullmatch(short)) and not re.search(
            r"uint(16|32|64)|_ui64", name
        ):
            names.append(name)
    return names


def build(worker: Worker, proto: ModelProto, tmp_path: Path, feed: dict[str, Any] | None = None) -> TrtBuild:
    profiles = [Profile.of_feeds([feed])] if feed else None
    return built(worker, proto, tmp_path, compute_capability="8.9", profiles=profiles)


def _feed(case: Any) -> dict[str, Any]:
    inputs = case.data_sets[0][0]
    return {info.name: np.asarray(x) for info, x in zip(case.model.graph.input, inputs, strict=True)}


@pytest.mark.xdist_group("nodes")
@pytest.mark.slow
def test_models_are_those_that_these_rules_rescue() -> None:
    assert len(_names()) == 106


@pytest.mark.corpus
@pytest.mark.xdist_group("nodes")
def test_outputs_are_those_that_onnx_expects(short_stride: int) -> None:
    for name in _names()[::short_stride]:
        case = onnx_cases()[name]
        exact = EXACT.fullmatch(name.removeprefix("test_")) is not None
        result = after(case.model, Safety.EXACT if exact else Safety.NUMERIC)
        for got, expected in zip(run(result, **_feed(case)), case.data_sets[0][1], strict=True):
            expected = np.asarray(expected)
            assert (np.asarray(got).dtype, np.shape(got)) == (expected.dtype, expected.shape), name
            # In two of them the right number is 0, which ONNX's expected output misses by 2e-7.
            atol = 2e-7 if name.startswith("test_dft_inverse") else 1e-7
            if exact:
                np.testing.assert_array_equal(got, expected, err_msg=name)
            else:
                wide = [np.asarray(one, np.float64) for one in (got, expected)]
                np.testing.assert_allclose(*wide, case.rtol, atol, err_msg=name)


@FACT
@REAL
@pytest.mark.xdist_group("nodes")
@pytest.mark.slow
def test_tensorrt_refuses_them_before_and_builds_them_after(
    worker: Worker, tmp_path: Path, short_stride: int
) -> None:
    for name in _names()[::short_stride]:
        case = onnx_cases()[name]
        assert not build(worker, case.model, tmp_path, _feed(case)).accepted, name
        found = build(worker, after(case.model), tmp_path, _feed(case))
        assert found.accepted, f"{name}: {found.reason}"
        assert found.layer_count <= 60, f"{name}: {found.layer_count}"


@REAL
@pytest.mark.parametrize("kind", ["uint8", "int8", "int32", "int64"])
@pytest.mark.parametrize(
    "node",
    [
        'BitShift<direction = "LEFT">(x, z)',
        'BitShift<direction = "RIGHT">(x, z)',
        "BitwiseAnd(x, z)",
        "BitwiseXor(x, z)",
    ],
)
def test_what_tensorrt_imports_computes_the_same(
    worker: Worker, tmp_path: Path, node: str, kind: str
) -> None:
    x = edges(kind)
    z = np.clip(x, 0, 70) if "Shift" in node else x[::-1].copy()
    result = after(model(f"g ({kind}[N] x, {kind}[N] z) => ({kind}[N] y) {{ y = {node} }}", 28), Safety.EXACT)
    network = reading(worker, result, tmp_path)
    np.testing.assert_array_equal(network.run(x=x, z=z)["y"], run(result, x=x, z=z)[0])
