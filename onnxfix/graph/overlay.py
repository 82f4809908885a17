"""A thin overlay on ``ModelProto``: nodes and values with use-def links across subgraphs and functions.

The protobuf is the model; the overlay only indexes it. Nothing here changes a model: edits do (``edits.py``), so that
every change is data that can be shown, replayed and withdrawn.
"""

# Long because: the four classes of the overlay refer to each other.
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, TypeProto, helper

from onnxfix.files import tensors
from onnxfix.graph import order
from onnxfix.place import Place
from onnxfix.source import Source, source_of

if TYPE_CHECKING:
    from onnxfix.model import Model

CONSTANT_LIMIT = 1 << 20
"""Default size limit of ``Value.constant``, in bytes."""


class Unknown(Exception):
    """Something that a rule depends on is missing or unknown.

    The engine catches it. Matches that the rule yielded before at this node stay.
    """


class UnknownAttribute(Unknown):
    """The attribute refers to an attribute of the surrounding function, so its value differs from call to call.

    The engine catches it, so a rule that reads such an attribute is silent by default.
    """


class Use(NamedTuple):
    """One consumer of a value: ``node.inputs[index]``."""

    node: Node
    index: int  # type: ignore[assignment]  # instead of tuple's method


class Value:
    """A tensor (or sequence, optional …) of one scope: graph input, initializer or node output."""

    __slots__ = (
        "_constant", "_uses", "initializer", "is_input", "is_output", "name", "output_index", "pins",
        "producer", "scope", "sparse",
    )  # fmt: skip

    def __init__(self, name: str, scope: Scope) -> None:
        self.name = name
        self.scope = scope
        self.producer: Node | None = None
        self.output_index = 0
        self.is_input = False
        self.is_output = False
        self.pins = 0
        self.initializer: TensorProto | None = None
        self.sparse = False
        self._uses: dict[Use, None] = {}
        self._constant: np.ndarray[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"Value({self.name!r})"

    @property
    def uses(self) -> list[Use]:
        """Consumers, including nodes of subgraphs that capture this value. A graph output is not a use."""
        return list(self._uses)

    @property
    def use_count(self) -> int:
        """How many uses there are, without a list of them: a value may have tens of thousands."""
        return len(self._uses)

    @property
    def pinned(self) -> bool:
        """Whether anything but a node refers to the value: a branch that returns it, training, quantization."""
        return self.pins > 0

    @property
    def replaceable(self) -> bool:
        """Whether all uses may be moved to another value: only nodes refer to the name."""
        return not (self.is_output or self.pins > 0)

    @property
    def declared(self) -> TypeProto | None:
        """The declared type. It may be wrong, except for graph inputs, which define theirs."""
        return self.scope.declared_types().get(self.name)

    @property
    def is_constant(self) -> bool:
        """Whether the value is fixed: an initializer no caller can override, or a Constant's output."""
        if self.initializer is not None or self.sparse:
            return not self.is_input
        node = self.producer
        return (
            node is not None
            and node.op_type == "Constant"
            and node.is_onnx
            and (self._constant is not None or not any(a.ref_attr_name for a in node.proto.attribute[:]))
        )

    def constant(self, max_bytes: int = CONSTANT_LIMIT) -> np.ndarray[Any, Any] | None:
        """The fixed value as a numpy array (ml_dtypes for bfloat16, float8, int4 …), or None.

        None where the value is not constant, is sparse, or takes more than ``max_bytes``. External data is read
        only below that cap.
        """
        if self._constant is not None:
            return self._constant if self._constant.nbytes <= max_bytes else None
        if not self.is_constant or self.sparse:
            return None
        if self.initializer is not None:
            array = tensors.to_array(self.initializer, self.scope.model.base_dir, max_bytes)
        else:
            assert self.producer is not None
            array = tensors.constant_node_array(self.producer.proto, self.scope.model.base_dir, max_bytes)
        if array is None:
            return None
        array.setflags(write=False)
        self._constant = array
        # The array may be larger than what is stored (4-bit types, lists of numbers): the limit counts for it, too.
        return array if array.nbytes <= max_bytes else None


def is_read(value: Value | None) -> bool:
    """Whether an output is read: by a node, by the graph's caller, or by anything else that refers to its name."""
    return value is not None and (bool(value._uses) or value.is_output or value.pins > 0)


class Node:
    """One operator call."""

    __slots__ = (
        "_source", "domain", "inputs", "is_onnx", "op_type", "outputs", "proto", "scope", "subgraphs",
    )  # fmt: skip

    def __init__(self, proto: NodeProto, scope: Scope) -> None:
        self.proto = proto
        self.scope = scope
        self.op_type: str = proto.op_type
        domain = proto.domain
        self.domain: str = "" if domain == "ai.onnx" else domain
        self.is_onnx: bool = self.domain == "" and ("", self.op_type) not in scope.model.function_names
        """Whether this is ONNX's own operator: in the default domain, and not the name of a local function."""
        self.inputs: list[Value | None] = []
        self.outputs: list[Value | None] = []
        self.subgraphs: list[Scope] = []
        self._source: Source | Literal[False] | None = False

    def __repr__(self) -> str:
        return f"Node({self.op_type} -> {self.first_output!r})"

    @property
    def name(self) -> str:
        return str(self.proto.name)

    @property
    def overload(self) -> str:
        return str(getattr(self.proto, "overload", ""))

    @property
    def model(self) -> Model:
        return self.scope.model

    @property
    def function(self) -> Scope | None:
        """The body of the local function that this node calls, or None."""
        called = self.scope.model.called
        return called.get((self.domain, self.op_type, self.overload)) if called else None

    @property
    def opset(self) -> int:
        """Version of this node's operator set in its scope; 0 if the domain is not imported."""
        return self.scope.opset(self.domain)

    @property
    def first_output(self) -> str:
        """The first output that has a name: it identifies the node within its scope."""
        for name in self.proto.output[:]:
            if name:
                return str(name)
        return ""

    @property
    def place(self) -> str:
        """``graph path / first output``, and the node's own name where it has one."""
        return self.at.text

    @property
    def at(self) -> Place:
        """The node's place, as data."""
        scope, output = self.scope, self.first_output
        nameless = not (output or self.name or scope.trail)
        index = scope.position(self) if nameless else -1
        outer = scope
        while outer.parent is not None and outer.parent.parent is not None:
            outer = outer.parent
        around = outer.owner if outer.parent is not None and not outer.parent.trail else None
        outside = around.at if around is not None else None
        return Place(scope.trail, self.name, self.op_type, output, index, outside, source=self.source)

    @property
    def source(self) -> Source | None:
        """The code that the node comes from. A node that does not say it comes from where the nodes do that it reads or
        that read it, if these agree, else from where its subgraph's node does or the call of its function."""
        if self._source is False:
            self._source = source_of(self.proto)
            if self._source is None:
                near = [value.producer for value in self.inputs if value is not None]
                near += [use.node for value in self.outputs if value is not None for use in value.uses]
                sources = {source_of(node.proto) for node in near if node is not None} - {None}
                owner = self.scope.owner or self.scope.model.callers.get(self.scope)
                inherited = owner.source if owner is not None else None
                self._source = sources.pop() if len(sources) == 1 else inherited
        return self._source

    def attribute(self, name: str) -> AttributeProto | None:
        """The attribute as stored, or None.

        Raises:
            UnknownAttribute: it refers to an attribute of the surrounding function.
        """
        for attribute in self.proto.attribute[:]:  # iterating over a list is faster
            if attribute.name == name:
                if attribute.ref_attr_name:
                    raise UnknownAttribute(f"{self.place}: {name}")
                found: AttributeProto = attribute
                return found
        return None

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute decoded (bytes as str where they are UTF-8), or ``default`` if it is absent.

        Raises:
            UnknownAttribute: it refers to an attribute of the surrounding function, or is stored as another type than
                ``default``, which ONNX's own operators are refused for and those of other domains are not.
        """
        attribute = self.attribute(name)
        if attribute is None:
            return default
        if attribute.type == _INT and not isinstance(default, (str, list)):  # most are
            return attribute.i
        value = self._decoded(attribute)
        if default is not None and not isinstance(value, _ALIKE.get(type(default), object)):
            raise UnknownAttribute(f"{self.place}: {name}")
        return value

    def _decoded(self, attribute: AttributeProto) -> Any:
        try:
            value = helper.get_attribute_value(attribute)
        except ValueError:
            raise UnknownAttribute(f"{self.place}: {attribute.name}") from None
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value
        return list(value) if attribute.type in _LISTS else value

    def input(self, index: int) -> Value | None:
        """The input at ``index``, or None if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def require(self, index: int) -> Value:
        """The input at ``index``; raises ``Unknown`` where it is left out."""
        value = self.input(index)
        if value is None:
            raise Unknown(f"{self.op_type} without input {index}")
        return value

    def require_output(self, index: int = 0) -> Value:
        """The output at ``index``; raises ``Unknown`` where it is left out."""
        value = self.output(index)
        if value is None:
            raise Unknown(f"{self.op_type} without output {index}")
        return value

    def output(self, index: int = 0) -> Value | None:
        """The output at ``index``, or None if it is omitted."""
        return self.outputs[index] if index < len(self.outputs) else None


_INT = AttributeProto.INT
_LISTS = (AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS)
_ALIKE: dict[type, tuple[type, ...]] = {
    bool: (int, float), int: (int, float), float: (int, float), str: (str, bytes), list: (list,), tuple: (list,)
}  # fmt: skip
"""What an attribute may be decoded as where a caller gives a default of a type."""


class Scope:
    """A graph, a subgraph, or a local function's body: the unit in which names are defined."""

    def __init__(
        self,
        model: Model,
        proto: GraphProto | FunctionProto,
        kind: str,
        name: str,
        parent: Scope | None = None,
        owner: Node | None = None,
        attr: str = "",
    ) -> None:
        self.model = model
        self.proto = proto
        self.kind = kind
        self.trail: tuple[str, ...] = (
            *(parent.trail if parent is not None else ()),
            *([name] if name else []),
        )
        self.path = " / ".join(self.trail)
        self.parent = parent
        self.root: Scope = self if parent is None else parent.root
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.owner = owner
        self.attr = attr
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.values: dict[str, Value] = {}
        self._declared: dict[str, TypeProto] | None = None
        self._positions: tuple[list[Node], dict[Node, int]] = ([], {})

    def __repr__(self) -> str:
        return f"Scope({self.path or self.kind!r})"

    def position(self, node: Node) -> int:
        """The index of one of the nodes. Edits give a graph another list of nodes."""
        of, found = self._positions
        if of is not self.nodes or len(found) != len(of):
            found = {one: index for index, one in enumerate(self.nodes)}
            self._positions = self.nodes, found
        return found[node]

    def lookup(self, name: str) -> Value | None:
        """The value that ``name`` refers to here: of this scope or, in a subgraph, of one around it."""
        scope: Scope | None = self
        while scope is not None:
            value = scope.values.get(name)
            if value is not None:
                return value
            scope = scope.parent
        return None

    def opset(self, domain: str = "") -> int:
        """Imported version of ``domain`` in this scope (a function has its own imports); 0 if it is not imported."""
        return self.model.imports[self.root].get(domain, 0)

    def imports(self) -> dict[str, int]:
        """Domain to version, as the protobuf of the model or of the surrounding function imports them at present.

        If a domain is imported twice, the last entry counts, as for onnx.checker and ONNX Runtime.
        """
        proto = self.root.proto
        found: dict[str, int] = {}
        for entry in (proto if isinstance(proto, FunctionProto) else self.model.proto).opset_import:
            found["" if entry.domain == "ai.onnx" else entry.domain] = int(entry.version)
        return found

    def declared_types(self) -> dict[str, TypeProto]:
        """Declared types by name. Graph inputs take precedence over outputs, outputs over value_info."""
        if self._declared is None:
            proto = self.proto
            infos = list(getattr(proto, "value_info", ()))
            if isinstance(proto, GraphProto):
                infos += [*proto.output, *proto.input]
            self._declared = {info.name: info.type for info in infos if info.HasField("type")}
        return self._declared

    def forget_declared(self) -> None:
        """Drop ``declared_types``; for the code that edits value_info."""
        self._declared = None

    def topological(self) -> list[Node]:
        """The nodes in topological order; the stored order if it is one.

        Computed anew each time, and valid in the middle of an edit too. ``Model.orders`` has the orders of all scopes.

        Raises:
            ModelError: the graph has a cycle.
        """
        return list(order.orders(self)[self])

    def captures(self) -> Iterator[Value]:
        """Values of surrounding scopes that this subgraph, or one inside it, reads."""
        around: set[Scope] = set()
        outer = self.parent
        while outer is not None:
            around.add(outer)
            outer = outer.parent
        for scope in self.walk():
            for node in scope.nodes:
                for value in node.inputs:
                    if value is not None and value.scope in around:
                        yield value
            for value in scope.outputs:
                if value.scope in around:
                    yield value

    def walk(self) -> Iterator[Scope]:
        """This scope and every subgraph inside it, outer first."""
        stack = [self]
        while stack:
            scope = stack.pop()
            yield scope
            nested = [sub for node in scope.nodes for sub in node.subgraphs]
            stack.extend(reversed(nested))
