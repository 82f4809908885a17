"""The rules about models that TensorRT reads as other ones, against TensorRT's own reading and on random attributes.

``trt_reading`` imports a model by the real parser and reads the network back. What the rules' examples show of that is
in test_errors_are_refused.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import findings, fixed
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
