"""A model of a single node, for ``run_node``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, defs, helper, shape_inference

from onnxfix.backend.records import BackendError
from onnxfix.errors import ModelError
from onnxfix.forks import forked
from onnxfix.shapes.inference import MEMORY_MB, TIMEOUT_S

OutputsInfo = Sequence[tuple[Any, tuple[int, ...]]]


def model_of(
    node: NodeProto, arrays: Sequence[Any], outputs: OutputsInfo | None, opset: int | None
) -> ModelProto:
    """A model that holds the node alone.

    Args:
        node: of ONNX's own domain.
        arrays: for its inputs, in order, without the omitted ones; one of the same name is given once.
        outputs: type and shape of each output; None to infer them.
        opset: version of ONNX's operator set; None for the first with the newest form of the operator.

    Raises:
        BackendError: there are more arrays than inputs, or fewer.
        ModelError: there is no such operator, or its outputs cannot be inferred.
    """
    names = list(dict.fromkeys(name for name in node.input if name))
    if len(names) != len(arrays):
        raise BackendError(f"{node.op_type} has {len(names)} inputs, and {len(arrays)} were given", "inputs")
    inputs = [_info(name, np.asarray(value)) for name, value in zip(names, arrays, strict=True)]
    found = [name for name in node.output if name]
    if outputs is None:
        declared = [helper.make_empty_tensor_value_info(name) for name in found]
    else:
        pairs = zip(found, outputs, strict=False)
        declared = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
            for name, (kind, shape) in pairs
        ]
    version = opset or _newest(node)
    graph = helper.make_graph([node], "node", inputs, declared)
    model = helper.make_model_gen_version(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
    return model if outputs is not None else _inferred(model)


def _info(name: str, value: Any) -> ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, value.shape)


def _newest(node: NodeProto) -> int:
    try:
        return int(defs.get_schema(node.op_type, node.domain).since_version)
    except defs.SchemaError:
        where = f"the domain {node.domain}" if node.domain else "ONNX"
        raise ModelError(f"there is no operator {node.op_type} in {where}; give opset_version") from None


def _inferred(model: ModelProto) -> ModelProto:
    """The model with the types of its outputs; ONNX's C++ code that finds them may crash."""
    done = forked(_infer, model.SerializeToString(), timeout=TIMEOUT_S, memory_mb=MEMORY_MB)
    if not done.ok:
        op_type = model.graph.node[0].op_type
        raise ModelError(f"the outputs of {op_type} cannot be inferred; give outputs_info: {done.message}")
    return onnx.load_model_from_string(done.value)


def _infer(model: bytes) -> bytes:
    found = shape_inference.infer_shapes(
        onnx.load_model_from_string(model), check_type=True, strict_mode=True
    )
    return bytes(found.SerializeToString())
