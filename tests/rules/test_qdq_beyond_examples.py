"""What the rules about quantization do beyond their examples.

QDQ008: products whose scales are of half precision keep the specification's bits, and ONNX Runtime's.
"""

from __future__ import annotations

import tracemalloc
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
from onnxfix.targets import target_named
from onnxfix.testing import fixed
from onnxfix_rules.qdq._read import Linear, spread
from support.models import of_opset
from support.ort import session

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
