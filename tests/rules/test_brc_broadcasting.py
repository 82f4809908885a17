"""The broadcasting rules: exactness on random graphs, agreement of the warnings with brute force, large constants."""

# Long because: the rules share the generators and the brute-force tables.

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.model import Model
from onnxfix.proof.compare.compare import identical
from onnxfix.rewrite.engine import check, fix
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule, Safety, Severity
from onnxfix.targets import DEFAULT
from onnxfix.testing import findings
from support.models import external, floats, of_nodes, of_opset
from support.ort import session
from support.paths import FIXTURES
from support.repairs import repaired

CONSTANT, RUNTIME, TWO_SIDED, MAY_DIFFER, TRAP, REPETITION = (
    registry().get(f"BRC00{i}") for i in range(1, 7)
)


FLOAT_OPS = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Less",
    "Greater",
    "Equal",
    "Min",
    "Max",
    "Sum",
    "Mean",
    "Where",
]
INT_OPS = ["Add", "Sub", "Mul", "Mod", "LessOrEqual", "GreaterOrEqual", "Max", "Where"]
BOOL_OPS = ["And", "Or", "Xor"]  # ONNX Runtime has no Where on booleans
KINDS = {np.float32: FLOAT_OPS, np.int64: INT_OPS, np.bool_: BOOL_OPS}
RESULT_IS_BOOL = {"Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"}

Case = tuple[ModelProto, dict[str, np.ndarray[Any, Any]]]


model_of = of_opset(18, 9)


def assert_identical(before: ModelProto, after: ModelProto, feed: dict[str, np.ndarray[Any, Any]]) -> None:
    for old, new in zip(session(before).run(None, feed), session(after).run(None, feed), strict=True):
        assert (old.dtype, old.shape) == (new.dtype, new.shape)
        assert identical(old, new)  # bit for bit; which of the NaNs a kernel gives is nobody's promise


def values(dtype: Any, shape: Sequence[int], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if dtype is np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype is np.int64:
        return rng.integers(1, 9, shape).astype(np.int64)  # no zeros: Mod divides
    array = rng.choice(np.array([0.0, -0.0, 1.5, -2.25, 3.0, np.inf, np.nan, 1e-30, 7.7], np.float32), shape)
    return np.asarray(array, dtype=np.float32)


@st.composite
def operand_shapes(draw: st.DrawFn, count: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast: each is the result's tail with some dimensions at 1."""
    result = draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=4))
    shapes = []
    for _ in range(count):
        length = draw(st.integers(0, len(result)))
        tail = result[len(result) - length :]
        shapes.append(tuple(1 if draw(st.booleans()) else size for size in tail))
    return shapes


@st.composite
def chains(draw: st.DrawFn) -> Case:
    """Up to four element-wise nodes in a row that share their constants and inputs."""
    dtype = draw(st.sampled_from(list(KINDS)))
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    shapes = draw(operand_shapes(4))
    nodes, inputs, initializers, feed = [], [], [], {}
    for index, shape in enumerate(shapes):
        array, name = values(dtype, shape, draw(st.integers(0, 99))), f"v{index}"
        kind = draw(st.sampled_from(["input", "symbolic", "initializer", "constant", "overridable"]))
        if kind in ("input", "symbolic", "overridable"):
            dims = [f"{name}_{axis}" if kind == "symbolic" else size for axis, size in enumerate(shape)]
            inputs.append(helper.make_tensor_value_info(name, elem, dims))
            feed[name] = array
        if kind in ("initializer", "overridable"):
            initializers.append(numpy_helper.from_array(array, name))
        if kind == "constant":
            nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
    names = [f"v{index}" for index in range(len(shapes))]
    mask = values(np.bool_, shapes[0], 5)
    initializers.append(numpy_helper.from_array(mask, "mask"))
    outputs = []
    for step in range(draw(st.integers(1, 4))):
        op, out = draw(st.sampled_from(KINDS[dtype])), f"t{step}"
        sides = [draw(st.sampled_from(names)), draw(st.sampled_from(names[:4] if op == "Mod" else names))]
        nodes.append(helper.make_node(op, ["mask", *sides] if op == "Where" else sides, [out]))
        boolean = op in RESULT_IS_BOOL
        outputs.append(helper.make_tensor_value_info(out, TensorProto.BOOL if boolean else elem, None))
        if not boolean:
            names.append(out)
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), feed


def fixed_to_the_end(rules: Sequence[Rule], model: ModelProto) -> ModelProto:
    return repaired(rules, model)[0]


@settings(max_examples=80)
@given(chains())
def test_aligned_constants_change_no_bit(case: Case) -> None:
    model, feed = case
    result = fixed_to_the_end([CONSTANT], model)
    assert_identical(model, result, feed)
    assert len(result.graph.node) <= len(model.graph.node) + 4  # clones of Constant nodes at most


@settings(max_examples=80)
@given(chains())
def test_runtime_operands_and_repetition_change_no_bit(case: Case) -> None:
    model, feed = case
    assert_identical(model, fixed_to_the_end([CONSTANT, RUNTIME, REPETITION], model), feed)


@given(
    st.sampled_from([(3, 4), (2, 3, 4), (5, 2, 3, 4), (0, 3, 4), (1, 1, 3, 4)]),
    st.sampled_from([(4, 2), (2, 4, 2), (1, 4, 2), (5, 1, 4, 2)]),
    st.booleans(),
    st.integers(0, 99),
)
def test_matmul_with_a_constant(
    left: tuple[int, ...], right: tuple[int, ...], first: bool, seed: int
) -> None:
    batch = itertools.zip_longest(left[-3::-1], right[-3::-1])
    # ONNX Runtime refuses an empty batch that has no counterpart on the other side.
    assume(
        all(a is None or b is None or a == b or 1 in (a, b) for a, b in batch)
        and (left[0] or len(right) == 2)
    )
    rng = np.random.default_rng(seed)
    arrays = {
        "a": rng.standard_normal(left).astype(np.float32),
        "b": rng.standard_normal(right).astype(np.float32),
    }
    runtime, const = ("b", "a") if first else ("a", "b")
    inputs = floats(**{runtime: [f"d{i}" for i in range(arrays[runtime].ndim)]})
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    model = of_nodes([node], inputs, floats(y=None), {const: arrays[const]})
    result = fixed_to_the_end([CONSTANT], model)
    dims = list(result.graph.initializer[0].dims)
    linear = const == "b" and len(right) == 2
    wanted = len(arrays[const].shape) if linear else max(len(left), len(right))
    assert dims == [1] * (wanted - arrays[const].ndim) + list(arrays[const].shape)
    assert_identical(model, result, {runtime: arrays[runtime]})


SPECIAL = np.array([0.0, -0.0, 1.5, -2.25, 7.7, np.inf, np.nan, 1e-30], np.float32)


@pytest.mark.parametrize("op", ["Pow", "Min", "Max", "Where", "Add", "Mul", "Div", "PRelu"])
@pytest.mark.parametrize("dims", [("N", 1), ("N", "S"), ("N", 2), ("N", 2, 1), ("N", 1, "S")])
@pytest.mark.parametrize("shape", [(), (1,), (2,), (2, 1)])
def test_exact_alignment_takes_kernels_that_agree(
    op: str, dims: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    """ONNX Runtime chooses kernels by where ones stand, and some differ in cubes and in the sign of zero."""
    sizes = tuple({"N": 8, "S": 1}.get(dim, dim) for dim in dims)
    try:
        if len(np.broadcast_shapes(sizes, shape)) > len(sizes) or np.broadcast_shapes(sizes, shape) != sizes:
            return  # the constant would be the larger side
    except ValueError:
        return
    x = np.broadcast_to(SPECIAL.reshape(8, *[1] * (len(sizes) - 1)), sizes)
    for number in (*SPECIAL, np.float32(3)):
        constants = {"b": np.full(shape, number, np.float32), "mask": np.ones(sizes, np.bool_)}
        node = helper.make_node(op, ["mask", "x", "b"] if op == "Where" else ["x", "b"], ["y"])
        model = of_nodes([node], floats(x=dims), floats(y=None), constants)
        result = fixed_to_the_end([CONSTANT], model)
        assert_identical(model, result, {"x": x})
        changed = [list(t.dims) for t in result.graph.initializer] != [
            list(t.dims) for t in model.graph.initializer
        ]
        # A size that may be 1 decides: where no dimension is known to be larger, nothing is applied.
        sensitive = op in ("Pow", "Min", "Max", "Where")
        common = dims[-max(1, len(shape)) :]
        assert changed or (sensitive and not any(isinstance(d, int) and d > 1 for d in common))


@pytest.mark.parametrize("op", ["Pow", "Min", "Max", "Where"])
@pytest.mark.parametrize(
    ("dims", "safety"),
    [("N,1", Safety.NUMERIC), ("N,S", Safety.NUMERIC), ("N,2,1", Safety.NUMERIC), ("N,S,2", Safety.EXACT)],
)
def test_safety_of_alignment(op: str, dims: str, safety: Safety) -> None:
    sides = "p, x, b" if op == "Where" else "x, b"
    text = (
        f"g (float[{dims}] x, bool[{dims}] p) => (float[{dims}] y) <float b = {{3}}> {{ y = {op}({sides}) }}"
    )
    (found,) = findings(CONSTANT, model_of(text))
    assert found.match.fix is not None
    assert found.match.fix.safety == safety


def test_repetition_of_an_exponent_is_not_called_exact() -> None:
    text = "g (float[N,1] x, float[1,M] z) => (float[?,?] y) { y = Pow(x, z) }"
    model = model_of(text)
    (found,) = findings(REPETITION, model)
    assert found.match.fix is not None
    assert found.match.fix.safety == Safety.NUMERIC


# -- the warnings against brute force ------------------------------------------------------------------------------

SIZES = ["N", "S", 1, 2]
"""N is a batch (axis 0 of the input ``n``), S is not (axis 1)."""


def symbol_model(first: Sequence[int | str], second: Sequence[int | str]) -> ModelProto:
    """``first + second``, both made with sizes taken from the input at run time."""
    nodes = [
        helper.make_node("Shape", ["n"], ["N_of"], start=0, end=1),
        helper.make_node("Shape", ["n"], ["S_of"], start=1, end=2),
    ]
    constants = {f"{size}_of": np.array([size], np.int64) for size in (1, 2, 3)}
    constants["none"] = np.array([], np.int64)
    for name, dims in (("a", first), ("b", second)):
        nodes.append(
            helper.make_node("Concat", ["none", *(f"{dim}_of" for dim in dims)], [f"{name}_dims"], axis=0)
        )
        nodes.append(helper.make_node("ConstantOfShape", [f"{name}_dims"], [name]))
    nodes.append(helper.make_node("Add", ["a", "b"], ["y"]))
    return of_nodes(nodes, floats(n=["N", "S"]), floats(y=None), constants)


def results(first: Sequence[int | str], second: Sequence[int | str]) -> Iterator[tuple[int, int, Any]]:
    for n, s in itertools.product(range(1, 6), range(1, 6)):
        shapes = [
            [{"N": n, "S": s}.get(d, d) if isinstance(d, str) else d for d in dims]
            for dims in (first, second)
        ]
        try:
            yield n, s, np.broadcast_shapes(*map(tuple, shapes))
        except ValueError:
            yield n, s, None


def is_shifted(first: Sequence[int | str], second: Sequence[int | str]) -> bool:
    """Whether a batch at one side's front is aligned with something else than the other side's batch."""
    long, short = sorted((first, second), key=len, reverse=True)
    gap = len(long) - len(short)
    return bool(gap and short and long[0] == short[0] == "N" and long[gap] != "N")


SHAPES = [dims for rank in range(4) for dims in itertools.product(SIZES, repeat=rank)]


@settings(max_examples=200)
@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES))
def test_warnings_agree_with_brute_force(first: tuple[int | str, ...], second: tuple[int | str, ...]) -> None:
    model = symbol_model(first, second)
    table = list(results(first, second))
    if all(result is None for _, _, result in table):
        return  # no sizes at all: the checker's finding
    open_sizes = any(result is None for _, _, result in table)
    differ, trap = findings(MAY_DIFFER, model), findings(TRAP, model)
    assert bool(differ or trap) == (open_sizes or is_shifted(first, second))
    at_one = [result for n, _, result in table if n == 1]
    if trap and not is_shifted(first, second):
        assert any(result is not None for result in at_one)
        assert any(result is None for n, _, result in table if n > 1)
    if differ:
        assert any(result is None for n, _, result in table if n > 1 or None in at_one)


@pytest.mark.parametrize(
    ("first", "second", "outcomes"),
    [
        (("N", 1), ("N",), ("batch 1: [1, 1] and [1] give [1, 1]", "batch 2: [2, 1] and [2] give [2, 2]")),
        (
            ("N", "S", 1),
            ("N", 3),
            ("batch 1: [1, S, 1] and [1, 3] give [1, S, 3]", "batch 2: [2, S, 1] and [2, 3]"),
        ),
    ],
)
def test_the_trap_says_what_happens(first: Any, second: Any, outcomes: Any) -> None:
    (found,) = findings(TRAP, symbol_model(first, second))
    assert found.severity == Severity.WARNING
    assert found.match.message.startswith("axis ")
    for outcome in outcomes:
        assert outcome in found.match.message


def test_a_crossing_is_one_finding_of_one_rule() -> None:
    """``S`` meets ``N`` there, too, but that is the same mistake; and what follows from it is no further one."""
    text = (
        "g (float[N,S,1] x, float[N,3] z, float[N,1] v, float[N] w) => (float[?,?,?] y, float[?,?] q, float[?,?] r)"
        " { y = Add(x, z)  q = Mul(v, w)  r = Add(q, w) }"
    )
    model = model_of(text)
    assert not findings(MAY_DIFFER, model)
    nodes = [found.match.node.first_output for found in findings(TRAP, model) if found.match.node is not None]
    assert nodes == ["y", "q"]


def test_one_sample_that_a_reshape_made_is_told_from_one_that_was_computed() -> None:
    text = (
        "g (float[N,4] x) => (float[N,4] y, float[N,4] z) <int64[2] s = {1,4}, int64[1] a = {0}>"
        " { n = Neg(x)  r = Reshape(x, s)  y = Add(n, r)  m = ReduceMax(x, a)  z = Add(n, m) }"
    )
    model = model_of(text)
    (found,) = findings(TRAP, model)
    assert found.match.node is not None
    assert found.match.node.first_output == "y"
    assert "a Reshape turned N samples into " in found.match.message


def test_a_pair_of_sizes_is_reported_once() -> None:
    text = "g (float[N,3] x, float[M,3] z) => (float[?,3] y) { a = Add(x, z)  b = Sub(x, z)  y = Mul(z, x) }"
    model = model_of(text)
    (found,) = findings(MAY_DIFFER, model)
    assert "2 more nodes broadcast the same pair" in found.match.message
    assert found.match.node is not None
    assert found.match.node.first_output == "a"


@pytest.mark.parametrize("name", ["mixed_precision.legacy.op17", "swin.legacy.op13", "vit.legacy.op17"])
def test_real_exports_have_no_warning(name: str) -> None:
    model = onnx.load(FIXTURES / f"{name}.onnx")
    assert not findings(MAY_DIFFER, model)
    assert not findings(TRAP, model)
    assert findings(CONSTANT, model)


# -- constants that the text format cannot say ---------------------------------------------------------------------


def with_bias(bias: TensorProto, uses: int = 1) -> ModelProto:
    nodes = [helper.make_node("Add", ["x", "b"], ["t0"])]
    nodes += [helper.make_node("Neg" if i else "Abs", ["b"], [f"u{i}"]) for i in range(uses - 1)]
    outputs = {node.output[0]: (bias.data_type, None) for node in nodes}
    model = of_nodes(nodes, {"x": (bias.data_type, ["N", *bias.dims])}, outputs)
    model.graph.initializer.append(bias)
    return model


def test_large_constant_moves_when_it_has_one_reader() -> None:
    bias = numpy_helper.from_array(np.arange(1 << 19, dtype=np.float32), "b")  # 2 MiB
    result = fixed_to_the_end([CONSTANT], with_bias(bias))
    assert [list(t.dims) for t in result.graph.initializer] == [[1, 1 << 19]]
    assert result.graph.initializer[0].raw_data == bias.raw_data


def test_large_constant_with_other_readers_is_reported_only() -> None:
    bias = numpy_helper.from_array(np.arange(1 << 19, dtype=np.float32), "b")
    model = with_bias(bias, uses=2)
    (found,) = findings(CONSTANT, model)
    assert found.match.fix is None
    assert "too large" in found.match.message


def test_external_constant_is_never_read(tmp_path: Path) -> None:
    bias = TensorProto(name="b", data_type=TensorProto.FLOAT, dims=[1 << 28])
    external(bias, "not_there.bin")
    model = Model(with_bias(bias, uses=2), tmp_path)
    model.target = DEFAULT
    run = fix(model, [CONSTANT])
    assert len(run.applied) == 1
    clone = next(t for t in model.proto.graph.initializer if t.name != "b")
    assert list(clone.dims) == [1, 1 << 28]
    assert clone.external_data == bias.external_data
    assert clone.data_location == TensorProto.EXTERNAL


def test_typed_fields_and_notes_of_a_tensor_survive() -> None:
    bias = TensorProto(
        name="b", data_type=TensorProto.FLOAT, dims=[2], float_data=[1.0, -0.0], doc_string="kept"
    )
    (clone,) = fixed_to_the_end([CONSTANT], with_bias(bias)).graph.initializer
    assert (list(clone.dims), list(clone.float_data), clone.doc_string) == ([1, 2], [1.0, -0.0], "kept")


def test_constant_named_by_a_quantization_annotation_is_left_alone() -> None:
    model = with_bias(numpy_helper.from_array(np.ones(3, np.float32), "b"))
    assert findings(CONSTANT, model)
    note = model.graph.quantization_annotation.add(tensor_name="b")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="b")
    assert not findings(CONSTANT, model)


def test_a_clone_from_an_earlier_run_is_used_again() -> None:
    text = (
        "g (float[N,3] x) => (float[N,3] y, float[3] z) <float[3] b = {1,2,3}> { y = Add(x, b)  z = Neg(b) }"
    )
    model = model_of(text)
    once = fixed_to_the_end([CONSTANT], model)
    once.graph.node.add(op_type="Mul", input=["x", "b"], output=["w"])
    once.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, ["N", 3]))
    twice = fixed_to_the_end([CONSTANT], once)
    assert sorted(t.name for t in twice.graph.initializer) == ["b", "b_rank2"]
    assert [list(node.input) for node in twice.graph.node if node.op_type == "Mul"] == [["x", "b_rank2"]]


def test_another_tensor_of_the_clones_name_is_not_taken_for_it() -> None:
    text = (
        "g (float[N,3] x) => (float[N,3] y, float[1,3] z) <float[3] b = {1,2,3}, float[1,3] b_rank2 = {9,2,3}>"
        " { y = Add(x, b)  z = Neg(b_rank2) }"
    )
    model = model_of(text)
    result = fixed_to_the_end([CONSTANT], model)
    assert sorted(t.name for t in result.graph.initializer) == ["b_rank2", "b_rank2_2"]
    assert_identical(model, result, {"x": np.zeros((2, 3), np.float32)})


def test_many_nodes_share_one_clone_in_few_rounds() -> None:
    count = 500
    nodes = [helper.make_node("Add", [f"t{i}", "b"], [f"t{i + 1}"]) for i in range(count)]
    ends = floats(t0=["N", 2]), floats(**{f"t{count}": ["N", 2]})
    model = Model(of_nodes(nodes, *ends, {"b": np.float32(1)}))
    model.target = DEFAULT
    assert len(check(model, [CONSTANT])) == count
    run = fix(model, [CONSTANT])
    # The first makes the clone; neighbors in the chain read each other, so two more rounds; and one to see the end.
    assert (len(run.applied), run.rounds, run.remaining) == (count, 4, ())
    assert [(t.name, list(t.dims)) for t in model.proto.graph.initializer] == [("b_rank2", [1, 1])]
