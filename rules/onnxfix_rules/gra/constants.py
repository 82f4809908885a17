"""Constants that TensorRT does not read: sparse ones and texts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

from onnxfix.files import tensors
from onnxfix.rule import (
    AddInitializer,
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    ReplaceUses,
    Safety,
    Scope,
    Severity,
    Silent,
    rule,
)

LIMIT = 1 << 26
"""Maximum bytes of a dense tensor."""


def dense(sparse: SparseTensorProto, name: str, base_dir: Path | None) -> TensorProto | None:
    """The dense tensor; None if it is invalid, of strings, or larger than ``LIMIT``."""
    values = tensors.to_array(sparse.values, base_dir, LIMIT)
    indices = tensors.to_array(sparse.indices, base_dir, LIMIT)
    shape = tuple(sparse.dims)
    if values is None or indices is None or values.ndim != 1:
        return None
    if values.dtype == object or min(shape, default=0) < 0:
        return None
    size = math.prod(shape)
    if size * values.dtype.itemsize > LIMIT:
        return None
    if indices.dtype != np.int64 or len(indices) != len(values) or indices.ndim not in (1, 2):
        return None
    if indices.ndim == 2:
        if indices.shape[1] != len(shape) or not ((indices >= 0) & (indices < shape)).all():
            return None
        indices = np.ravel_multi_index(tuple(indices.T), shape) if len(indices) else indices.reshape(-1)
    if not ((indices >= 0) & (indices < size)).all() or len(np.unique(indices)) != len(indices):
        return None
    array = np.zeros(size, values.dtype)
    array[indices] = values
    return numpy_helper.from_array(array.reshape(shape), name)


def _tensor(name: str, shape: list[int], places: list[list[int]] | list[int], kind: int) -> SparseTensorProto:
    """Values 1, 2, … at ``places``."""
    values = helper.make_tensor(name, kind, [len(places)], list(range(1, len(places) + 1)))
    flat = [i for place in places for i in (place if isinstance(place, list) else [place])]
    dims = [len(places), len(flat) // len(places)] if isinstance(places[0], list) else [len(places)]
    return helper.make_sparse_tensor(
        values, helper.make_tensor(f"{name}_at", TensorProto.INT64, dims, flat), shape
    )


def model(
    text: str,
    shape: list[int],
    places: list[list[int]] | list[int],
    *,
    node: bool = False,
    kind: int = TensorProto.FLOAT,
) -> ModelProto:
    """The model of ``text``, in which ``w`` is a sparse initializer or the output of a Constant."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')
    sparse = _tensor("w", shape, places, kind)
    if not node:
        model.graph.sparse_initializer.append(sparse)
        return model
    constant = helper.make_node("Constant", [], ["w"], sparse_value=sparse)
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([constant, *rest])
    return model


@rule("GRA006", ops=["Constant"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[60])
def sparse_constant(node: Node, model: Model) -> Iterator[Match]:
    """A Constant stores its value as a sparse tensor.

    ## Why it matters
    The parser stops: `This version of TensorRT does not support the sparse_value, value_string and value_strings
    attributes.`, measured with TensorRT-RTX 1.7.1. It supports `value`, `value_float`, `value_int`, `value_floats` and
    `value_ints`.

    ## Fix
    Store the value as a dense tensor. Exact. There is no fix if the dense tensor exceeds 64 MiB, or if the sparse
    tensor is invalid (indices out of range, or duplicate indices). A sparse constant that is an output of the graph is
    kept: neither ONNX Runtime nor the reference returns it.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Constant.html
    """
    sparse = node.attr("sparse_value")
    output = node.require_output()
    if not isinstance(sparse, SparseTensorProto):
        return
    tensor = dense(sparse, "", model.base_dir)
    fix = None
    if tensor is not None and output.replaceable:
        draft = Draft(node)
        draft.replace_node(node, sparse_value=None, value=tensor)
        fix = Fix("make it dense", draft.edits)
    message = f"TensorRT does not support sparse constants; this one has shape {list(sparse.dims)}"
    yield Match(message, node=node, fix=fix)


_ADD = "g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }"
_DENSE = "g (float[2,3] x) => (float[2,3] y) <float[2,3] w = {0, 1, 0, 0, 2, 0}> { y = Add(x, w) }"
_flagged = partial(Flagged, runs=False)


sparse_constant.examples = [
    Fixed("linear indices", before=partial(model, _ADD, [2, 3], [1, 4], node=True), after=_DENSE),
    Fixed(
        "indices by coordinates",
        before=partial(model, _ADD, [2, 3], [[0, 1], [1, 1]], node=True),
        after=_DENSE,
    ),
    _flagged(
        "a graph output, which no backend runs",
        partial(model, "g (float[2] x) => (float[3] w, float[2] y) { y = Neg(x) }", [3], [2], node=True),
    ),
    _flagged("duplicate indices, which are invalid", partial(model, _ADD, [2, 3], [1, 1], node=True)),
    _flagged(
        "larger than 64 MiB as a dense tensor",
        partial(
            model,
            "g (float[1] x) => (float[1] y) { s = ReduceMax<keepdims = 0>(w)  y = Add(x, s) }",
            [1 << 25],
            [7],
            node=True,
        ),
    ),
    Silent(
        "a dense Constant",
        "g (float[1] x) => (float[1] y) { w = Constant<value_float = 1.0>()  y = Add(x, w) }",
    ),
    Silent(
        "value_ints, which TensorRT supports",
        "g (int64[2] x) => (int64[2] y) { w = Constant<value_ints = [1, 2]>()  y = Add(x, w) }",
    ),
    Silent(
        "value_int and value_floats",
        """g (int64[2] x, float[2] u) => (int64[2] y, float[2] v) {
            w = Constant<value_int = 3>()  y = Add(x, w)
            k = Constant<value_floats = [1.0, 2.0]>()  v = Add(u, k) }""",
    ),
]


@rule("GRA007", per="scope", safety=Safety.EXACT, severity=Severity.ERROR, hazards=[60])
def sparse_initializer(scope: Scope, model: Model) -> Iterator[Match]:
    """An initializer is stored as a sparse tensor.

    ## Why it matters
    TensorRT ignores the list of sparse initializers, and stops at the first node that reads one: `Assertion failed:
    (ctx->tensors().count(inputName)): Node input was not registered.`, measured with TensorRT-RTX 1.7.1. An unused one
    does no harm.

    ## Fix
    Store it as a dense initializer. Exact. There is no fix if the dense tensor exceeds 64 MiB, if the sparse tensor is
    invalid, or if it is an output of the graph.

    ## References
    - https://onnx.ai/onnx/repo-docs/IR.html
    """
    for sparse in getattr(scope.proto, "sparse_initializer", ()):
        value = scope.values.get(sparse.values.name)
        if value is None or not value.sparse or not (value.use_count or not value.replaceable):
            continue
        anchor = next((use.node for use in value.uses), None)
        fix = None
        if anchor is not None and value.replaceable and not value.is_input and model.ir_version >= 4:
            tensor = dense(sparse, Draft(anchor).name("dense"), model.base_dir)
            if tensor is not None:
                fix = Fix("make it dense", [AddInitializer(scope, tensor), ReplaceUses(value, tensor.name)])
        yield Match(
            f"TensorRT does not support sparse initializers, such as {value.name}", value=value, fix=fix
        )


sparse_initializer.examples = [
    Fixed("linear indices", before=partial(model, _ADD, [2, 3], [1, 4]), after=_DENSE),
    Fixed("indices by coordinates", before=partial(model, _ADD, [2, 3], [[0, 1], [1, 1]]), after=_DENSE),
    _flagged(
        "a graph output, which is kept",
        partial(model, "g (float[3] x) => (float[3] w, float[3] y) { y = Add(x, w) }", [3], [2]),
    ),
    Silent(
        "unused, which TensorRT ignores",
        partial(model, "g (float[3] x) => (float[3] y) { y = Neg(x) }", [3], [2]),
    ),
    Silent("a dense initializer", _DENSE),
]


@rule("GRA008", per="scope", severity=Severity.ERROR, hazards=[60], alike=["GRA001", "GRA002"])
def string_constant(scope: Scope, model: Model) -> Iterator[Match]:
    """A constant of strings, a type that TensorRT does not support.

    ## Why it matters
    The parser imports every initializer and every Constant, used or not, and stops at the first one of strings: `Failed
    to import initializer: s`, or `This version of TensorRT does not support the sparse_value, value_string and
    value_strings attributes.`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    None here. GRA001 and GRA002 remove unused constants. Used ones belong to text processing, which has to happen
    outside of TensorRT: split the model there.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    for tensor in getattr(scope.proto, "initializer", ()):
        if tensor.data_type == TensorProto.STRING and tensor.name in scope.values:
            yield Match(f"initializer {tensor.name} contains strings", value=scope.values[tensor.name])
    for node in scope.nodes:
        if node.op_type != "Constant" or not node.is_onnx:
            continue
        for attribute in node.proto.attribute[:]:
            if attribute.name in ("value_string", "value_strings") or (
                attribute.name == "value" and attribute.t.data_type == TensorProto.STRING
            ):
                yield Match("this Constant contains strings", node=node)


string_constant.examples = [
    Flagged(
        "a Constant with one string, of which only the shape is used",
        """g (int64[K] x) => (int64[L] y) {
            c = Constant<value_string = "abc">()  s = Shape(c)  y = Concat<axis = 0>(s, x) }""",
    ),
    Flagged(
        "a Constant with strings, in a branch",
        """g (int64[1] x, bool c) => (int64[1] y) {
            y = If(c)<then_branch = p () => (int64[1] u) { k = Constant<value_strings = ["a", "b"]>()  u = Shape(k) },
                      else_branch = q () => (int64[1] v) { v = Neg(x) }> }""",
    ),
    Flagged(
        "an initializer, which GRA002 removes",
        'g (float[2] x) => (float[2] y) <string[2] s = {"a", "b"}> { y = Neg(x) }',
    ),
    Flagged(
        "a Constant with a tensor of strings",
        """g (float[2] x) => (float[2] y) {
            s = Constant<value = string[1] {"a"}>()  y = Neg(x) }""",
    ),
    Silent(
        "a string attribute, which is not a tensor",
        'g (float[2,2] x) => (float[2] y) { y = Einsum<equation = "ii->i">(x) }',
    ),
    Silent(
        "numbers", "g (float[1] x) => (float[1] y) { c = Constant<value_floats = [1.0]>()  y = Add(x, c) }"
    ),
]
