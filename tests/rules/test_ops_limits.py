"""OPS020 to OPS046 and GRA006 to GRA008 against the real TensorRT-RTX: what they find is refused, what they repair is
accepted, and what they are silent about builds. Their examples are run by test_rules.py.
"""

# Long because: two tables of models, with what TensorRT says to each.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxfix.registry import registry
from onnxfix.rule import Rule, Safety, Severity
from onnxfix.sandbox import Worker
from onnxfix.testing import assert_interface_kept, assert_same_outputs, findings, fixed
from support import models
from support.real_tensorrt import FACT, REAL, built

RULES: dict[str, Rule] = {rule.code: rule for rule in registry().rules}


@dataclass(frozen=True)
class Probe:
    """A model that TensorRT refuses with ``words`` ("" where it accepts it and should not). ``code`` finds it; with
    ``safety`` it repairs it, with the help of the rules in ``others``. None: it has no fix."""

    code: str
    text: str
    words: str
    safety: Safety | None = Safety.EXACT
    opset: int = 20
    others: tuple[str, ...] = ()
    runs: bool = True
    severity: Severity = Severity.ERROR

    def model(self) -> ModelProto:
        return models.model(self.text, self.opset)


E, N, U = Safety.EXACT, Safety.NUMERIC, Safety.UNSAFE
TWO = "at least 2 dimensions are required for input"
ONE = "at least 1 dimensions are required for input"
MISALIGNED = "The shape of input starts misaligns with the shape of input axes"
OUTPUTS = "doesn't support mode than 1 outputs for"
NEGATIVE = "with inherently negative length"
UINT8 = "TensorRT does not support UINT8 types for intermediate tensors"
SE = "<int64[1] s = {1}, int64[1] e = {3}>"
BOOL = "Found unsupported input type of BOOL"

PROBES = [
    Probe("OPS020", f"g (float[N,5] x) => (float[M,5] y) {SE} {{ y = Slice(x, s, e) }}", MISALIGNED),
    Probe(
        "OPS020",
        "g (float[4,5] x, int32[1] s, int32[1] e) => (float[A,5] y) <int32[1] t = {2}> { y = Slice(x, s, e, , t) }",
        MISALIGNED,
        opset=13,
    ),
    Probe(
        "OPS020", "g (float[4,5] x) => (float[4,5] y) <int64[0] s = {}> { y = Slice(x, s, s) }", MISALIGNED
    ),
    Probe(
        "OPS021",
        "g (float[1,1,4,4] x) => (float[1,1,3,3] y) { y, i = MaxPool<kernel_shape = [2,2]>(x) }",
        OUTPUTS,
        N,
    ),
    Probe(
        "OPS021",
        "g (float[1,4] x, float[4] s) => (float[1,4] y, float[1,1] d) { y, , d = LayerNormalization(x, s) }",
        OUTPUTS,
        None,
    ),
    Probe("OPS023", "g (float[8] x) => (float[8] y) { y = LogSoftmax<axis = 0>(x) }", TWO, opset=13),
    Probe("OPS023", "g (float[8] x) => (float[8] y) { y = Hardmax(x) }", TWO),
    Probe("OPS023", "g (float[8] x) => (int64 y) { y = ArgMax<keepdims = 0>(x) }", TWO),
    Probe("OPS023", "g (float[8] x) => (int64[1] y) { y = ArgMin<select_last_index = 1>(x) }", TWO, opset=12),
    *(
        Probe("OPS024", f"g (float x) => (float y) {{ y = Reduce{kind}(x) }}", ONE)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    ),
    Probe("OPS024", "g (int64 x) => (int64 y) <int64[0] a = {}> { y = ReduceSum(x, a) }", ONE),
    Probe("OPS025", "g (bool[2,3] x) => (bool y) { y = ReduceMin<keepdims = 0>(x) }", BOOL),
    Probe(
        "OPS026",
        "g (bool[N] p, bool[N] q) => (bool[N] y) "
        "{ a = Cast<to=6>(p)  b = Cast<to=6>(q)  c = BitwiseXor(a, b)  y = Cast<to=9>(c) }",
        "checkBitwiseXor",
    ),
    Probe(
        "OPS026",
        "g (bool[2] p, bool[2] q) => (bool[2] y) <uint8[2] k = {1, 0}> "
        "{ a = Cast<to=2>(p)  b = Cast<to=2>(q)  c = BitwiseOr(a, b)  d = BitwiseAnd(c, k)  y = Cast<to=9>(d) }",
        UINT8,
        others=("CST003",),
    ),
    Probe(
        "OPS027",
        "g (bool[N] p, bool[N] q) => (bool[N] y) "
        "{ a = Cast<to=4>(p)  b = Cast<to=4>(q)  c = Add(a, b)  y = Cast<to=9>(c) }",
        "Unsupported data type for the Cast operator!",
    ),
    Probe(
        "OPS028",
        'g (float[2,3,4] x) => (float[2,4,3] y) { y = Einsum<equation = "...IJ->...JI">(x) }',
        "Invalid character(s) in Einsum equation",
    ),
    Probe(
        "OPS029",
        "g (float[N,3,H,W] x) => (float[N,3,5,W] y) <int64[1] s = {5}> "
        '{ y = Resize<axes = [-2], mode = "linear">(x, , , s) }',
        NEGATIVE,
    ),
    Probe(
        "OPS031",
        "g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1,1,2,2}> "
        '{ y = Resize<keep_aspect_ratio_policy = "not_larger">(x, , s) }',
        "is supported currently as `keep_aspect_ratio_policy`",
    ),
    Probe(
        "OPS031",
        'g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1,1,2,2}> { y = Resize<mode = "linear", '
        'coordinate_transformation_mode = "tf_half_pixel_for_nn", nearest_mode = "ceil">(x, , s) }',
        "only support round_prefer_floor",
        opset=13,
        runs=False,
    ),
    Probe(
        "OPS031",
        'g (float[1,4,4,4] x) => (float[1,8,8,8] y) <float[4] s = {1,2,2,2}> { y = Resize<mode = "cubic">(x, , s) }',
        "only supports cubic resizing on the outermost 2 dimensions",
        None,
    ),
    Probe(
        "OPS031",
        'g (float[2,4,4,4] x) => (float[4,4,4,4] y) <int64[4] s = {4,4,4,4}> { y = Resize<mode = "linear">(x, , , s) }',
        "Linear resize mode only supports resize up to last 3 dimensions",
        None,
    ),
    Probe(
        "OPS032",
        "g (uint8[N,6] x) => (float16[N,12] y) { t = Concat<axis = 1>(x, x)  y = Cast<to = 10>(t) }",
        "Found unsupported input type of UINT8",
    ),
    Probe(
        "OPS032",
        "g (int64[N] i) => (float[N] y) <uint16[3] w = {1, 2, 65535}> { e = Gather(w, i)  y = Cast<to = 1>(e) }",
        "Failed to import initializer: w",
    ),
    Probe(
        "OPS032",
        "g (int64[N] i) => (float[N] y) <int8[3] w = {1, 2, -3}> { e = Gather(w, i)  y = Cast<to = 1>(e) }",
        "Quantized constant (w) is only allowed before DQ",
    ),
    Probe(
        "OPS033",
        "g (float[4,3] x, float[2,1] u) => (float[4,3] y) <int64[2,1] i = {1, 1}> { y = ScatterElements(x, i, u) }",
        "",
        None,
        severity=Severity.WARNING,
    ),
    Probe(
        "OPS034", "g (float[N] x) => (float[N] y) <float a = {5}, float b = {1}> { y = Clip(x, a, b) }", ""
    ),
    Probe(
        "OPS034",
        "g (float16[N] x) => (float16[N] y) <float16 a = {16896}, float16 b = {15360}> { y = Clip(x, a, b) }",
        "",
        opset=13,
    ),
    Probe(
        "OPS035", "g (float[4,3] x) => (float[1] y) <int64[1,2] i = {0, -4}> { y = GatherND(x, i) }", "", None
    ),
    Probe(
        "OPS036",
        'g (float[1,1,3] x) => (float[1,1,7] y) <int64[6] p = {0,0,4,0,0,0}> { y = Pad<mode = "reflect">(x, p) }',
        "",
        None,
    ),
    Probe(
        "OPS037",
        "g (float[N,1,8,8] x) => (float[N,1,A,B] y) "
        "{ y = MaxPool<kernel_shape = [2,2], dilations = [2,3], strides = [1,2], pads = [1,0,0,1]>(x) }",
        "does not support dilations other than 1",
        N,
    ),
    Probe(
        "OPS037",
        "g (float[N,2,L] x) => (float[N,2,M] y) { y = MaxPool<kernel_shape = [3], dilations = [2]>(x) }",
        "does not support dilations other than 1",
        N,
        runs=False,
    ),
    Probe(
        "OPS039",
        "g (float[N,3] x, float[2,3] u) => (float[N,3] y) <int64[2,1] i = {0, 1}> "
        '{ y = ScatterND<reduction = "add">(x, i, u) }',
        "ScatterND with reduction is not supported",
        runs=False,
    ),
    Probe(
        "OPS039",
        "g (int64[4,3] x, int64[2,3] u) => (int64[4,3] y) <int64[2,1] i = {0, -1}> "
        '{ y = ScatterND<reduction = "min">(x, i, u) }',
        "ScatterND with reduction is not supported",
    ),
    Probe(
        "OPS043",
        "g (float[N,2] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[N,2] y) "
        "{ y, p, q = BatchNormalization<training_mode = 1>(x, s, b, m, v) }",
        "does not support training_mode == 1 in BatchNormalization",
        U,
    ),
    Probe(
        "OPS043",
        "g (float[N,4] x) => (float[N,4] y) <float r = {0}, bool t = {1}> { y = Dropout(x, r, t) }",
        "does not support the Dropout operator in training mode",
    ),
    Probe(
        "GRA008",
        'g (float[2] x) => (float[2] y) { s = Constant<value_strings = ["a"]>()  y = Neg(x) }',
        "does not support the sparse_value, value_string",
        None,
    ),
]

ACCEPTED = [
    (
        "OPS033",
        "g (float[4,3] x, float[2,3] u) => (float[4,3] y) <int64[2,1] i = {0, 2}> { y = ScatterND(x, i, u) }",
        20,
    ),
    (
        "OPS022",
        "g (float[T,B,2] x, float[1,12,2] w, float[1,12,4] r) => (float[1,B,4] h) "
        "{ , h = GRU<hidden_size = 4>(x, w, r) }",
        20,
    ),
    ("OPS024", "g (float[1] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }", 20),
    ("OPS026", "g (bool[N] p, bool[N] q) => (bool[N] y) { y = Xor(p, q) }", 20),
]


def repaired(probe: Probe, safety: Safety) -> ModelProto:
    rules = [RULES[code] for code in (probe.code, *probe.others)]
    result, run = fixed(rules, probe.model(), safety=safety)
    assert not run.problems
    assert run.applied
    again, more = fixed(rules, result, safety=safety)
    assert not more.applied
    assert again.SerializeToString() == result.SerializeToString()
    return result


PROBED = pytest.mark.parametrize("probe", PROBES, ids=lambda p: f"{p.code}-{PROBES.index(p)}")


@FACT
@REAL
@PROBED
def test_what_is_found_is_refused(probe: Probe, worker: Worker, tmp_path: Path) -> None:
    found = findings(RULES[probe.code], probe.model(), "rtx")
    assert found
    assert {f.severity for f in found} == {probe.severity}
    done = built(worker, probe.model(), tmp_path)
    if probe.words:
        assert done.status == "refused"
        assert probe.words in done.reason
    else:
        assert done.accepted, done.reason


@REAL
@PROBED
def test_what_is_repaired_is_accepted(probe: Probe, worker: Worker, tmp_path: Path) -> None:
    if probe.safety is None:
        assert not fixed([RULES[probe.code]], probe.model(), safety=Safety.UNSAFE)[1].applied
        return
    done = built(worker, repaired(probe, probe.safety), tmp_path)
    assert done.accepted, done.reason


@pytest.mark.corpus
@PROBED
def test_a_repair_computes_the_same(probe: Probe) -> None:
    if probe.safety is None:
        return
    result = repaired(probe, probe.safety)
    assert_interface_kept(probe.model(), result)
    onnx.checker.check_model(result, full_check=True)
    if probe.safety != Safety.UNSAFE and probe.runs:
        assert_same_outputs(probe.model(), result, exact=probe.safety == Safety.EXACT)
    if probe.safety > Safety.EXACT:
        assert not fixed([RULES[probe.code]], probe.model(), safety=Safety(probe.safety - 1))[1].applied


@REAL
@pytest.mark.parametrize(
    ("code", "text", "opset"), ACCEPTED, ids=[f"{c[0]}-{i}" for i, c in enumerate(ACCEPTED)]
)
def test_what_is_accepted_is_not_found(
    code: str, text: str, opset: int, worker: Worker, tmp_path: Path
) -> None:
    model = models.model(text, opset)
    assert not findings(RULES[code], model, "rtx")
    done = built(worker, model, tmp_path)
    assert done.accepted, done.reason


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
    result, run = fixed([RULES[code]], model)
    assert not run.problems
    assert built(worker, result, tmp_path).accepted
    assert_same_outputs(model, result)


@REAL
@pytest.mark.parametrize("opset", [13, 20])
def test_the_warning_about_an_empty_initializer_goes(opset: int, worker: Worker, tmp_path: Path) -> None:
    text = """g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}> {
        y = Resize(x, r, s) }"""
    model = models.model(text, opset)
    before = built(worker, model, tmp_path)
    assert any("Empty initializer r" in str(warning) for warning in before.warnings), before.warnings
    result, _ = fixed([RULES["OPS030"]], model)
    after = built(worker, result, tmp_path)
    assert after.accepted
    assert not after.warnings
    assert_same_outputs(model, result)


@REAL
@pytest.mark.parametrize(("op", "logic"), [("Add", "Or"), ("Mul", "And")])
def test_logic_by_arithmetic_costs_layers(op: str, logic: str, worker: Worker, tmp_path: Path) -> None:
    text = f"""g (bool[N] p, bool[N] q) => (bool[N] y) {{
        a = Cast<to=6>(p)  b = Cast<to=6>(q)  c = {op}(a, b)  y = Cast<to=9>(c) }}"""
    model = models.model(text, 18)
    assert [f.severity for f in findings(RULES["OPS027"], model)] == [Severity.INFO]
    assert dict(built(worker, model, tmp_path).layers) == {"CAST": 3, "ELEMENTWISE": 1}
    result, _ = fixed([RULES["OPS027"]], model)
    assert [node.op_type for node in result.graph.node] == [logic]
    assert dict(built(worker, result, tmp_path).layers) == {"ELEMENTWISE": 1}


@REAL
def test_crossed_bounds_leave_the_activation_layer(worker: Worker, tmp_path: Path) -> None:
    probe = next(p for p in PROBES if p.code == "OPS034")
    assert dict(built(worker, probe.model(), tmp_path).layers) == {"ACTIVATION": 1}
    layers = dict(built(worker, repaired(probe, Safety.EXACT), tmp_path).layers)
    assert layers["ELEMENTWISE"] == 2
    assert "ACTIVATION" not in layers


def test_a_large_sparse_tensor_is_not_written_out() -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    at = helper.make_tensor("at", TensorProto.INT64, [1], [5])
    model = sparse_model(constant=False)
    model.graph.sparse_initializer[0].CopyFrom(helper.make_sparse_tensor(values, at, [1 << 20, 1 << 20]))
    found = findings(RULES["GRA007"], model)
    assert len(found) == 1
    assert found[0].match.fix is None


@pytest.mark.parametrize(
    ("places", "valid"), [([0, 5], True), ([0, 6], False), ([-1, 2], False), ([3, 3], False)]
)
def test_sparse_places(places: list[int], valid: bool) -> None:
    from onnxfix_rules.gra import _sparse

    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    sparse = helper.make_sparse_tensor(
        values, helper.make_tensor("at", TensorProto.INT64, [2], places), [2, 3]
    )
    tensor = _sparse.dense(sparse, "d", None)
    assert (tensor is not None) is valid
    if tensor is not None:
        assert onnx.numpy_helper.to_array(tensor).tolist() == [[1, 0, 0], [0, 0, 2]]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin"])
def test_vectors_of_every_length(op: str) -> None:
    """An axis in front changes nothing, ties and signs of zero included."""
    kind = "int64[1]" if op.startswith("Arg") else "float[N]"
    text = f"g (float[N] x) => ({kind} y) {{ y = {op}(x) }}"
    model = models.model(text, 20)
    result, run = fixed([RULES["OPS023"]], model)
    assert len(run.applied) == 1
    for x in ([0.0, -0.0, 0.0], [1.0], [np.inf, -np.inf, 2.0], [np.nan, 1.0], [3.0, 3.0, 1.0]):
        feed = {"x": np.array(x, np.float32)}
        old, new = (ReferenceEvaluator(m).run(None, feed)[0] for m in (model, result))
        np.testing.assert_array_equal(old, new)


def test_every_arrangement_of_merged_axes() -> None:
    """OPS045 on random shapes and permutations of nine axes, against numpy."""
    from onnxfix_rules.ops.limits.ops045_rank_above_eight import _merged

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
    assert [item.match.place.text for item in findings(RULES["OPS045"], model)] == ["z"]
