"""INT rules: what is computed ahead has the bits of a run; random models are fixed in test_soundness.py.

``ONNXFIX_EXAMPLES=2000 pytest tests/rules/test_int_integers.py`` runs more than the few hundred of the suite,
with new seeds.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.testing import assert_same_outputs, findings, fixed, overlay
from onnxfix_rules.int_ import _fold
from onnxfix_rules.int_._fold import FOLDABLE, evaluate
from onnxfix_rules.int_._known import Known
from support.models import of_nodes, of_opset
from support.ort import runner as by_runtime
from support.repairs import repaired
from support.shape_models import feeds, random_model

RULES = [rule for rule in registry().rules if rule.code.startswith("INT")]
EXAMPLES = int(os.environ.get("ONNXFIX_EXAMPLES", "150"))

property_test = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ONNXFIX_EXAMPLES" not in os.environ,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


def attempt(function: Callable[[], Any]) -> Any:
    """The result; None where the model is one that this backend cannot run, for whatever reason it gives."""
    try:
        return function()
    except Exception:
        return None


# ---- random models


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_known_values_are_what_runs_compute(seed: int) -> None:
    """Each value that is called known is compared itself, whether or not a fix used it."""
    model = random_model(seed)
    live = overlay(model)
    known = Known(live)
    found = {value.name: known.array(value) for value in known.computed() if value.scope is live.main}
    del model.graph.output[:]
    for name, array in found.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    run = attempt(lambda: by_runtime(model)) if found else None
    for size in (1, 2) if run else ():
        results = attempt(lambda size=size: run(feeds(model, size, size + 1, seed)))
        for (name, want), result in zip(found.items(), results or (), strict=False):
            same = (want.dtype, want.shape, want.tobytes()) == (result.dtype, result.shape, result.tobytes())
            assert same, f"{name}: {want} {result} at {size}\n{onnx.printer.to_text(model)}"


# ---- single operators
INTS = st.integers(-9, 9)
KINDS = st.sampled_from([np.int64, np.int32, np.float32, np.float64])
NUMBERS = st.sampled_from([-3.5, -2.0, -0.5, -0.0, 0.0, 0.1, 1.0, 1.5, 2.5, 7.0])


def arrays(kind: Any, size: int | None = None) -> st.SearchStrategy[np.ndarray]:
    items = NUMBERS if kind in (np.float32, np.float64) else INTS
    if size is None:
        return st.one_of(items.map(lambda v: np.array(v, kind)), *(arrays(kind, n) for n in (0, 1, 2, 3)))
    return st.lists(items, min_size=size, max_size=size).map(lambda v: np.array(v, kind))


def is_positive(array: np.ndarray) -> np.ndarray:
    return np.asarray(array > 0)


def vector(*items: int) -> np.ndarray:
    return np.array(items, np.int64)


def calls(op: str) -> st.SearchStrategy[tuple[list[np.ndarray | None], dict[str, Any]]]:
    """Inputs and attributes of a call, by no means always a valid one."""
    sizes = st.lists(st.integers(0, 4), min_size=0, max_size=3).map(lambda v: vector(*v))
    axis = st.integers(-1, 0)

    def of(*inputs: Any, **attributes: Any) -> Any:
        return st.tuples(st.tuples(*inputs).map(list), st.fixed_dictionaries(attributes))

    def same(count: int) -> Any:
        return KINDS.flatmap(lambda kind: of(*[arrays(kind)] * count))

    table = {
        "Cast": KINDS.flatmap(lambda k: of(arrays(k), to=st.sampled_from([1, 6, 7, 9, 11]))),
        "Concat": KINDS.flatmap(lambda k: of(arrays(k, 2), arrays(k, 0), arrays(k, 3), axis=axis)),
        "ConstantOfShape": of(sizes),
        "Expand": KINDS.flatmap(lambda k: of(arrays(k), sizes)),
        "Gather": KINDS.flatmap(lambda k: of(arrays(k, 3), arrays(np.int64), axis=axis)),
        "Not": of(arrays(np.int64).map(is_positive)),
        "Range": of(*[arrays(np.int64).filter(lambda a: a.ndim == 0)] * 3),
        "Reshape": KINDS.flatmap(lambda k: of(arrays(k), sizes, allowzero=st.integers(0, 1))),
        "Slice": of(arrays(np.int64, 3), *[arrays(np.int64, 1)] * 2, st.just(vector(0)), arrays(np.int64, 1)),
        "Split": of(arrays(np.int64, 3), st.just(vector(3))),
        "Squeeze": of(arrays(np.int64, 1), st.one_of(st.just(vector(0)), st.none())),
        "Tile": of(arrays(np.int64, 3), arrays(np.int64, 1)),
        "Transpose": of(arrays(np.int32, 3).map(lambda a: a.reshape(1, 3))),
        "Unsqueeze": KINDS.flatmap(
            lambda k: of(arrays(k), st.sampled_from([vector(0), vector(0, 1), vector(-1)]))
        ),
        "Where": KINDS.flatmap(lambda k: of(arrays(np.int64).map(is_positive), arrays(k), arrays(k))),
        "Mod": KINDS.flatmap(lambda k: of(arrays(k), arrays(k), fmod=st.integers(0, 1))),
    }
    if op in ("And", "Or", "Xor"):
        return of(*[arrays(np.int64).map(is_positive)] * 2)
    if op.startswith("Reduce"):
        kinds = st.sampled_from([np.int64, np.int32])
        return kinds.flatmap(lambda k: of(arrays(k), st.just(vector(0)), keepdims=st.integers(0, 1)))
    unary = op in ("Abs", "Ceil", "Floor", "Identity", "Neg", "NonZero", "Sign", "Sqrt")
    return table[op] if op in table else same(1 if unary else 2)


def single(op: str, inputs: list[np.ndarray | None], attributes: dict[str, Any]) -> ModelProto:
    names = [f"i{n}" if array is not None else "" for n, array in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(op, names, ["y"], **attributes)
    infos = {
        name: (helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=False)
        if name and array is not None
    }
    return of_nodes([node], infos, {})


@pytest.mark.corpus
@pytest.mark.parametrize("op", sorted(FOLDABLE))
def test_folded_operators(op: str) -> None:
    """Where the fold gives a value at all, ONNX Runtime gives the same, to the last bit."""
    folded = []

    @settings(parent=property_test, max_examples=max(60, EXAMPLES // 4))
    @given(call=calls(op))
    def run(call: tuple[list[np.ndarray | None], dict[str, Any]]) -> None:
        inputs, attributes = call
        model = single(op, inputs, attributes)
        node = overlay(model).main.nodes[0]
        (found,) = evaluate(node, inputs[: len(node.inputs)])
        if found is None:
            return
        model.graph.output.add().CopyFrom(
            helper.make_tensor_value_info(
                "y", helper.np_dtype_to_tensor_dtype(found.dtype), [None] * found.ndim
            )
        )
        feed = {f"i{n}": array for n, array in enumerate(inputs) if array is not None}
        run_original = attempt(lambda: by_runtime(model))
        if run_original is None:
            return  # no kernel for this type
        (want,) = run_original(feed)
        folded.append(found)
        assert (found.dtype, found.shape, found.tobytes()) == (want.dtype, want.shape, want.tobytes()), (
            found,
            want,
        )

    run()
    assert folded, f"no call of {op} was folded: the test says nothing"


def test_what_is_listed_of_operators_is_what_their_schemas_say() -> None:
    names = {name for _, name in _fold.ATTRIBUTES} | {"to", "unknown"}
    assert {op for op, _ in _fold.ATTRIBUTES} | _fold.SINCE.keys() <= FOLDABLE
    for op in sorted(FOLDABLE):
        for opset in range(7, min(_fold.LATEST, onnx.defs.onnx_opset_version()) + 1):
            try:
                known = set(onnx.defs.get_schema(op, opset, "").attributes)
            except onnx.defs.SchemaError:
                assert not _fold.listed(op, opset, []), (op, opset)
                continue
            assert _fold.listed(op, opset, []), (op, opset)
            assert {name for name in names if _fold.listed(op, opset, [name])} == known, (op, opset)
            assert _fold.listed(op, opset, known)
            assert not _fold.listed(op, opset, [*known, "unknown"])
    assert not _fold.listed("Add", 1 + max(_fold.LATEST, onnx.defs.onnx_opset_version()), [])


@pytest.mark.parametrize(("op", "since"), [("Range", 11), ("Expand", 8)])
def test_operators_fold_from_the_opset_on_that_has_them(op: str, since: int) -> None:
    inputs = [np.array(0), np.array(3), np.array(1)] if op == "Range" else [np.array([1]), np.array([3])]
    for opset in (since - 1, since):
        model = single(op, list(inputs), {})
        model.opset_import[0].version = opset
        (found,) = evaluate(overlay(model).main.nodes[0], inputs)
        assert (found is not None) == (opset == since)


@pytest.mark.parametrize(
    ("op", "opset", "count", "outputs"),
    [
        ("Add", 18, 2, ["y", "z"]),
        ("Add", 18, 2, []),
        ("Add", 18, 3, ["y"]),
        ("Range", 18, 3, ["y", "z"]),
        ("Transpose", 18, 2, ["y"]),
        ("Squeeze", 11, 2, ["y"]),
        ("Unsqueeze", 11, 2, ["y"]),
        ("Split", 11, 2, ["y"]),
        ("Slice", 9, 3, ["y"]),
        ("Where", 18, 4, ["y"]),
    ],
)
def test_a_node_with_more_inputs_or_outputs_than_its_operator_is_not_computed(
    op: str, opset: int, count: int, outputs: list[str]
) -> None:
    one = np.array(1) if op == "Range" else np.array([1])
    inputs = [np.array([True]) if op == "Where" else one, *[one] * (count - 1)]
    model = single(op, list(inputs), {})
    model.opset_import[0].version = opset
    model.graph.node[0].output[:] = outputs
    assert evaluate(overlay(model).main.nodes[0], inputs) == [None] * len(outputs)


@pytest.mark.parametrize(
    "inputs",
    [
        [np.array(number, np.uint64) for number in (2**64 - 2, 2**64 - 1, 1)],  # numpy counts in floats there
        [np.array(0), np.array(3, np.int32), np.array(1)],
    ],
)
def test_ranges_of_other_types_than_onnx_has_are_left_alone(inputs: list[np.ndarray]) -> None:
    node = overlay(single("Range", list(inputs), {})).main.nodes[0]
    assert evaluate(node, inputs) == [None]


@pytest.mark.parametrize("second", [np.array([1, 2], np.int32), np.array([1.0, 2.0])])
def test_integers_of_one_type_are_added_and_no_others(second: np.ndarray) -> None:
    for inputs in ([np.array([3, 4]), second], [np.array([3, 4])] * 3):
        node = overlay(single("Add", list(inputs), {})).main.nodes[0]
        assert evaluate(node, inputs) == [None]


@pytest.mark.parametrize(
    ("value", "to", "folds"),
    [
        (300.0, TensorProto.UINT8, False),
        (-1.0, TensorProto.UINT8, False),
        (255.9, TensorProto.UINT8, True),
        (2.0**31, TensorProto.INT32, False),
        (-(2.0**31), TensorProto.INT32, True),
        (2.0**63, TensorProto.INT64, False),
        (np.nan, TensorProto.INT32, False),
        (np.inf, TensorProto.FLOAT, False),
    ],
)
def test_casts_out_of_range_are_not_decided(value: float, to: int, folds: bool) -> None:
    array = np.array(value, np.float64)
    (found,) = evaluate(overlay(single("Cast", [array], {"to": to})).main.nodes[0], [array])
    assert (found is not None) == folds


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("ConstantOfShape", [np.array([2**13, 2**12])]),
        ("Expand", [np.array([1]), np.array([2**25])]),
        ("Tile", [np.array([1]), np.array([2**25])]),
        ("Range", [np.array(0), np.array(2**25), np.array(1)]),
        ("Range", [np.array(2**25), np.array(0), np.array(-1)]),
        ("Add", [np.zeros((1, 2000), np.int64), np.zeros((2000, 1), np.int64)]),
    ],
)
def test_large_results_are_not_even_computed(op: str, inputs: list[np.ndarray]) -> None:
    node = overlay(single(op, list(inputs), {})).main.nodes[0]
    evaluate(node, [vector(1)] * len(inputs))  # whatever is loaded on first use
    tracemalloc.start()
    try:
        assert evaluate(node, inputs) == [None]
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# ---- what the examples cannot say
def rule(code: str) -> Any:
    return registry().get(code)


text = of_opset(18, 9)


@pytest.mark.parametrize(("target", "severity"), [("trt11", "INFO"), ("rtx", "INFO"), ("trt8.6", "WARNING")])
@pytest.mark.parametrize("code", ["INT001", "INT002", "INT005"])
def test_severity_depends_on_the_target(code: str, target: str, severity: str) -> None:
    model = text("""g (int64[N,4] x) => (int64[N,2,2] y) <int64[1] two = {2}> {
        n = Shape<end = 1>(x)  c = Shape<start = 1>(x)  h = Div(c, two)  t = Concat<axis = 0>(n, two, h)
        y = Reshape(x, t) }""")
    found = findings(rule(code), model, target)
    assert found
    assert {item.severity.name for item in found} == {severity}


def test_interface_messages() -> None:
    model = text("g (int64[N] x) => (int64[N] y) { y = Neg(x) }")
    assert [f.match.message for f in findings(rule("INT005"), model)] == [
        "int64 input x is an int64 binding: 8 bytes per element, not 4",
        "int64 output y is an int64 binding: 8 bytes per element, not 4",
    ]


def test_condition_of_an_unproven_reshape_is_stated() -> None:
    model = text("""g (float[N,S,4] x, float[M] z) => (float[A,B] y, float[C,D] w) <int64[1] f = {4}> {
        n = Shape<end = 1>(x)  s = Shape<start = 1, end = 2>(x)  m = Mul(s, f)  t = Concat<axis = 0>(n, m)
        y = Reshape(x, t)  k = Shape(z)  u = Concat<axis = 0>(k, f)  w = Reshape(x, u) }""")
    empty, unequal = findings(rule("INT002"), model)
    assert empty.match.message.endswith("[0, -1] is equivalent provided that N is never 0")
    assert unequal.match.message.endswith("provided that 4*M equals 4*N*S in every run")
    assert {found.match.fix.safety for found in (empty, unequal) if found.match.fix} == {Safety.UNSAFE}


def test_clamped_number_and_its_reader_are_named() -> None:
    model = text("g (int64[N] x) => (int64[N] y) <int64 big = {-4294967296}> { y = Mod(x, big) }")
    (found,) = findings(rule("INT004"), model, "trt8.6")
    assert "-4294967296" in found.match.message
    assert "-2147483648" in found.match.message
    assert "Mod y" in found.match.message
    assert found.severity.name == "ERROR"


def test_large_constants_are_said_to_be_unexamined() -> None:
    array = np.zeros(200_000, np.int64)
    node = helper.make_node("Gather", ["w", "x"], ["y"])
    ends = ({name: (TensorProto.INT64, ["N"])} for name in "xy")
    (found,) = findings(rule("INT004"), of_nodes([node], *ends, {"w": array}), "trt8.6")
    assert "200,000" in found.match.message
    assert found.severity.name == "INFO"


def test_no_constant_is_much_larger_than_what_it_replaces() -> None:
    for count in (10, 60, 64, 65, 100, 1000, 100_000, 2**38):
        model = text(f"""g (int64[N,K] x) => (int64[N,K] y) <int64 one = {{1}}, int64[1] n = {{{count}}}> {{
            e = Expand(one, n)  y = Add(x, e) }}""")
        result, run = fixed(RULES, model)
        assert bool(run.applied) == (count <= 66)
        assert result.ByteSize() <= model.ByteSize() + 600


def test_a_static_model_folds_in_one_round() -> None:
    """Every reader with several known inputs is served at once: further rounds would infer all shapes again."""
    model = text("""g (float[2,6,4] x) => (float[K,L] y) <int64[1] i = {0}, int64[1] j = {1}> {
        s = Shape(x)  a = Gather(s, i)  b = Gather(s, j)  c = Sub(b, a)  d = Mul(a, a)  k = Div(d, d)
        p = Slice(x, k, c, k, k)  q = Slice(p, i, d, i, j)  m = Neg(j)  u = Concat<axis = 0>(m, a)
        y = Reshape(q, u) }""")
    result, run = fixed([rule("INT001")], model)
    assert run.rounds == 2  # the second finds nothing
    assert [node.op_type for node in result.graph.node] == ["Slice", "Slice", "Reshape"]


def test_overridable_initializer_stays_overridable() -> None:
    model = text("""g (float[N,6] x, int64[1] k = {2}) => (float[A,B] y) <int64[1] m = {-1}> {
        u = Add(k, k)  t = Concat<axis = 0>(m, u)  y = Reshape(x, t) }""")
    result, run = fixed(RULES, model, safety=Safety.UNSAFE)
    assert not run.applied
    execute = by_runtime(result)
    for size, shape in ((2, (6, 4)), (3, (4, 6))):
        assert execute({"x": np.zeros((4, 6), np.float32), "k": vector(size)})[0].shape == shape


def test_shared_constant_is_not_changed_for_others() -> None:
    model = text("""g (float[2,3] x, float[N] w) => (float[6] y, float[N] v) <float k = {1.5}, int64[1] z = {0}> {
        s = Size(x)  f = Cast<to = 1>(s)  h = Mul(f, k)  i = Cast<to = 7>(h)  n = Unsqueeze(i, z)
        p = Constant<value = int64[1] {6}>()  o = Min(n, p)  y = Reshape(x, o)  v = Mul(w, k) }""")
    result, _ = repaired(RULES, model)
    assert_same_outputs(model, result)
    assert [numpy_helper.to_array(t) for t in result.graph.initializer if t.name == "k"] == [np.float32(1.5)]
