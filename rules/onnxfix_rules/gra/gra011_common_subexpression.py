"""GRA011: nodes that compute the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cache

from onnx import AttributeProto

from onnxfix.files import lazy
from onnxfix.rule import (
    Edit,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    RemoveNode,
    ReplaceUses,
    Safety,
    Scope,
    SetOutput,
    Severity,
    Silent,
    Value,
    rule,
)
from onnxfix_rules.gra._common import RANDOM, grouped

LIMIT = 4096
"""Constants up to this many bytes are compared by content, larger ones by name."""
_KEPT = frozenset({"Identity", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""GRA012 handles Identity; TensorRT expects a pair of QuantizeLinear and DequantizeLinear for each reader."""


class Pure:
    """Whether a node is known to compute the same outputs from the same inputs."""

    def __init__(self, model: Model) -> None:
        self._functions: dict[Scope, bool] = {}
        for function in model.callees_first:
            self._functions[function] = all(self(node) for scope in function.walk() for node in scope.nodes)

    def __call__(self, node: Node) -> bool:
        """False for random numbers, operators of other domains, and functions that call either."""
        function = node.function
        if function is None:
            return node.op_type not in RANDOM and (node.is_onnx or node.domain == "ai.onnx.ml")
        return self._functions.get(function, False)  # missing: it calls itself


class Repeated:
    """``firsts``: for each repeated node of a scope, the first node that computes the same, in order.

    ``names``: for an output of a first node, the repeated output whose name it must take over.
    """

    def __init__(self, scope: Scope, pure: Pure) -> None:
        self.firsts: dict[Node, Node] = {}
        self.names: dict[Value, Value] = {}
        self._meant: dict[Value, Hashable] = {}
        self._seen: dict[Hashable, Node | dict[Hashable, Node]] = {}
        for node in scope.model.orders[scope]:
            if node.outputs and not node.subgraphs and node.op_type not in _KEPT and pure(node):
                self._visit(node)

    def _visit(self, node: Node) -> None:
        key = self._key(node)
        if key is None:
            return
        found = self._seen.setdefault(key, node)
        if found is node:
            return
        # The attributes are compared only if operator and inputs are equal, which is rare.
        if not isinstance(found, dict):
            found = self._seen[key] = {_rest(found): found}
        first = found.setdefault(_rest(node), node)
        if first is node or not all(map(self._joins, first.outputs, node.outputs)):
            return
        self.firsts[node] = first
        for kept, value in zip(first.outputs, node.outputs, strict=True):
            if kept is not None and value is not None:
                self._meant[value] = self._meaning(kept)
                if not value.replaceable:
                    self.names[kept] = value

    def _key(self, node: Node) -> Hashable:
        """The operator and the inputs of a node (``_rest`` has the attributes); None if unknown."""
        if node.op_type == "Constant" and node.is_onnx:
            output = node.output()
            return None if output is None else _content(output)
        inputs = [None if value is None else self._meaning(value) for value in node.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        return (node.op_type, *inputs)

    def _meaning(self, value: Value) -> Hashable:
        """Equal for equal values."""
        found = self._meant.get(value)
        if found is None:
            content = _content(value) if value.is_constant else None
            found = self._meant[value] = value if content is None else content
        return found

    def _joins(self, first: Value | None, value: Value | None) -> bool:
        """Whether one output can replace the other, under a name that is visible to all readers."""
        if first is None or value is None:
            return first is value
        if value.replaceable:
            return _seen_by_readers(value, self.names.get(first, first))
        return (
            not value.pinned
            and first.replaceable
            and first not in self.names
            and _seen_by_readers(first, value)
        )


def _seen_by_readers(value: Value, other: Value) -> bool:
    """Whether all readers of ``value``, including those in subgraphs, can read ``other`` by its name."""
    scope = other.scope
    return all(use.node.scope is scope or use.node.scope.lookup(other.name) is other for use in value.uses)


def _content(value: Value) -> Hashable:
    """A small constant's type, shape and bits; None for other values."""
    array = value.constant(LIMIT)
    if array is None or array.dtype == object:
        return None
    return (_named(array.dtype), array.shape, array.tobytes())


_named = cache(str)
"""The name of a numpy type, cached because formatting it is slower than reading a small constant."""


def _rest(node: Node) -> Hashable:
    """Everything besides operator and inputs that decides what a node computes."""
    if node.op_type == "Constant" and node.is_onnx:
        return None  # the key already has its content
    given = tuple(value is not None for value in node.outputs)
    attributes = tuple(sorted((a.name, _stored(a)) for a in node.proto.attribute))
    return (node.domain, node.overload, given, attributes)


def _stored(attribute: AttributeProto) -> bytes:
    if attribute.doc_string:
        copy = AttributeProto()
        copy.CopyFrom(attribute)
        copy.doc_string = ""
        attribute = copy
    return lazy.keyed(bytes(attribute.SerializeToString(deterministic=True)))


@rule("GRA011", per="model", safety=Safety.EXACT, severity=Severity.INFO)
def common_subexpression(model: Model) -> Iterator[Match]:
    """A node repeats the computation of another node of the same graph, on the same inputs.

    ## Why it matters
    Exporters write hundreds of such nodes, most of them for sizes: a Shape, a Gather and a constant for each use of a
    dimension. TensorRT's builder merges those that it finds; its parser imports every node, and shape tensors that are
    computed twice make the network larger and its building slower.

    ## Fix
    All readers read the first of the nodes, and the others are removed, with the inputs that only they read. Exact. An
    output of the graph, a branch or a loop keeps its name. Only ONNX's own operators, and functions made of them, are
    merged: with the same domain and attributes, and the same inputs in the same order; constants up to 4 KiB are
    compared by type, shape and bits. Not merged: random operators, nodes with subgraphs, QuantizeLinear and
    DequantizeLinear, nodes of different scopes, and two nodes whose output names must both be kept.

    ## References
    - https://onnx.ai/onnx/repo-docs/IR.html
    """
    pure = Pure(model)
    for scope in model.scopes:
        found = Repeated(scope, pure)
        for nodes in _together(found.firsts):
            yield _match(nodes, found)


def _together(firsts: dict[Node, Node]) -> list[list[Node]]:
    """Groups of repeated nodes that repeat the same node or read each other, so that fixes do not overlap."""
    keys = {}
    for node, first in firsts.items():
        read = [v.producer for v in (*node.inputs, *first.inputs) if v is not None and v.producer in firsts]
        keys[node] = [first, node, *read]
    return grouped(keys)


def _match(nodes: list[Node], found: Repeated) -> Match:
    edits: list[Edit] = []
    for node in nodes:
        edits.append(RemoveNode(node))
        for index, (value, first) in enumerate(zip(node.outputs, found.firsts[node].outputs, strict=True)):
            if value is not None and first is not None and found.names.get(first) is value:
                edits.append(SetOutput(found.firsts[node], index, value.name))
    for node in nodes:
        for value, first in zip(node.outputs, found.firsts[node].outputs, strict=True):
            if value is not None and first is not None and value.replaceable and value.use_count:
                edits.append(ReplaceUses(value, found.names.get(first, first).name))
    node, more = nodes[0], len(nodes) - 1
    text = f"this {node.op_type} computes {found.firsts[node].first_output!r} again"
    if more:
        text += f", and {more} more node{'s repeat other nodes' if more > 1 else ' repeats another node'}"
    firsts = dict.fromkeys(found.firsts[one] for one in nodes)
    return Match(text, node=node, fix=Fix("compute it once", edits), reads=(*nodes, *firsts))


_PAIR = "g (float[N,2] x) => (float[N,2] y)"
_SIZES = "g (float[A,B,C] x) => (int64 y)"


common_subexpression.examples = [
    Fixed(
        "two nodes with the same input",
        before=f"{_PAIR} {{ a = Exp(x)  b = Exp(x)  y = Add(a, b) }}",
        after=f"{_PAIR} {{ a = Exp(x)  y = Add(a, a) }}",
    ),
    Fixed(
        "chains through equal constants: torch's exporter writes one for each use of a size",
        before=f"""{_SIZES} <int64 i = {{1}}, int64 j = {{1}}, int64 k = {{2}}> {{
            s = Shape(x)  a = Gather(s, i)  t = Shape(x)  b = Gather(t, j)  c = Gather(t, k)
            d = Mul(a, b)  y = Add(d, c) }}""",
        after=f"""{_SIZES} <int64 i = {{1}}, int64 k = {{2}}> {{ s = Shape(x)  a = Gather(s, i)  c = Gather(s, k)
            d = Mul(a, a)  y = Add(d, c) }}""",
    ),
    Fixed(
        "equal Constant nodes",
        before=f"""{_PAIR} {{ c = Constant<value = float[2] {{1, 2}}>()  d = Constant<value_floats = [1.0, 2.0]>()
            a = Mul(x, c)  b = Mul(x, d)  y = Sub(a, b) }}""",
        after=f"{_PAIR} {{ c = Constant<value = float[2] {{1, 2}}>()  a = Mul(x, c)  y = Sub(a, a) }}",
    ),
    Fixed(
        "an output of the graph, and one of a branch, keep their names",
        before="""g (float[2] x, bool c) => (float[2] y, float[2] z) { a = Exp(x)  y = Exp(x)  b = Neg(a)
            z = If(c)<then_branch = p () => (float[2] u) { d = Abs(b)  u = Abs(b)  e = Add(d, u)  f = Neg(e) },
                      else_branch = q () => (float[2] v) { v = Add(a, y) }> }""",
        after="""g (float[2] x, bool c) => (float[2] y, float[2] z) { y = Exp(x)  b = Neg(y)
            z = If(c)<then_branch = p () => (float[2] u) { u = Abs(b)  e = Add(u, u)  f = Neg(e) },
                      else_branch = q () => (float[2] v) { v = Add(y, y) }> }""",
    ),
    Fixed(
        "several outputs, and sequences",
        before="""g (float[4] x, int64[1] k) => (float[K] y, float[4] z) <int64 i = {0}> {
            a, m = TopK(x, k)  b, n = TopK(x, k)  y = Add(a, b)
            s = SequenceConstruct(x, x)  t = SequenceConstruct(x, x)  c = SequenceAt(s, i)  d = SequenceAt(t, i)
            z = Add(c, d) }""",
        after="""g (float[4] x, int64[1] k) => (float[K] y, float[4] z) <int64 i = {0}> { a, m = TopK(x, k)
            y = Add(a, a)  s = SequenceConstruct(x, x)  c = SequenceAt(s, i)  z = Add(c, c) }""",
        runs=False,  # no generated k is valid
    ),
    Fixed(
        "calls of a function without random numbers",
        before="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g (float[2] x) => (float[2] y) {
            a = my.F<k = 2.0>(x)  b = my.F<k = 2.0>(x)  c = my.F<k = 3.0>(x)  d = Add(a, b)  y = Add(c, d) }
            <domain: "my", opset_import: ["" : 18]> F <k> (a) => (b) { b = LeakyRelu<alpha: float = @k>(a) }""",
        after="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g (float[2] x) => (float[2] y) {
            a = my.F<k = 2.0>(x)  c = my.F<k = 3.0>(x)  d = Add(a, a)  y = Add(c, d) }
            <domain: "my", opset_import: ["" : 18]> F <k> (a) => (b) { b = LeakyRelu<alpha: float = @k>(a) }""",
    ),
    Silent(
        "other inputs, or another order of inputs", f"{_PAIR} {{ a = Sub(x, b)  b = Exp(x)  y = Sub(b, a) }}"
    ),
    Silent(
        "another attribute",
        f"{_PAIR} {{ a = LeakyRelu<alpha = 0.5>(x)  b = LeakyRelu<alpha = 0.25>(x)  y = Add(a, b) }}",
    ),
    Silent(
        "0 and -0 differ",
        f"{_PAIR} <float z = {{0}}, float m = {{-0.0}}> {{ a = Div(x, z)  b = Div(x, m)  y = Add(a, b) }}",
    ),
    Silent(
        "constants of different shapes",
        """g (float[2] x) => (float[2] y, float[1,2] z) <float o = {1}, float[1,1] p = {1}> {
            y = Mul(x, o)  z = Mul(x, p) }""",
    ),
    Silent(
        "random numbers differ by node, and by function call",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g (float[2] x) => (float[2] y) {
            a = RandomNormalLike(x)  b = RandomNormalLike(x)  c = my.F(x)  d = my.F(x)
            e = Sub(a, b)  f = Sub(c, d)  y = Add(e, f) }
            <domain: "my", opset_import: ["" : 18]> F (a) => (b) { b = Bernoulli(a) }""",
        runs=False,
    ),
    Silent(
        "operators of other domains, which may have state",
        """<ir_version: 9, opset_import: ["" : 18, "its" : 1]> g (float[2] x) => (float[2] y) {
            a = its.Counter(x)  b = its.Counter(x)  y = Add(a, b) }""",
        runs=False,
    ),
    Silent(
        "the same node in two branches, of which only one runs",
        """g (float[2] x, bool c) => (float[2] y) {
            y = If(c)<then_branch = p () => (float[2] u) { a = Exp(x)  u = Neg(a) },
                      else_branch = q () => (float[2] v) { b = Exp(x)  v = Abs(b) }> }""",
    ),
    Silent(
        "nodes with subgraphs",
        """g (float[2] x, bool c) => (float[2] y) {
            a = If(c)<then_branch = p () => (float[2] u) { u = Neg(x) },
                      else_branch = q () => (float[2] v) { v = Abs(x) }>
            b = If(c)<then_branch = p () => (float[2] u) { u = Neg(x) },
                      else_branch = q () => (float[2] v) { v = Abs(x) }>
            y = Add(a, b) }""",
    ),
    Silent("both are graph outputs", "g (float[2] x) => (float[2] y, float[2] z) { y = Exp(x)  z = Exp(x) }"),
    Silent(
        "calls of a local function named Constant, with different attributes",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2] x) => (float[2] y) {
                a = my.Constant<k = 1.0>()  b = my.Constant<k = 2.0>()  c = Add(x, a)  y = Add(c, b) }
            <opset_import: ["" : 18], domain: "my"> Constant <k> () => (v) {
                v = Constant<value_float: float = @k>() }""",
    ),
    Silent(
        "a default that a caller may override",
        """g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}, float[2] k = {1, 2}> {
            a = Mul(x, w)  b = Mul(x, k)  y = Sub(a, b) }""",
    ),
    Silent(
        "DequantizeLinear: each reader has its own pair",
        f"""{_PAIR} <float s = {{0.5}}, int8 z = {{0}}> {{ q = QuantizeLinear(x, s, z)
            a = DequantizeLinear(q, s, z)  b = DequantizeLinear(q, s, z)  y = Add(a, b) }}""",
    ),
]
