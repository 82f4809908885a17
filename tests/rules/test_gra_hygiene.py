"""The graph hygiene rules where examples cannot tell: order, names and declared types do not change the graph's
structure, and some models the text format cannot say.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

from onnxfix.rule import Rule
from onnxfix.testing import assert_same_outputs, findings, fixed
from onnxfix_rules.gra.gra003_wrong_declared_type import wrong_declared_type
from onnxfix_rules.gra.hygiene import dead_node, duplicate_node_name, unsorted_nodes, unused_initializer
from onnxfix_rules.ifc.types import output_without_type
from support.models import floats, of_nodes, of_opset
from support.patience import processor_seconds
from support.repairs import repaired

RULES = [dead_node, unused_initializer, wrong_declared_type, unsorted_nodes, duplicate_node_name]


model_of = of_opset(18, domains={"d": 1})


def after(rules: list[Rule] | Rule, model: ModelProto, fixes: int | None = None) -> ModelProto:
    """The model after the rules' fixes; ``fixes`` is their number."""
    result, run = repaired(rules if isinstance(rules, list) else [rules], model)
    assert fixes is None or len(run.applied) == fixes, [a.key for a in run.applied]
    return result


def ops(graph: GraphProto | FunctionProto) -> list[str]:
    return [node.op_type for node in graph.node]


def messages(rule: Rule, model: ModelProto) -> list[str]:
    return [f"{f.match.place.text}: {f.match.message} [{f.severity.name}]" for f in findings(rule, model)]


# ---- GRA001


DEAD_CHAIN = """g (float[N] x) => (float[N] y) {
    a = Exp(x)  b = Neg(a)  c = Abs(b)  y = Neg(x)  d = Add(b, c)  e = Sub(d, a)  f = Exp(d) }"""


def test_a_dead_chain_goes_in_one_round() -> None:
    model = model_of(DEAD_CHAIN)
    assert messages(dead_node, model) == [
        "e: nothing reads this Sub [WARNING]",
        "f: nothing reads this Exp, and 4 more nodes compute only its inputs [WARNING]",
    ]
    result, run = fixed([dead_node], model)
    assert ops(result.graph) == ["Neg"]
    assert (len(run.applied), run.rounds) == (2, 2)


def test_what_lives_keeps_its_bytes() -> None:
    """Nodes beside the dead ones, their metadata, documentation and value_info stay as they were."""
    model = model_of(DEAD_CHAIN)
    model.graph.node[3].doc_string = "kept"
    model.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, ["N"]))
    kept = model.graph.node[3].SerializeToString()
    result = after(dead_node, model, 2)
    assert [node.SerializeToString() for node in result.graph.node] == [kept]
    assert not result.graph.value_info


def test_nodes_without_outputs_stay() -> None:
    model = model_of("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    model.graph.node.append(helper.make_node("Print", ["x"], [""], domain="d"))
    assert not messages(dead_node, model)
    model.graph.node.append(helper.make_node("Exp", ["x"], ["z"]))
    model.graph.node.append(helper.make_node("Print", ["z"], [], domain="d"))
    assert not messages(dead_node, model)


def test_training_keeps_what_it_names() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Exp(x)  l = Sub(a, w)  y = Add(x, w) }"
    )
    assert len(messages(dead_node, model)) == 1
    training = model.training_info.add()
    step = helper.make_node("Neg", ["l"], ["w_new"])
    made = helper.make_tensor_value_info("w_new", TensorProto.FLOAT, [2])
    training.algorithm.CopyFrom(helper.make_graph([step], "step", [], [made]))
    assert not messages(dead_node, model)


def test_scan_and_nested_loops() -> None:
    """What an inner body captures through two borders lives; the dead node beside it does not."""
    model = model_of("""g (int64 n, bool k, float[2] x) => (float[2] y) { a = Exp(x)  dead = Neg(a)
        y = Loop(n, k, x)<body = b (int64 i, bool c, float[2] v) => (bool co, float[2] w) {
            co = Identity(c)  gone = Abs(v)
            w = If(c)<then_branch = t () => (float[2] p) { p = Add(a, v)  lost = Neg(p) },
                      else_branch = e () => (float[2] q) { q = Identity(v) }> }> }""")
    result = after(dead_node, model, 3)
    assert ops(result.graph) == ["Exp", "Loop"]
    body = result.graph.node[1].attribute[0].g
    assert ops(body) == ["Identity", "If"]
    assert ops(body.node[1].attribute[0].g) == ["Add"]
    assert_same_outputs(model, result)


def test_a_long_dead_chain_takes_linear_time() -> None:
    def seconds(length: int) -> float:
        names = [f"v{i}" for i in range(length + 1)]
        nodes = [helper.make_node("Add", [a, a], [b]) for a, b in itertools.pairwise(names)]
        nodes.append(helper.make_node("Neg", ["v0"], ["y"]))
        model = of_nodes(nodes, floats(v0=[1]), floats(y=[1]))

        def look() -> None:
            assert messages(dead_node, model) == [
                f"v{length}: nothing reads this Add, and {length - 1} more nodes compute only its inputs [WARNING]"
            ]

        return processor_seconds(look)

    seconds(100)
    assert seconds(8000) < 40 * max(seconds(1000), 0.005)


# ---- GRA002


REFUSED = [
    "string",
    "int16",
    "uint16",
    "uint32",
    "uint64",
    "uint4",
    "complex64",
    "float8e5m2",
    "float8e4m3fnuz",
]
ACCEPTED = ["float", "float16", "bfloat16", "double", "bool", "int8", "uint8", "int32", "int64", "int4"]


@pytest.mark.parametrize(
    ("kind", "severity"), [*((k, "ERROR") for k in REFUSED), *((k, "INFO") for k in ACCEPTED)]
)
def test_severity_of_an_unused_initializer(kind: str, severity: str) -> None:
    model = model_of("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    values = [b"a", b"b"] if kind == "string" else [1, 0]
    model.graph.initializer.append(
        helper.make_tensor("c", TensorProto.DataType.Value(kind.upper()), [2], values)
    )
    assert messages(unused_initializer, model) == [
        f"c: nothing reads this initializer ({kind}[2]) [{severity}]"
    ]
    assert not after(unused_initializer, model, 1).graph.initializer


def test_only_the_unused_one_goes_and_the_others_keep_their_bytes() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}, float[2] c = {5, 6}> "
        "{ s = Add(x, a)  y = Mul(s, c) }"
    )
    kept = [model.graph.initializer[i].SerializeToString() for i in (0, 2)]
    result = after(unused_initializer, model, 1)
    assert [tensor.SerializeToString() for tensor in result.graph.initializer] == kept


def test_a_sparse_initializer_goes_unless_something_reads_it() -> None:
    model = model_of("g (float[4] x) => (float[4] y) { y = Add(x, s0)  s0 = Neg(x) }")
    indices = numpy_helper.from_array(np.array([1], np.int64), "i")
    for name in ("s1", "s2", "s3", "x"):
        values = numpy_helper.from_array(np.array([2.0], np.float32), name)
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    kept = model.graph.sparse_initializer[1].SerializeToString()
    model.graph.node[1].CopyFrom(helper.make_node("Add", ["x", "s2"], ["s0"]))
    wanted = [
        "s1: nothing reads this sparse initializer [INFO]",
        "s3: nothing reads this sparse initializer [INFO]",
    ]
    assert messages(unused_initializer, model) == wanted
    result = after(unused_initializer, model, 2)
    assert [row.values.name for row in result.graph.sparse_initializer] == ["s2", "x"]
    assert result.graph.sparse_initializer[0].SerializeToString() == kept


# ---- GRA003


def declared(model: ModelProto, name: str) -> str:
    for info in model.graph.value_info:
        if info.name == name:
            return onnx.printer.to_text(helper.make_graph([], "g", [info], []))
    return ""


def info(name: str, kind: int, shape: list[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.mark.parametrize(
    ("claim", "correction"),
    [
        (info("a", TensorProto.FLOAT16, ["N", 3]), info("a", TensorProto.FLOAT, ["N", 3])),
        (info("a", TensorProto.FLOAT, ["M", 4]), info("a", TensorProto.FLOAT, ["M", 3])),  # M stays: no lie
        (info("a", TensorProto.FLOAT, [7]), info("a", TensorProto.FLOAT, ["N", 3])),
        (info("a", TensorProto.FLOAT, []), info("a", TensorProto.FLOAT, ["N", 3])),
        (info("a", TensorProto.INT8, [1, 2, 3]), info("a", TensorProto.FLOAT, ["N", 3])),
        (info("a", TensorProto.FLOAT16, None), info("a", TensorProto.FLOAT, None)),
        (info("a", TensorProto.FLOAT, [-1, -1]), info("a", TensorProto.FLOAT, [-1, 3])),
        (info("a", TensorProto.FLOAT, ["N", 3]), None),
        (info("a", TensorProto.FLOAT, [7, 3]), None),  # may be: callers choose N
        (info("a", TensorProto.FLOAT, None), None),
        (info("a", TensorProto.UNDEFINED, ["N", 3]), None),
        (helper.make_tensor_sequence_value_info("a", TensorProto.FLOAT, None), None),
        (onnx.ValueInfoProto(name="a"), None),
    ],
)
def test_value_info(claim: onnx.ValueInfoProto, correction: onnx.ValueInfoProto | None) -> None:
    model = model_of("g (float[N,3] x) => (float[N,3] y) { a = Neg(x)  y = Abs(a) }")
    claim.doc_string = "said so"
    others = [info("ghost", TensorProto.INT8, [9]), info("x", TensorProto.FLOAT, ["N", 3])]
    model.graph.value_info.extend([others[0], claim, others[1]])
    wanted = onnx.ValueInfoProto()
    wanted.CopyFrom(claim if correction is None else correction)
    wanted.doc_string = "said so"
    result = after(wrong_declared_type, model, 0 if correction is None else 1)
    assert list(result.graph.value_info) == [others[0], wanted, others[1]]
    if correction is None:
        assert result.SerializeToString() == model.SerializeToString()


def test_a_dimension_without_a_name_of_an_input_stays_open_and_a_scalar_has_a_shape() -> None:
    model = model_of("""g (float[?,N] x) => (float[A,B] y, float z) {
        a = Concat<axis=1>(x, x)  y = Abs(a)  s = ReduceSum<keepdims=0>(x)  z = Abs(s) }""")
    model.graph.value_info.extend(info(name, TensorProto.FLOAT, [1]) for name in "as")
    matrix, scalar = after(wrong_declared_type, model, 2).graph.value_info
    assert [d.WhichOneof("value") for d in matrix.type.tensor_type.shape.dim] == [None, None]
    assert scalar == info("s", TensorProto.FLOAT, [])


def test_two_entries_for_one_name_become_one() -> None:
    model = model_of("g (float[N,3] x) => (float[N,3] y) { a = Neg(x)  y = Abs(a) }")
    right, wrong = info("a", TensorProto.FLOAT, ["N", 3]), info("a", TensorProto.FLOAT, ["N", 4])
    model.graph.value_info.extend([right, wrong])
    assert list(after(wrong_declared_type, model, 1).graph.value_info) == [right]


def test_value_info_of_a_function_and_of_a_branch() -> None:
    model = model_of("""g (float[N] x, bool k) => (int64[R] y) {
        y = If(k)<then_branch = t () => (int64[R] p) <int32[5] b> { b = Shape(x)  p = Neg(b) },
                  else_branch = e () => (int64[R] q) { q = d.f(x) }> }
        <domain: "d", opset_import: ["" : 18]> f (u) => (w) { s = Shape(u)  w = Neg(s) }""")
    if not hasattr(model.functions[0], "value_info"):
        return
    model.functions[0].value_info.append(info("s", TensorProto.INT32, [1]))
    result = after(wrong_declared_type, model, 2)
    branch = next(a.g for a in result.graph.node[0].attribute if a.name == "then_branch")
    assert list(branch.value_info) == [info("b", TensorProto.INT64, [1])]
    (entry,) = result.functions[0].value_info
    assert entry.type.tensor_type.elem_type == TensorProto.INT64


@pytest.mark.parametrize(
    ("output", "severity"),
    [
        ("float[N,4] y", "WARNING"),
        ("float[N] y", "WARNING"),
        ("float16[N,3] y", "ERROR"),
        ("float[M,3] y", ""),
        ("float[2,3] y", ""),
    ],
)
def test_outputs_are_only_reported(output: str, severity: str) -> None:
    model = model_of(f"g (float[N,3] x) => ({output}) {{ y = Neg(x) }}")
    found = messages(wrong_declared_type, model)
    assert [line.rsplit("[", 1)[1] for line in found] == ([f"{severity}]"] if severity else [])
    assert after(wrong_declared_type, model, 0).SerializeToString() == model.SerializeToString()


def test_the_message_says_both() -> None:
    model = model_of("g (float[N,3] x) => (float[N,3] y) <float16[?,4] a> { a = Neg(x)  y = Abs(a) }")
    assert messages(wrong_declared_type, model) == [
        "a: declared float16[?,4], but it is float[N,3] [WARNING]"
    ]


# ---- GRA004


def test_sorting_is_stable() -> None:
    model = model_of(
        "g (float[N] x) => (float[N] y) { z = Exp(x)  y = Add(b, z)  a = Exp(x)  b = Neg(a)  c = Abs(x) }"
    )
    result = after(unsorted_nodes, model, 1)
    assert [node.output[0] for node in result.graph.node] == ["z", "a", "b", "y", "c"]
    onnx.checker.check_model(result)
    assert_same_outputs(model, result)


def test_every_scope_is_sorted_by_itself() -> None:
    model = model_of("""g (float[2] x, bool k) => (float[2] y) {
        y = If(k)<then_branch = t () => (float[2] p) { p = Neg(u)  u = Exp(a) },
                  else_branch = e () => (float[2] q) { q = d.f(x) }>  a = Exp(x) }
        <domain: "d", opset_import: ["" : 18]> f (u) => (w) { w = Neg(a)  a = Exp(u) }""")
    assert [line[line.rindex("[") :] for line in messages(unsorted_nodes, model)] == [
        "[WARNING]",
        "[WARNING]",
        "[ERROR]",
    ]
    result = after(unsorted_nodes, model, 3)
    assert ops(result.graph) == ["Exp", "If"]
    assert ops(result.graph.node[1].attribute[0].g) == ["Exp", "Neg"]
    assert ops(result.functions[0]) == ["Exp", "Neg"]
    onnx.checker.check_model(result)


# ---- GRA005


def test_new_names() -> None:
    model = model_of("""g (float[N] x) => (float[N] y) {
        [n] a = Exp(x)  [n] b = Neg(a)  [n_2] c = Abs(b)  [n] d = Exp(c)  e = Exp(d)  f = Exp(e)  [n_2] y = Neg(f) }""")
    result = after(duplicate_node_name, model, 3)
    assert [node.name for node in result.graph.node] == ["n", "n_3", "n_2", "n_4", "", "", "n_2_2"]
    assert [list(node.output) for node in result.graph.node] == [
        list(node.output) for node in model.graph.node
    ]


def test_names_of_other_scopes_are_no_duplicates_but_are_avoided() -> None:
    model = model_of("""g (float[2] x, bool k) => (float[2] y) { [n] a = Exp(x)  [n] b = Exp(a)
        y = If(k)<then_branch = t () => (float[2] p) { [n] p = Neg(b) },
                  else_branch = e () => (float[2] q) { [n_2] q = Abs(a) }> }""")
    result = after(duplicate_node_name, model, 1)
    assert [node.name for node in result.graph.node] == ["n", "n_3", ""]


# ---- together


def test_all_of_it_in_one_model() -> None:
    """Unsorted, dead, unused, misnamed and mislabeled at once: fixed together, and once is enough."""
    model = model_of("""g (float[2] x, bool k) => (float[2] y)
        <float[2] w = {1, 2}, string[1] s = {"a"}, float16[9] a, float[2] d> {
        [n] y = If(k)<then_branch = t () => (float[2] p) <float[3] u> { [m] p = Neg(u)  [m] u = Exp(a)  v = Abs(u) },
                      else_branch = e () => (float[2] q) { q = Add(x, w) }>
        [n] a = Exp(x)  [n] dead = Neg(a)  d = Sub(dead, w) }""")
    result = after(RULES, model)
    onnx.checker.check_model(result, full_check=True)
    assert [node.name for node in result.graph.node] == ["n_2", "n"]
    assert [t.name for t in result.graph.initializer] == ["w"]
    assert [v.name for v in result.graph.value_info] == ["a"]
    assert not any(findings(rule, result) for rule in RULES)


def test_an_output_without_a_type_gets_what_is_known_of_it() -> None:
    model = model_of("g (float[N,3] x) => (y, i) { y = Neg(x)  i = ArgMax<axis = 1>(y) }")
    y, i = after(output_without_type, model, 2).graph.output
    assert y == helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])
    assert i == helper.make_tensor_value_info("i", TensorProto.INT64, [None, 1])
