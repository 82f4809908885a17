"""ONNX's node models with their data, and folders of exported models with inputs made for them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfix import walk
from onnxfix.trt.records import Profile

#: Of operators that draw random numbers. A Dropout draws where it trains, which only its third input can ask for
#: from opset 12 on.
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


@dataclass(frozen=True)
class NodeCase:
    """A model, the inputs of its data sets, and the outputs expected of them (empty: those of the model itself)."""

    name: str
    data: bytes
    feeds: tuple[dict[str, Any], ...]
    expected: tuple[list[Any], ...]
    rtol: float
    atol: float

    @property
    def profile(self) -> Profile | None:
        """The optimization profile of the original model's own data; every tool's result is built with it."""
        return Profile.of_feeds(self.feeds) if self.feeds else None


def node_cases(every: int = 1, match: str = "") -> list[NodeCase]:
    """ONNX's node models: each ``every``-th of those whose name holds ``match``."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    chosen = [one for one in found if one.model is not None and match in one.name][::every]
    cases = []
    for one in chosen:
        assert one.model is not None
        names = [info.name for info in one.model.graph.input]
        sets = one.data_sets or ()
        cases.append(
            NodeCase(
                one.name,
                one.model.SerializeToString(),
                tuple(dict(zip(names, map(value_of, inputs), strict=False)) for inputs, _ in sets),
                tuple(list(map(value_of, outputs)) for _, outputs in sets),
                one.rtol,
                one.atol,
            )
        )
    return cases


def value_of(stored: Any) -> Any:
    """A value of a data set: arrays as they are, numpy's scalars as arrays of rank 0, protobufs as what they hold."""
    if isinstance(stored, onnx.TensorProto):
        return numpy_helper.to_array(stored)
    if isinstance(stored, onnx.SequenceProto):
        return numpy_helper.to_list(stored)
    if isinstance(stored, onnx.OptionalProto):
        return numpy_helper.to_optional(stored)
    return np.asarray(stored) if isinstance(stored, np.generic) else stored


def random_operators(model: onnx.ModelProto) -> list[str]:
    """Operators of the model, functions and subgraphs included, that may draw random numbers."""
    found = {
        node.op_type
        for node in walk.model_nodes(model)
        if node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.input) > 2 and node.input[2])
    }
    return sorted(found)


def half_type(model: onnx.ModelProto) -> str:
    """The coarser of the half-precision types that nodes, inputs or weights name; "" for none."""
    types = {tensor.data_type for tensor in walk.model_tensors(model)}
    types.update(info.type.tensor_type.elem_type for info in model.graph.input)
    for node in walk.model_nodes(model):
        types.update(one.i for one in node.attribute if one.name in ("to", "dtype", "output_dtype"))
    if onnx.TensorProto.BFLOAT16 in types:
        return "bfloat16"
    return "float16" if onnx.TensorProto.FLOAT16 in types else ""
