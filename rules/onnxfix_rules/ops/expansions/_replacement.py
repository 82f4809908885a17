"""A function body in the place of the node that it stands for."""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from onnxfix.rule import AddNode, Draft, Edit, Node, Safety, defined
from onnxfix.targets.documented import names
from onnxfix_rules.ops._nested import flat, rename
from onnxfix_rules.ops.expansions._bodies import Body

_MOVES = names(
    "Concat Constant ConstantOfShape Expand Flatten Gather GatherElements Identity Neg Pad Reshape Shape Size Slice "
    "Split Squeeze Transpose Unsqueeze"
)
_EXACT_TYPES = frozenset(
    {TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64, TensorProto.INT8, TensorProto.UINT8}
)


def safety_of(body: Body, nodes: list[NodeProto]) -> Safety:
    """Exact where the body computes with integers only, and moves what it does not compute."""
    moves = all(
        node.op_type in _MOVES
        or all(body.elem_type(name) in _EXACT_TYPES for name in (*node.input, *node.output) if name)
        for node in flat(nodes)
    )
    return Safety.EXACT if moves else Safety.NUMERIC


def edits_for(node: Node, body: Body, nodes: list[NodeProto], wanted: list[bool]) -> list[Edit]:
    """Put the body's nodes where the node is, under new names; the outputs keep theirs."""
    draft = Draft(node)
    draft.remove(node)
    renamed = {"": ""}
    for name, value in zip(body.inputs, node.inputs, strict=False):
        renamed[name] = "" if value is None else value.name
    made = {name for inner in nodes for name in inner.output}
    copies = []
    for name, own, keep in zip(body.outputs, node.proto.output, wanted, strict=False):
        if keep and name in made and name not in renamed:
            renamed[name] = own
        elif keep:  # an input, or another output once more
            copies.append((name, own))
    for inner in nodes:
        copy = NodeProto()
        copy.CopyFrom(inner)
        copy.name = copy.doc_string = ""
        for name in (*copy.output, *defined(copy)):
            if name not in renamed:
                renamed[name] = draft.name(name.replace(" ", "_"))
        rename(copy, renamed)
        draft.edits.append(AddNode(node.scope, copy, node))
    for name, own in copies:
        draft.add("Identity", [renamed[name]], output=own)
    return draft.edits
