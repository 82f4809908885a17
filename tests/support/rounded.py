"""A float32 model with Casts around its nodes, as half precision would compute it."""

from __future__ import annotations

from collections.abc import Collection

from onnx import ModelProto

from onnxfix.lowering.lowered import Low, lowerable, with_casts


def rounded(model: ModelProto, to: Low, keep: Collection[str] = (), *, apart: bool = True) -> ModelProto:
    """The model with all nodes rounded but those in ``keep``, by their names or those of their outputs."""
    able = lowerable(model, to)
    nodes = model.graph.node
    low = [index for index in able.slots if not {nodes[index].name, *nodes[index].output} & set(keep)]
    return with_casts(model, able, low, apart=apart)
