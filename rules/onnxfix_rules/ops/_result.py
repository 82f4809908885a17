"""The last steps of a rewrite: replace the node's output by the result, and sum along an axis."""

from __future__ import annotations

import numpy as np

from onnxfix.rule import AddNode, Draft, RemoveNode, Value


def put(draft: Draft, name: str, output: Value) -> None:
    """Replace the node's ``output`` by the drafted value ``name``, which nothing else in the draft may read."""
    made = {edit.proto.output[0]: edit.proto for edit in draft.edits if isinstance(edit, AddNode)}
    draft.edits.insert(0, RemoveNode(draft.anchor))
    if name in made:
        made[name].output[0] = output.name
    else:
        draft.add("Identity", [name], output=output.name)


def summed(draft: Draft, name: str, axis: int) -> str:
    """Add a sum over ``axis`` without keepdims; ``axis`` must not be negative.

    ONNX Runtime 1.31 does not reduce a negative axis of an empty tensor.
    """
    if draft.anchor.scope.opset() < 13:
        return draft.add("ReduceSum", [name], axes=[axis], keepdims=0)
    return draft.add("ReduceSum", [name, draft.constant(np.array([axis], np.int64), "axis")], keepdims=0)
