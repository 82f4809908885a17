"""One forward pass of shape inference over a model, scope by scope.

A value inside a local function gets a description that is true for every call. The outputs of a call come from walking
the function's body with the inputs of that call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnx import AttributeProto, TensorShapeProto, TypeProto

from onnxfix.graph.overlay import Node, Scope, UnknownAttribute, Value
from onnxfix.shapes import dimnames
from onnxfix.shapes.ops import ABSENT, TABLE, UNKNOWN, Call, Info, Unknown, control
from onnxfix.shapes.ops.base import INTEGERS, Knowledge, decoded, finished, initializer, schema_elem, small
from onnxfix.shapes.symbols import Dim, constant, data_symbol, symbol

if TYPE_CHECKING:
    from onnxfix.model import Model

MAX_CALL_DEPTH = 32
MAX_NESTING = 64
STRICT = False
"""Whether an exception in a transfer function is raised; for tests. Otherwise the call counts as malformed."""
MALFORMED = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
BUDGET_PER_NODE, BUDGET_BASE = 20, 50_000
MAX_QUESTION = 1024
"""Maximum size in bytes of a Constant whose description is cached."""


class Exhausted(Exception):
    """The model's loops and calls unfold to more nodes than the budget of a pass."""


@dataclass
class Frame:
    """One walk: of the main graph, or of a function's body for one call.

    ``bindings`` are a function's attributes for this call; None stands for any call. ``calls`` are the functions that
    are being walked, outermost first.
    """

    prefix: str
    bindings: Mapping[str, AttributeProto | None] | None = None
    calls: tuple[Scope, ...] = ()
    info: dict[Value, Info] = field(default_factory=dict)


class Labels:
    """Unique labels: the first owner gets the label itself, the second owner one with a prime, and so on."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[object, ...]] = {}
        self._labels_of: dict[tuple[str, tuple[object, ...]], str] = {}
        self._tried: dict[str, int] = {}

    def of(self, label: str, owner: tuple[object, ...]) -> str:
        """The unique label of ``owner``: ``label``, with primes if another owner has it."""
        existing = self._labels_of.get((label, owner))
        if existing is not None:
            return existing
        number = self._tried.get(label, 0)
        while self._owners.setdefault(candidate := _primed(label, number), owner) != owner:
            number += 1
        self._tried[label] = number + 1
        self._labels_of[label, owner] = candidate
        return candidate


def _primed(label: str, number: int) -> str:
    """A label with ``number`` primes. For short labels, many primes become one prime and their number."""
    return label + ("'" * number if number < _PRIMES else f"'{number}")


_PRIMES = 8


class Pass:
    """The state of one forward pass. Create it and call :meth:`run`.

    ``knowledge`` caches results of equal operators; it affects the time and not the result.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.knowledge = Knowledge()
        self.symbols: dict[str, tuple[str, int]] = {}
        self.minted: list[set[str]] = [set()]
        self._labels, self._prefixes = Labels(), Labels()
        self._orders = model.orders
        self._operators: dict[tuple[str, str, Scope], tuple[object, ...]] = {}
        """Domain, name and version, by domain, name and scope; () if a node's outputs depend on more."""
        self._remaining = BUDGET_BASE + BUDGET_PER_NODE * sum(map(len, self._orders.values()))
        self._nesting = 0
        self._mints = 0
        """Number of symbols created so far: an operator that creates none depends on its inputs alone."""
        self._too_deep = 0
        """Number of calls that were nested too deeply to be followed."""
        self._answers: dict[tuple[object, ...], list[Info]] = {}
        """Outputs of calls that created no symbol, by function, inputs and attributes. A chain of functions
        that call the next one takes linear time, even if each function calls the next one twice."""

    def run(self) -> dict[Value, Info]:
        """Describe every value of the model."""
        frame = Frame("")
        for value in self.model.main.inputs:
            frame.info[value] = self.knowledge.interned(_graph_input(self, value))
        for scope in (self.model.main, *self.model.callees_first):
            self.walk(frame, scope)
        return frame.info

    def mint(self, frame: Frame, scope: Scope, name: str) -> str:
        """A new symbol's name, unique to this value in this scope and call."""
        label = f"{frame.prefix}{scope.path} / {name}" if scope.path else frame.prefix + name
        label = self.claim(label, (frame.prefix, scope, name))
        self.minted[-1].add(label)
        self._mints += 1
        return label

    def claim(self, label: str, owner: tuple[object, ...]) -> str:
        """``label`` for ``owner``, with primes if another owner has it."""
        return self._labels.of(label, owner)

    def mint_input(self, name: str) -> str:
        """A new symbol's name, for a property of a graph input."""
        return self.mint(Frame(""), self.model.main, name)

    def lookup(self, frame: Frame, value: Value | None) -> Info:
        """The description of a value in this walk; ABSENT for None."""
        if value is None:
            return ABSENT
        info = frame.info.get(value)
        if info is None:
            info = frame.info[value] = self.knowledge.interned(initializer(value))
        return info

    # ---- nodes

    def walk(self, frame: Frame, scope: Scope) -> None:
        """Describe the outputs of every node of ``scope``, producers first."""
        unfolds = bool(frame.calls) or scope.kind == "subgraph"
        for node in self._orders[scope]:
            self._remaining -= unfolds
            if unfolds and self._remaining < 0:
                raise Exhausted
            self.node(frame, node)

    def node(self, frame: Frame, node: Node) -> None:
        """Describe the outputs of one node."""
        described = frame.info
        inputs = [
            ABSENT if value is None else described.get(value) or self.lookup(frame, value)
            for value in node.inputs
        ]
        while inputs and inputs[-1] is ABSENT:
            inputs.pop()
        known = self._question(node)
        question = (known, *inputs)
        infos = self.knowledge.answers.get(question) if known is not None else None
        if infos is None:
            before = self._mints
            infos = self._describe(frame, node, inputs)
            if known is not None and self._mints == before:
                self.knowledge.learn(question, infos)
        for value, info in zip(node.outputs, infos, strict=True):
            if value is not None:
                described[value] = info

    def _question(self, node: Node) -> tuple[object, ...] | None:
        """What a node's outputs depend on besides its inputs, if it creates no symbol. None for more.

        More are subgraphs, local functions, and attributes of a function's call.
        """
        scope, outputs = node.scope, node.outputs
        key = (node.domain, node.op_type, scope)
        operator = self._operators.get(key)
        if operator is None:
            plain = key[:2] in TABLE and key[:2] not in self.model.function_names
            operator = self._operators[key] = (*key[:2], scope.opset(node.domain)) if plain else ()
        if not operator or node.subgraphs:
            return None
        attributes = node.proto.attribute[:]
        if attributes and node.op_type == "Constant" and node.proto.ByteSize() > MAX_QUESTION:
            return None
        present = tuple([output is not None for output in outputs]) if None in outputs else len(outputs)
        question: list[object] = [*operator, present]
        for attribute in attributes:
            if attribute.ref_attr_name:
                return None
            question.append(attribute.SerializeToString())
        return tuple(question)

    def _describe(self, frame: Frame, node: Node, inputs: list[Info]) -> tuple[Info, ...]:
        """The description of each output of a node; UNKNOWN for omitted outputs."""
        names = [v.name if v is not None else f"{node.first_output}#{k}" for k, v in enumerate(node.outputs)]

        def attrs(name: str) -> Any:
            return decoded(self.attribute(frame, node, name))

        call = Call(
            node.op_type,
            inputs,
            names,
            attrs,
            node.opset,
            lambda name: self.mint(frame, node.scope, name),
            node.domain,
        )
        try:
            result = self._transfer(frame, node, call)
        except (Unknown, UnknownAttribute, ZeroDivisionError):
            result = []
        except MALFORMED:
            if STRICT:
                raise
            result = []  # a malformed operator: the checker reports it
        except Exhausted:
            self._forget(frame, node)
            if node.scope.kind == "subgraph":
                raise
            result = []
        infos = [result] if isinstance(result, Info) else list(result)
        infos += [UNKNOWN] * (len(node.outputs) - len(infos))
        return tuple(
            UNKNOWN if value is None else self.knowledge.interned(self._finish(node, call, k, info))
            for k, (value, info) in enumerate(zip(node.outputs, infos, strict=False))
        )

    def _transfer(self, frame: Frame, node: Node, call: Call) -> Sequence[Info] | Info:
        function = self.model.called.get((node.domain, node.op_type, node.overload))
        if function is not None:
            return self._describe_call(frame, node, call, function)
        if node.domain == "" and not node.is_onnx:
            raise Unknown
        if node.subgraphs:
            return self._describe_nested(frame, node, call)
        transfer = TABLE.get((node.domain, node.op_type))
        if transfer is None:
            raise Unknown
        return transfer(call)

    def _describe_nested(self, frame: Frame, node: Node, call: Call) -> Sequence[Info]:
        """Outputs of a node with subgraphs; unknown if they are nested too deeply for Python's stack."""
        if self._nesting >= MAX_NESTING:
            raise Unknown
        self._nesting += 1
        try:
            return control.transfer(self, frame, node, call)
        finally:
            self._nesting -= 1

    def _describe_call(self, frame: Frame, node: Node, call: Call, function: Scope) -> Sequence[Info]:
        """Outputs of a call to a local function: its body, walked with the call's inputs and attributes."""
        bindings: dict[str, AttributeProto | None] = {
            a.name: a for a in getattr(function.proto, "attribute_proto", ())
        }
        for attribute in node.proto.attribute:
            try:
                bindings[attribute.name] = self.attribute(frame, node, attribute.name)
            except Unknown:
                raise Unknown from None
        bound = tuple((name, value and value.SerializeToString()) for name, value in bindings.items())
        question = (function, *call.inputs, *bound)
        answer = self._answers.get(question)
        if answer is not None:
            return answer
        if len(frame.calls) >= MAX_CALL_DEPTH or function in frame.calls:
            self._too_deep += 1
            raise Unknown
        before = self._mints, self._too_deep
        inner = Frame(self._prefix(frame, node, call), bindings, (*frame.calls, function))
        for k, value in enumerate(function.inputs):
            inner.info[value] = call.inputs[k] if k < len(call.inputs) else ABSENT
        self.walk(inner, function)
        outputs = [self.lookup(inner, value) for value in function.outputs]
        if before == (self._mints, self._too_deep):
            self._answers[question] = outputs
        return outputs

    def _prefix(self, frame: Frame, node: Node, call: Call) -> str:
        """The prefix of a call's symbols: calls in two branches may have outputs of the same name."""
        name = call.outputs[0] if call.outputs else node.op_type
        return self._prefixes.of(f"{frame.prefix}{name}: ", (frame.prefix, node.scope, name))

    def attribute(self, frame: Frame, node: Node, name: str) -> AttributeProto | None:
        """A node's attribute in this walk, with references to the function's attributes resolved.

        Raises:
            Unknown: it differs from call to call, and this walk stands for any call.
        """
        for attribute in node.proto.attribute:
            if attribute.name == name:
                if not attribute.ref_attr_name:
                    return attribute
                if frame.bindings is None:
                    raise Unknown
                return frame.bindings.get(attribute.ref_attr_name)
        return None

    def _forget(self, frame: Frame, node: Node) -> None:
        """Drop the results of an unfinished walk: they may be true for some iterations only."""
        for sub in node.subgraphs:
            for scope in sub.walk():
                for value in scope.values.values():
                    frame.info[value] = UNKNOWN

    def _finish(self, node: Node, call: Call, k: int, info: Info) -> Info:
        if isinstance(info.elem, int) and abs(info.elem) >= 1 << 31:  # an attribute may be any number
            info = Info(None, info.shape)
        if info.elem is None and info.kind == "tensor" and (node.is_onnx or node.domain == "ai.onnx.ml"):
            elem = schema_elem(call, k)
            if elem is not None:
                info = Info(elem, info.shape, info.value, info.fill)
        if info.elem in INTEGERS or info.value is not None:
            return finished(info, lambda i, elem: call.fresh_element(k, i, elem))
        return info


def _graph_input(run: Pass, value: Value) -> Info:
    """Description of an input of the main graph: its declaration is the only kind in a file that is trusted."""
    declared = value.declared
    if declared is None:
        return UNKNOWN
    info = _declared(run, value.name, declared)
    sizes = small(info.shape)
    if sizes is not None and info.elem in INTEGERS and info.kind == "tensor":
        return finished(
            info, lambda i, elem: data_symbol(run.mint_input(f"{value.name}[{i}]"), *INTEGERS[elem])
        )
    return info


def _declared(run: Pass, name: str, declared: TypeProto) -> Info:
    kind = declared.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        item = (
            declared.sequence_type.elem_type if kind == "sequence_type" else declared.optional_type.elem_type
        )
        inner = _declared(run, f"{name}[]", item)
        if (
            kind == "sequence_type"
            and inner.shape is not None
            and not all(d.value is not None for d in inner.shape)
        ):
            # The dimensions may differ from item to item.
            inner = Info(inner.elem, None, None, None, inner.kind, inner.item)
        return Info(kind=kind.removesuffix("_type"), item=inner)
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return Info(kind="map" if kind == "map_type" else "tensor")
    tensor = declared.tensor_type if kind == "tensor_type" else declared.sparse_tensor_type
    elem = tensor.elem_type or None
    if not tensor.HasField("shape"):
        return Info(elem)
    dims = tuple(_declared_dim(run, name, axis, dim) for axis, dim in enumerate(tensor.shape.dim))
    return Info(elem, dims, kind="tensor" if kind == "tensor_type" else "sparse")


def _declared_dim(run: Pass, name: str, axis: int, dim: TensorShapeProto.Dimension) -> Dim:
    kind = dim.WhichOneof("value")
    if kind == "dim_value" and dim.dim_value >= 0:
        return constant(dim.dim_value)
    if kind == "dim_param" and dimnames.own(dim.dim_param):
        label = run.claim(str(dim.dim_param), ("dim_param", dim.dim_param))
    else:
        label = run.mint_input(f"{name}.{axis}")
    run.symbols.setdefault(label, (name, axis))
    return symbol(label)
