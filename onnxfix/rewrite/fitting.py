"""Checks that the nodes of a fix exist in ONNX: the operator in that opset, for operands of these types.

Rules check that before they propose a fix (``graph/signatures.py``). This is the guard behind them, called for each fix
before it is applied. It checks the new nodes and the readers of moved values, and nothing else of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from onnx import AttributeProto, GraphProto, NodeProto

from onnxfix.errors import EditError, ShadowedError
from onnxfix.files import walk
from onnxfix.files.dtypes import name_of
from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.graph.shared import shared
from onnxfix.graph.signatures import Signature, demands, signature
from onnxfix.model import Model
from onnxfix.rewrite import edits as ed

MOST_FOLLOWED = 10_000
"""Maximum number of values that get another type; a fix that changes more is not checked."""

_ONNX = ("", "ai.onnx")
_TYPED = ("dtype", "output_dtype", "to", "value")
"""Attributes that set the type of a result."""
_STATED = {
    "value_float": 1,
    "value_floats": 1,
    "value_int": 7,
    "value_ints": 7,
    "value_string": 8,
    "value_strings": 8,
}
"""Attributes of a Constant whose name implies the element type (TensorProto numbers)."""


def misfit(model: Model, edits: Sequence[ed.Edit]) -> str:
    """What is wrong with the nodes after these edits of one fix, as text; "" if nothing is.

    Operands of unknown type count as right, and so does what was wrong in the same way before.
    """
    fitting = _Fitting(model, edits)
    while True:
        known = len(fitting.retyped)
        fault = next((found for edit in edits if (found := fitting.fault(edit))), "")
        if len(fitting.retyped) > MOST_FOLLOWED:
            return ""
        if len(fitting.retyped) == known:
            return fault


def refuse_misfit(model: Model, edits: Sequence[ed.Edit]) -> None:
    """Refuse a fix that would leave nodes that do not exist in ONNX.

    Raises:
        EditError: with the text of ``misfit``.
        ShadowedError: the model has such a node already, in a local function that is called with such types, too, so
            that the rule is not at fault; or the fix needs a constant for which this model has no form.
    """
    formless = next((edit for edit in edits if isinstance(edit, ed.AddNode) and _formless(edit)), None)
    if formless is not None and not _has_formless(formless):
        opset = formless.scope.opset()
        raise ShadowedError(f"opset {opset} has no constant of the type of {formless.proto.output[0]!r}")
    fault = misfit(model, edits)
    if fault:
        calls = any(isinstance(edit, ed.RemoveNode) and edit.node.function is not None for edit in edits)
        raise (ShadowedError if calls or unsound(model) else EditError)(fault)


def _formless(edit: ed.AddNode) -> bool:
    """Whether a new Constant has a type that it does not have in its opset: before opset 9 it has float types alone.

    Functions and files up to IR version 3 have no other form for it (``Draft.tensor``).
    """
    known = signature("Constant", edit.scope.opset())
    formal = None if known is None else known.output(0)
    elem = _constant_type(edit.proto)
    return formal is not None and bool(elem) and elem not in formal.elems


def _has_formless(edit: ed.AddNode) -> bool:
    """Whether its graph has a Constant of that type already, as files of old exporters do: those who take it take
    another."""
    elem = _constant_type(edit.proto)
    return any(_constant_type(node.proto) == elem for node in edit.scope.nodes)


def _constant_type(node: NodeProto) -> int:
    if node.op_type != "Constant" or node.domain not in _ONNX:
        return 0
    return _stored({attribute.name: attribute for attribute in node.attribute}, 0)


def find_hidden(model: Model) -> str:
    """A name in a subgraph that hides one around it, as text; "" if there is none. ONNX forbids it, its checker lets
    initializers pass, and ONNX Runtime reads the outer value."""
    counts = Counter(name for scope in model.scopes for name in scope.values)
    nested = ((outer, one) for one in model.scopes if (outer := one.parent) is not None)
    for outer, scope in nested:
        for name in scope.values:
            if counts[name] > 1 and outer.lookup(name) is not None:
                return f"{name!r} in {scope.path} hides the value of that name around it"
    return ""


def unsound(model: Model) -> str:
    """The first node of the model that ONNX does not allow, and why, as text; "" if there is none.

    Operators, element types, the number of inputs and the names of attributes are looked at: what a rule may rely on.
    """
    return shared(model, _unsound)


def _unsound(model: Model) -> str:
    for node in model.nodes():
        if node.is_onnx:
            elems = [0 if value is None else model.shapes.elem_type(value) or 0 for value in node.inputs]
            fault = _mistake(node.op_type, elems, node.opset) or _lack(node)
            if fault:
                return f"{node.place}: {fault}"
    return ""


def _lack(node: Node) -> str:
    """What a node has too little or too much of, besides types."""
    known = demands(node.op_type, node.opset)
    if known is None:
        return ""
    for (least, most), names, what in (
        (known.inputs, node.proto.input, "inputs"),
        (known.outputs, node.proto.output, "outputs"),
    ):
        if not least <= len(names) <= most:
            return f"{node.op_type} has no {len(names)} {what} in opset {node.opset}"
    if "" in node.proto.input[: known.first]:
        return f"{node.op_type} lacks one of its first {known.first} inputs"
    given = [attribute.name for attribute in node.proto.attribute]
    missing = known.attributes.difference(given)
    if missing:
        return f"{node.op_type} lacks the attribute {min(missing)}"
    unknown = next((name for name in given if name not in known.known), None)
    return "" if unknown is None else f"{node.op_type} has no attribute {unknown!r}"


class _Fitting:
    """One fix. ``_types`` are the element types of its new values by name, 0 if unknown; ``retyped`` are the values of
    the model that remain and may get another type."""

    def __init__(self, model: Model, edits: Sequence[ed.Edit]) -> None:
        self._model = model
        self._types: dict[str, int] = {}
        self.retyped: set[Value] = set()
        imports = [edit.version for edit in edits if isinstance(edit, ed.SetImport)]
        self._version = imports[0] if imports else 0
        removed = [edit.node for edit in edits if isinstance(edit, ed.RemoveNode)]
        self._wrong = {node.op_type for node in removed if self._stands_wrong(node)}

    def fault(self, edit: ed.Edit) -> str:
        """What is wrong after an edit."""
        if isinstance(edit, ed.AddInitializer):
            self._types[edit.tensor.name] = edit.tensor.data_type
        elif isinstance(edit, ed.AddNode):
            return self._node(edit.proto, edit.scope)
        elif isinstance(edit, ed.SetInput):
            return self._moved([(edit.node, edit.index)], edit.node.input(edit.index), edit.name)
        elif isinstance(edit, ed.ReplaceUses):
            return self._moved([(use.node, use.index) for use in edit.value.uses], edit.value, edit.name)
        elif isinstance(edit, ed.SetAttribute) and edit.name in _TYPED:
            self._follow(edit.node)
        return ""

    def _opset(self, scope: Scope) -> int:
        return self._version if self._version and scope.root.kind == "graph" else scope.opset()

    def _elem(self, name: str, scope: Scope) -> int:
        if name in self._types:
            return self._types[name]
        value = scope.lookup(name) if name else None
        return 0 if value is None or value in self.retyped else self._model.shapes.elem_type(value) or 0

    def _stands_wrong(self, node: Node) -> bool:
        """Whether a node of the model itself does not exist in ONNX."""
        if not node.is_onnx:
            return False
        elems = [self._elem(name, node.scope) for name in node.proto.input]
        return bool(_mistake(node.op_type, elems, node.opset))

    def _moved(self, readers: Iterable[tuple[Node, int]], before: Value | None, name: str) -> str:
        """What is wrong with readers that get a value of another type."""
        for node, index in readers:
            elem = self._elem(name, node.scope)
            old = 0 if before is None else self._model.shapes.elem_type(before) or 0
            if elem == old:
                continue
            self._follow(node)
            if elem and node.is_onnx and node.op_type not in self._wrong:
                fault = _mistake(node.op_type, [0] * index + [elem], self._opset(node.scope))
                if fault:
                    return fault
        return ""

    def _follow(self, node: Node) -> None:
        """Note that the outputs of a node, and what depends on them, may get another type."""
        pending = [node]
        while pending and len(self.retyped) <= MOST_FOLLOWED:
            for value in _depending(pending.pop()):
                if value not in self.retyped:
                    self.retyped.add(value)
                    pending.extend(use.node for use in value.uses)
                    if value in value.scope.outputs and value.scope.owner is not None:
                        pending.append(value.scope.owner)

    def _node(self, proto: NodeProto, scope: Scope) -> str:
        """What is wrong with a new node or a node inside it; notes the types of its outputs."""
        elems = [self._elem(name, scope) for name in proto.input]
        for graph in walk.subgraphs(proto):
            fault = self._graph(graph, scope)
            if fault:
                return fault
        if proto.domain not in _ONNX or ("", proto.op_type) in self._model.function_names:
            self._types.update(dict.fromkeys(proto.output, 0))
            return ""
        opset = self._opset(scope)
        known = signature(proto.op_type, opset)
        for index, name in enumerate(proto.output):
            self._types[name] = 0 if known is None else _made(proto, known, elems, index)
        return "" if proto.op_type in self._wrong else _mistake(proto.op_type, elems, opset)

    def _graph(self, graph: GraphProto, scope: Scope) -> str:
        self._types.update((info.name, info.type.tensor_type.elem_type) for info in graph.input)
        self._types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
        return next((fault for node in graph.node if (fault := self._node(node, scope))), "")


def _depending(node: Node) -> Iterator[Value]:
    """The outputs of a node whose type depends on its inputs, and the inputs of its subgraphs."""
    known = signature(node.op_type, node.opset) if node.is_onnx else None
    for index, value in enumerate(node.outputs):
        formal = None if known is None else known.output(index)
        fixed = node.op_type == "Cast" or (formal is not None and len(formal.elems) == 1)
        if value is not None and not fixed:
            yield value
    for body in node.subgraphs:
        yield from body.inputs


def _mistake(op_type: str, elems: Sequence[int], opset: int) -> str:
    """Why ONNX has no such node; ``elems`` are the element types of its inputs, 0 if unknown."""
    known = signature(op_type, opset)
    if known is None:
        return f"opset {opset} has no {op_type}"
    bound: dict[str, int] = {}
    for index, elem in enumerate(elems):
        formal = known.input(index)
        if formal is None or not elem:
            continue
        if elem not in formal.elems:
            return f"{op_type} does not accept {name_of(elem)} in opset {opset}"
        if formal.variable and bound.setdefault(formal.variable, elem) != elem:
            return f"{op_type} does not accept {name_of(bound[formal.variable])} and {name_of(elem)} together"
    return ""


def _made(proto: NodeProto, known: Signature, elems: Sequence[int], index: int) -> int:
    """The element type of an output of a new node, or 0."""
    given = {attribute.name: attribute for attribute in proto.attribute if not attribute.ref_attr_name}
    if proto.op_type == "Cast":
        return int(given["to"].i) if "to" in given else 0
    if proto.op_type in ("Constant", "ConstantOfShape"):
        return _stored(given, 1 if proto.op_type == "ConstantOfShape" else 0)
    formal = known.output(index)
    if formal is None:
        return 0
    if len(formal.elems) == 1:
        return next(iter(formal.elems))
    formals = [known.input(place) for place in range(len(elems))]
    same = [
        e
        for e, one in zip(elems, formals, strict=True)
        if one is not None and one.variable == formal.variable
    ]
    return next(filter(None, same), 0) if formal.variable else 0


def _stored(given: dict[str, AttributeProto], otherwise: int) -> int:
    """The element type that the attributes of a Constant or ConstantOfShape define."""
    if "value" in given:
        return int(given["value"].t.data_type)
    return next((elem for name, elem in _STATED.items() if name in given), otherwise)
