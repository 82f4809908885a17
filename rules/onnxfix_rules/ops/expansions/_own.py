"""Bodies that are better than ONNX's own: the same formulas in fewer operators, correct for empty tensors too.

ONNX's LayerNormalization decomposes the norm that TensorRT has; its SoftmaxCrossEntropyLoss reshapes by [0, 0, -1],
which fails on empty tensors; its AffineGrid selects by an If (``_affine``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, TypeProto, helper, numpy_helper

from onnxfix_rules.ops.expansions import _affine


def function(
    call: NodeProto, types: tuple[bytes, ...], version: int, *, allow_self: bool
) -> FunctionProto | None:
    """A body for this call, in operators of opset ``version``; None where ONNX's own is used.

    ``itself``: the operator may occur in its own body, in a simpler form.
    """
    if (
        call.domain
        or (call.op_type == "LayerNormalization" and not allow_self)
        or not all(kind or not name for kind, name in zip(types, call.input, strict=True))
    ):
        return None
    builder = {
        "AffineGrid": _affine.function,
        "LayerNormalization": _layer_normalization,
        "SoftmaxCrossEntropyLoss": _cross_entropy,
    }.get(call.op_type)
    return None if builder is None else builder(call, types, version)


def attributes(call: NodeProto) -> dict[str, Any]:
    """The call's attributes as Python values."""
    return {a.name: helper.get_attribute_value(a) for a in call.attribute}


def _function(
    call: NodeProto, inputs: list[str], outputs: list[str], nodes: list[NodeProto]
) -> FunctionProto:
    return helper.make_function("onnxfix", call.op_type, inputs, outputs, nodes, [helper.make_opsetid("", 1)])


def _layer_normalization(call: NodeProto, types: tuple[bytes, ...], version: int) -> FunctionProto | None:
    """The norm itself, with mean and inverse deviation computed separately."""
    given = attributes(call)
    axis, stash = given.get("axis", -1), given.get("stash_type", 1)
    kind = TypeProto.FromString(types[0]).tensor_type
    if axis >= 0 and not kind.HasField("shape"):
        return None
    axes = list(range(axis, len(kind.shape.dim) if axis >= 0 else 0))
    dims = kind.shape.dim
    rank = len(dims) if any(not dim.dim_value for dim in dims) else None
    inputs = ["x", "scale", "bias"][: len(call.input)]
    norm = helper.make_node("LayerNormalization", inputs, ["y"])
    norm.attribute.extend(call.attribute)
    epsilon = np.array(given.get("epsilon", 1e-5), np.float32)
    nodes = [
        norm,
        helper.make_node("Cast", ["x"], ["wide"], to=stash),
        *_means("wide", "mean", axes, version, rank),
        helper.make_node("Sub", ["wide", "mean"], ["deviation"]),
        helper.make_node("Mul", ["deviation", "deviation"], ["square"]),
        *_means("square", "variance", axes, version, rank),
        _constant("given_epsilon", epsilon),
        helper.make_node("Cast", ["given_epsilon"], ["epsilon"], to=stash),
        helper.make_node("Add", ["variance", "epsilon"], ["positive"]),
        helper.make_node("Sqrt", ["positive"], ["root"]),
        helper.make_node("Reciprocal", ["root"], ["inverse"]),
    ]
    return _function(call, inputs, ["y", "mean", "inverse"], nodes)


def _means(source: str, target: str, axes: list[int], version: int, rank: int | None) -> list[NodeProto]:
    """Means along ``axes``, which are kept with length 1; ``rank`` where the tensor may be empty.

    ONNX Runtime 1.31 does not reduce the axes of an empty tensor: a Reshape gives the shape that ONNX defines.
    """
    named, unreshaped = f"{target} axes", target if rank is None else f"{target} whole"
    nodes = [_constant(named, np.array(axes, np.int64))] if version >= 18 else []
    if version < 18:
        nodes.append(helper.make_node("ReduceMean", [source], [unreshaped], axes=axes, keepdims=1))
    else:
        nodes.append(helper.make_node("ReduceMean", [source, named], [unreshaped], keepdims=1))
    if rank is not None:
        shape = np.zeros(rank, np.int64)  # 0: unchanged
        shape[axes] = 1
        nodes.append(_constant(f"{target} shape", shape))
        nodes.append(helper.make_node("Reshape", [unreshaped, f"{target} shape"], [target]))
    return nodes


def _constant(name: str, array: np.ndarray[Any, Any]) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def _cross_entropy(call: NodeProto, types: tuple[bytes, ...], version: int) -> FunctionProto | None:
    """The logarithms of the probabilities, and their loss."""
    if version < 13:
        return None  # LogSoftmax flattened the dimensions from axis on
    inputs = ["scores", "labels", "weights"][: len(call.input)]
    loss = helper.make_node("NegativeLogLikelihoodLoss", ["log_prob", *inputs[1:]], ["loss"])
    loss.attribute.extend(call.attribute)
    nodes = [helper.make_node("LogSoftmax", ["scores"], ["log_prob"], axis=1), loss]
    return _function(call, inputs, ["loss", "log_prob"], nodes)
