"""GRA010: what is folded has ONNX Runtime's bits, stays small, and costs little to look for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.testing import assert_interface_kept, assert_same_outputs, findings, fixed, overlay
from onnxfix_rules.gra import _evaluate, gra010_constant_subgraph
from onnxfix_rules.gra.gra010_constant_subgraph import constant_subgraph
from support import models, ort
from support.lanes import seeds
from support.patience import processor_seconds

Array = np.ndarray[Any, Any]


def call(op: str, opset: int, inputs: list[Array | None], outputs: int = 1, **attributes: Any) -> ModelProto:
    """A model of one node whose inputs are initializers."""
    names = ["" if array is None else f"i{k}" for k, array in enumerate(inputs)]
    made = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(op, names, made, **attributes)
    tensors = [numpy_helper.from_array(a, n) for a, n in zip(inputs, names, strict=True) if a is not None]
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name=name) for name in made], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def evaluated(model: ModelProto) -> list[Array]:
    node = overlay(model).main.nodes[0]
    return _evaluate.evaluate(node, [None if v is None else v.constant() for v in node.inputs])


def executed(model: ModelProto) -> list[Array]:
    """By ONNX Runtime, with the initializers as inputs: as constants it would evaluate them before it runs."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        info = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        copy.graph.input.append(info)
    return [np.asarray(item) for item in ort.run(copy, {})]


def special(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Ordinary numbers, and those at which implementations part: 0, -0, infinities, NaN, denormals, extremes."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind in "iu":
        return rng.integers(0 if kind.kind == "u" else -9, 9, shape).astype(kind)
    array = (rng.standard_normal(shape) * 10 ** rng.uniform(-3, 3, shape)).astype(kind)
    info = np.finfo(kind)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, info.smallest_subnormal, info.max, -info.tiny], kind)
    mask = rng.random(shape) < 0.3
    return np.where(mask, rng.choice(odd, shape), array)


def same(first: Array, second: Array) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    nan, other = first != first, second != second
    return bool((nan == other).all()) and first[~nan].tobytes() == second[~other].tobytes()


FLOATS = [np.float32, np.float64]
NUMBERS = [*FLOATS, np.int32, np.int64]


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize(
    "op", ["Add", "Sub", "Mul", "Div", "Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"]
)
def test_operators_of_two_numbers(op: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    for shapes in [((37,), (37,)), ((3, 1, 5), (4, 1)), ((), (2, 3)), ((0, 3), (3,))]:
        a, b = (special(rng, shape, dtype) for shape in shapes)
        if op == "Div" and np.dtype(dtype).kind == "i":
            b = np.where(b == 0, 5, b).astype(dtype)
        model = call(op, 16, [a, b])
        assert same(evaluated(model)[0], executed(model)[0])


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", ["Neg", "Abs", "Identity"])
def test_operators_of_one_number(op: str, dtype: Any) -> None:
    model = call(op, 13, [special(np.random.default_rng(2), (5, 7), dtype)])
    assert same(evaluated(model)[0], executed(model)[0])


@pytest.mark.parametrize("target", [np.float32, np.float64, np.int32, np.int64, np.uint8, np.int8, bool])
@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8, bool])
def test_casts(source: Any, target: Any) -> None:
    rng = np.random.default_rng(3)
    array = special(rng, (9, 9), source)
    if np.dtype(source).kind == "f" and np.dtype(target).kind in "iu":
        array = (rng.random((9, 9)) * 100).astype(source)
    if np.dtype(target).kind == "u":
        array = abs(array) if array.dtype.kind in "if" else array
    model = call("Cast", 13, [array], to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))
    assert same(evaluated(model)[0], executed(model)[0])


W = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
I64 = np.int64
MOVES = [
    call("Reshape", 14, [W, np.array([0, -1], I64)]),
    call("Reshape", 14, [W[:, :0], np.array([0, 5], I64)], allowzero=1),
    call("Flatten", 13, [W], axis=0),
    call("Flatten", 13, [W], axis=-1),
    call("Squeeze", 13, [W[:, :1, None]]),
    call("Squeeze", 13, [W[:, :1, None], np.array([-2], I64)]),
    call("Squeeze", 11, [W[:1]], axes=[0]),
    call("Unsqueeze", 13, [W, np.array([-1, 0], I64)]),
    call("Unsqueeze", 11, [W], axes=[0, 4]),
    call("Transpose", 13, [W]),
    call("Transpose", 13, [W.astype(np.float16)], perm=[1, 0, 2]),
    call("Concat", 13, [W, W[:, :1]], axis=-2),
    call("Split", 13, [W], outputs=2, axis=2),
    call("Split", 13, [W, np.array([1, 0, 3], I64)], outputs=3, axis=-1),
    call("Split", 11, [W], outputs=2, axis=1, split=[1, 2]),
    call("Split", 18, [W], outputs=3, axis=1, num_outputs=3),
    call("Slice", 13, [W, np.array([-9, 1], I64), np.array([99, -1], I64), np.array([-1, 1], I64)]),
    call("Slice", 13, [W, np.array([1]), np.array([2**63 - 1]), np.array([2]), np.array([2])]),
    call("Slice", 13, [W, np.array([3]), np.array([1]), np.array([2])]),
    call("Slice", 9, [W], starts=[0, -2], ends=[1, 9], axes=[0, 1]),
    call("Gather", 13, [W, np.array([[-1, 0]], I64)], axis=1),
    call("Gather", 13, [W, np.array(1, np.int32)], axis=-1),
    call("Expand", 13, [W[:, :1], np.array([3, 1], I64)]),
    call("Tile", 13, [W, np.array([1, 0, 2], I64)]),
    call("Where", 16, [np.array([True, False, True, False]), W, W + 1]),
    call("Not", 13, [W > 5]),
    call("And", 13, [W > 5, W < 9]),
    call("Xor", 13, [W > 5, W < 9]),
]


@pytest.mark.parametrize("model", MOVES, ids=lambda model: model.graph.node[0].op_type)
def test_moves(model: ModelProto) -> None:
    mine, theirs = evaluated(model), executed(model)
    assert len(mine) == len(theirs)
    assert all(same(a, b) for a, b in zip(mine, theirs, strict=True))


HUGE = np.array([2**40], I64)
REFUSED = [
    call("Expand", 13, [W[0, 0, :1], HUGE]),
    call("Tile", 13, [W[0, 0, :1], HUGE]),
    call("Gather", 13, [np.zeros((1, 2000), np.float32), np.zeros(2000, I64)]),
    call("Add", 13, [np.zeros((1, 2000), np.float32), np.zeros((2000, 1), np.float32)]),
    call("Where", 16, [np.zeros((2000, 1), bool), np.zeros((1, 2000), np.float32), W[0, 0, :1]]),
    call("Gather", 13, [W, np.array([3], I64)], axis=1),
    call("Reshape", 14, [W, np.array([5, -1], I64)]),
    call("Reshape", 14, [W[:0], np.array([-1, 2], I64)]),
    call("Squeeze", 13, [W, np.array([1], I64)]),
    call("Squeeze", 13, [W[:, :1], np.array([1, 1])]),
    call("Flatten", 13, [W], axis=4),
    call("Flatten", 13, [W], axis=-4),
    call("Concat", 13, [W, W], axis=3),
    call("Expand", 13, [W[0, 0, :1], np.array([-1], I64)]),
    call("Where", 16, [np.array([1]), W, W]),
    call("Where", 16, [np.array([True]), W, W.astype(np.float64)]),
    call("Transpose", 13, [W], perm=[0, 1]),
    call("Slice", 13, [W, np.array([2]), np.array([-9]), np.array([0]), np.array([-1])]),
    call("Split", 13, [W], outputs=2, axis=1),
    call("Div", 13, [np.array([1]), np.array([0])]),
    call("Div", 13, [np.array([-(2**63)]), np.array([-1])]),
    call("Cast", 13, [np.array([np.nan], np.float32)], to=TensorProto.INT32),
    call("Cast", 13, [np.array([300.0], np.float32)], to=TensorProto.UINT8),
    call("Cast", 13, [np.array([0.1], np.float32)], to=TensorProto.FLOAT16),
    call("Cast", 13, [np.array([1.0], np.float32)], to=TensorProto.STRING),
    call("Cast", 13, [np.array([1.0], ml_dtypes.bfloat16)], to=TensorProto.FLOAT),
    call("Add", 13, [np.ones(2, np.float16), np.ones(2, np.float16)]),
    call("Where", 16, [np.array([True]), np.array([-0.0], np.float32), np.array([1.0], np.float32)]),
    call("Identity", 13, [np.array([b"a"], object)]),
    call("Erf", 13, [W]),
    call("Add", 6, [W, W]),
    call("Add", 13, [W, W, W.copy()]),  # for numpy, where the result goes
    call("Neg", 13, [W, W.copy()]),
    call("Add", 13, [W]),
    # One input more than the operator has, one that is left out, and fractions for places: no runtime takes these.
    call("Identity", 13, [W, W.copy()]),
    call("Cast", 13, [W, W.copy()], to=TensorProto.INT64),
    call("Transpose", 13, [W, W.copy()]),
    call("Reshape", 14, [W, np.array([-1]), W.copy()]),
    call("Gather", 13, [W, np.array([0]), W.copy()]),
    call("Unsqueeze", 11, [W, np.array([0])], axes=[0]),
    call("Unsqueeze", 13, [W, np.array([0]), W.copy()]),
    call("Slice", 13, [W, np.array([0]), np.array([1]), np.array([0]), np.array([1]), W.copy()]),
    call("Slice", 13, [W, np.array([0]), np.array([1]), np.array([0]), np.array([], I64)]),
    call("Concat", 13, [W, None, W.copy()], axis=0),
    call("Unsqueeze", 13, [W, np.array([1.0], np.float32)]),
    call("Reshape", 14, [W, np.array([-1.0], np.float32)]),
    call("Expand", 13, [np.ones(1, np.float32), np.array([2.0], np.float32)]),
    call("Tile", 13, [np.ones(1, np.float32), np.array([2.0], np.float32)]),
]


@pytest.mark.parametrize("model", REFUSED, ids=lambda model: model.graph.node[0].op_type)
def test_what_is_not_certain_or_not_small(model: ModelProto) -> None:
    def refused() -> None:
        with pytest.raises(_evaluate.NotFoldable):
            evaluated(model)

    assert processor_seconds(refused) < 0.5


def with_weight(text: str, weight: Array, opset: int = 18) -> ModelProto:
    model = models.model(text, opset, 9)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, model.graph.initializer[0].name))
    return model


def test_a_result_over_the_cap_stays() -> None:
    text = "g (float[1,N] x) => (float[M,N] y) <float w = {1}> { t = Transpose(w)  y = Add(x, t) }"
    side = int((_evaluate.RESULT_LIMIT // 4) ** 0.5)
    assert len(findings(constant_subgraph, with_weight(text, np.ones((side, side), np.float32)))) == 1
    assert not findings(constant_subgraph, with_weight(text, np.ones((side + 1, side), np.float32)))


def test_weights_do_not_multiply() -> None:
    """The weight stays for another reader, directly or behind an Identity: its turned form would come on top."""
    weight = np.ones((64, 64), np.float32)
    shared = """g (float[64,64] x) => (float[64,64] y) <float w = {1}> {
        a = Mul(x, w)  i = Identity(w)  t = Transpose(SOURCE)  y = Mul(a, t) }"""
    for source in ("w", "i"):
        result, _ = fixed([constant_subgraph], with_weight(shared.replace("SOURCE", source), weight))
        assert [tensor.name for tensor in result.graph.initializer] == ["w"]
        assert "Transpose" in [node.op_type for node in result.graph.node]
    alone = """g (float[64,64] x) => (float[64,64] y) <float w = {1}> {
        i = Identity(w)  t = Transpose(i)  y = Mul(x, t) }"""
    result, _ = fixed([constant_subgraph], with_weight(alone, weight))
    assert [node.op_type for node in result.graph.node] == ["Mul"]


IN_BRANCHES = """g (float[64,64] x, bool b) => (float[64,64] y) <float w = {1}> {
    i = Identity(w)  a = Mul(x, i)  c = Add(a, w)
    y = If(b)<then_branch = t () => (float[64,64] u) { u = Add(c, i) },
              else_branch = e () => (float[64,64] v) { k = Neg(c)  v = Mul(k, i) }> }"""


def test_readers_of_a_copy_read_the_weight_itself() -> None:
    model = with_weight(IN_BRANCHES, np.ones((64, 64), np.float32))
    result, _ = fixed([constant_subgraph], model)
    assert len(result.graph.initializer) == 1
    assert "Identity" not in str(result)
    assert_same_outputs(model, result)


def test_a_divisor_of_0_may_divide_nothing() -> None:
    """ONNX Runtime refuses to load it as a constant. Small integers are INT001's, so the divisor is large."""
    text = """g (int32[0,1] x) => (int32[0,5000] y) <int32 w = {0}> { n = Neg(w)  y = OP(x, n) }"""
    weight = np.arange(5000, dtype=np.int32)[None]
    assert len(findings(constant_subgraph, with_weight(text.replace("OP", "Mul"), weight))) == 1
    assert not findings(constant_subgraph, with_weight(text.replace("OP", "Div"), weight))
    assert len(findings(constant_subgraph, with_weight(text.replace("OP", "Div"), weight + 1))) == 1


def test_the_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = " ".join(f"a{i + 1} = Neg(a{i})" for i in range(50))
    text = f"g (float[N] x) => (float[N] y) <float a0 = {{1}}> {{ {lines}  y = Add(x, a50) }}"
    model = with_weight(text, np.ones(1000, np.float32))
    assert len(findings(constant_subgraph, model)) == 1
    monkeypatch.setattr(gra010_constant_subgraph, "BUDGET", 40_000)
    (found,) = findings(constant_subgraph, model)
    assert found.match.node is not None
    assert found.match.node.first_output == "a11"  # eleven results of 4,000 bytes, the last beyond the budget
    result, run = fixed([constant_subgraph], model)
    assert not run.problems
    assert [node.op_type for node in result.graph.node] == ["Add"]


def test_a_long_chain_is_folded_in_one_round_and_in_linear_time() -> None:
    def seconds(length: int) -> float:
        lines = " ".join(f"a{i + 1} = Neg(a{i})  y{i} = Add(x, a{i + 1})" for i in range(length))
        outputs = ", ".join(f"float[N] y{i}" for i in range(length))
        model = with_weight(
            f"g (float[N] x) => ({outputs}) <float a0 = {{1}}> {{ {lines} }}", np.ones(1, np.float32)
        )

        def fold() -> None:
            result, run = fixed([constant_subgraph], model)
            assert run.rounds == 2
            assert len(run.applied) == length
            assert {node.op_type for node in result.graph.node} == {"Add"}

        return processor_seconds(fold)

    seconds(100)
    assert seconds(1000) < 30 * seconds(100)


@pytest.mark.parametrize("seed", seeds(25))
def test_random_graphs_of_constants(seed: int) -> None:
    """With INT001, which folds what is made of integers; outputs bit for bit, roots and products within tolerance."""
    rng = np.random.default_rng(seed)
    names, lines = ["w0", "w1", "w2"], []
    for number in range(12):
        op = rng.choice(["Add", "Sub", "Mul", "Div", "Neg", "Abs", "Transpose", "Identity", "Where", "Sqrt"])
        one, two = rng.choice(names, 2)
        text = {
            "Where": f"c{number} = Less({one}, {two})  v{number} = Where(c{number}, {one}, {two})",
            "Sqrt": f"s{number} = Abs({one})  v{number} = Sqrt(s{number})",
        }.get(op, f"v{number} = {op}({one}" + (f", {two})" if op in ("Add", "Sub", "Mul", "Div") else ")"))
        lines.append(f"{text}  y{number} = {'Add' if rng.random() < 0.8 else 'MatMul'}(x, v{number})")
        names.append(f"v{number}")
    outputs = ", ".join(f"float[3,3] y{number}" for number in range(12))
    weights = ", ".join(
        f"float[3,3] w{k} = {{{', '.join(f'{x:.3f}' for x in rng.uniform(0.5, 2, 9))}}}" for k in range(3)
    )
    model = models.model(f"g (float[3,3] x) => ({outputs}) <{weights}> {{ {' '.join(lines)} }}", 18)
    rules = [constant_subgraph, *(rule for rule in registry().rules if rule.code == "INT001")]
    for safety in (Safety.EXACT, Safety.NUMERIC):
        result, run = fixed(rules, model, safety=safety)
        assert run.applied
        assert not run.problems
        assert not [f for f in run.remaining if f.match.fix is not None and f.match.fix.safety <= safety]
        assert_interface_kept(model, result)
        assert_same_outputs(model, result, exact=safety == Safety.EXACT)
        if safety == Safety.NUMERIC:
            assert {node.op_type for node in result.graph.node} <= {"Add", "MatMul"}
