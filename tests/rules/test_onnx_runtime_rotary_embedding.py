"""OPS095: ONNX Runtime's RotaryEmbedding against its own kernel, and what TensorRT-RTX says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import onnxfix
from onnxfix.rewrite.engine import check
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety, Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import fixed, overlay
from support.ort import run
from support.real_tensorrt import FACT, REAL, built
from support.runtime_operators import MINE, decomposed, feeds_of, model

ALL = registry().choose()
#: Shapes of data, positions and tables, and attributes.
FORMS = {
    "4-D": ("2,3,5,8", "2,5", "9,4", ""),
    "4-D, one position": ("2,3,5,8", "1", "9,4", ""),
    "4-D, pairs": ("2,3,5,8", "2,5", "9,4", "<interleaved = 1>"),
    "4-D, a part": ("2,3,5,8", "2,5", "9,2", "<rotary_embedding_dim = 4, num_heads = 3>"),
    "4-D, a part in pairs": (
        "2,3,5,8",
        "2,5",
        "9,2",
        "<rotary_embedding_dim = 4, num_heads = 3, interleaved = 1>",
    ),
    "3-D": ("2,5,24", "2,5", "9,4", ""),
    "3-D, one position": ("2,5,24", "1", "9,4", ""),
    "3-D, heads": ("2,5,24", "2,5", "9,4", "<num_heads = 3>"),
    "3-D, pairs": ("2,5,24", "2,5", "9,4", "<num_heads = 3, interleaved = 1>"),
    "3-D, a part": ("2,5,24", "2,5", "9,2", "<num_heads = 3, rotary_embedding_dim = 4>"),
}
REFUSED = ("4-D, one position", "3-D", "3-D, one position")


def rotary(name: str, kind: str = "float", opset: int = 17) -> ModelProto:
    data, places, tables, attributes = FORMS[name]
    return model(
        f"g ({kind}[{data}] x, int64[{places}] p, {kind}[{tables}] c, {kind}[{tables}] s) => ({kind}[{data}] y) "
        f"{{ y = com.microsoft.RotaryEmbedding{attributes}(x, p, c, s) }}",
        opset,
    )


def feeds(proto: ModelProto, seed: int = 0) -> dict[str, Any]:
    made = feeds_of(proto, seed)
    made["p"] = np.random.default_rng(seed).integers(0, 5, made["p"].shape)
    return made


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("name", sorted(FORMS))
def test_what_is_decomposed_is_what_the_kernel_computes(name: str, opset: int, kind: str) -> None:
    proto = rotary(name, kind, opset)
    after = decomposed(proto, target="trt8.6")
    margin = 2e-2 if kind == "float16" else 1e-5
    for seed in range(2):
        made = feeds(proto, seed)
        np.testing.assert_allclose(run(after, made)[0], run(proto, made)[0], rtol=margin, atol=margin)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_said_for_tensorrt_rtx_has_the_same_bits(name: str) -> None:
    proto = rotary(name)
    after, done = fixed(MINE, proto, safety=Safety.EXACT, target="rtx")
    assert done.applied
    made = feeds(proto, 3)
    assert run(after, made)[0].tobytes() == run(proto, made)[0].tobytes()


@FACT
@REAL
@pytest.mark.parametrize("name", sorted(FORMS))
def test_tensorrt_rtx_takes_what_is_left_and_reads_it_as_it_is(
    name: str, worker: Worker, tmp_path: Path
) -> None:
    proto = rotary(name)
    errors = [found for found in check(overlay(proto, "rtx"), ALL) if found.severity is Severity.ERROR]
    assert bool(errors) == (name in REFUSED)
    assert built(worker, proto, tmp_path).accepted == (name not in REFUSED)
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", **feeds(proto))
    report = onnxfix.apply(
        tmp_path / "m.onnx",
        tmp_path / "o.onnx",
        target="rtx",
        inputs=tmp_path / "in.npz",
        rungs=("ort-cpu", "trt-build", "trt-network"),
    )
    assert report.verdict is not None
    assert report.verdict.passed
    assert report.builds[-1].accepted
    assert report.networks[-1].status == "agrees"
