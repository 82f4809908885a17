"""Every fix of every example in other opsets and element types: where ONNX takes the model, it takes what comes out.

Rules are written for the opset and the types of their examples, and meet others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

from onnxfix.files.walk import copied
from onnxfix.rewrite.engine import fix
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule, Safety
from onnxfix.testing import model_of, overlay

pytestmark = pytest.mark.corpus(every=10)

OPSETS = (9, 10, 12, 18, 19, 20, 21, 25)
"""Those between which operators got types: float8 came with 19, and to most operators with 21 or later."""
OPSETS_OF_TYPES = (10, 12, 20, 25)
"""Those in which an example is tried with other types, too."""
TYPES = (
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.DOUBLE,
    TensorProto.INT8,
    TensorProto.BOOL,
    TensorProto.FLOAT8E4M3FN,
    TensorProto.INT4,
)
STATED = ("to", "dtype", "output_dtype")
IR_VERSION = {19: 9, 20: 9, 21: 10, 25: 13}
RULES = [one for one in registry().rules if any(example.after is not None for example in one.examples)]


def refused(model: ModelProto) -> str:
    """What onnx's checker says of a model, the types of operands included; "" where it takes it."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return " ".join(str(error).split())[:300]
    return ""


def in_opset(model: ModelProto, opset: int) -> ModelProto:
    """The model as if it had been written for another opset, functions included."""
    copy = copied(model)
    for owner in (copy, *copy.functions):
        for entry in owner.opset_import:
            if entry.domain in ("", "ai.onnx"):
                entry.version = opset
    copy.ir_version = max(copy.ir_version, IR_VERSION.get(opset, 0))
    return copy


def graphs(model: ModelProto) -> Iterator[GraphProto | FunctionProto]:
    pending: list[GraphProto | FunctionProto] = [model.graph, *model.functions]
    while pending:
        graph = pending.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                pending.extend([attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs)


def tensors(graph: GraphProto | FunctionProto) -> Iterator[TensorProto]:
    yield from getattr(graph, "initializer", ())
    for node in graph.node:
        yield from (attribute.t for attribute in node.attribute if attribute.type == AttributeProto.TENSOR)


def infos(graph: GraphProto | FunctionProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.value_info
    if isinstance(graph, GraphProto):
        yield from (*graph.input, *graph.output)


def elem_types(model: ModelProto) -> list[int]:
    found = {info.type.tensor_type.elem_type for graph in graphs(model) for info in infos(graph)}
    found |= {tensor.data_type for graph in graphs(model) for tensor in tensors(graph)}
    return sorted(found - {0, TensorProto.INT64, TensorProto.STRING})


def of_type(model: ModelProto, old: int, new: int) -> ModelProto:
    """The model with every tensor of one element type as one of another."""
    copy = copied(model)
    dtype = helper.tensor_dtype_to_np_dtype(new)
    for graph in graphs(copy):
        for info in infos(graph):
            if info.type.tensor_type.elem_type == old:
                info.type.tensor_type.elem_type = new
        for tensor in tensors(graph):
            if tensor.data_type == old:
                with np.errstate(all="ignore"):
                    array = numpy_helper.to_array(tensor).astype(np.float32).astype(dtype)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in STATED and attribute.i == old:
                    attribute.i = new
    return copy


def variants(model: ModelProto) -> Iterator[ModelProto]:
    """The model in other opsets and types, as far as ONNX takes it there; each once."""
    retyped = (of_type(model, old, new) for old in elem_types(model) for new in TYPES if new != old)
    made = [in_opset(model, opset) for opset in OPSETS]
    made += [in_opset(one, opset) for one in retyped for opset in OPSETS_OF_TYPES]
    for data in dict.fromkeys(one.SerializeToString(deterministic=True) for one in made):
        one = ModelProto.FromString(data)
        if not refused(one):
            yield one


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_fixes_are_valid_in_every_opset_and_type(rule: Rule) -> None:
    """No fix makes an invalid model, and no rule counts on the engine to refuse one (``rewrite/fitting.py``)."""
    for example in rule.examples:
        if example.after is None:
            continue
        for proto in variants(model_of(example)):
            model = overlay(proto, example.target)
            run = fix(model, [rule], safety=Safety.UNSAFE)
            what = f"{rule.code} ({example.why})\n{onnx.printer.to_text(proto)}"
            assert not run.problems, f"{what}\n{run.problems}"
            fault = refused(model.proto) if run.applied else ""
            assert not fault, f"{what}\n{fault}\n{onnx.printer.to_text(model.proto)}"


def test_variants_are_made() -> None:
    """An example that nothing could be made of would test nothing."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <float[2] c = {1, 2}> { a = Cast<to = 1>(c)  y = Add(x, a) }""")
    found = [
        (one.opset_import[0].version, one.graph.input[0].type.tensor_type.elem_type)
        for one in variants(model)
    ]
    assert {opset for opset, _ in found} == set(OPSETS)
    assert {elem for opset, elem in found if opset == 12} == {1, 10, 11}
    assert {elem for opset, elem in found if opset == 19} == {1}
    assert {elem for opset, elem in found if opset == 25} == {1, 10, 11, 16, 3}
    assert len(found) == len(set(found))
