"""Models from ONNX's text format."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, parser


def model(text: str, opset: int = 20) -> ModelProto:
    """A model from text; a graph alone gets a header with this opset."""
    header = f'<ir_version: 10, opset_import: ["" : {opset}]>\n'
    return parser.parse_model(text if text.lstrip().startswith("<") else header + text)


def write(path: Path, text: str | ModelProto, opset: int = 20) -> Path:
    """Write a model, or one from text, to a file; return the path."""
    proto = model(text, opset) if isinstance(text, str) else text
    path.write_bytes(proto.SerializeToString())
    return path
