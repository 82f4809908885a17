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
TERA = 1 << 40
ATTENTION = """g (float[1,1,{queries},2] q, float[1,1,{keys},2] k, float[1,1,{keys},2] v, int64[1] n, bool[1,N] m)
    => (float[1,1,{queries},2] y)"""
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
    "INT006, 72 dimensions": (f"g (int32[{DIMS}] x) => (int32[{DIMS}] y) {{ y = Relu(x) }}", 18, {}),
    "OPS015, lengths of 2**40 keys": (
        f"{ATTENTION.format(queries=2, keys=TERA)} {{ y = Attention(q, k, v, , , , n) }}",
        24,
        {},
    ),
    "OPS015, 2**40 queries": (
        f"{ATTENTION.format(queries=TERA, keys='N')} {{ y = Attention<is_causal = 1>(q, k, v, , , , n) }}",
        24,
        {},
    ),
    "OPS015, a mask of 2**40 queries": (
        f"{ATTENTION.format(queries=TERA, keys='N')} {{ y = Attention(q, k, v, m, , , n) }}",
        24,
        {},
    ),
    "OPS020, 2**40 starts": (
        f"""g (float[N,4] x, int64[K] k, int64[{TERA}] s, int64[{TERA}] e) => (float y) {{
            r = Reshape(x, k)  t = Slice(r, s, e)  y = ReduceSum<keepdims = 0>(t) }}""",
        18,
        {},
    ),
    "OPS025, 72 dimensions": (
        f"g (bool[{DIMS}] x) => (bool[{DIMS}] y) <int64[1] a = {{1}}> {{ y = ReduceMax(x, a) }}",
        20,
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
    "QDQ008, 2**40 scales in half precision": (
        f"""g (int8[{TERA},4] a, float16[{TERA}] s, int8[{TERA}] z, int8[4,4] b, float t, int8 u, float v, int8 w)
            => (int8[{TERA},4] y) {{ y = QLinearMatMul(a, s, z, b, t, u, v, w) }}""",
        21,
        {},
    ),
    "QDQ010, a block of 2**40": (
        f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 2, 3, 4}}, float[1,2] s = {{0.5, -1}}> {{
            d = DequantizeLinear<axis = 0, block_size = {TERA}>(w, s)  y = MatMul(x, d) }}""",
        21,
        {},
    ),
    "QDQ005, blocks of 2**39": (
        f"""g (int32[{TERA},2] x) => (float[{TERA},2] y) <float[3,2] s = {{1, 2, 3, 4, 5, 6}}> {{
            y = DequantizeLinear<axis = 0, block_size = {TERA // 2 - 1}>(x, s) }}""",
        21,
        {},
    ),
    "QDQ006, blocks of 2**39": (
        f"""g (float[{TERA},2] x) => (float[{TERA},2] y)
            <float[3,2] s = {{1, 2, 3, 4, 5, 6}}, uint16[3,2] z = {{0, 0, 0, 0, 0, 0}}> {{
            q = QuantizeLinear<axis = 0, block_size = {TERA // 2 - 1}>(x, s, z)
            y = DequantizeLinear<axis = 0, block_size = {TERA // 2 - 1}>(q, s, z) }}""",
        21,
        {},
    ),
    "QDQ017, 2**39 blocks": (
        f"""g (int8[{TERA + 2},2] w, float[3,2] s) => (float[{TERA + 2},2] y) {{
            y = DequantizeLinear<axis = 0, block_size = {TERA // 2}>(w, s) }}""",
        21,
        {},
    ),
    "QDQ017, 2**39 blocks of constant scales": (
        f"""g (int8[{TERA + 2},2] w) => (float[{TERA + 2},2] y) <float[3,2] s = {{1, 2, 3, 4, 5, 6}}> {{
            y = DequantizeLinear<axis = 0, block_size = {TERA // 2}>(w, s) }}""",
        21,
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


def test_no_matrix_of_a_padded_transform(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]>
        g (float[1048576,1,1] x, int64 a) => (float[A,B,2] y) <int64 n = {1}> { y = DFT(x, n, a) }"""
    (tmp_path / "m.onnx").write_bytes(parse_model(text).SerializeToString())
    code, out, err = run("check", tmp_path / "m.onnx", "--target", "rtx1.7", "--select", "OPS057")
    assert code == 1
    assert not BUG.search(out + err), err
