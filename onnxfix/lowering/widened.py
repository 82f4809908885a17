"""A half-precision model for kernels of float32: each node between Casts, tensors as they are.

ONNX Runtime has few half-precision kernels for the CPU. Where it lacks one it puts Casts around nodes itself and then
drops pairs of them, so that less is rounded than the model says; of bfloat16 it refuses most. This rounds exactly
where the model's types say so.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, helper, numpy_helper

from onnxfix.diagnosis.lowered import ELEMENT, FLOAT, fresh, names_of
from onnxfix.model import Model

_LOWS = frozenset(ELEMENT.values())
#: These take any type, or are Casts themselves.
_AS_THEY_ARE = frozenset({"Cast", "CastLike", "Constant", "Identity", "Shape", "Size"})


def widened(model: ModelProto) -> ModelProto:
    """A copy of the model in which every node of the main graph that reads or writes half precision computes in
    float32, between Casts. Control flow and functions stay as they are. Raises ModelError for an invalid graph."""
    made = ModelProto()
    made.CopyFrom(model)
    overlay = Model(model, None)
    kinds = {name: overlay.shapes.elem_type(value) for name, value in overlay.main.values.items()}
    names = names_of(made)
    nodes: list[NodeProto] = []
    wide: dict[str, str] = {}

    def cast(source: str, result: str, to: int) -> str:
        nodes.append(helper.make_node("Cast", [source], [result], fresh(names, f"{result}/Cast"), to=to))
        return result

    for node, original in zip(list(made.graph.node), overlay.main.nodes, strict=True):
        if original.op_type in _AS_THEY_ARE or original.subgraphs or not original.is_onnx:
            nodes.append(node)
            continue
        for slot, name in enumerate(node.input):
            if kinds.get(name) in _LOWS:
                if name not in wide:
                    wide[name] = cast(name, fresh(names, f"{name}/wide"), FLOAT)
                node.input[slot] = wide[name]
        after = [(slot, name) for slot, name in enumerate(node.output) if kinds.get(name) in _LOWS]
        for slot, name in after:
            node.output[slot] = fresh(names, f"{name}/made")
        _retype(node)
        nodes.append(node)
        for slot, name in after:
            cast(node.output[slot], name, int(kinds[name] or FLOAT))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    del made.graph.value_info[:]  # claims, which may be about types and shapes that are not there any more
    return made


def _retype(node: NodeProto) -> None:
    """An attribute that names the type of what the node writes, as float32."""
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.HasField("t") and attribute.t.data_type in _LOWS:
            array = numpy_helper.to_array(attribute.t)
            attribute.t.CopyFrom(numpy_helper.from_array(array.astype("float32"), attribute.t.name))
