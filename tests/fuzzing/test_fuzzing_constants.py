"""Rules that would make huge constants, or none that is valid, of what damaged models declare."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from fuzzing.judging import BUG
from onnx import TensorProto
from onnx.parser import parse_model

from support.cli import run

MICROSOFT = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> '
DIMS = ",".join(["N", "4", *("2" for _ in range(70))])
FOLDED = """g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 2, 3, 4}}, float[2] s = {{0.5, 0.25}}> {{
    t = {}  d = DequantizeLinear(t, s)  y = MatMul(x, d) }}"""
DYNAMIC = """g (float[N,2] x) => (float[N,2] y) <uint8[2,2] w = {1, 2, 3, 4}, float t = {0.5}, int8 v = {1}> {
    y = com.microsoft.DynamicQuantizeMatMul(x, w, t, v) }"""
INTEGERS = """g (int8[N,2] x, float s) => (float[N,2] y)
    <int8[2,2] w = {1, -2, 3, 4}, float[2] t = {0.5, 0.25}, int8 z = {3}, int8[2] v = {0, 1}> {
    y = com.microsoft.MatMulIntegerToFloat(x, w, s, t, z, v) }"""

MODELS: dict[str, tuple[str, int, dict[str, int]]] = {
    "GRA003, a symbol of a sparse tensor": (
        "g (float[2,N] x) => (float[N] y) <float16[N] a> { a = Neg(x)  y = Abs(a) }",
        18,
        {},
    ),
    "OPS037, 2**31 windows": (
        """g (float[N,2,8,2147483647] x) => (float[N,2,6,6] y) {
            y = MaxPool<kernel_shape = [2, 2], dilations = [2, 2]>(x) }""",
        18,
        {},
    ),
    "OPS053, 72 dimensions": (
        f"g (float[{DIMS}] x) => (float[N,4] y) <int64 a = {{1}}> {{ y = CumProd(x, a) }}",
        26,
        {},
    ),
    "OPS065, 2**40 rows": (
        """g (float[2,5,3] p, float[2,1099511627776,3] u, int64[2] w) => (float[2,5,3] y) {
            y = TensorScatter(p, u, w) }""",
        24,
        {},
    ),
    "OPS065, ranks that differ": (
        """g (float[2,5,3,1,3,1] p, float[2,N,3] u, int64[2] w) => (float[2,5,3] y) {
            y = TensorScatter(p, u, w) }""",
        24,
        {},
    ),
    "QDQ012, 65 axes": (FOLDED.format(f"Transpose<perm = [{', '.join(map(str, range(65)))}]>(w)"), 18, {}),
    "QDQ012, an axis that is not there": (FOLDED.format("Transpose<perm = [1, 2]>(w)"), 18, {}),
    "QDQ012, an axis twice": (FOLDED.format("Transpose<perm = [1, 1]>(w)"), 18, {}),
    "QDQ021, a zero point of doubles": (MICROSOFT + DYNAMIC, 0, {"v": TensorProto.DOUBLE}),
    "QDQ021, a zero point of 2 bits": (MICROSOFT + DYNAMIC, 0, {"v": TensorProto.INT2}),
    "QDQ021, a zero point of 4 bits": (MICROSOFT + INTEGERS, 0, {"z": TensorProto.INT4}),
    "QDQ021, a zero point with another sign": (MICROSOFT + INTEGERS, 0, {"v": TensorProto.UINT8}),
}


@pytest.mark.parametrize("about", MODELS)
def test_no_constant_of_what_cannot_be(about: str, tmp_path: Path) -> None:
    text, opset, types = MODELS[about]
    found = parse_model(text if not opset else f'<ir_version: 9, opset_import: ["" : {opset}]> {text}')
    if "sparse" in about:
        kind = found.graph.input[0].type
        dense = onnx.TypeProto.Tensor.FromString(kind.tensor_type.SerializeToString())
        kind.sparse_tensor_type.MergeFromString(dense.SerializeToString())
    for tensor in found.graph.initializer:
        tensor.data_type = types.get(tensor.name, tensor.data_type)
    (tmp_path / "m.onnx").write_bytes(found.SerializeToString())
    code, out, err = run(
        "apply", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", "--no-verify", "--unsafe-fixes"
    )
    assert code in (0, 1, 2)
    assert not BUG.search(out + err), err
