"""Replacing a node by its function body."""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from onnxfix.rule import AddNode, Draft, Edit, Node, Safety, defined
from onnxfix.targets.documented import names
from onnxfix_rules.ops._nested import flat, rename
from onnxfix_rules.ops.expansions._bodies import Body

_DATA_MOVING = names(
    "Concat Constant ConstantOfShape Expand Flatten Gather GatherElements Identity Neg Pad Reshape Shape Size Slice "
    "Split Squeeze Transpose Unsqueeze"
)
_EXACT_TYPES = frozenset(
    {TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64, TensorProto.INT8, TensorProto.UINT8}
)


def safety_of(body: Body, nodes: list[NodeProto]) -> Safety:
    """Exact where the body computes only with integers, and otherwise only moves data."""
    is_exact = all(
        node.op_type in _DATA_MOVING
        or all(body.elem_type(name) in _EXACT_TYPES for name in (*node.input, *node.output) if name)
        for node in flat(nodes)
    )
    return Safety.EXACT if is_exact else Safety.NUMERIC


def edits_for(node: Node, body: Body, nodes: list[NodeProto], wanted: list[bool]) -> list[Edit]:
    """Replace the node by the body's nodes, under new names; the outputs keep theirs."""
    draft = Draft(node)
    draft.remove(node)
    renamed = {"": ""}
    for name, value in zip(body.inputs, node.inputs, strict=False):
        renamed[name] = "" if value is None else value.name
    produced = {name for inner in nodes for name in inner.output}
    copies = []
    for name, output, keep in zip(body.outputs, node.proto.output, wanted, strict=False):
        if keep and name in produced and name not in renamed:
            renamed[name] = output
        elif keep:  # an input, or another output again
            copies.append((name, output))
    for inner in nodes:
        copy = NodeProto()
        copy.CopyFrom(inner)
        copy.name = copy.doc_string = ""
        for name in (*copy.output, *defined(copy)):
            if name not in renamed:
                renamed[name] = draft.name(name.replace(" ", "_"))
        rename(copy, renamed)
        draft.edits.append(AddNode(node.scope, copy, node))
    for name, output in copies:
        draft.add("Identity", [renamed[name]], output=output)
    return draft.edits
