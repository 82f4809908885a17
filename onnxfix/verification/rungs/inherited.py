"""Whether the node that TensorRT rejects was in the original already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx import AttributeProto, ModelProto, NodeProto

from onnxfix import walk
from onnxfix.files import lazy, loading
from onnxfix.trt.records import TrtBuild


def is_new(build: TrtBuild, original: ModelProto | None, fixed: Path | None) -> bool:
    """Whether the first error is about a node that the original does not have."""
    if original is None or not build.errors or not build.errors[0].place.op_type:
        return False
    place = build.errors[0].place
    known = [node for node in walk.model_nodes(original) if node.op_type == place.op_type]
    if any(place.output in node.output for node in known):
        return False
    if fixed is None or not known:
        return True
    loaded = loading.open_model(fixed)
    now = [node for node in walk.model_nodes(loaded.proto) if node.op_type == place.op_type]
    named = next((_kind(node) for node in now if place.output in node.output), None)
    # Rules that remove nodes give their names to others: a node that existed before is not new.
    return named is None or _count(now, named) > _count(known, named)


def _kind(node: NodeProto) -> tuple[str, list[bytes]]:
    """A node without its names; its subgraphs, which contain names, are left out."""
    plain = (a for a in node.attribute if a.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS))
    return node.domain, sorted(
        lazy.keyed(attribute.SerializeToString(deterministic=True)) for attribute in plain
    )


def _count(nodes: Sequence[NodeProto], kind: tuple[str, list[bytes]]) -> int:
    return sum(_kind(node) == kind for node in nodes)
