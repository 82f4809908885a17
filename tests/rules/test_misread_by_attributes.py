"""The rules about models that TensorRT reads as other ones, on random attributes, and about local functions with an
operator's name (OPS060, OPS102), against TensorRT's own reading.

``trt_reading`` imports a model by the real parser and reads the network back: no engine is executed. What the rules'
examples show of that is in test_errors_are_refused.py."""

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

import onnxfix
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule, Safety
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import assert_interface_kept, findings, fixed
from onnxfix_rules.ops.misimports import _calls
from support import ort
from support.models import floats, of_nodes, of_opset
from support.real_tensorrt import REAL
from support.trt_reading import Network, reading

CODES = ("CTL001", "OPS013", "OPS014", "OPS015", "OPS018")
RULES = {rule.code: rule for rule in registry().rules if rule.code in CODES}
Feed = dict[str, np.ndarray[Any, Any]]


def same(first: Any, second: Any, tolerance: float = 1e-5) -> bool:
    a, b = np.asarray(first), np.asarray(second)
    return a.shape == b.shape and np.allclose(
        a.astype(float), b.astype(float), rtol=0, atol=tolerance, equal_nan=True
    )


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


# ----------------------------------------------------------------- OPS013, OPS014, OPS018: ConvTranspose


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
    node = helper.make_node("ConvTranspose", list(inputs), ["y"], **attributes)
    given = floats(**{name: value.shape for name, value in inputs.items()})
    opset = draw(st.sampled_from([7, 10, 11, 22]))
    return of_nodes([node], given, floats(y=[None] * (count + 2)), opset=opset), inputs


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
    inputs = {
        name: (helper.np_dtype_to_tensor_dtype(value.dtype), dynamic.get(name, value.shape))
        for name, value in feed.items()
    }
    while not names[-1]:
        names.pop()
    node = helper.make_node("Attention", names, ["y"], **attributes)
    return of_nodes([node], inputs, floats(y=[None] * 4), opset=opset, ir_version=10), feed


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


# ---------------------------------------------------------------------------------------- CTL001: Loop


def test_nothing_is_dropped_from_a_loop_without_other_inputs() -> None:
    """A Loop has at least two inputs, and a left-out last one is cut off."""
    proto = of_opset(18)(
        """g (float[2] x) => (float[K,2] z) {
        z = Loop(six, t)<body = b (int64 i, bool on) => (bool more, float[2] s) {
            more = Identity(on)  s = Neg(x) }> }""",
        six=np.array(6),
        t=np.array(True),
    )
    [found] = findings(RULES["CTL001"], proto)
    assert found.match.fix is None


RULE, SHARED = (rule for rule in registry().rules if rule.code in ("OPS060", "OPS102"))
FUNCTION = '<domain: "my", opset_import: ["" : 18, "my" : 1]>'
X = np.array([0.5, -2.0], np.float32)


model = of_opset(18, domains={"my": 1})


def repaired(proto: ModelProto, rule: Rule = RULE, target: str | None = None) -> ModelProto:
    """The model with every call written out, in which the rule finds nothing more, nor on a second run."""
    result, run = fixed([rule], proto, target=target)
    assert run.applied
    assert not run.problems
    assert not run.remaining
    assert not findings(rule, result, target)
    assert_interface_kept(proto, result)
    onnx.checker.check_model(result)
    assert [f.SerializeToString() for f in proto.functions if not f.node] == []
    assert len(result.functions) == len(proto.functions)
    return result


CALLED = {
    "from the graph": f"""g (float[2] x) => (float[2] y) {{ y = my.Relu(x) }}
        {FUNCTION} Relu (a) => (b) {{ c = Abs(a)  b = Neg(c) }}""",
    "from a function that is called twice": f"""g (float[2] x) => (float[2] y) {{ z = my.F(x)  y = my.F(z) }}
        {FUNCTION} F (a) => (b) {{ c = Neg(a)  b = my.Abs(c) }}
        {FUNCTION} Abs (a) => (b) {{ c = Add(a, a)  b = Neg(c) }}""",
    "from a branch": f"""g (float[2] x, bool c) => (float[2] y) {{ y = If(c)<
            then_branch = p () => (float[2] u) {{ u = my.Relu(x) }},
            else_branch = q () => (float[2] v) {{ w = my.Relu(x)  v = Neg(w) }}> }}
        {FUNCTION} Relu (a) => (b) {{ c = Abs(a)  b = Add(c, a) }}""",
    "with an attribute": f"""g (float[2] x) => (float[2] y) {{ z = my.Relu<alpha = 0.5>(x)  y = my.Relu(z) }}
        {FUNCTION} Relu <alpha: float = 0.125> (a) => (b) {{
            k = Constant<value_float: float = @alpha>()  b = Mul(a, k) }}""",
    "with a second input that the operator has not": f"""g (float[2] x) => (float[2] y) {{ y = my.Neg(x, x) }}
        {FUNCTION} Neg (a, b) => (c) {{ c = Mul(a, b) }}""",
    "one inside the other": f"""g (float[2] x) => (float[2] y) {{ y = my.Relu(x) }}
        {FUNCTION} Relu (a) => (b) {{ c = my.Abs(a)  b = my.Abs(c) }}
        {FUNCTION} Abs (a) => (b) {{ k = Constant<value = float[2] {{3, 4}}>()  b = Sub(k, a) }}""",
}


@REAL
@pytest.mark.parametrize("name", CALLED)
def test_tensorrt_reads_the_function_after_the_fix(name: str, worker: Worker, tmp_path: Path) -> None:
    proto = model(CALLED[name])
    feed: dict[str, Any] = {"x": X}
    if "c" in [info.name for info in proto.graph.input]:
        feed["c"] = np.array(False)
    wanted = ort.run(proto, feed)[0]
    assert not np.array_equal(reading(worker, proto, tmp_path).run(**feed)["y"], wanted)
    result = repaired(proto)
    assert np.array_equal(ort.run(proto, feed)[0], ort.run(result, feed)[0])
    np.testing.assert_allclose(reading(worker, result, tmp_path).run(**feed)["y"], wanted, rtol=1e-6)


OVERLOAD = '<domain: "my", overload: "v2", opset_import: ["" : 18]>'
SHARING = {
    "an overload": f"""{OVERLOAD.replace("v2", "v1")} F (a) => (b) {{ b = Neg(a) }}
        {OVERLOAD} F (a) => (b) {{ b = Abs(a) }}""",
    "an overload after the function without one": f"""{OVERLOAD.replace("v2", "")} F (a) => (b) {{ b = Neg(a) }}
        {OVERLOAD} F (a) => (b) {{ b = Abs(a) }}""",
    "three, with attributes": "\n".join(
        f"""{OVERLOAD.replace("v2", name)} F <alpha: float = {factor}> (a) => (b) {{
            k = Constant<value_float: float = @alpha>()  b = Mul(a, k) }}"""
        for name, factor in (("v1", 0.5), ("v2", 0.25), ("v3", 0.125))
    ),
}


@REAL
@pytest.mark.parametrize("name", SHARING)
def test_tensorrt_calls_the_first_function_of_a_name(name: str, worker: Worker, tmp_path: Path) -> None:
    first = "my.F" if "without" in name else "my.F:v1"
    proto = model(f"""<ir_version: 10, opset_import: ["" : 18, "my" : 1]>
        g (float[2] x) => (float[2] y, float[2] z) {{ y = {first}(x)  z = my.F:v2(x) }} {SHARING[name]}""")
    wanted = ort.run(proto, {"x": X})
    read = reading(worker, proto, tmp_path).run(x=X)
    assert np.array_equal(read["y"], read["z"])
    assert not np.allclose(read["z"], wanted[1])
    result = repaired(proto, SHARED)
    assert result.graph.node[0].op_type == "F"  # the call that goes right stays
    for one, other, output in zip(wanted, ort.run(result, {"x": X}), "yz", strict=True):
        assert np.array_equal(one, other)
        np.testing.assert_allclose(reading(worker, result, tmp_path).run(x=X)[output], one, rtol=1e-6)


def test_every_call_is_written_out_for_a_target_without_functions() -> None:
    proto = model(f"""g (float[2] x) => (float[2] y) {{ y = my.G(x) }}
        {FUNCTION} G (a) => (b) {{ c = my.F(a)  b = my.F(c) }}
        {FUNCTION} F (a) => (b) {{ b = Exp(a) }}""")
    assert not findings(SHARED, proto)
    result = repaired(proto, SHARED, "trt8.6")
    assert [node.op_type for node in result.graph.node] == ["Exp", "Exp"]
    assert np.array_equal(ort.run(proto, {"x": X})[0], ort.run(result, {"x": X})[0])


REFUSED = {
    "a default behind an attribute that may be missing": f"""g (float[2] x) => (float[2] y) {{ y = my.F(x) }}
        {FUNCTION} F <beta> (a) => (b) {{ b = my.Relu<alpha: float = @beta>(a) }}
        {FUNCTION} Relu <alpha: float = 0.5> (a) => (b) {{ b = LeakyRelu<alpha: float = @alpha>(a) }}""",
    "an input that is left out comes back": f"""g (float[2] x) => (float[2] y, float[2] z) {{ y, z = my.Relu(x) }}
        {FUNCTION} Relu (a, b) => (c, b2) {{ c = Neg(a)  b2 = Identity(b) }}""",
    "a branch returns an input that is left out": f"""g (float[2] x) => (float[2] y) {{ y = my.Where(x) }}
        {FUNCTION} Where (a, b) => (c) {{ t = Constant<value = bool {{1}}>()
            c = If(t)<then_branch = p () => (u) {{ u = Identity(a) }}, else_branch = q () => (b) {{ }}> }}""",
    "more outputs than the function has": f"""g (float[2] x) => (float[2] y) {{ y, z = my.Relu(x) }}
        {FUNCTION} Relu (a) => (b) {{ b = Neg(a) }}""",
    "a function of a domain that the graph does not import": """g (float[2] x) => (float[2] y) { y = my.Relu(x) }
        <domain: "my", opset_import: ["" : 18, "your" : 1]> Relu (a) => (b) { b = your.F(a) }
        <domain: "your", opset_import: ["" : 18]> F (a) => (b) { b = Neg(a) }""",
    "a domain that the graph does not import": """g (float[2] x) => (float[2] y) { y = my.Relu(x) }
        <domain: "my", opset_import: ["" : 18, "its" : 1]> Relu (a) => (b) { b = its.Foo(a) }""",
}


@pytest.mark.parametrize("name", REFUSED)
def test_left_alone(name: str) -> None:
    found = findings(RULE, model(REFUSED[name]))
    assert found
    assert not any(one.match.fix for one in found)


@pytest.mark.parametrize("depth", [50, 3000])
def test_functions_inside_functions(depth: int) -> None:
    text = "g (float[2] x) => (float[2] y) { y = my.Relu(x) }"
    names = ["Relu", *(f"F{k}" for k in range(depth))]
    for one, other in itertools.pairwise(names):
        text += f"\n{FUNCTION} {one} (a) => (b) {{ b = my.{other}(a) }}"
    text += f"\n{FUNCTION} {names[-1]} (a) => (b) {{ b = Neg(a) }}"
    assert [one.match.fix is None for one in findings(RULE, model(text))] == [depth > _calls.DEPTH_LIMIT]


def test_functions_that_stand_for_a_billion_nodes_are_not_counted_out() -> None:
    names = ["Relu", *(f"F{k}" for k in range(40))]
    text = "g (float[2] x) => (float[2] y) { y = my.Relu(x) }"
    for one, other in itertools.pairwise(names):
        text += f"\n{FUNCTION} {one} (a) => (b) {{ c = my.{other}(a)  b = my.{other}(c) }}"
    text += f"\n{FUNCTION} {names[-1]} (a) => (b) {{ b = Neg(a) }}"
    assert [one.match.fix for one in findings(RULE, model(text))] == [None]
    assert _calls.NODE_LIMIT < 2**40


# ------------------------------------------------------------------------------------------ random functions


def test_the_reference_evaluator_judges_no_overloads(tmp_path: Path) -> None:
    """It knows the last function of a name only: two models that call the two in another order are alike to it."""
    paths = []
    for number, (first, second) in enumerate((("Act:two", "Act"), ("Act", "Act:two"))):
        text = f"""<ir_version: 10, opset_import: ["" : 18, "a" : 1]> g (float[2,3] x) => (float[2,3] y) {{
            h = a.{first}(x)  y = a.{second}(h) }}
            <domain: "a", opset_import: ["" : 18]> Act (p) => (q) {{ q = Neg(p) }}
            <domain: "a", overload: "two", opset_import: ["" : 18]> Act (p) => (q) {{ q = Exp(p) }}"""
        paths.append(tmp_path / f"{number}.onnx")
        onnx.save(onnx.parser.parse_model(text), paths[-1])
    report = onnxfix.verify(*paths, rungs=["reference", "ort-cpu"])
    assert report.verdict is not None
    assert [one.status for one in report.verdict.rungs[1:]] == ["skipped", "failed"]
