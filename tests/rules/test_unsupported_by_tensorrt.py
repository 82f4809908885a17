"""Types, operators and forms that TensorRT does not have (IFC005, OPS020 to OPS046, OPS068 to OPS070, GRA006 to
GRA008): what the rules find is refused by the real TensorRT-RTX, near misses build, and what the fixes write computes
the same for every form. Every restriction of the operator tables is a predicate of OPS124, another rule's, or none
for a reason."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxfix.rewrite.catalog import path_of
from onnxfix.rewrite.engine import Found, check
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule, Safety, Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.targets import measured
from onnxfix.targets.documented import RELEASES, facts_of
from onnxfix.testing import assert_same_outputs, findings, fixed, overlay
from onnxfix_rules.ops.limits._restrictions import RESTRICTIONS
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


LIMITS: dict[str, Rule] = {rule.code: rule for rule in registry().rules}


# ------------------------------------------------------------------------- what the text format cannot say


def sparse_model(*, constant: bool) -> ModelProto:
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    sparse = helper.make_sparse_tensor(
        values, helper.make_tensor("at", TensorProto.INT64, [2, 2], [0, 1, 1, 2]), [2, 3]
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2, 3])
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    graph = helper.make_graph(nodes, "g", [x], [y], sparse_initializer=[] if constant else [sparse])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@REAL
@pytest.mark.parametrize(
    ("code", "constant", "words"),
    [
        ("GRA006", True, "does not support the sparse_value"),
        ("GRA007", False, "Node input was not registered"),
    ],
)
def test_sparse_constants(code: str, constant: bool, words: str, worker: Worker, tmp_path: Path) -> None:
    model = sparse_model(constant=constant)
    assert words in built(worker, model, tmp_path).reason
    result, run = fixed([LIMITS[code]], model)
    assert not run.problems
    assert built(worker, result, tmp_path).accepted
    assert_same_outputs(model, result)


def test_a_large_sparse_tensor_is_not_written_out() -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    at = helper.make_tensor("at", TensorProto.INT64, [1], [5])
    model = sparse_model(constant=False)
    model.graph.sparse_initializer[0].CopyFrom(helper.make_sparse_tensor(values, at, [1 << 20, 1 << 20]))
    found = findings(LIMITS["GRA007"], model)
    assert len(found) == 1
    assert found[0].match.fix is None


@pytest.mark.parametrize(
    ("places", "valid"), [([0, 5], True), ([0, 6], False), ([-1, 2], False), ([3, 3], False)]
)
def test_sparse_places(places: list[int], valid: bool) -> None:
    from onnxfix_rules.gra import constants

    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    sparse = helper.make_sparse_tensor(
        values, helper.make_tensor("at", TensorProto.INT64, [2], places), [2, 3]
    )
    tensor = constants.dense(sparse, "d", None)
    assert (tensor is not None) is valid
    if tensor is not None:
        assert onnx.numpy_helper.to_array(tensor).tolist() == [[1, 0, 0], [0, 0, 2]]


def test_every_arrangement_of_merged_axes() -> None:
    """OPS045 on random shapes and permutations of nine axes, against numpy."""
    from onnxfix_rules.ops.limits.sizes import _merged

    random = np.random.default_rng(0)
    for _ in range(300):
        sizes = tuple(int(s) for s in random.choice([1, 1, 2, 3], 9))
        order = [int(a) for a in random.permutation(9)]
        data = np.arange(int(np.prod(sizes)))
        shape, perm = _merged(sizes, order)
        wanted = data.reshape(sizes).transpose(order).reshape(-1)
        assert (data.reshape(shape).transpose(perm).reshape(-1) == wanted).all()


def test_a_turn_that_differs_from_call_to_call_hides_no_other_finding() -> None:
    """OPS045 in a function: the Reshape before it is not judged, and what comes after is."""
    wide = "s = Constant<value = int64[9] {2,1,1,1,1,1,1,1,2}>()"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
        g (float[4] x) => (float[4] y, float[2,1,1,1,1,1,1,1,2] z) {{
            u = my.F<p = [8,7,6,5,4,3,2,1,0]>(x)  {wide}  z = Reshape(u, s)  y = Neg(u) }}
        <domain: "my", opset_import: ["" : 20]> F <p> (x) => (y) {{
            {wide}  f = Constant<value = int64[1] {{4}}>()  r = Reshape(x, s)  t = Transpose<perm: ints = @p>(r)
            y = Reshape(t, f) }}""")
    assert [item.match.place.text for item in findings(LIMITS["OPS045"], model)] == ["z"]


#: Words of a restriction, and which rules report it, or why none does.
ELSEWHERE = {
    "2D or 3D Pooling only": "OPS038; one dimension is taken (8.6.1 and 10.6.0 executed it)",
    "2D or 3D pooling only": "OPS038; one dimension is taken (8.6.1 and 10.6.0 executed it)",
    "2D or 3D convolutions only": "OPS038; the parser's source of 8.4 takes one dimension",
    "2D or 3D deconvolutions only": "OPS038; the parser's source of 8.4 takes one dimension",
    "Weights `W` must be an initializer": "the parser's source of 8.4 takes computed kernels, too",
    "`Indices` output tensor unsupported": "OPS021 OPS119",
    "`dilations` must be empty or all ones": "OPS037 OPS066 OPS067",
    "`axis` must be an initializer": "OPS099",
    "`axis` must be a build-time constant": "OPS099; 11.2.1 takes a graph input",
    "zero_point` must be": "QDQ001 QDQ003 QDQ011",
    "UINT8 constants are properly imported": "QDQ002; what went wrong before is not said",
    "Runs on a cuFFT-backed plugin": "about the machine, not the model",
    "The transform axis must be `-2`": "OPS099",
    "The opset 20 `axis` input must be": "OPS099",
    "`is_training` must be an initializer": "OPS043",
    "`input` must have static dimensions": "OPS046",
    "5-D input since 11.2": "OPS099",
    "Input must be 4D input": "OPS099",
    "Broadcasting between inputs is not": "8.6.1 and 10.6.0 broadcast (executed)",
    "opset 21 (scale and bias by channel)": "OPS100",
    "two conditional branches must have": "CTL011; the same names are taken (TensorRT-RTX 1.7.1)",
    "a bug made If nodes fail to import": "CTL011",
    "fixed in 9.0 GA": "CTL011",
    "Only the first output `Y`": "OPS021 OPS050",
    "Scan output length cannot be dynamic": "CTL001 CTL012",
    "The shape of Loop carried dependencies": "CTL015",
    "`input_forget` attribute must be 0": "OPS038",
    "`layout` attribute must be 0": "OPS011; it is ignored",
    "`depth` must be a build-time constant": "OPS040",
    "integer exponents since 10.8": "OPS099",
    "integer bases since 10.12": "OPS099",
    "INT4 since 10.0": "CST005",
    "FLOAT4E2M1 since 10.8": "CST005",
    "`seed` value is ignored": "OPS099",
    "`axes` must be an initializer": "OPS040 OPS041 OPS042 OPS098 OPS099",
    "`axes` must be a constant tensor": "OPS040 OPS042",
    "`axes` must be resolvable to a constant": "OPS040 OPS042",
    "without axes: taken since 11.5": "RSH009",
    "without the attribute allowzero throws": "RSH005",
    "8.4.2: the default is 0": "RSH005",
    "Supported resize": "OPS031",
    "Supported nearest modes": "OPS031",
    "Supported aspect ratio policy": "OPS031",
    "Antialiasing is not supported": "OPS031",
    "When `scales` is a tensor input": "OPS081; constant scales with axes are taken (TensorRT-RTX 1.7.1)",
    "`past_cache` and `update` must be 4D": "OPS065",
    "`Q`, `K`, `V` and `attn_mask` must be 4D": "OPS050 OPS086; 10.15.1 imports three dimensions",
    "`softcap` attributes are unsupported": "OPS050",
    "`position_ids` must be INT64": "ONNX allows no other type",
    "`reduction`": "OPS039 OPS099",
    "the attribute reduction is taken since 10.0": "OPS039",
    "opset 18 and later: fixed in 10.9": "OPS039 OPS099",
    "`sparse_value`, `value_string`": "GRA006 GRA008; no operator that is imported reads strings",
    "`frame_step` and `window` must": "OPS099",
    "`sorted` must be 1": "TensorRT-RTX 1.7.1 takes 0",
    "`K` input must be less than 3840": "OPS044; 3840 is taken",
    "`past_key`, `past_value` and": "OPS021 OPS050; 11.2.1 imports `nonpad_kv_seqlen` (OPS015)",
    "`present_key`, `present_value` and": "OPS021 OPS050",
    "`q_num_heads` and `kv_num_heads`": "restricts nothing",
    # measured with TensorRT-RTX
    "rank 2 at least": "OPS023",
    "no past or present, softcap": "OPS021 OPS050",
    "float does not build for compute capability 8.9": "OPS050",
    "to uint8 only where the result is": "CST003 CST004",
    "at most three spatial dimensions": "OPS038",
    "no dilations together with strides": "OPS038",
    "output_shape and auto_pad may be misread": "OPS013 OPS014",
    "the zero point must be 0, the scale positive": "QDQ003 QDQ010",
    "layout 1 is ignored": "OPS011",
    "input_forget must be 0": "OPS038",
    "axes must be a build-time constant": "OPS040 OPS041",
    "rank 1 at least": "OPS024",
    "no reduction": "OPS039",
    "without axes, starts and ends": "OPS020",
    "mode CRD is ignored": "OPS012",
    "K at most 3840": "OPS044",
    "without the attribute upper": "OPS010",
}


def restrictions() -> set[tuple[str, str]]:
    """Operators with their restrictions, in all releases."""
    notes = [facts_of(version).notes for version in RELEASES] + [measured.NOTES]
    return {(name, text) for group in notes for name, text in group.items()}


def sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[\w)`\]-])\.\s+|;\s+", text.rstrip(".")) if part]


CATALOG = path_of("onnxfix_rules").read_text("utf-8")
PREDICATES = [(name, words) for name, rows in RESTRICTIONS.items() for _, words, _ in rows]


def test_every_restriction_has_a_predicate_a_rule_or_a_reason() -> None:
    open_ones = {
        (name, sentence)
        for name, text in restrictions()
        for sentence in sentences(text)
        if not any(name == operator and words in sentence for operator, words in PREDICATES)
        and not any(words in sentence for words in ELSEWHERE)
    }
    assert not open_ones


def test_no_row_is_left_over() -> None:
    texts = restrictions()
    assert not [
        row for row in PREDICATES if not any(name == row[0] and row[1] in text for name, text in texts)
    ]
    assert not [words for words in ELSEWHERE if not any(words in text for _, text in texts)]


@pytest.mark.parametrize("reason", sorted(set(ELSEWHERE.values())))
def test_a_rule_that_is_named_exists(reason: str) -> None:
    assert all(f'"{code}"' in CATALOG for code in re.findall(r"\b[A-Z]{3}\d{3}\b", reason))
