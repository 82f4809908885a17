"""Models from ONNX's text format, and of nodes where a program makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper, parser

Declared = Mapping[str, tuple[int, Sequence[Any] | None]]
"""Names of inputs or outputs with their element types and dimensions; None for no shape."""


def header(opset: int = 20, ir_version: int = 10, domains: Mapping[str, int] | None = None) -> str:
    """What stands before a graph in ONNX's text format."""
    imports = ", ".join(
        f'"{domain}" : {version}' for domain, version in {"": opset, **(domains or {})}.items()
    )
    return f"<ir_version: {ir_version}, opset_import: [{imports}]>\n"


def model(
    text: str, opset: int = 20, ir_version: int = 10, domains: Mapping[str, int] | None = None, **weights: Any
) -> ModelProto:
    """A model from text; a graph alone gets a header. ``weights`` become initializers."""
    headed = text if text.lstrip().startswith("<") else header(opset, ir_version, domains) + text
    made = parser.parse_model(headed)
    for name, value in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return made


def of_opset(
    opset: int, ir_version: int = 10, domains: Mapping[str, int] | None = None
) -> Callable[..., ModelProto]:
    """``model`` with other defaults."""

    def made(text: str, opset: int = opset, ir_version: int = ir_version, **weights: Any) -> ModelProto:
        return model(text, opset, ir_version, domains, **weights)

    return made


def of_nodes(
    nodes: Iterable[NodeProto],
    inputs: Declared,
    outputs: Declared,
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 18,
    ir_version: int = 9,
    domains: Mapping[str, int] | None = None,
) -> ModelProto:
    """A model of these nodes; ``constants`` become initializers."""

    def infos(declared: Declared) -> list[ValueInfoProto]:
        return [helper.make_tensor_value_info(name, elem, dims) for name, (elem, dims) in declared.items()]

    stored = [numpy_helper.from_array(np.asarray(one), name) for name, one in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", infos(inputs), infos(outputs), stored)
    imports = [helper.make_opsetid(*one) for one in {"": opset, **(domains or {})}.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def floats(**dims: Sequence[Any] | None) -> Declared:
    """Inputs or outputs of float32 with these dimensions."""
    return {name: (TensorProto.FLOAT, sizes) for name, sizes in dims.items()}


def external(tensor: TensorProto, location: str, *bounds: int, **more: object) -> None:
    """Let ``tensor`` lie in the file ``location`` beside the model; ``bounds`` are offset and length."""
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, **dict(zip(("offset", "length"), bounds, strict=False)), **more}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))


def write(path: Path, text: str | ModelProto, opset: int = 20) -> Path:
    """Write a model, or one from text, to a file; return the path."""
    proto = model(text, opset) if isinstance(text, str) else text
    path.write_bytes(proto.SerializeToString())
    return path
