"""What the rules about quantization do beyond their examples; bytes that the graph quantizes, which TensorRT reads as
int8."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, parser

from onnxfix.files.walk import subgraphs
from onnxfix.model import Model
from onnxfix.rewrite.engine import fix
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.runtime.backends.reference import evaluator
from onnxfix.runtime.sandbox import Worker
from onnxfix.targets import target_named
from onnxfix.testing import fixed, overlay
from onnxfix_rules.ops.limits._quantized import is_quantized
from onnxfix_rules.qdq._read import Linear, spread
from support.models import of_opset
from support.ort import session
from support.real_tensorrt import FACT, REAL, built

QDQ008 = next(rule for rule in registry().rules if rule.code == "QDQ008")
Array = np.ndarray[Any, Any]
KINDS = {"int8": (np.int8, 0), "uint8": (np.uint8, 128)}
NAMES = ("a", "s", "z", "b", "t", "v", "u", "o")
CASES = [
    ("uint8", NAMES, 1),
    ("int8", ("a", "b"), 1),
    ("int8", ("a", "s", "u"), 1),
    ("int8", ("a",), 3),
    ("uint8", ("a", "b"), 3),
]


def model_of(
    kind: str, inputs: tuple[str, ...], columns: int, shift: int = 0
) -> tuple[ModelProto, list[Array]]:
    """A product of [3, 4] and [4, 3], and what its operands are where they are constant."""
    dtype, middle = KINDS[kind]
    rng = np.random.default_rng(columns)
    zero = np.array([middle + shift], dtype)
    values = [
        rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (3, 4)).astype(dtype),
        np.array([0.0066], np.float16),
        zero,
        rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (4, 3)).astype(dtype),
        np.array([0.00705, 0.0031, 0.00213][:columns], np.float16),
        np.repeat(zero, columns),
        np.array([0.0307], np.float16),
        zero,
    ]
    tensors = [
        helper.make_tensor(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape, value.tobytes(), True
        )
        for name, value in zip(NAMES, values, strict=True)
    ]
    model = of_opset(21)(f"g () => ({kind}[3,3] y) {{ y = QLinearMatMul({', '.join(NAMES)}) }}")
    for tensor in tensors:
        if tensor.name in inputs:
            model.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
        else:
            model.graph.initializer.append(tensor)
    return model, values


def feeds(inputs: tuple[str, ...], values: list[Array]) -> list[dict[str, Array]]:
    """Bytes over their whole range, and scales that differ by up to a half."""
    rng = np.random.default_rng(8)
    found = []
    for _ in range(150):
        drawn = []
        for value in values:
            if value.dtype == np.float16:
                drawn.append((value * rng.uniform(0.5, 1.5, value.shape)).astype(np.float16))
            else:
                ends = np.iinfo(value.dtype)
                drawn.append(rng.integers(ends.min, ends.max + 1, value.shape).astype(value.dtype))
        found.append({name: one for name, one in zip(NAMES, drawn, strict=True) if name in inputs})
    return found


@pytest.mark.parametrize(("kind", "inputs", "columns"), CASES)
def test_the_same_bits(kind: str, inputs: tuple[str, ...], columns: int) -> None:
    """onnx.reference rounds the product of the scales in half precision, ONNX Runtime does not: the fixed model gives
    what each of them gives."""
    model, values = model_of(kind, inputs, columns)
    result, run = fixed([QDQ008], model, safety=Safety.NUMERIC)
    assert [item.key.code for item in run.applied] == ["QDQ008"]
    assert not [
        n
        for n in result.graph.node
        if n.op_type in ("DequantizeLinear", "QuantizeLinear") and n.input[1] in "stu"
    ]
    pairs = [(evaluator(m), session(m)) for m in (model, result)]
    steps = set()
    for feed in feeds(inputs, values):
        (wanted, theirs), (found, ours) = ([one.run(None, feed)[0] for one in pair] for pair in pairs)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(ours, theirs)
        steps.update(found.reshape(-1).tolist())
    assert len(steps) > 60  # not only the ends of the range


@pytest.mark.parametrize(("shift", "pairs"), [(0, True), (1, False)])
def test_int8_is_kept_around_the_middle(shift: int, pairs: bool) -> None:
    model, _ = model_of("int8", ("a", "b"), 1, shift)
    result, _ = fixed([QDQ008], model, safety=Safety.NUMERIC)
    assert ("DequantizeLinear" in [node.op_type for node in result.graph.node]) is pairs


def test_scales_of_several_types_are_left_alone() -> None:
    model, _ = model_of("int8", NAMES, 1)
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.FLOAT
    assert not fixed([QDQ008], model, safety=Safety.NUMERIC)[1].applied


# ---- Scales of blocks, spread over the elements that they belong to


def blocks(axis: int, block: int) -> Linear:
    return cast(Linear, SimpleNamespace(kind="block", axis=axis, block=block))


def test_spreading_takes_no_more_memory_than_its_result() -> None:
    """Models that nobody has vetted may have many scales: indices for each element would be eight times as large."""
    scales = np.zeros(1 << 16, np.int8)
    tracemalloc.start()
    try:
        found = spread(scales, blocks(0, 2), 1, [1 << 17])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found is not None
    assert peak < 2 * found.nbytes


# ---- What replaces Casts in branches has names of its own: TensorRT refuses two quantizers of one name

BRANCH = "{name}_branch = {name}s () => (float[N] y) {{ q = Cast<to = 17>(x)  y = Cast<to = 1>(q) }}"
TEXT = f"""<ir_version: 9, opset_import: ["" : 19]> g (float[N] x, bool c) => (float[N] z) {{
    z = If(c)<{BRANCH.format(name="then")}, {BRANCH.format(name="else")}> }}"""


def test_quantizers_of_two_branches_have_different_names() -> None:
    model = Model(parser.parse_model(TEXT))
    model.target = target_named(None)
    run = fix(model, [rule for rule in registry().rules if rule.code == "QDQ013"])
    nodes = [node for graph in subgraphs(model.proto.graph.node[0]) for node in graph.node]
    assert len(run.applied) == len(nodes) == 4
    assert {node.op_type for node in nodes} == {"QuantizeLinear", "DequantizeLinear"}
    assert len({node.name for node in nodes} - {""}) == 4


RULES = [rule for rule in registry().rules if rule.per not in ("build", "network")]

MOVED = """g (float[1,2,8,8] x, float[1,2,8,8] w) => (float[1,4,4,4] y) <float s = {0.1}, uint8 z = {0}> {
    a = QuantizeLinear(x, s, z)  b = QuantizeLinear(w, s, z)  c = Concat<axis = 1>(a, b)
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)  t = Transpose<perm = [0, 2, 3, 1]>(p)
    y = DequantizeLinear(t, s, z) }"""

OPERATORS = {
    "Abs": "Abs(a)", "Add": "Add(a, b)", "Concat": "Concat<axis = 1>(a, b)", "Div": "Div(a, b)", "Max": "Max(a, b)",
    "MaxPool": "MaxPool<kernel_shape = [2, 2]>(a)", "Min": "Min(a, b)", "Mul": "Mul(a, b)", "Sign": "Sign(a)",
    "Sub": "Sub(a, b)", "Transpose": "Transpose(a)", "Clip": "Clip(a)",
}  # fmt: skip
"""Measured with TensorRT-RTX 1.7.1 to be accepted on what a QuantizeLinear to uint8 makes."""

BEHIND = {
    "dequantized": ("float", "y = DequantizeLinear(p, s, z)"),
    "cast": ("float", "y = Cast<to = 1>(p)"),
    "moved and dequantized": ("float", "t = Transpose(p)  y = DequantizeLinear(t, s, z)"),
    "returned": ("uint8", "y = Identity(p)"),
}
OTHER = {"Greater": "Greater(a, b)", "Equal": "Equal(a, b)", "ArgMax": "ArgMax(a)"}


model_of_text = of_opset(18, 9)


def of_operator(call: str, behind: str) -> ModelProto:
    kind, tail = BEHIND[behind]
    return model_of_text(f"""g (float[1,2,4,4] x, float[1,2,4,4] w) => ({kind}[A,B,C,D] y)
        <float s = {{0.1}}, uint8 z = {{0}}> {{ a = QuantizeLinear(x, s, z)  b = QuantizeLinear(w, s, z)
        p = {call}  {tail} }}""")


@pytest.mark.parametrize("zero", [0, 128])
@pytest.mark.parametrize("safety", [Safety.EXACT, Safety.NUMERIC])
def test_no_cast_to_bytes_comes_between(zero: int, safety: Safety) -> None:
    """The rule about pooling cast the bytes back, before nodes that no rule could change then."""
    result, run = fixed(RULES, model_of_text(MOVED.replace("z = {0}", f"z = {{{zero}}}")), safety=safety)
    assert not run.problems
    assert not [node for node in result.graph.node if node.op_type == "Cast"]
    assert {found.rule.code for found in run.remaining} <= {"QDQ004", "QDQ001"}
    if safety == Safety.NUMERIC:  # the rules about quantization reach the whole region
        assert not run.remaining


def test_bytes_are_followed_into_graphs_and_functions() -> None:
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "f" : 1]>
        g (float[2] x, uint8[2] k, bool c) => (float[2] y, uint8[2] n) <float s = {0.1}> {
            q = QuantizeLinear(x, s)  h = f.h(q)
            i = If(c)<then_branch = t () => (uint8[2] u) { u = Neg(q) },
                      else_branch = e () => (uint8[2] v) { v = Identity(k) }>
            d = DequantizeLinear(i, s)  w = Cast<to = 2>(d)  o = Identity(w)  y = Add(d, d)  n = Identity(k) }
        <domain: "f", opset_import: ["" : 21]> h (a) => (b) { m = Identity(a)  b = Identity(m) }""")
    model = overlay(proto)
    found = {
        name for scope in model.scopes for name, value in scope.values.items() if is_quantized(value, model)
    }
    assert found == {"q", "h", "u", "i", "a", "m", "b"}


@FACT
@REAL
@pytest.mark.corpus
@pytest.mark.parametrize("behind", BEHIND)
def test_so_it_does_for_every_operator(worker: Worker, tmp_path: Path, behind: str) -> None:
    models = {name: of_operator(call, behind) for name, call in OPERATORS.items()}
    if behind == "cast":
        models |= {name: of_operator(call, behind) for name, call in OTHER.items()}
    for name, model in models.items():
        assert built(worker, model, tmp_path).status == "accepted", name
        result, _ = fixed(RULES, model)
        assert built(worker, result, tmp_path).status == "accepted", name
