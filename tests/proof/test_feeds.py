"""Shape specs, the shape sweep, and test inputs that suit the model."""
# Long because: the cases are tables of small models

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxfix.errors import ModelError, UsageError
from onnxfix.inputs.feeds.inputs import KINDS, make_inputs, shape_of
from onnxfix.inputs.feeds.plan import assignments, bind_shapes, feeds, grown, parse_shapes
from onnxfix.inputs.feeds.signature import Signature, signature
from support import models


def model(text: str, opset: int = 17, **weights: Any) -> onnx.ModelProto:
    """A model from its text; what is declared and never made (``<float[5, 4] w>``) is a weight of zeros."""
    proto = models.model(text, opset, 8, {"my": 1}, **weights)
    made = {name for node in proto.graph.node for name in node.output}
    for value in proto.graph.value_info:
        if value.name not in made:
            dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(dims, dtype), value.name))
    return proto


def known(text: str, opset: int = 17) -> Signature:
    return signature(model(text, opset))


# ---- shape specs


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ("x:[1,3]", {"x": (1, 3)}),
        ("x:1,3", {"x": (1, 3)}),
        ("x:1x3", {"x": (1, 3)}),
        ("x:[1x3]", {"x": (1, 3)}),
        ("x:[ 1 , 3 ]", {"x": (1, 3)}),
        (["x:[1,3]", "y:2"], {"x": (1, 3), "y": (2,)}),
        ("x:1x3,y:2", {"x": (1, 3), "y": (2,)}),
        ("x:[1,3],y:[2]", {"x": (1, 3), "y": (2,)}),
        ("x:1,3,y:2,4", {"x": (1, 3), "y": (2, 4)}),
        ("in:0:1x3", {"in:0": (1, 3)}),
        ("in:0:1x3,x:2", {"in:0": (1, 3), "x": (2,)}),
        ("x:[]", {"x": ()}),
        ("x:,y:3", {"x": (), "y": (3,)}),
        ("x:1,3,2:4", {"x": (1, 3), "2": (4,)}),
        ("x:0x3", {"x": (0, 3)}),
        ([], {}),
    ],
)
def test_shape_specs(specs: Any, expected: dict[str, tuple[int, ...]]) -> None:
    assert parse_shapes(specs, ["x", "y", "in", "in:0", "2"]) == expected


@pytest.mark.parametrize(
    "spec", ["z:1", "x", "x:a", "x:-1", "x:1x", "x:[1,3", "x:1 3", "x:1;y:2", "x:1,y", ""]
)
def test_bad_shape_specs_name_the_inputs(spec: str) -> None:
    with pytest.raises(UsageError, match="inputs are x, y"):
        parse_shapes(spec, ["x", "y"])


def test_a_shape_given_twice() -> None:
    with pytest.raises(UsageError, match="two shapes"):
        parse_shapes(["x:1", "x:2"], ["x"])


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"q": (1,)}, "no input q"),
        ({"x": (1, 2)}, "rank 3"),
        ({"x": (1, 2, 4)}, "size 3 in dimension 2"),
        ({"x": (1, 2, 3), "y": (2,)}, "dimension N of input y is 2, but 1 elsewhere"),
    ],
)
def test_shapes_that_contradict_the_model(shapes: dict[str, tuple[int, ...]], words: str) -> None:
    one = known("g (float[N, M, 3] x, float[N] y) => (float[N, M, 3] z) { z = Identity(x) }")
    with pytest.raises(UsageError, match=words):
        bind_shapes(one, shapes)
    assert bind_shapes(one, {"x": (4, 5, 3)}) == {"N": 4, "M": 5}


# ---- the sweep


def test_equal_names_are_equal_sizes_and_unnamed_ones_are_free() -> None:
    one = known("g (float[N, M] x, float[N, ?, 7] y) => (float[N, M] z) { z = Identity(x) }")
    assert one.symbols == ("N", "M", "y.1")
    sweep = assignments(one, {})
    assert sweep[:3] == [{"N": 1, "M": 1, "y.1": 1}, {"N": 2, "M": 2, "y.1": 2}, {"N": 3, "M": 5, "y.1": 7}]
    assert [sizes["N"] for sizes in sweep[3:]] == [0, 3]
    assert assignments(one, {"N": 9})[0] == {"N": 9, "M": 1, "y.1": 1}
    made = make_inputs(one, sweep[2])
    assert (made["x"].shape, made["y"].shape) == ((3, 5), (3, 7, 7))


def test_expressions_follow_their_symbols() -> None:
    one = known(
        """g (float[batch,past_len] past, float[batch,"past_len + seq"] mask,
        float["2*batch","past_len // 2 + 1"] twice, float["b-size","seq len"] odd) => (float[] y)
        { y = Identity(past) }"""
    )
    assert one.symbols == ("batch", "past_len", "seq", "b-size", "seq len")
    made = make_inputs(one, {"batch": 2, "past_len": 5, "seq": 3, "b-size": 4, "seq len": 6})
    assert {name: value.shape for name, value in made.items()} == {
        "past": (2, 5),
        "mask": (2, 8),
        "twice": (4, 3),
        "odd": (4, 6),
    }


def test_a_static_model_has_one_shape_and_several_kinds_of_data() -> None:
    one = known("g (float[2, 3] x) => (float[2, 3] y) { y = Identity(x) }")
    sweep = assignments(one, {})
    assert sweep == [{}]
    assert [feed.kind for feed in feeds(one, sweep, 5, exact=True)] == ["normal", "normal", "edge"] + [
        "extreme"
    ] * 3
    assert len({feed.seed for feed in feeds(one, sweep, 5, exact=True)}) == 6
    assert "extreme" not in {feed.kind for feed in feeds(one, sweep, 5, exact=False)}
    assert not list(grown(one, {}))


def test_operators_demand_sizes_of_dimensions() -> None:
    one = known(
        """g (float[N, C, H, W] x, float[M, K] a, float[P, Q] b) => (float[N] z, float[M] c, float[P] d)
        <float[4, 3, 3, 3] w, float[6, 2] v, float[8, 5] u>
        { z = Conv(x, w)  c = MatMul(a, v)  d = Gemm<transB = 1>(b, u) }"""
    )
    for sizes in assignments(one, {}):
        assert (sizes["C"], sizes["K"], sizes["Q"]) == (3, 6, 5)
    assert all(sizes["C"] == 3 for sizes in grown(one, {}))


def test_inputs_without_a_rank() -> None:
    one = known("g (float[] x) => (float[] y) <float[4,3,1,1] w> { y = Conv(x, w) }")
    sizes = assignments(one, {})[2]
    assert sizes["x.rank"] == 4
    assert shape_of(one, one["x"], sizes) == (3, 3, 5, 7)
    assert shape_of(one, one["x"], bind_shapes(one, {"x": (1, 3, 8, 9)})) == (1, 3, 8, 9)


def test_defaults_are_left_alone_once_and_overridden_once() -> None:
    one = known("g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Add(x, w) }")
    plan_ = feeds(one, assignments(one, {}), 0, exact=False)
    assert [feed.override for feed in plan_] == [False] * 6 + [True]
    assert list(make_inputs(one, {})) == ["x"]
    assert make_inputs(one, {}, override=True)["w"].shape == (2,)


def test_a_default_that_is_a_shape_is_never_overridden() -> None:
    one = known("g (float[2] x, int64[2] s = {1, 2}) => (float[1, 2] y) { y = Reshape(x, s) }")
    assert list(make_inputs(one, {}, override=True)) == ["x"]


# ---- values


def everything(one: Signature, sizes: dict[str, int] | None = None) -> list[dict[str, Any]]:
    sizes = sizes if sizes is not None else dict.fromkeys(one.symbols, 3)
    return [make_inputs(one, sizes, seed, kind=kind) for kind in KINDS for seed in range(4)]


def test_the_same_seed_gives_the_same_inputs_and_another_does_not() -> None:
    one = known("g (float[4] x, int64[9] i, bool[9] b) => (float[4] y) { y = Identity(x) }")
    for kind in KINDS:
        first, second = make_inputs(one, {}, 3, kind=kind), make_inputs(one, {}, 3, kind=kind)
        assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(make_inputs(one, {}, 3)["x"], make_inputs(one, {}, 4)["x"])
    other = known("g (int64[9] i, float[4] x) => (float[4] y) { y = Identity(x) }")
    assert np.array_equal(make_inputs(other, {}, 3)["x"], make_inputs(one, {}, 3)["x"])


TYPES = [name for name, number in TensorProto.DataType.items() if number]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_in_every_kind(name: str) -> None:
    elem = TensorProto.DataType.Value(name)
    node = helper.make_node("Identity", ["x"], ["y"])
    one = signature(models.of_nodes([node], {"x": (elem, [4, 5])}, {}))
    for made in everything(one):
        assert made["x"].shape == (4, 5)
        if elem == TensorProto.STRING:
            assert all(isinstance(item, str) for item in made["x"].reshape(-1))
            continue
        assert made["x"].dtype == helper.tensor_dtype_to_np_dtype(elem)
        if "float" in name.lower() or "complex" in name.lower():
            wide = made["x"].astype(np.complex128)
            assert np.isfinite(wide).all(), "never NaN or Inf"


def test_edges_hold_signed_zeros_and_extremes_the_limits() -> None:
    one = known("g (float[64] x, int64[64] i, int8[64] b) => (float[64] y) { y = Identity(x) }")
    edge, extreme = make_inputs(one, {}, kind="edge"), make_inputs(one, {}, kind="extreme")
    zeros = edge["x"][edge["x"] == 0]
    assert {bool(sign) for sign in np.signbit(zeros)} == {True, False}
    assert np.abs(extreme["x"]).max() > 1e38
    assert {-(2**63), 2**63 - 1, 2**31, -(2**31)} <= set(extreme["i"].tolist())
    assert {-128, 127} <= set(edge["b"].tolist())


INDEX_MODELS = [
    "g (int64[N] ids) => (float[N, 4] y) <float[5, 4] w> { y = Gather(w, ids) }",
    "g (int64[N] ids) => (float[4, N] y) <float[4, 5] w> { y = Gather<axis = 1>(w, ids) }",
    "g (int64[N] ids) => (float[4, N] y) <float[4, 5] w> { y = Gather<axis = -1>(w, ids) }",
    "g (int32[N] ids) => (float[N, 4] y) <float[5, 4] w> { i = Cast<to = 7>(ids) y = Gather(w, i) }",
    """g (int64[N] ids) => (float[1, N, 4] y) <float[5, 4] w, int64[1] a = {0}>
    { u = Unsqueeze(ids, a) t = Transpose(u) i = Identity(t) c = Concat<axis = 0>(i, i) y = Gather(w, c) }""",
    """g (int64[N] ids) => (float[N, 4] y) <float[4, 5] w> { t = Cast<to = 1>(w) v = Transpose(t) r = Relu(w)
    y = Gather<axis = 1>(r, ids) }""",
    "g (int64[N] ids, float[5, 2] data) => (float[N, 2] y) { y = Gather(data, ids) }",
    "g (int64[N, 4] ids) => (float[N, 4] y) <float[5, 4] w> { y = GatherElements(w, ids) }",
    "g (int64[N, 1] ids) => (float[N, 4] y) <float[5, 4] w> { y = GatherND(w, ids) }",
    """g (int64[N] ids, bool c) => (float[N, 4] y) <float[5, 4] w>
    { y = If(c)<then_branch = t () => (float[N, 4] a) { a = Gather(w, ids) },
    else_branch = e () => (float[N, 4] b) { i = Identity(ids) b = Gather(w, i) }> }""",
]


@pytest.mark.parametrize("text", INDEX_MODELS)
def test_indices_stay_inside(text: str) -> None:
    one = known(text)
    for sizes in ({"N": 40}, {"N": 1}):
        seen = [made["ids"] for made in everything(one, sizes)]
        assert all(((ids >= 0) & (ids < 5)).all() for ids in seen)
    assert len({int(i) for ids in seen for i in ids.reshape(-1)}) >= 4, "and use the whole axis"


def test_indices_stay_inside_through_a_loop_and_a_function() -> None:
    proto = model(
        """g (int64[N] ids, int64[N] more) => (float[N, 4] y, float[K, N, 4] z)
            <int64 n = {2}, bool go = {1}>
            {
              y = my.look(ids, w)
              last, z = Loop(n, go, more)<body = b (int64 i, bool c, int64[N] s) => (bool d, int64[N] t, float[N, 4] o)
                { d = Identity(c)  t = Identity(s)  o = Gather(w, s) }>
            }
            <domain: "my", opset_import: ["": 17]>
            look (i, table) => (o) { j = Cast<to = 7>(i)  o = Gather(table, j) }""",
        w=np.zeros((5, 4), np.float32),
    )
    for made in everything(signature(proto), {"N": 30}):
        for name in ("ids", "more"):
            assert ((made[name] >= 0) & (made[name] < 5)).all()


def test_indices_stay_inside_when_a_function_passes_them_on() -> None:
    proto = model(
        """g (int64[N] ids) => (float[N, 4] y) { i = my.same(ids) y = Gather(w, i) }
        <domain: "my", opset_import: ["": 17]> same (i) => (o) { o = Identity(i) }""",
        w=np.zeros((5, 4), np.float32),
    )
    assert all((made["ids"] < 5).all() for made in everything(signature(proto), {"N": 30}))


def test_indices_follow_the_assignment() -> None:
    one = known("g (int64[9] ids, float[N, 2] data) => (float[9, 2] y) { y = Gather(data, ids) }")
    for size in (1, 2, 30):
        top = max(int(made["ids"].max()) for made in everything(one, {"N": size}))
        assert top < size
    assert top > 10


def test_the_smallest_of_several_tables_counts() -> None:
    one = known(
        """g (int64[N] ids) => (float[N, 4] y, float[N, 4] z) <float[50, 4] v, float[3, 4] w>
        { y = Gather(v, ids) z = Gather(w, ids) }"""
    )
    assert max(int(made["ids"].max()) for made in everything(one, {"N": 50})) == 2


@pytest.mark.parametrize(
    "text",
    [
        "g (int64[N, 8] attention_mask) => (int64[N, 8] y) { y = Identity(attention_mask) }",
        "g (float[N, 8] padding_mask) => (float[N, 8] y) { y = Identity(padding_mask) }",
        "g (bool[N, 8] keep) => (bool[N, 8] y) { y = Identity(keep) }",
        """g (int64[N, 8] valid) => (float[N, 8] y) <float o = {1}, float big = {-10000}>
        { f = Cast<to = 1>(valid) s = Sub(o, f) y = Mul(s, big) }""",
    ],
)
def test_masks_are_masks_and_no_row_is_empty(text: str) -> None:
    one = known(text)
    for seed in (0, 2, 4):
        (mask,) = make_inputs(one, {"N": 20}, seed).values()
        assert set(np.unique(mask).tolist()) == {0, 1}
        assert mask.any(axis=-1).all()


def test_an_integer_that_is_only_multiplied_sees_other_values_too() -> None:
    one = known("g (int64[40] v) => (int64[40] y) <int64 k = {3}> { y = Mul(v, k) }")
    assert max(int(np.abs(made["v"]).max()) for made in everything(one)) > 2**62


def test_positions_count_up_inside_the_table() -> None:
    one = known(
        "g (int64[1, S] position_ids) => (float[1, S, 4] y) <float[6, 4] w> { y = Gather(w, position_ids) }"
    )
    assert make_inputs(one, {"S": 4})["position_ids"].tolist() == [[0, 1, 2, 3]]
    assert make_inputs(one, {"S": 8})["position_ids"].max() == 5


def test_scalar_conditions_take_turns() -> None:
    one = known("g (bool c) => (bool y) { y = Identity(c) }")
    assert {bool(make_inputs(one, {}, seed)["c"]) for seed in range(2)} == {True, False}


RUNNABLE = {
    "reshape": "g (float[2, 3] x, int64[2] s) => (float[A, B] y) { y = Reshape(x, s) }",
    "reshape to another rank": "g (float[2, 3] x, int64[3] s) => (float[A, B, C] y) { y = Reshape(x, s) }",
    "expand": "g (float[2, 1] x, int64[2] s) => (float[A, B] y) { y = Expand(x, s) }",
    "range": "g (int64 a, int64 b, int64 c) => (int64[N] y) { y = Range(a, b, c) }",
    "range of floats": "g (float a, float b, float c) => (float[N] y) { y = Range(a, b, c) }",
    "constant of shape": "g (int64[3] s) => (float[A, B, C] y) { y = ConstantOfShape(s) }",
    "sized through arithmetic": """g (int64[1] n) => (float[A] y) <int64[1] k = {2}>
    { m = Mul(n, k) y = ConstantOfShape(m) }""",
    "tile": "g (float[2, 3] x, int64[2] r) => (float[A, B] y) { y = Tile(x, r) }",
    "top k": "g (float[2, 3] x, int64[1] k) => (float[A, B] y, int64[A, B] i) { y, i = TopK(x, k) }",
    "slice": """g (float[4, 5] x, int64[2] s, int64[2] e, int64[2] a, int64[2] t) => (float[A, B] y)
    { y = Slice(x, s, e, a, t) }""",
    "pad": "g (float[4, 5] x, int64[4] p) => (float[A, B] y) { y = Pad(x, p) }",
    "loop": """g (int64 n, bool c, float[2] x) => (float[2] y)
    { y = Loop(n, c, x)<body = b (int64 i, bool k, float[2] s) => (bool l, float[2] t)
    { l = Identity(k) t = Add(s, s) }> }""",
    "squeeze": "g (float[1, 3] x, int64[1] a) => (float[3] y) { y = Squeeze(x, a) }",
    "unsqueeze": "g (float[3] x, int64[2] a) => (float[1, 1, 3] y) { y = Unsqueeze(x, a) }",
    "reduce": "g (float[2, 3] x, int64[1] a) => (float[A, B] y) { y = ReduceSum(x, a) }",
    "split": "g (float[6, 2] x, int64[2] s) => (float[A, 2] y, float[B, 2] z) { y, z = Split<axis = 0>(x, s) }",
    "one hot": "g (int64[4] i, int64 d, float[2] v) => (float[4, D] y) { y = OneHot(i, d, v) }",
    "resize": "g (float[1, 1, 4, 4] x, float[4] s) => (float[A, B, C, D] y) { y = Resize(x, , s) }",
    "scatter": """g (float[5, 2] x, int64[3, 1] i, float[3, 2] u) => (float[5, 2] y)
    { y = ScatterND(x, i, u) }""",
    "division": "g (int64[4] a, int64[4] b) => (int64[4] y) { y = Div(a, b) }",
    "remainder": "g (int64[4] a, int64[4] b) => (int64[4] y) { y = Mod(a, b) }",
    "shift": 'g (uint8[4] a, uint8[4] b) => (uint8[4] y) { y = BitShift<direction = "LEFT">(a, b) }',
    "dropout": "g (float[4] x, float r, bool t) => (float[4] y) { y = Dropout(x, r, t) }",
    "lengths": """g (float[4, 2, 3] x, int64[2] l) => (float[4, 2, 3] y)
    { y = ReverseSequence<batch_axis = 1, time_axis = 0>(x, l) }""",
    "quantize": "g (float[4] x, float s, uint8 z) => (uint8[4] y) { y = QuantizeLinear(x, s, z) }",
    "index of unknown length": """g (float[4, 4] x, int64[2] i) => (float[A, 4] y)
    { n = NonZero(x) t = Transpose(n) c = Cast<to = 1>(t) y = Gather(c, i) }""",
}


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_made_inputs_run(name: str) -> None:
    """At least one planned feed of each kind of shape-like operand is one that the model takes."""
    from onnx.reference import ReferenceEvaluator

    proto = model(RUNNABLE[name])
    one = signature(proto)
    evaluator = ReferenceEvaluator(proto)
    planned = feeds(one, assignments(one, {}), 0, exact=True)
    for feed in planned:
        made = make_inputs(one, feed.assignment, feed.seed, kind=feed.kind)
        with np.errstate(all="ignore"):
            result = evaluator.run(None, made)
        assert all(np.size(value) < 10_000 for value in result), "no large tensors by accident"


def test_sequences_and_optionals() -> None:
    one = known("g (seq(float[N]) x) => (int64 y) { y = SequenceLength(x) }")
    made = make_inputs(one, {"N": 3})["x"]
    assert [part.shape for part in made] == [(3,), (3,)]
    two = known("g (optional(float[2]) x) => (bool y) { y = OptionalHasElement(x) }")
    assert make_inputs(two, {}, 0)["x"].shape == (2,)
    assert make_inputs(two, {}, 1)["x"] is None


def test_what_no_input_can_be_made_for() -> None:
    with pytest.raises(UsageError, match="m: it is a map"):
        make_inputs(known("g (map(int64, float) m) => () {}"), {})
    with pytest.raises(UsageError, match="too large"):
        make_inputs(known("g (float[N] x) => (float[N] y) { y = Identity(x) }"), {"N": 1 << 40})


def test_strings_come_from_the_models_vocabulary() -> None:
    one = known('g (string[20] x) => (bool[20] y) <string[2] k = {"yes", "no"}> { y = Equal(x, k) }', 19)
    assert set(make_inputs(one, {})["x"].tolist()) == {"yes", "no"}


def test_a_path_works_and_a_bad_one_is_named(tmp_path: Any) -> None:
    path = models.write(tmp_path / "m.onnx", model("g (float[N] x) => (float[N] y) { y = Identity(x) }"))
    assert make_inputs(path, {"N": 4})["x"].shape == (4,)
    path.write_bytes(b"\xff" * 50)
    with pytest.raises(ModelError, match=r"m\.onnx"):
        make_inputs(path, {})
