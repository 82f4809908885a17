"""QDQ017 and QDQ018: blocks and bytes that TensorRT misreads. What it reads of the rules' examples is in
test_errors_are_refused.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import assert_same_outputs, findings
from support import lifted, repairs
from support.real_tensorrt import REAL

pytestmark = pytest.mark.corpus

RULES = {rule.code: rule for rule in registry().rules if rule.code in ("QDQ017", "QDQ018")}
BLOCKS, WORDS = (RULES[code] for code in sorted(RULES))
F = np.float32


def repaired(code: str, proto: ModelProto) -> ModelProto:
    """The model after the rule's exact fixes, which leave nothing to find and the interface as it was."""
    assert {one.severity for one in findings(RULES[code], proto)} == {Severity.ERROR}
    result, run = repairs.repaired([RULES[code]], proto)
    assert run.applied
    assert not run.remaining
    assert not findings(RULES[code], result)
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
