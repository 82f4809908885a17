"""Where the values of a model's inputs go: which operand of which operator they end in, changed or unchanged.

A walk over the protobuf, into subgraphs and local functions. It finds, for instance, that an input reaches the
indices of a Gather through Cast and Unsqueeze, and how long the gathered axis is. A guess is enough here: it
shapes test inputs and proves nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

import onnx

from onnxfix.files import tensors, walk
from onnxfix.inputs.feeds.operands import BLIND, DRAWS, KEEPS, KEEPS_ALL, MASK_OPS, SAME_SHAPE, SINKS
from onnxfix.shapes import dimnames

#: Operators that compare their two operands.
_COMPARES = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
#: Those whose constant operand shows something about the other.
_BESIDE = frozenset((*_COMPARES, "Div", "Mul", "Sub"))
_OF_CHANNELS = ("Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "PRelu")
_PIXELS = 255.0  # the greatest value of a pixel
_SMALL = 64  # bytes of a number
#: A dimension: its size, the name of a symbol (or expression), or unknown.
Dim = int | str | None
Key = tuple[int, str]


@dataclass
class Role:
    """How the model uses an input.
    ``strict`` and ``loose`` name the operands (values of SINKS) that its values reach unchanged, or through
    arithmetic. ``bounds`` are the sizes of the axes that it indexes. ``beside`` are the shapes of the data beside
    it, for operands such as Reshape's shape. ``masks``: it is only used as a mask.
    """

    strict: set[str] = field(default_factory=set)
    loose: set[str] = field(default_factory=set)
    bounds: list[Dim] = field(default_factory=list)
    beside: list[tuple[Dim, ...] | None] = field(default_factory=list)
    masks: bool = False
    #: Numbers that its elements are compared with.
    compared: list[float] = field(default_factory=list)
    #: axis (negative: from the end) -> size that an operator demands of this input, its rank when demanded
    wants: dict[int, int] = field(default_factory=dict)
    rank: int | None = None


@dataclass(frozen=True)
class Site:
    """A node with the values that it reads and makes; None for one that is left out or not known."""

    node: onnx.NodeProto
    inputs: tuple[Key | None, ...]
    outputs: tuple[Key | None, ...]


class Scope:
    """A graph or a function body: the names that it makes, and what makes them."""

    def __init__(self, number: int, parent: Scope | None) -> None:
        self.number = number
        self.parent = parent
        self.names: set[str] = set()
        self.shapes: dict[str, tuple[Dim, ...]] = {}
        self.makers: dict[str, onnx.NodeProto] = {}
        self.tensors: dict[str, onnx.TensorProto] = {}

    def find(self, name: str) -> Scope | None:
        scope: Scope | None = self
        while scope is not None and name not in scope.names:
            scope = scope.parent
        return scope


def dims_of(kind: onnx.TypeProto) -> tuple[Dim, ...] | None:
    """The dimensions that a tensor type declares; None without a rank."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        dimnames.own(dim.dim_param) or None
        if not dim.HasField("dim_value")
        else dim.dim_value
        if dim.dim_value >= 0
        else None
        for dim in kind.tensor_type.shape.dim
    )


class Flow:
    """The flow of a whole model. ``role(name)`` answers for a graph input."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.functions = {(_domain(f.domain), f.name): f for f in model.functions}
        self._entered: dict[tuple[str, str], Scope] = {}
        self.keeps: defaultdict[Key, list[Key]] = defaultdict(list)
        self.changes: defaultdict[Key, list[Key]] = defaultdict(list)
        self._uses: defaultdict[Key, list[tuple[onnx.NodeProto, int, Scope]]] = defaultdict(list)
        self._actual: dict[Key, Key] = {}
        self.scopes: list[Scope] = []
        self._drawn: set[Key] = set()
        self._reached: set[Key] | None = None
        self.sites: list[Site] = []
        self.main = self._enter(model.graph, None)

    def _enter(self, graph: onnx.GraphProto | onnx.FunctionProto, parent: Scope | None) -> Scope:
        scope = Scope(len(self.scopes), parent)
        self.scopes.append(scope)
        if isinstance(graph, onnx.GraphProto):
            for value in (*graph.value_info, *graph.output, *graph.input):
                dims = dims_of(value.type)
                if dims is not None:
                    scope.shapes[value.name] = dims
            scope.names.update(value.name for value in graph.input)
            for tensor in graph.initializer:
                scope.names.add(tensor.name)
                scope.shapes[tensor.name] = tuple(tensor.dims)
                scope.tensors[tensor.name] = tensor
            scope.names.update(sparse.values.name for sparse in graph.sparse_initializer)
        else:
            scope.names.update(graph.input)
        for node in graph.node:
            for name in node.output:
                scope.names.add(name)
                scope.makers[name] = node
        for node in graph.node:
            self._visit(node, scope)
        return scope

    def _key(self, name: str, scope: Scope) -> Key | None:
        found = scope.find(name) if name else None
        return (found.number, name) if found is not None else None

    def _link(self, source: Key | None, target: Key | None, keeps: bool) -> None:
        if source is not None and target is not None:
            (self.keeps if keeps else self.changes)[source].append(target)

    def _enters(self, actual: Key | None, formal: Key) -> None:
        self._link(actual, formal, True)
        if actual is not None:
            self._actual.setdefault(formal, actual)

    def _visit(self, node: onnx.NodeProto, scope: Scope) -> None:
        inputs = [self._key(name, scope) for name in node.input]
        outputs = [self._key(name, scope) for name in node.output]
        self.sites.append(Site(node, tuple(inputs), tuple(outputs)))
        function = self.functions.get((_domain(node.domain), node.op_type))
        if function is not None:
            self._bind_function(function, inputs, outputs)
            return
        for index, key in enumerate(inputs):
            if key is not None:
                self._uses[key].append((node, index, scope))
        # A Dropout draws only when it is told that this is training.
        if node.op_type in DRAWS or (node.op_type == "Dropout" and len(node.input) > 2):
            self._drawn.update(key for key in outputs if key is not None)
        graphs = walk.subgraphs(node)
        if graphs:
            for source in inputs[: {"If": 1, "Loop": 2}.get(node.op_type, 0)]:
                for target in outputs:
                    self._link(source, target, False)
            self._bind_graphs(node, graphs, scope, inputs, outputs)
            return
        if node.op_type in BLIND:
            return
        kept = range(len(inputs)) if node.op_type in KEEPS_ALL else KEEPS.get(node.op_type, ())
        for index, source in enumerate(inputs):
            # The indices of a Gather choose among values and do not become values themselves.
            if index in kept or not node.op_type.startswith("Gather"):
                for target in outputs:
                    self._link(source, target, index in kept)

    def _bind_function(
        self, function: onnx.FunctionProto, inputs: list[Key | None], outputs: list[Key | None]
    ) -> None:
        name = (_domain(function.domain), function.name)
        if name not in self._entered:
            self._entered[name] = Scope(-1, None)  # a recursive function is invalid, and must not hang us
            self._entered[name] = self._enter(function, None)
        inner = self._entered[name]
        for source, formal in zip(inputs, function.input, strict=False):
            self._enters(source, (inner.number, formal))
        for formal, target in zip(function.output, outputs, strict=False):
            self._link((inner.number, formal), target, True)

    def _bind_graphs(
        self,
        node: onnx.NodeProto,
        graphs: list[onnx.GraphProto],
        scope: Scope,
        inputs: list[Key | None],
        outputs: list[Key | None],
    ) -> None:
        # A Loop's body begins with the iteration number and its condition, and ends with the condition.
        skip_in, skip_out = {"Loop": (2, 1), "Scan": (0, 0)}.get(node.op_type, (0, 0))
        for graph in graphs:
            inner = self._enter(graph, scope)
            formals = list(graph.input)[skip_in:]
            actuals = inputs[skip_in:] if node.op_type != "If" else []
            if node.op_type == "Scan" and len(actuals) == len(formals) + 1:
                actuals = actuals[1:]  # opset 8 has sequence_lens first
            for source, formal in zip(actuals, formals, strict=False):
                self._enters(source, (inner.number, formal.name))
            for value, target in zip(list(graph.output)[skip_out:], outputs, strict=False):
                self._link(self._key(value.name, inner), target, True)

    @cached_property
    def makers(self) -> dict[Key, Site]:
        """The node that makes each value."""
        return {key: site for site in self.sites for key in site.outputs if key is not None}

    @cached_property
    def kept_from(self) -> dict[Key, list[Key]]:
        """The values that each one holds, unchanged or merely rounded."""
        found: dict[Key, list[Key]] = {}
        for source, targets in self.keeps.items():
            for target in targets:
                found.setdefault(target, []).append(source)
        return found

    def tensor(self, key: Key) -> onnx.TensorProto | None:
        """The tensor of an initializer or a Constant; None of any other value."""
        scope = self.scopes[key[0]]
        node = scope.makers.get(key[1])
        for attribute in node.attribute if node is not None and node.op_type == "Constant" else ():
            if attribute.name == "value":
                return attribute.t
            if attribute.name == "value_int":
                return onnx.helper.make_tensor("", onnx.TensorProto.INT64, [], [attribute.i])
            if attribute.name == "value_float":
                return onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [], [attribute.f])
        return scope.tensors.get(key[1])

    def is_main(self, key: Key) -> bool:
        """Whether it is a value of the main graph."""
        return key[0] == self.main.number

    def reach_from_input(self, name: str) -> set[Key]:
        """The values that are computed from a graph input."""
        return self.reach((self.main.number, name), (self.keeps, self.changes))

    def reach(self, start: Key, through: tuple[defaultdict[Key, list[Key]], ...]) -> set[Key]:
        return walk.reached([start], lambda key: [one for edges in through for one in edges.get(key, ())])

    @property
    def draws(self) -> bool:
        """Whether some node's results differ from run to run."""
        return bool(self._drawn)

    def depends_on_draw(self, name: str) -> bool:
        """Whether the values of a graph output depend on such a node."""
        if self._reached is None:
            self._reached = set()
            for key in self._drawn:
                self._reached |= self.reach(key, (self.keeps, self.changes))
        return (self.main.number, name) in self._reached

    def role(self, name: str) -> Role:
        """What the graph input ``name`` is to the model."""
        role = Role()
        start = (self.main.number, name)
        kept = self.reach(start, (self.keeps,))
        operators: set[str] = set()
        for key in sorted(kept):
            for node, index, scope in self._uses.get(key, ()):
                operators.add(node.op_type)
                self._sink(role, node, index, scope)
                self._beside_constant(role, node, index, scope)
        for node, index, scope in self._uses.get(start, ()):
            self._demands(role, node, index, scope)
        for key in self.reach_from_input(name) - kept:
            for node, index, _ in self._uses.get(key, ()):
                if (what := SINKS.get((node.op_type, index))) is not None:
                    role.loose.add(what)
        ends = operators - KEEPS.keys() - set(KEEPS_ALL) - set(BLIND)
        role.masks = bool(ends) and ends <= set(MASK_OPS) and set(role.compared) <= {0.0, 0.5, 1.0}
        return role

    def _sink(self, role: Role, node: onnx.NodeProto, index: int, scope: Scope) -> None:
        what = SINKS.get((node.op_type, index))
        if what is None:
            return
        role.strict.add(what)
        # How long a sequence may be is a matter of the keys.
        data = node.input[1 if node.op_type == "Attention" else 0]
        beside = self._shape(data, scope, 0)
        role.beside.append(beside)
        if what == "index":
            fallback = 1 if "Loss" in node.op_type else -1 if node.op_type == "ArrayFeatureExtractor" else 0
            axis = next((a.i for a in node.attribute if a.name == "axis"), fallback)
            if node.op_type == "RotaryEmbedding":
                beside, axis = self._shape(node.input[1], scope, 0), 0
            inside = beside is not None and -len(beside) <= axis < len(beside)
            role.bounds.append(beside[axis] if beside is not None and inside else None)
        elif what == "split" and beside:
            role.bounds.append(beside[next((a.i for a in node.attribute if a.name == "axis"), 0)])
        elif what == "index_nd":
            role.bounds.extend(beside or [None])

    def _beside_constant(self, role: Role, node: onnx.NodeProto, index: int, scope: Scope) -> None:
        """What a constant beside the operand tells of it."""
        if len(node.input) != 2 or node.op_type not in _BESIDE:
            return
        other = self._key(node.input[1 - index], scope)
        number = _number_of(self.tensor(other)) if other is not None else None
        if number is None:
            return
        made = self._key(node.output[0], scope)
        users = [user.op_type for user, _, _ in self._uses.get(made, ())] if made is not None else []
        if (what := _meaning(node.op_type, index, number, users)) is not None:
            role.strict.add(what)
        elif node.op_type in _COMPARES and number not in role.compared:
            role.compared.append(number)

    def _shape(self, name: str, scope: Scope, depth: int) -> tuple[Dim, ...] | None:
        """The shape of a value, as far as types, initializers and operators that keep the shape tell."""
        found = scope.find(name)
        if found is None or depth > 20:
            return None
        maker = found.makers.get(name)
        if maker is not None and maker.op_type == "Constant" and maker.attribute:
            return tuple(maker.attribute[0].t.dims) if maker.attribute[0].HasField("t") else None
        if maker is not None and maker.op_type in SAME_SHAPE and maker.input:
            inner = self._shape(maker.input[0], found, depth + 1)
            if inner is not None:
                return inner
        if name in found.shapes:
            return found.shapes[name]
        actual = self._actual.get((found.number, name))  # a formal input: the shape of what a caller passes
        return self._shape(actual[1], self.scopes[actual[0]], depth + 1) if actual is not None else None

    def _demands(self, role: Role, node: onnx.NodeProto, index: int, scope: Scope) -> None:
        """Sizes that the operator demands of this operand, from the shape of its weights."""
        beside = [self._shape(name, scope, 0) for name in node.input]
        attributes = {a.name: a for a in node.attribute}

        def want(axis: int, source: int, place: int, factor: int = 1) -> None:
            shape = beside[source] if source < len(beside) else None
            if shape is not None and -len(shape) <= place < len(shape) and isinstance(shape[place], int):
                role.wants[axis] = int(shape[place] or 0) * factor

        op = node.op_type
        weights = beside[1] if len(beside) > 1 else None
        if index == 0 and op in _OF_CHANNELS:
            if op in ("Conv", "ConvTranspose") and weights is not None:
                role.rank = len(weights)
            group = attributes["group"].i if "group" in attributes and op == "Conv" else 1
            want(1, 1, 1 if op == "Conv" else 0, group)
        elif op == "MatMul" and len(beside) == 2:
            want(-1 if index == 0 else -2, 1 - index, -2 if index == 0 else -1)
        elif op == "Gemm" and index < 2:
            turned = [bool(attributes[a].i) if a in attributes else False for a in ("transA", "transB")]
            mine = 0 if turned[index] == (index == 0) else 1
            other = 0 if turned[1 - index] == (index == 1) else 1
            role.rank = 2
            want(mine, 1 - index, other)
        elif op in ("LSTM", "GRU", "RNN") and index == 0:
            role.rank = 3
            want(2, 1, 2)
        elif op in ("LayerNormalization", "RMSNormalization") and index == 0:
            want(-1, 1, -1)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _meaning(op_type: str, index: int, number: float, users: Collection[str]) -> str | None:
    """What the operand at ``index`` is to an operator with a ``number`` beside it, whose result goes to ``users``."""
    if op_type == "Sub" and index == 1 and number == 1 and "Log" in users:
        return "probability"
    if op_type == "Div" and index == 0 and number == _PIXELS:
        return "pixel"
    if op_type == "Mul" and math.isclose(number, 1 / _PIXELS, rel_tol=1e-3):
        return "pixel"
    return None


def _number_of(tensor: onnx.TensorProto | None) -> float | None:
    """The one finite number that a constant holds; None for what is none."""
    if tensor is None or math.prod(tensor.dims) != 1:
        return None
    array = tensors.to_array(tensor, None, _SMALL)
    if array is None or array.dtype.kind not in "biuf":
        return None
    number = float(array.reshape(-1)[0])
    return number if math.isfinite(number) else None
