"""Types and operators that TensorRT does not have (IFC005, OPS068 to OPS070): near misses build, and what
the fixes write computes the same for every form.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from onnxfix.rewrite.engine import Found, check
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety, Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import fixed, overlay
from support import ort
from support.models import of_opset
from support.real_tensorrt import FACT, REAL, built

RULES = {rule.code: rule for rule in registry().rules}
ALL = registry().choose()
E, N, U = Safety.EXACT, Safety.NUMERIC, Safety.UNSAFE

MS, ML = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>', '["" : 18, "ai.onnx.ml" : 3]'
RANGE = "<int64 a = {1}, int64 b = {2}, int64 d = {1}>"


BUILDS = [
    "g (float[2] x, int4[2] u) => (float[2] y) { y = Neg(x) }",
    "g (float[2] x) => (uint8[2] y) { y = Cast<to = 2>(x) }",
    f"""g (float[2,3] x) => (float[2,3] y) <bool c = {{0}}, {RANGE[1:]} {{ r = Range(a, b, d)
        y = If(c)<then_branch = p () => (float[2,1] u) {{ u = ReduceSum(x, r) }},
                  else_branch = q () => (float[2,3] v) {{ v = Abs(x) }}> }}""",
    "g (float[2,3] x) => (float[2,1] y) <int32[1] o = {1}> { r = Cast<to = 7>(o)  y = ReduceSum(x, r) }",
    "g (float[2,3] x) => (float[2,1] y) <int64[1] o = {1}> { r = Identity(o)  y = ReduceSum(x, r) }",
    f"g (float[2,1] x) => (float[2] y) {RANGE} {{ r = Range(a, b, d)  y = Squeeze(x, r) }}",
    f"g (float[2,3] x) => (float[2,1,3] y) {RANGE} {{ r = Range(a, b, d)  y = Unsqueeze(x, r) }}",
    """g (int64[3] i) => (float[3,5] y) <float[2] v = {0, 1}, int64 d = {3}, int64 e = {2}> {
        k = Add(d, e)  y = OneHot(i, k, v) }""",
    "g (float[2] x, float a, float b) => (float[2] y) { y = Clip(x, a, b) }",
]
"""Near misses: TensorRT-RTX builds them, and nothing that is found there is an error."""


model = of_opset(21)


def found(proto: ModelProto, target: str = "rtx") -> list[Found]:
    return check(overlay(proto, target), ALL)


def errors(proto: ModelProto, target: str = "rtx") -> set[str]:
    return {item.rule.code for item in found(proto, target) if item.severity == Severity.ERROR}


@FACT
@REAL
@pytest.mark.parametrize("text", BUILDS)
def test_what_builds_is_no_error(worker: Worker, tmp_path: Path, text: str) -> None:
    proto = model(text)
    assert not errors(proto)
    done = built(worker, proto, tmp_path)
    assert done.accepted, done.reason


def run(proto: ModelProto, **feed: Any) -> Any:
    [result] = ort.run(proto, feed)
    return result


_FACTORS = [
    (ranks, turn, batch)
    for ranks, turn, batch in itertools.product(
        [(2, 2), (3, 3), (4, 4), (4, 3), (2, 3)], ["", "A", "B", "AB"], ["", "A", "B", "AB"]
    )
    if not batch or ranks in ((3, 3), (4, 4))  # ONNX Runtime refuses to move the batch of others
]


@pytest.mark.parametrize(("ranks", "turn", "batch"), _FACTORS)
def test_fused_product(ranks: tuple[int, int], turn: str, batch: str) -> None:
    rng = np.random.default_rng(0)
    arrays = {}
    for side, rank, matrix in (("A", ranks[0], (5, 3)), ("B", ranks[1], (3, 7))):
        shape = list((2, 4)[4 - rank :] if rank > 2 else ()) + list(matrix)
        if side in turn:
            shape[-2:] = shape[:-3:-1]
        if side in batch:
            shape = [shape[-2], *shape[:-2], shape[-1]]
        arrays[side] = rng.standard_normal(shape).astype(np.float32)
    attributes = [f"trans{side} = 1" for side in turn] + [f"transBatch{side} = 1" for side in batch]
    texts = {side: ",".join(map(str, array.shape)) for side, array in arrays.items()}
    result = ",".join(f"K{i}" for i in range(max(ranks)))
    proto = model(
        f"{MS} g (float[{texts['A']}] a, float[{texts['B']}] b) => (float[{result}] y) "
        f"{{ y = com.microsoft.FusedMatMul<{', '.join([*attributes, 'alpha = 0.3'])}>(a, b) }}"
    )
    after, done = fixed([RULES["OPS068"]], proto, safety=N)
    assert done.applied
    assert "FusedMatMul" not in {node.op_type for node in after.graph.node}
    expected = run(proto, a=arrays["A"], b=arrays["B"])
    np.testing.assert_allclose(run(after, a=arrays["A"], b=arrays["B"]), expected, rtol=1e-5, atol=1e-6)


def test_clip_at_run_time() -> None:
    proto = model("g (float16[N] x, float16 a, float16 b) => (float16[N] y) { y = Clip(x, a, b) }", 13)
    after, done = fixed([RULES["OPS069"]], proto, safety=N, target="trt8.4")
    assert done.applied
    kind = np.float16
    x = np.array([-2, -0.0, 0.0, 0.5, 3, np.inf, -np.inf, np.nan], kind)
    for low, high in itertools.product([-1, 0, 1, np.inf, -np.inf], repeat=2):
        bounds = {"a": np.array(low, kind), "b": np.array(high, kind)}
        assert np.array_equal(run(after, x=x, **bounds), run(proto, x=x, **bounds), equal_nan=True)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_compress(axis: int | None, length: int) -> None:
    attribute = "" if axis is None else f"<axis = {axis}>"
    result = "float[A]" if axis is None else "float[A,B]"
    proto = model(
        f"g (float[3,4] x, bool[{length}] c) => ({result} y) {{ y = Compress{attribute}(x, c) }}", 11
    )
    after, done = fixed([RULES["OPS070"]], proto, target="trt10")
    assert done.applied
    assert not errors(after, "trt10")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for bits in itertools.product([False, True], repeat=length):
        condition = np.array(bits, bool)
        assert np.array_equal(run(after, x=x, c=condition), run(proto, x=x, c=condition))


def test_findings_of_a_missing_type_do_not_repeat() -> None:
    nodes = "  ".join(f"a{i + 1} = Add(a{i}, a{i})" for i in range(50))
    text = f"g (int32[2] x) => (int32[2] y) {{ a0 = Cast<to = 4>(x)  {nodes}  y = Cast<to = 6>(a50) }}"
    assert [item.match.node.place for item in found(model(text)) if item.match.node is not None] == ["a0"]
    text = text.replace("int32[2] x", "uint16[2] x").replace("Cast<to = 4>", "Neg")
    assert [item.rule.code for item in found(model(text))] == ["IFC005"]


def test_an_input_that_goes_out_is_one_finding() -> None:
    same = "g (uint16[2] x, float[2] z) => (uint16[2] x, float[2] y) { y = Neg(z) }"
    # What the network's input would be called (OPS085) is another matter than its type.
    assert [item.rule.code for item in found(model(same))] == ["IFC005", "OPS085"]


def test_another_rule_that_says_more_speaks_alone() -> None:
    chain = "g (float[2] x) => (float[2] y) { a = Cast<to = 4>(x)  y = Cast<to = 1>(a) }"
    assert errors(model(chain)) == {"CST004"}
    table = """g (int64[3] i) => (float[3,2] y) <uint16[3,2] w = {1, 2, 3, 4, 5, 6}> {
        e = Gather(w, i)  y = Cast<to = 1>(e) }"""
    assert errors(model(table)) == {"OPS032"}
