"""The last steps of a rewrite: its result under the name of the node's output, and sums along an axis."""

from __future__ import annotations

import numpy as np

from onnxfix.rule import AddNode, Draft, RemoveNode, Value


def put(draft: Draft, name: str, output: Value) -> None:
    """Let ``output`` be what ``draft`` made under ``name``, in place of the node's own; the draft reads it no more."""
    made = {edit.proto.output[0]: edit.proto for edit in draft.edits if isinstance(edit, AddNode)}
    draft.edits.insert(0, RemoveNode(draft.anchor))
    if name in made:
        made[name].output[0] = output.name
    else:
        draft.add("Identity", [name], output=output.name)


def summed(draft: Draft, name: str, axis: int) -> str:
    """The sum along an axis, which goes; ``axis`` counts from the first.

    ONNX Runtime 1.31 leaves an axis of an empty tensor whole where it is counted from the end.
    """
    if draft.anchor.scope.opset() < 13:
        return draft.add("ReduceSum", [name], axes=[axis], keepdims=0)
    return draft.add("ReduceSum", [name, draft.constant(np.array([axis], np.int64), "axis")], keepdims=0)
