"""Exact rules of shape inference over random parameters, against numpy and ONNX Runtime."""

# ruff: noqa: E501 - graphs in ONNX text are best read on one line

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.model import Model
from onnxfix.shapes.shapes import Shapes
from onnxfix.shapes.symbols import evaluate
from support import shape_oracle as oracle
from support.models import floats, of_nodes
from support.shape_oracle import dims_of, judged

pytestmark = pytest.mark.usefixtures("strict_shapes")


SIZES = [0, 1, 2, 3, 4, 7]
BOUND = st.one_of(st.integers(-9, 9), st.sampled_from([2**63 - 1, -(2**63), 2**31 - 1, -(2**31)]))


def one_node(
    op: str,
    inputs: list[str],
    constants: dict[str, np.ndarray[Any, Any]],
    opset: int,
    shape: list[Any],
    **attrs: Any,
) -> ModelProto:
    node = helper.make_node(op, inputs, ["y"], **attrs)
    return of_nodes([node], floats(x=shape), floats(y=None), constants, opset=opset, ir_version=8)


@settings(max_examples=150)
@given(BOUND, BOUND, st.integers(-4, 4).filter(bool))
def test_slice_length_is_pythons(start: int, end: int, step: int) -> None:
    constants = {k: np.array([v], np.int64) for k, v in (("s", start), ("e", end), ("a", 0), ("k", step))}
    shape = dims_of(one_node("Slice", ["x", "s", "e", "a", "k"], constants, 17, ["N"]))
    assert shape is not None
    for size in SIZES:
        found = evaluate(shape[0], {"N": size})
        if step > 0 or ((start == -1 or start >= 0) and end < 2**31 - 1):
            assert found is not None
        if found is not None:
            assert found == len(range(size)[start:end:step])


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(["N", "M", 1, 2, 3, 4]), min_size=1, max_size=3),
    st.lists(st.sampled_from(["N", "M", "NM", -1, 0, 1, 2, 3, 4]), min_size=1, max_size=4),
    st.booleans(),
)
def test_reshape_is_numpys(source: list[Any], target: list[Any], allowzero: bool) -> None:
    """The target is given by other tensors' shapes; numpy says which assignments are valid, and what comes out."""
    parts = [f"t{i}" for i in range(len(target))]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, source)]
    nodes, initializers = [], []
    for k, item in enumerate(target):
        if isinstance(item, int):
            initializers.append(numpy_helper.from_array(np.array([item], np.int64), parts[k]))
            continue
        inputs.append(helper.make_tensor_value_info(f"i{k}", TensorProto.FLOAT, list(item)))
        nodes.append(helper.make_node("Shape", [f"i{k}"], [f"s{k}"]))
        nodes.append(helper.make_node("ReduceProd", [f"s{k}"], [parts[k]], keepdims=1))
    nodes.append(helper.make_node("Concat", parts, ["t"], axis=0))
    nodes.append(helper.make_node("Reshape", ["x", "t"], ["y"], allowzero=int(allowzero)))
    output = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, output, initializers)
    shape = dims_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    for env in ({"N": n, "M": m} for n in (0, 1, 2, 3, 4, 6) for m in (1, 2, 3, 5)):
        here = [env[d] if isinstance(d, str) else d for d in source]
        wanted = [int(np.prod([env[c] for c in t])) if isinstance(t, str) else t for t in target]
        if not allowzero:
            if any(w == 0 and i >= len(here) for i, w in enumerate(wanted)):
                continue
            wanted = [here[i] if w == 0 else w for i, w in enumerate(wanted)]
        if wanted.count(-1) > 1 or (-1 in wanted and 0 in wanted):
            continue
        try:
            real = np.empty(here).reshape(wanted).shape
        except ValueError:
            continue
        assert shape is not None
        for dim, size in zip(shape, real, strict=True):
            assert evaluate(dim, env) in (None, size), (str(dim), env)


WINDOWS = {
    "size": st.integers(4, 13), "kernel": st.integers(1, 4), "stride": st.integers(1, 3), "dilation": st.integers(1, 2),
    "head": st.integers(0, 2), "tail": st.integers(0, 2), "mode": st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]),
    "ceil": st.booleans(), "op": st.sampled_from(["MaxPool", "AveragePool", "LpPool", "Conv", "ConvTranspose"]),
}  # fmt: skip


@settings(max_examples=100)
@given(st.fixed_dictionaries(WINDOWS))
def test_sliding_windows_are_onnx_runtimes(case: dict[str, Any]) -> None:
    op, kernel, dilation = case["op"], case["kernel"], case["dilation"]
    if case["mode"].startswith("SAME"):
        dilation = 1  # ONNX Runtime refuses the combination for some of these operators
    span = (kernel - 1) * dilation + 1
    head, tail = min(case["head"], kernel - 1), min(case["tail"], kernel - 1)
    attrs: dict[str, Any] = {"strides": [case["stride"]], "dilations": [dilation], "kernel_shape": [kernel]}
    if op == "ConvTranspose" and case["stride"] > 1:
        attrs["output_padding"] = [case["tail"] % case["stride"]]
    attrs |= {"pads": [head, tail]} if case["mode"] == "NOTSET" else {"auto_pad": case["mode"]}
    inputs, constants = ["x"], {}
    if op.startswith("Conv"):
        inputs, constants = ["x", "w"], {"w": np.ones((2, 2, kernel), np.float32)}
    elif case["ceil"]:
        attrs["ceil_mode"] = 1
    if op in ("LpPool", "AveragePool"):
        opset = 19
    else:
        opset = 17
    if case["size"] + (head + tail if case["mode"] == "NOTSET" else 0) < span:
        return  # the window does not fit: ONNX says nothing of the result
    for size in ("S", case["size"]):
        proto = one_node(op, inputs, constants, opset, [1, 2, size], **attrs)
        feeds = oracle.random_feeds(proto, {"S": case["size"]}, 0)
        shapes = Shapes(Model(proto))
        try:
            real = oracle.run_all(proto, feeds)
        except oracle.runtime_errors():
            return  # ONNX Runtime refuses the model
        verdict = oracle.judge(proto, feeds, real, shapes)
        assert verdict.wrong == []


@settings(max_examples=80)
@given(st.floats(0.125, 5, width=32), st.integers(1, 40))
def test_resize_scales_are_onnx_runtimes(scale: float, size: int) -> None:
    for dim in (size, "S"):
        proto = one_node("Resize", ["x", "", "s"], {"s": np.array([1, scale], np.float32)}, 17, [1, dim])
        if int(np.float32(scale) * np.float32(size)) == 0:
            continue
        assert judged(proto, {"S": size}).wrong == []


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([1, "A", "B", 2, 3]), max_size=3),
    st.lists(st.sampled_from([1, "A", "B", 2, 3]), max_size=3),
)
def test_broadcasting_is_numpys(left: list[Any], right: list[Any]) -> None:
    node = helper.make_node("Add", ["x", "z"], ["y"])
    shape = dims_of(of_nodes([node], floats(x=left, z=right), floats(y=None)))
    assert shape is not None
    for env in ({"A": a, "B": b} for a in (0, 1, 2, 3) for b in (0, 1, 2, 3)):
        sizes = [[env[d] if isinstance(d, str) else d for d in side] for side in (left, right)]
        try:
            real = np.broadcast_shapes(*map(tuple, sizes))
        except ValueError:
            continue
        assert tuple(evaluate(d, env) for d in shape) == real


ARITHMETIC = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Mod",
    "Max",
    "Min",
    "Equal",
    "Less",
    "Greater",
    "LessOrEqual",
    "GreaterOrEqual",
]


@settings(max_examples=80)
@given(st.data())
def test_shape_arithmetic_is_onnx_runtimes(data: st.DataObject) -> None:
    """Random arithmetic on the elements of a shape, followed by value."""
    pool = ["s0", "s1", "c0", "c1", "c2"]
    nodes = [
        helper.make_node("Shape", ["x"], ["s0"], end=1),
        helper.make_node("Shape", ["x"], ["s1"], start=1),
        *(
            helper.make_node("Constant", [], [f"c{i}"], value_ints=[data.draw(st.integers(1, 9))])
            for i in range(3)
        ),
    ]
    for k in range(data.draw(st.integers(1, 6))):
        op = data.draw(st.sampled_from([*ARITHMETIC, "Where", "Cast", "Neg", "Abs"]))
        a, b = data.draw(st.sampled_from(pool)), data.draw(st.sampled_from(pool))
        out = f"v{k}"
        if op in ("Div", "Mod"):
            b = data.draw(st.sampled_from(["c0", "c1", "c2"]))
            fmod = {"fmod": data.draw(st.integers(0, 1))} if op == "Mod" else {}
            nodes.append(helper.make_node(op, [a, b], [out], **fmod))
        elif op in ("Neg", "Abs"):
            nodes.append(helper.make_node(op, [a], [out]))
        elif op == "Cast":
            kind = data.draw(
                st.sampled_from([TensorProto.INT32, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BOOL])
            )
            nodes += [
                helper.make_node("Cast", [a], [f"{out}f"], to=kind),
                helper.make_node("Cast", [f"{out}f"], [out], to=7),
            ]
        elif op == "Where":
            nodes += [
                helper.make_node("Less", [a, b], [f"{out}c"]),
                helper.make_node("Where", [f"{out}c", b, a], [out]),
            ]
        elif op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
            nodes += [
                helper.make_node(op, [a, b], [f"{out}c"]),
                helper.make_node("Cast", [f"{out}c"], [out], to=7),
            ]
        else:
            nodes.append(helper.make_node(op, [a, b], [out]))
        pool.append(out)
    result = {pool[-1]: (TensorProto.INT64, None)}
    proto = of_nodes(nodes, floats(x=["N", "M"]), result, opset=17, ir_version=8)
    assert judged(proto, {"N": 1, "M": 1}, {"N": 2, "M": 7}, {"N": 0, "M": 3}, {"N": 5, "M": 2}).wrong == []
