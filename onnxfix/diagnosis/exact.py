"""Half precision that ONNX Runtime computes on a CPU as it is meant: every value is rounded.

For most operators ONNX Runtime has no float16 kernel for the CPU. It computes them in float32 between Casts of its own,
and removes a Cast to float16 that a Cast back follows, with all optimizations off too: values between two nodes are
then never rounded, and 300 * 300 / 300 is 300, where it is infinite. Two nodes in float16 between them, which have
kernels for it, keep the Casts: an Unsqueeze and a Squeeze, which compute nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from onnx import ModelProto, NodeProto, TensorProto, helper, shape_inference

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
#: What only moves or constant values: rounded already.
_MOVING = frozenset(("Constant", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
_INPUTS_SINCE = 13
"""The opset from which on Unsqueeze and Squeeze have their axes as an input, and take bfloat16."""


def exact(model: ModelProto) -> ModelProto:
    """A model that computes the same with every value of its main graph in half precision rounded; the model itself
    where there is none. Types that shape inference does not find are left as they are."""
    if not _touches_half(model):
        return model
    version = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    halves = _halves(model, (TensorProto.FLOAT16,) if version < _INPUTS_SINCE else _HALF)
    read = {name for node in model.graph.node for name in node.input}
    if halves.isdisjoint(read):
        return model
    found = ModelProto()
    found.CopyFrom(model)
    graph, nodes = found.graph, list[NodeProto]()
    axes = "" if version < _INPUTS_SINCE else "exact/axes"
    if axes:
        graph.initializer.append(helper.make_tensor(axes, TensorProto.INT64, [1], [0]))
    for node in graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name in halves and name in read:
                node.output[place] = f"{name}/computed"
                nodes += _rounding(f"{name}/computed", name, axes)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return found


def _rounding(source: str, result: str, axes: str) -> list[NodeProto]:
    """Two nodes that compute nothing and have kernels for half precision."""
    between = f"{result}/rounded"
    if axes:
        given = [axes]
        return [
            helper.make_node("Unsqueeze", [source, *given], [between]),
            helper.make_node("Squeeze", [between, *given], [result]),
        ]
    return [
        helper.make_node("Unsqueeze", [source], [between], axes=[0]),
        helper.make_node("Squeeze", [between], [result], axes=[0]),
    ]


def _touches_half(model: ModelProto) -> bool:
    """Whether an input, a weight, a constant or the target of a Cast is in half precision."""
    graph = model.graph
    if any(info.type.tensor_type.elem_type in _HALF for info in graph.input):
        return True
    if any(tensor.data_type in _HALF for tensor in graph.initializer):
        return True
    attributes = (one for node in graph.node for one in node.attribute)
    return any(
        (one.name in ("to", "dtype") and one.i in _HALF) or one.t.data_type in _HALF for one in attributes
    )


def _halves(model: ModelProto, kinds: Collection[int]) -> set[str]:
    """The values of these types that nodes of the main graph compute; none where nothing but Casts reads or writes
    such: ONNX Runtime adds no Casts then, and removes none."""
    try:
        typed = shape_inference.infer_shapes(model)
    except Exception:
        return set()  # shapes that contradict each other: it is left to ONNX Runtime to say so
    known = (*typed.graph.value_info, *typed.graph.output)
    halves = {info.name for info in known if info.type.tensor_type.elem_type in kinds}
    nodes = [node for node in model.graph.node if node.op_type != "Cast"]
    if not any(name in halves for node in nodes for name in (*node.input, *node.output)):
        return set()
    moving = {name for node in model.graph.node if node.op_type in _MOVING for name in node.output}
    return halves - moving
