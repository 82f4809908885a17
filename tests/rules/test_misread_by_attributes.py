"""The rules about models that TensorRT reads as other ones, against TensorRT's own reading and on random attributes.

``trt_reading`` imports a model by the real parser and reads the network back. What the rules' examples show of that is
in test_errors_are_refused.py.
"""
# Long because: ten rules are shown to TensorRT in the same way, each by models of its own.

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety, Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.build import attempt
from onnxfix.testing import findings, fixed, model_of
from support import ort, repairs
from support.models import of_opset
from support.real_tensorrt import FACT, REAL
from support.trt_reading import Network, reading

CODES = ("CTL001", *(f"OPS0{number}" for number in range(10, 19)))
RULES = {rule.code: rule for rule in registry().rules if rule.code in CODES}
Feed = dict[str, np.ndarray[Any, Any]]


model = of_opset(18)


def same(first: Any, second: Any, tolerance: float = 1e-5) -> bool:
    a, b = np.asarray(first), np.asarray(second)
    return a.shape == b.shape and np.allclose(
        a.astype(float), b.astype(float), rtol=0, atol=tolerance, equal_nan=True
    )


def repaired(proto: ModelProto, code: str, safety: Safety = Safety.EXACT) -> ModelProto:
    """The model after the rule's only fix."""
    assert [one.severity for one in findings(RULES[code], proto)] == [Severity.ERROR]
    result, run = repairs.repaired([RULES[code]], proto, safety=safety)
    assert len(run.applied) == 1
    return result


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def counted(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


# ------------------------------------------------------------------------------------- OPS011: recurrences


def recurrent(
    op_type: str, layout: int, direction: str, state: bool, opset: int, sizes: str = "2,3"
) -> ModelProto:
    """A recurrence of hidden size 4 on a batch of 2 and 3 steps of 5 numbers; ``sizes`` as the layout has them."""
    ways, gates = (2 if direction == "bidirectional" else 1), {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    batch, steps = sizes.split(",")
    first, hidden = (
        (f"{batch},{steps}", f"{batch},{ways}") if layout else (f"{steps},{batch}", f"{ways},{batch}")
    )
    states = {"h": f"float[{hidden},4] h", "c": f"float[{hidden},4] c"} if state else {}
    if op_type != "LSTM":
        states.pop("c", None)
    outputs = ["y", "yh", *(["yc"] if op_type == "LSTM" else [])]
    declared = ", ".join(f"float[{'P,Q,R,S' if name == 'y' else 'P,Q,R'}] {name}" for name in outputs)
    inputs = ", ".join([f"float[{first},5] x", *states.values()])
    arguments = ", ".join(["x, w, r, b, ", *states]) if states else "x, w, r, b"
    text = f"""g ({inputs}) => ({declared}) {{ {", ".join(outputs)} =
        {op_type}<hidden_size = 4, layout = {layout}, direction = "{direction}">({arguments}) }}"""
    rows = gates * 4
    return model(
        text, opset, w=normal(ways, rows, 5), r=normal(ways, rows, 4), b=normal(ways, 2 * rows, seed=3)
    )


def sequence(proto: ModelProto) -> Feed:
    sizes = {"B": 2, "T": 3}
    return {
        info.name: normal(
            *(sizes.get(d.dim_param, d.dim_value) for d in info.type.tensor_type.shape.dim), seed=7
        )
        for info in proto.graph.input
    }


@FACT
@REAL
@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_batch_first_with_initial_states_is_refused(op_type: str, worker: Worker, tmp_path: Path) -> None:
    proto = recurrent(op_type, 1, "forward", True, 14)
    path = tmp_path / "state.onnx"
    onnx.save(proto, path)
    found = attempt(worker, path, package="tensorrt-rtx")
    assert (found.status, found.stage) == ("refused", "build")
    assert "IRecurrenceLayer must have inputs with same shape" in found.reason
    result = repaired(proto, "OPS011")
    onnx.save(result, path)
    assert attempt(worker, path, package="tensorrt-rtx").accepted
    ran = reading(worker, result, tmp_path).run(**sequence(proto))
    for name, value in zip(ran, ort.reference(proto, sequence(proto)), strict=True):
        assert same(ran[name], value)


@pytest.mark.parametrize(("op_type", "state"), list(itertools.product(["RNN", "GRU", "LSTM"], [False, True])))
def test_batch_first_keeps_every_bit(op_type: str, state: bool) -> None:
    proto = recurrent(op_type, 1, "bidirectional", state, 22, "B,T")
    feed = sequence(proto)
    for old, new in zip(
        ort.reference(proto, feed), ort.reference(repaired(proto, "OPS011"), feed), strict=True
    ):
        assert old.tobytes() == new.tobytes()


# ---------------------------------------------------------------------------------- OPS012: SpaceToDepth


@pytest.mark.parametrize(
    ("sizes", "shape"), [("N,3,4,6", (0, 3, 4, 6)), ("N,3,H,W", (2, 3, 0, 6)), ("N,3,H,W", (1, 3, 2, 0))]
)
def test_space_to_depth_of_nothing(sizes: str, shape: tuple[int, ...]) -> None:
    proto = model(
        f'g (float[{sizes}] x) => (float[A,B,C,D] y) {{ y = SpaceToDepth<blocksize = 2, mode = "CRD">(x) }}',
        28,
    )
    feed = {"x": np.zeros(shape, np.float32)}
    [old], [new] = ort.reference(proto, feed), ort.reference(repaired(proto, "OPS012"), feed)
    assert old.shape == new.shape


# ----------------------------------------------------------------- OPS013, OPS014, OPS018: ConvTranspose


def transposed(
    attributes: str,
    *,
    data: str = "1,1,3,3",
    kernel: tuple[int, ...] = (1, 2, 3, 3),
    opset: int = 18,
    bias: str = "",
) -> ModelProto:
    """A ConvTranspose of one channel to two; ``bias`` is "", "weight" or "input"."""
    rank = data.count(",") + 1
    more = ", float[2] b" if bias == "input" else ""
    weights: dict[str, Any] = {"w": counted(*kernel)}
    if bias == "weight":
        weights["b"] = np.array([100, 200], np.float32)
    text = f"""g (float[{data}] x{more}) => (float[{",".join("PQRST"[:rank])}] y) {{
        y = ConvTranspose{f"<{attributes}>" if attributes else ""}(x, w{", b" if bias else ""}) }}"""
    return model(text, opset, **weights)


def image(*shape: int, bias: bool = False) -> Feed:
    return {"x": counted(*shape), **({"b": np.array([100, 200], np.float32)} if bias else {})}


@REAL
def test_a_dynamic_image_is_refused_or_padded_wrongly(worker: Worker, tmp_path: Path) -> None:
    small = transposed("strides = [2,2], output_shape = [6,6]", data="1,1,H,W")
    assert "does not support negative pre-padding" in reading(worker, small, tmp_path).error
    large = transposed("strides = [2,2], output_shape = [6,6]", data="1,1,H,W", kernel=(1, 2, 9, 9))
    assert reading(worker, large, tmp_path).run(**image(1, 1, 3, 3))["y"].shape != (1, 2, 6, 6)
    for proto in (small, large):
        [found] = findings(RULES["OPS013"], proto)
        assert found.severity == Severity.ERROR
        assert found.match.fix is None


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[ModelProto, Feed]:
    """A ConvTranspose of random attributes; many of them ONNX Runtime refuses."""
    count = draw(st.integers(1, 2))

    def some(low: int, high: int, times: int = 1) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count * times, max_size=count * times))

    sizes, kernel, strides, dilations = some(1, 4), some(1, 4), some(1, 3), some(1, 2)
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations}
    if draw(st.booleans()):
        attributes["output_padding"] = some(0, 2)
    if draw(st.booleans()):
        full = [
            (n - 1) * s + (k - 1) * d + 1
            for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        attributes["output_shape"] = [max(1, one - cut) for one, cut in zip(full, some(-1, 4), strict=True)]
    auto = draw(st.sampled_from(["", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if auto:
        attributes["auto_pad"] = auto
    if auto in ("", "NOTSET") and draw(st.booleans()):
        attributes["pads"] = some(0, 1, 2)
    bias = draw(st.booleans())
    inputs = {"x": normal(1, 2, *sizes), "w": normal(2, 3, *kernel), **({"b": normal(3)} if bias else {})}
    infos = [helper.make_tensor_value_info(name, 1, value.shape) for name, value in inputs.items()]
    node = helper.make_node("ConvTranspose", list(inputs), ["y"], **attributes)
    output = helper.make_tensor_value_info("y", 1, [None] * (count + 2))
    graph = helper.make_graph([node], "g", infos, [output])
    opset = draw(st.sampled_from([7, 10, 11, 22]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), inputs


def outcome(proto: ModelProto, feed: Feed) -> Any:
    """What ONNX Runtime gives, None where it refuses."""
    try:
        return ort.run(proto, feed)[0]
    except Exception:  # its exceptions share no narrower base
        return None


def computed(network: Network, feed: Feed) -> Any:
    """What a network gives, None where ONNX Runtime refuses an empty result that TensorRT pads afterwards."""
    try:
        return network.run(**feed)["y"]
    except Exception as error:  # its exceptions share no narrower base
        if "output dimension is <= 0" not in str(error):
            raise
        return None


@given(convolutions())
def test_fixes_of_transposed_convolutions_keep_every_bit(case: tuple[ModelProto, Feed]) -> None:
    proto, feed = case
    result, run = fixed([RULES[code] for code in ("OPS013", "OPS014", "OPS018")], proto)
    assert not run.problems
    old, new = outcome(proto, feed), outcome(result, feed)
    if old is not None:
        assert new is not None
        assert old.shape == new.shape
        assert old.tobytes() == new.tobytes()


@REAL
@given(case=convolutions())
def test_transposed_convolutions_that_nobody_flags_are_read_right(
    case: tuple[ModelProto, Feed], worker: Worker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And those that are fixed; a model that TensorRT refuses says nothing about its reading."""
    proto, feed = case
    codes = ("OPS013", "OPS014", "OPS018")
    result, run = fixed([RULES[code] for code in codes], proto)
    if run.remaining or outcome(proto, feed) is None or proto.opset_import[0].version < 11:
        return
    network = reading(worker, result, tmp_path_factory.mktemp("reading"))
    if not network.error:
        read = computed(network, feed)
        assert read is None or same(read, outcome(proto, feed), 1e-4)
    elif run.applied:
        assert "negative" in network.error or "SHUFFLE" in network.error or "dilat" in network.error, (
            network.error
        )


# -------------------------------------------------------------------------------------- OPS015: Attention


def heads(queries: int = 2, keys: int = 3, dtype: Any = np.float32, **more: Any) -> Feed:
    shapes = {"q": (2, 2, queries, 8), "k": (2, 2, keys, 8), "v": (2, 2, keys, 8)}
    made = {name: normal(*shape, seed=ord(name), dtype=dtype) for name, shape in shapes.items()}
    return {**made, **{name: np.asarray(value) for name, value in more.items()}}


@st.composite
def restricted(draw: st.DrawFn) -> tuple[ModelProto, Feed]:
    """An Attention with lengths, windows, causality and a mask, of sizes that are declared or not."""
    queries, keys = draw(st.integers(0, 4)), draw(st.integers(1, 5))
    opset, causal = draw(st.sampled_from([24, 25])), draw(st.booleans())
    attributes: dict[str, int] = {"is_causal": 1} if causal else {}
    if opset == 25:
        for side in ("left", "right"):
            if draw(st.booleans()):
                attributes[f"{side}_window_size"] = draw(st.integers(-1, 4))
    feed = heads(queries, keys)
    names = ["q", "k", "v", "", "", "", ""]
    if draw(st.booleans()):
        feed["n"] = np.array(draw(st.lists(st.integers(0, keys), min_size=2, max_size=2)), np.int64)
        names[6] = "n"
    rank = draw(st.sampled_from([0, 2, 3, 4]))  # with a vector and causality the reference evaluator fails
    if rank:
        shape = (2, 2, queries, keys - draw(st.integers(0, min(1, keys - 1))))[4 - rank :]
        value = normal(*shape, seed=9)
        feed["m"], names[3] = (value > -1 if draw(st.booleans()) else value), "m"
    dynamic = (
        {"q": ["B", 2, "S", 8], "k": ["B", 2, "T", 8], "v": ["B", 2, "T", 8]} if draw(st.booleans()) else {}
    )
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), dynamic.get(name, value.shape)
        )
        for name, value in feed.items()
    ]
    while not names[-1]:
        names.pop()
    node = helper.make_node("Attention", names, ["y"], **attributes)
    output = helper.make_tensor_value_info("y", 1, [None] * 4)
    graph = helper.make_graph([node], "g", infos, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), feed


@given(restricted())
def test_attention_by_masks_keeps_every_bit(case: tuple[ModelProto, Feed]) -> None:
    """And what is silent has nothing left that TensorRT would ignore and that changes the result."""
    proto, feed = case
    result, run = fixed([RULES["OPS015"]], proto, safety=Safety.NUMERIC)
    assert not run.problems
    [old], [new] = ort.reference(proto, feed), ort.reference(result, feed)
    assert old.tobytes() == new.tobytes()
    if run.remaining:  # a mask of a length that is not known
        return
    blind = ModelProto()
    blind.CopyFrom(result)
    [node] = [one for one in blind.graph.node if one.op_type == "Attention"]
    kept = [one for one in node.attribute if not one.name.endswith("window_size")]
    del node.attribute[:], node.input[4:]
    node.attribute.extend(kept)
    assert ort.reference(blind, feed)[0].tobytes() == old.tobytes()


# --------------------------------------------------------------------------------- OPS016: pads and auto_pad


POOLS = ["AveragePool", "MaxPool", "LpPool"]


@REAL
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", *POOLS])
def test_valid_and_pads(op_type: str, worker: Worker, tmp_path: Path) -> None:
    def made(attributes: str) -> ModelProto:
        if op_type in POOLS:
            return model(
                f"g (float[1,1,5,5] x) => (float[1,1,A,B] y) {{ y = {op_type}<kernel_shape = [3,3], {attributes}>(x) }}"
            )
        text = f"g (float[1,1,5,5] x) => (float[1,1,A,B] y) {{ y = {op_type}<{attributes}>(x, w) }}"
        return model(text, w=counted(1, 1, 3, 3))

    def shape(proto: ModelProto) -> tuple[int, ...]:
        return reading(worker, proto, tmp_path).outputs["y"]

    right = (1, 1, 7, 7) if op_type == "ConvTranspose" else (1, 1, 3, 3)
    proto = made('auto_pad = "VALID", pads = [1,1,1,1]')
    assert shape(proto) == (1, 1, 5, 5)
    assert shape(repaired(proto, "OPS016", Safety.UNSAFE)) == right
    for harmless in ('auto_pad = "VALID"', 'auto_pad = "VALID", pads = [0,0,0,0]'):
        assert not findings(RULES["OPS016"], made(harmless))
        assert shape(made(harmless)) == right
    for refused, safety in (("[0,0,0,0]", Safety.EXACT), ("[1,1,1,1]", Safety.UNSAFE)):
        proto = made(f'auto_pad = "SAME_UPPER", pads = {refused}')
        assert "Pads attribute should not be specified" in reading(worker, proto, tmp_path).error
        assert shape(repaired(proto, "OPS016", safety)) == (1, 1, 5, 5)
    if op_type in POOLS:
        both = ort.run(made('auto_pad = "VALID", pads = [1,1,1,1]'), {"x": counted(1, 1, 5, 5)})
        assert both[0].shape == right


# ------------------------------------------------------------------------------------- OPS017, CTL001: Loop


BODY = "<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) { more = Identity(on)  w = Add(v, v) }>"
START = "g (float[2] x, bool c, int64 n) => (float[2] y)"

NAMED = {
    "with a trip count": f"{START} {{ y = Loop(n, c, x){BODY} }}",
    "in a branch": f"""{START} {{ y = If(c)<then_branch = p () => (float[2] u) {{ u = Loop(n, c, x){BODY} }},
        else_branch = q () => (float[2] z) {{ z = Neg(x) }}> }}""",
    "in another loop": f"""{START} {{ y = Loop(n, , x)
        <body = o (int64 k, bool go, float[2] a) => (bool e, float[2] r) {{
            e = Equal(k, k)  r = Loop(n, c, a){BODY} }}> }}""",
    "of the body's own name": f"{START.replace(' c', ' on')} {{ y = Loop(n, on, x){BODY} }}",
}


@REAL
@pytest.mark.parametrize("text", NAMED.values(), ids=list(NAMED))
def test_a_loops_condition_takes_the_inputs_name(text: str, worker: Worker, tmp_path: Path) -> None:
    proto = model(text)
    names = {info.name for info in proto.graph.input}
    assert set(reading(worker, proto, tmp_path).inputs) != names
    result = repaired(proto, "OPS017")
    assert set(reading(worker, result, tmp_path).inputs) == names


@REAL
@pytest.mark.parametrize(
    "text",
    [
        f"{START} {{ d = Not(c)  y = Loop(n, d, x){BODY} }}",
        f"g (float[2] x, bool[1] c, int64 n) => (float[2] y) {{ y = Loop(n, c, x){BODY} }}",
        f"{START} {{ k = Identity(c)  y = Loop(n, k, x){BODY} }}",
        f"{START} {{ y = Loop(n, , x){BODY.replace('Identity(on)', 'Not(c)')} }}",
    ],
    ids=["of a node", "a vector", "an Identity", "none"],
)
def test_a_loops_condition_that_leaves_names_alone(text: str, worker: Worker, tmp_path: Path) -> None:
    proto = model(text)
    assert not findings(RULES["OPS017"], proto)
    assert set(reading(worker, proto, tmp_path).inputs) == {info.name for info in proto.graph.input}


def scanning(more: str, call: str) -> ModelProto:
    return model(
        f"""g (float[2] x, bool c, float l) => (float[2] y, float[K,2] z) {{
        y, z = Loop({call})<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {{
            {more}  w = Add(v, v)  s = Neg(v) }}> }}""",
        six=np.array(6),
        t=np.array(True),
    )


EARLY = "m = ReduceMax<keepdims = 0>(v)  more = Less(m, l)"
LIMIT: Feed = {"x": np.array([1, 2], np.float32), "c": np.array(True), "l": np.array(5, np.float32)}


@REAL
@pytest.mark.parametrize("call", ["six, c, x", "six, t, x"])
def test_scan_outputs_of_a_loop_that_ends_early(call: str, worker: Worker, tmp_path: Path) -> None:
    proto = scanning(EARLY, call)
    [found] = findings(RULES["CTL001"], proto)
    assert (found.severity, found.match.fix) == (Severity.ERROR, None)
    state, rows = ort.run(proto, LIMIT)
    assert rows.shape == (3, 2)
    network = reading(worker, proto, tmp_path)
    assert network.outputs["z"] == (6, 2)
    assert any("may have the wrong shape" in line for line in network.log)
    ran = network.run(**LIMIT, on=LIMIT["c"])
    assert same(ran["y"], state)
    assert same(ran["z"][:3], rows)


@REAL
@pytest.mark.parametrize("more", ["more = Identity(on)", "more = Identity(t)", "more = And(on, t)"])
def test_a_condition_that_is_always_true_goes(more: str, worker: Worker, tmp_path: Path) -> None:
    proto = scanning(more, "six, t, x")
    [found] = findings(RULES["CTL001"], proto)
    assert found.severity == Severity.WARNING
    assert any("may have the wrong shape" in line for line in reading(worker, proto, tmp_path).log)
    result, run = fixed([RULES["CTL001"]], proto)
    assert len(run.applied) == 1
    assert not run.remaining
    network = reading(worker, result, tmp_path)
    assert not any("may have the wrong shape" in line for line in network.log)
    assert network.layers.count("TRIP_LIMIT") == 1
    for name, old, new in zip(("y", "z"), ort.run(proto, LIMIT), ort.run(result, LIMIT), strict=True):
        assert old.tobytes() == new.tobytes()
        assert same(network.run(**LIMIT)[name], old)


def test_nothing_is_dropped_from_a_loop_without_other_inputs() -> None:
    """A Loop has at least two inputs, and a left-out last one is cut off."""
    proto = model(
        """g (float[2] x) => (float[K,2] z) {
        z = Loop(six, t)<body = b (int64 i, bool on) => (bool more, float[2] s) {
            more = Identity(on)  s = Neg(x) }> }""",
        six=np.array(6),
        t=np.array(True),
    )
    [found] = findings(RULES["CTL001"], proto)
    assert found.match.fix is None


def test_a_loop_of_casts_runs_as_often_without_its_condition() -> None:
    rule = RULES["CTL001"]
    [example] = [one for one in rule.examples if "cast from the same" in one.why]
    before, after = model_of(example), model_of(example, example.after)
    for number in (0, 1, 3, -1):
        feed = {"x": LIMIT["x"], "n": np.array(number, np.int32)}
        for old, new in zip(ort.run(before, feed), ort.run(after, feed), strict=True):
            assert old.shape == new.shape
            assert old.tobytes() == new.tobytes()
