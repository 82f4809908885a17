"""Quantization that TensorRT reads otherwise and no error tells: QDQ017, QDQ018 and QDQ019 against its network.

Each model is imported by the real parser and read back (``onnxfix.tensorrt.lift``): before the fix the network computes
something else than ONNX, with both values here, and after it the same. No engine is executed.
"""
# Long because: three rules are shown to TensorRT in the same way, each by models of its own.

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import assert_interface_kept, assert_same_outputs, findings, fixed
from support import lifted
from support.real_tensorrt import FACT, REAL, built

pytestmark = pytest.mark.corpus

RULES = {rule.code: rule for rule in registry().rules if rule.code in ("QDQ017", "QDQ018", "QDQ019")}
BLOCKS, WORDS, SCALAR = (RULES[code] for code in sorted(RULES))
F8, F = TensorProto.FLOAT8E4M3FN, np.float32


def both_ways(worker: Worker, code: str, proto: ModelProto, feed: Any, folder: Path) -> tuple[Any, Any]:
    """What ONNX and TensorRT's reading give before the fix. Asserts that the fixed model is built, and read as ONNX
    reads the original."""
    meant, understood = lifted.both(worker, proto, folder, feed)
    result = repaired(code, proto)
    assert built(worker, result, folder).status == "accepted"
    one, other = lifted.both(worker, result, folder, feed)
    for a, b, c in zip(meant, one, other, strict=True):
        assert a.dtype == b.dtype == c.dtype
        np.testing.assert_array_equal(b, a, strict=True)
        np.testing.assert_array_equal(c, a, strict=True)
    return meant, understood


def repaired(code: str, proto: ModelProto) -> ModelProto:
    """The model after the rule's exact fixes, which leave nothing to find and the interface as it was."""
    assert {one.severity for one in findings(RULES[code], proto)} == {Severity.ERROR}
    result, run = fixed([RULES[code]], proto)
    assert run.applied
    assert not run.problems
    assert not run.remaining
    assert not findings(RULES[code], result)
    assert_interface_kept(proto, result)
    return result


# -- QDQ017: a shorter last block


def weight(size: int, block: int, kind: int = TensorProto.INT8, batch: str = "N") -> ModelProto:
    """``x`` times a weight of ``size`` rows in blocks, the scales being powers of 10."""
    count = -(-size // block)
    values = (np.arange(size * 2).reshape(size, 2) % 7 + 1).astype(helper.tensor_dtype_to_np_dtype(kind))
    scales = np.repeat(10.0 ** np.arange(count), 2).reshape(count, 2).astype(F)
    made = lifted.text(f"""g (float[{batch},{size}] x) => (float[{batch},2] y) {{
        d = DequantizeLinear<axis = 0, block_size = {block}>(w, s)  y = MatMul(x, d) }}""")
    made.graph.initializer.extend(
        [numpy_helper.from_array(values, "w"), numpy_helper.from_array(scales, "s")]
    )
    return made


@FACT
@REAL
@pytest.mark.parametrize(
    ("given", "held"),
    [("", True), (", float[1,2] s", False), (", float[1,2] s", True)],
    ids=["constant", "run time", "overridable"],
)
def test_data_of_run_time(given: str, held: bool, worker: Worker, tmp_path: Path) -> None:
    made = lifted.text(f"""g (float[1,6] x{given}) => (float[1,6] y) {"<float[1,2] s = {1, 10}>" if held else ""} {{
        q = QuantizeLinear<axis = -1, block_size = 4, output_dtype = 3>(x, s)
        y = DequantizeLinear<axis = 1, block_size = 4>(q, s) }}""")
    feed = {"x": np.array([[1, 2, 3, 4, 5, 6]], F)} | ({} if held else {"s": np.array([[1, 10]], F)})
    meant, understood = both_ways(worker, "QDQ017", made, feed, tmp_path)
    assert meant[0].tolist() == [[1, 2, 3, 4, 0, 10]]
    assert understood[0].tolist() == [[1, 2, 3, 0, 0, 10]]


@FACT
@REAL
@pytest.mark.parametrize(("size", "block"), [(7, 4), (10, 4), (5, 2), (9, 4), (12, 8)])
def test_what_tensorrt_refuses_or_reads_otherwise_is_built_and_read_rightly(
    size: int, block: int, worker: Worker, tmp_path: Path
) -> None:
    made, feed = weight(size, block), {"x": np.eye(size, dtype=F)}
    read = size % -(-size // block) == 0
    found = lifted.lifted(worker, made, tmp_path)
    assert found.lifted == read, found.reason
    assert read or "The quantization axis must divide into whole blocks" in found.reason
    wanted = lifted.run(tmp_path / "model.onnx", feed)[0]
    assert not read or not np.array_equal(lifted.run(Path(found.path), feed)[0], wanted)
    result = repaired("QDQ017", made)
    assert built(worker, result, tmp_path).status == "accepted"
    np.testing.assert_array_equal(lifted.both(worker, result, tmp_path, feed)[1][0], wanted, strict=True)


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_every_size_of_blocks(size: int, block: int) -> None:
    """A finding where the last block is shorter and not the only one; the same result in ONNX Runtime after it."""
    made = weight(size, block, batch="3")
    found = findings(BLOCKS, made)
    assert bool(found) == (size > block and size % block != 0)
    if found:
        result = repaired("QDQ017", made)
        assert_same_outputs(made, result)
        left = next(node for node in result.graph.node if node.op_type == "DequantizeLinear")
        new = helper.get_node_attr_value(left, "block_size")
        long = next(one.dims[0] for one in result.graph.initializer if one.name == left.input[0])
        assert new > 1
        assert long % new == 0


def test_no_fix_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scales of 6 rows take 24 bytes in place of 16, the weight of 5 rows 12 in place of 10."""
    for code, made, least in (("QDQ017", weight(6, 4), 24), ("QDQ017", weight(5, 3), 12)):
        for limit in (least - 1, least):
            monkeypatch.setattr(sys.modules[RULES[code].module], "WEIGHT_LIMIT", limit)
            (found,) = findings(RULES[code], made)
            assert (found.match.fix is not None) == (limit == least)


# -- QDQ018: bytes in words


@REAL
@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16", "INT8", "BOOL", "INT4", "FLOAT4E2M1", "INT32"])
def test_other_types_come_out_of_their_words(kind: str, worker: Worker, tmp_path: Path) -> None:
    """And so they are no finding. Many of them are refused at a Cast when it is built; here they are only read."""
    elem = getattr(TensorProto, kind)
    made = lifted.text("g (float[4] x) => (float[4] y) { c = Cast<to = 1>(w)  y = Add(x, c) }", 23)
    made.ir_version = 11
    made.graph.initializer.append(helper.make_tensor("w", elem, [4], [1, 0, 1, 1]))
    assert made.graph.initializer[0].int32_data
    assert not findings(WORDS, made)
    found = lifted.lifted(worker, made, tmp_path)
    assert found.lifted, found.reason
    assert lifted.run(Path(found.path), {"x": np.zeros(4, F)}, "reference")[0].tolist() == [1, 0, 1, 1]


@REAL
@pytest.mark.parametrize("kind", ["FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ", "FLOAT8E8M0", "UINT4"])
@pytest.mark.parametrize("raw", [False, True])
def test_the_rest_is_refused_however_it_is_stored(
    kind: str, raw: bool, worker: Worker, tmp_path: Path
) -> None:
    made = lifted.text("g (float[4] x) => (float[4] y) { c = Cast<to = 1>(w)  y = Add(x, c) }", 24)
    made.ir_version = 11
    tensor = helper.make_tensor("w", getattr(TensorProto, kind), [4], [1, 2, 1, 4])
    made.graph.initializer.append(
        numpy_helper.from_array(numpy_helper.to_array(tensor), "w") if raw else tensor
    )
    assert not findings(WORDS, made)
    assert built(worker, made, tmp_path).status == "refused"


def test_the_bytes_are_stored_as_bytes() -> None:
    """What the examples cannot say: the numbers are the same before and after."""
    made = lifted.text("""g (bool t, float[4] x) => (float[4] y) <uint8[4] w = {1, 2, 3, 255}> {
        k = Constant<value = uint8[4] {5, 6, 7, 8}>()
        y = If(t)<then_branch = p () => (float[4] u) <uint8[4] h = {9, 10, 11, 12}> {
            a = Cast<to = 1>(w)  b = Cast<to = 1>(k)  c = Cast<to = 1>(h)  u = Sum(a, b, c) },
            else_branch = r () => (float[4] v) { v = Neg(x) }> }""")
    result = repaired("QDQ018", made)
    inner = next(node for node in result.graph.node if node.op_type == "If").attribute[0].g.initializer
    constant = next(node for node in result.graph.node if node.op_type == "Constant").attribute[0].t
    stored = [*result.graph.initializer, constant, *inner]
    assert [bytes(one.raw_data) for one in stored] == [b"\1\2\3\xff", b"\5\6\7\x08", b"\x09\x0a\x0b\x0c"]
    assert not any(one.int32_data for one in stored)


# -- QDQ019: scalars

C = "float s = {0.5}, int8 z = {0}"
PAIR = "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)"
ONE = {"x": np.array(1.2, F)}
SCALARS: dict[str, tuple[str, dict[str, Any], list[Any], list[Any]]] = {
    "output": (f"g (float x) => (float d) <{C}> {{ {PAIR} }}", ONE, [1.0], [[1.0]]),
    "quantized output": (f"g (float x) => (int8 q, float d) <{C}> {{ {PAIR} }}", ONE, [2, 1.0], [[2], [1.0]]),
    "reduction": (
        f"g (float[N] v) => (float y) <{C}> {{ x = ReduceSum<keepdims = 0>(v)  {PAIR}  y = Neg(d) }}",
        {"v": np.arange(3, dtype=F)},
        [-3.0],
        [[-3.0]],
    ),
    "quantized input": (
        f"g (int8 q) => (float y) <{C}> {{ y = DequantizeLinear(q, s, z) }}",
        {"q": np.array(3, np.int8)},
        [1.5],
        [[1.5]],
    ),
    "constant": (
        f"g (float[N] v) => (float[N] y, float d) <{C}, float x = {{3}}> {{ {PAIR}  y = Mul(v, d) }}",
        {"v": np.arange(3, dtype=F)},
        [[0, 3, 6], 3],
        [[0, 3, 6], [3]],
    ),
    "Unsqueeze": (
        f"g (float x) => (float[1] y) <{C}, int64[1] a = {{0}}> {{ {PAIR}  y = Unsqueeze(d, a) }}",
        ONE,
        [[1.0]],
        [[[1.0]]],
    ),
    "two in a row": (
        f"""g (float x) => (float y) <{C}> {{ {PAIR}  r = Relu(d)
            p = QuantizeLinear(r, s, z)  y = DequantizeLinear(p, s, z) }}""",
        ONE,
        [1.0],
        [[1.0]],
    ),
    "float8": (
        """g (float x) => (float y) <float s = {0.5}, float8e4m3fn z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        ONE,
        [1.25],
        [[1.25]],
    ),
}


@FACT
@REAL
@pytest.mark.parametrize("name", SCALARS)
def test_a_scalar_gets_a_dimension(name: str, worker: Worker, tmp_path: Path) -> None:
    text, feed, wanted, seen = SCALARS[name]
    meant, understood = both_ways(worker, "QDQ019", lifted.text(text), feed, tmp_path)
    assert [one.tolist() for one in meant] == wanted
    assert [one.tolist() for one in understood] == seen
