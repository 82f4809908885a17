"""GRA002: unused initializers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.rule import (
    Fix,
    Fixed,
    Match,
    Model,
    RemoveInitializer,
    Safety,
    Scope,
    Severity,
    Silent,
    Value,
    dtypes,
    rule,
    target_of,
)


@rule("GRA002", per="scope", safety=Safety.EXACT, severity=Severity.INFO, hazards=[38, 50, 60])
def unused_initializer(scope: Scope, model: Model) -> Iterator[Match]:
    """An initializer that no node reads and that is no graph output.

    ## Why it matters
    TensorRT's parser imports all initializers before any node.

    - **error**: an unsupported type fails although nothing reads it: `Failed to import initializer` for string, int16,
      uint16, uint32, uint64, uint4, complex, float8e5m2, float8e8m0 and the FNUZ float8 types (measured with
      TensorRT-RTX 1.7.1), and, by NVIDIA's lists, for bfloat16 and float8 before TensorRT 9.0 and int4 before 10.0.
    - **info**: any other type only makes the file larger and parsing slower.

    ## Fix
    The initializer is removed. Exact: nothing is computed from it. These are kept: initializers that a subgraph
    captures, that callers may override as graph inputs (up to IR version 3, every initializer), and that training
    information or quantization annotations name. External data stays in its file.

    ## References
    - ONNX, "Graphs": https://onnx.ai/onnx/repo-docs/IR.html
    """
    target = target_of(model)
    for value in scope.values.values():
        if value.use_count or value.is_input or not value.replaceable:
            continue
        if value.initializer is not None:
            tensor = value.initializer
            kind = f"{dtypes.name_of(tensor.data_type)}[{','.join(str(d) for d in tensor.dims)}]"
            yield Match(
                f"nothing reads this initializer ({kind})",
                value=value,
                fix=Fix("remove it", [RemoveInitializer(value)]),
                severity=Severity.INFO if target.has_type(tensor.data_type) else Severity.ERROR,
            )
        elif value.sparse:
            yield _sparse_match(value)


def _sparse_match(value: Value) -> Match:
    return Match(
        "nothing reads this sparse initializer",
        value=value,
        fix=Fix("remove it", [RemoveInitializer(value)]),
    )


_SPARSE = "g (float[4] x) => (float[4] y) { y = Neg(x) }"


def _model(text: str) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')


def _sparse() -> ModelProto:
    model = _model(_SPARSE)
    values = numpy_helper.from_array(np.array([2.0], np.float32), "s")
    indices = numpy_helper.from_array(np.array([1], np.int64), "s_indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    return model


def _annotated() -> ModelProto:
    model = _model("g (float[4] x) => (float[4] y) <float scale = {0.5}> { y = Neg(x) }")
    annotation = model.graph.quantization_annotation.add()
    annotation.tensor_name = "y"
    entry = annotation.quant_parameter_tensor_names.add()
    entry.key, entry.value = "SCALE_TENSOR", "scale"
    return model


def _trained() -> ModelProto:
    model = _model(
        "g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}, float[4] v = {0, 0, 0, 0}> { y = Mul(x, w) }"
    )
    training = model.training_info.add()
    node = helper.make_node("Add", ["w", "v"], ["w_new"])
    training.algorithm.CopyFrom(helper.make_graph([node], "step", [], [_float4("w_new")]))
    entry = training.update_binding.add()
    entry.key, entry.value = "w", "w_new"
    return model


def _float4(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])


unused_initializer.examples = [
    Fixed(
        "unused",
        before="g (float[N] x) => (float[N] y) <float[2] c = {1, 2}> { y = Neg(x) }",
        after="g (float[N] x) => (float[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "strings, which TensorRT cannot import",
        before='g (float[N] x) => (float[N] y) <string[2] c = {"a", "b"}> { y = Neg(x) }',
        after="g (float[N] x) => (float[N] y) { y = Neg(x) }",
    ),
    Fixed("a sparse initializer", before=_sparse, after=_SPARSE),
    Silent(
        "captured by a subgraph",
        """g (float[2] x, bool k) => (float[2] y) <float[2] c = {1, 2}> {
            y = If(k)<then_branch = t () => (float[2] p) { p = Add(x, c) },
                      else_branch = e () => (float[2] q) { q = Neg(x) }> }""",
    ),
    Silent(
        "a graph input, which callers may override",
        "g (float[N] x, float[2] c) => (float[N] y) <float[2] c = {1, 2}> { y = Neg(x) }",
    ),
    Silent(
        "IR version 3, where every initializer is an input",
        "g (float[N] x, float[2] c) => (float[N] y) <float[2] c = {1, 2}> { y = Neg(x) }",
        opset=8,
        ir_version=3,
    ),
    Silent(
        "a graph output",
        "g (float[N] x) => (float[N] y, float[2] c) <float[2] c = {1, 2}> { y = Neg(x) }",
    ),
    Silent("used by a quantization annotation", _annotated),
    Silent(
        "used by training information",
        _trained,
        differs={"branch": "training names no value of a branch"},
    ),
    Fixed(
        "uint16, which TensorRT cannot import",
        before="g (float[N] x) => (float[N] y) <uint16[2] c = {1, 2}> { y = Neg(x) }",
        after="g (float[N] x) => (float[N] y) { y = Neg(x) }",
    ),
]
