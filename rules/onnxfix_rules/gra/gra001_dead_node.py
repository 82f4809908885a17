"""GRA001: nodes that no graph output depends on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnxfix.rule import (
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    RemoveNode,
    Safety,
    Scope,
    Severity,
    Silent,
    Target,
    Value,
    every_node,
    imported_nodes,
    is_read,
    name_of,
    rule,
    target_of,
)


@rule("GRA001", per="model", safety=Safety.EXACT, hazards=[38])
def dead_node(model: Model) -> Iterator[Match]:
    """A node that no graph output depends on.

    ## Why it matters
    TensorRT's parser imports every node, dead or not, and fails on the first unsupported one: a dead Unique is enough
    (measured with TensorRT-RTX 1.7.1; inside a branch of an If too), and so is a Cast to an unsupported type
    (`Unsupported data type for the Cast operator!`). Those are errors; other dead nodes only cost time. Exporters leave
    such nodes behind for debug outputs, training heads and shape checks.

    If the main graph declares no outputs, every node is dead. TensorRT parses such a model but refuses to build it:
    `Network must have at least one output`. That is an error of the exporter, and no reason to empty the graph.

    ## Fix
    The node is removed, with all nodes and initializers that nothing else needs. Exact: no output is computed from it.
    These count as needed: values that a subgraph captures, outputs of a branch or loop body, and names in training
    information or quantization annotations. Graph inputs are always kept, and so are nodes without a named output: they
    can only exist for a side effect. Unused outputs of a node that is needed are not reported. In a graph, branch or
    function without outputs, the last results count as needed, so that no fix empties it.

    ## References
    - ONNX, "Graphs": outputs are all that a graph computes: https://onnx.ai/onnx/repo-docs/IR.html
    """
    if not model.main.outputs and model.main.nodes:
        yield Match(
            "the graph declares no outputs, so every node is dead: TensorRT cannot build such a network, and "
            "nothing is removed; declare the outputs to compute",
            scope=model.main,
            severity=Severity.ERROR,
        )
    if not any(map(_is_end, every_node(model))):
        return  # every chain of dead nodes ends in a node that nothing reads
    live = _live_nodes(model)
    refused = _Refused(model)
    left: dict[int, int] = {}
    removed: set[int] = set()
    for scope in model.scopes:
        if scope.owner is not None and (id(scope.owner) not in live or id(scope) in removed):
            removed.update(id(inner) for inner in scope.walk())
            continue  # removed with its owner
        for node in scope.nodes:
            if id(node) in live or any(v is not None and _needed(v, v.use_count) for v in node.outputs):
                continue
            fallen = _fall(node, left)
            more = len(fallen) - 1
            reason = next((text for text in map(refused.why, fallen) if text), "")
            chain = f", and {more} more nodes compute only its inputs" if more else ""
            also = f" and the {more} before it" if more else ""
            yield Match(
                f"nothing reads this {node.op_type}{chain}{reason}",
                node=node,
                fix=Fix(f"remove it{also}", [RemoveNode(node)]),
                severity=Severity.ERROR if reason else None,
            )


class _Refused:
    """Why the target cannot import a node, as the end of a sentence; "" if unknown or never imported."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._target: Target = target_of(model)
        self._functions = {scope.proto.name for scope in model.functions}

    def why(self, node: Node) -> str:
        reason = self._reason(node)
        return reason if reason and node in imported_nodes(self._model) else ""

    def _reason(self, node: Node) -> str:
        if (
            node.is_onnx
            and node.op_type not in self._functions
            and self._target.imports(node.op_type) is False
        ):
            return f", and {self._target.title} does not import {node.op_type}"
        for value in (*node.inputs, *node.outputs):
            elem = None if value is None else self._model.shapes.elem_type(value)
            if elem and not self._target.has_type(elem):
                return f", and {self._target.title} does not support {name_of(elem)}"
        return ""


def _is_end(node: Node) -> bool:
    """Whether the node has outputs, and none of them is used."""
    return not any(map(is_read, node.outputs)) and any(node.outputs)


def _needed(value: Value, uses: int) -> bool:
    return uses > 0 or not value.replaceable


def _live_nodes(model: Model) -> set[int]:
    """Ids of the nodes that an output, a name outside the graph, or a side effect needs."""
    stack: list[Node] = []
    for scope in model.scopes:
        if scope.owner is None:
            stack.extend(_producers(scope.outputs))
        stack.extend(_producers(value for value in scope.values.values() if value.pins))
        stack.extend(node for node in scope.nodes if not any(node.outputs))
    live: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in live:
            continue
        live.add(id(node))
        for value in node.inputs:
            if value is not None and value.producer is not None:
                stack.append(value.producer)
        for subgraph in node.subgraphs:
            stack.extend(_producers(subgraph.outputs))
    return live


def _producers(values: Iterable[Value | None]) -> Iterator[Node]:
    for value in values:
        if value is not None and value.producer is not None:
            yield value.producer


def _fall(node: Node, left: dict[int, int]) -> list[Node]:
    """``node`` and the nodes that lose their last reader with it; ``left``: remaining readers of each value."""
    fallen: list[Node] = []
    stack = [node]
    while stack:
        fallen.append(current := stack.pop())
        for value in _reads(current):
            left[id(value)] = left.get(id(value), value.use_count) - 1
            producer = value.producer
            if producer is not None and not any(
                v is not None and _needed(v, left.get(id(v), v.use_count)) for v in producer.outputs
            ):
                stack.append(producer)
    return fallen


def _reads(node: Node) -> Iterator[Value]:
    """Inputs of ``node``, and values that its subgraphs capture, once per use."""
    inside: set[Scope] = {scope for subgraph in node.subgraphs for scope in subgraph.walk()}
    readers = [node, *(inner for scope in inside for inner in scope.nodes)]
    for reader in readers:
        for value in reader.inputs:
            if value is not None and value.scope not in inside:
                yield value


dead_node.examples = [
    Fixed(
        "unused output",
        before="g (float[N] x) => (float[N] y) { y = Neg(x)  d = Exp(x) }",
        after="g (float[N] x) => (float[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "a chain, and the constants that only it reads",
        before="g (float[N,2] x) => (float[N,2] y) <float[2] c = {1, 2}, float[2] d = {3, 4}> "
        "{ a = Add(x, c)  y = Mul(x, d)  b = Mul(a, d)  e = Constant<value_float = 1.0>()  f = Sub(b, e) }",
        after="g (float[N,2] x) => (float[N,2] y) <float[2] d = {3, 4}> { y = Mul(x, d) }",
    ),
    Fixed(
        "an operator that TensorRT does not support",
        before="g (float[N] x) => (float[N] y) { u, i, v, c = Unique(x)  y = Neg(x)  s = Add(u, v) }",
        after="g (float[N] x) => (float[N] y) { y = Neg(x) }",
        opset=17,
        runs=False,
    ),
    Fixed(
        "a type that TensorRT does not support",
        before="g (float[N] x) => (float[N] y) { a = Cast<to = UINT16>(x)  b = Mul(a, a)  y = Neg(x) }",
        after="g (float[N] x) => (float[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "two dead nodes with a shared input",
        before="g (float[N] x) => (float[N] y) { a = Exp(x)  b = Neg(a)  c = Abs(a)  y = Neg(x) }",
        after="g (float[N] x) => (float[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "a random node",
        before="g (float[2] x) => (float[2] y) { r = RandomNormal<shape = [2]>()  y = Neg(x) }",
        after="g (float[2] x) => (float[2] y) { y = Neg(x) }",
    ),
    Fixed(
        "a dead If, and values that only its branches capture",
        before="""g (float[2] x, bool k) => (float[2] y) <float[2] c = {1, 2}> { a = Exp(x)  b = Abs(x)  y = Neg(b)
            d = If(k)<then_branch = t () => (float[2] p) { u = Exp(a)  p = Add(a, c) },
                      else_branch = e () => (float[2] q) { q = Neg(b) }> }""",
        after="g (float[2] x, bool k) => (float[2] y) { b = Abs(x)  y = Neg(b) }",
    ),
    Fixed(
        "inside a branch, with an outer value as input",
        before="""g (float[2] x, bool k) => (float[2] y) { a = Exp(x)
            y = If(k)<then_branch = t () => (float[2] p) { u = Exp(a)  p = Neg(x) },
                      else_branch = e () => (float[2] q) { q = Abs(x) }> }""",
        after="""g (float[2] x, bool k) => (float[2] y) {
            y = If(k)<then_branch = t () => (float[2] p) { p = Neg(x) },
                      else_branch = e () => (float[2] q) { q = Abs(x) }> }""",
    ),
    Fixed(
        "a call of a local function",
        before="""<ir_version: 9, opset_import: ["" : 18, "d" : 1]>
            g (float[N] x) => (float[N] y) { a = d.f(x)  y = Neg(x) }
            <domain: "d", opset_import: ["" : 18]> f (u) => (w) { w = Abs(u) }""",
        after="""<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) { y = Neg(x) }
            <domain: "d", opset_import: ["" : 18]> f (u) => (w) { w = Abs(u) }""",
    ),
    Fixed(
        "graph inputs are kept, with or without an initializer",
        before="g (float[N] x, float[N] z, float[1] b) => (float[N] y) <float[1] b = {1}> "
        "{ d = Add(z, b)  y = Neg(x) }",
        after="g (float[N] x, float[N] z, float[1] b) => (float[N] y) <float[1] b = {1}> { y = Neg(x) }",
    ),
    Silent(
        "read by a subgraph only",
        """g (float[2] x, bool k) => (float[2] y) { a = Exp(x)
            y = If(k)<then_branch = t () => (float[2] p) { p = Neg(a) },
                      else_branch = e () => (float[2] q) { q = Abs(x) }> }""",
    ),
    Silent(
        "one of two outputs is used",
        "g (float[4] x) => (float[2] y) { y, d = Split<axis = 0, num_outputs = 2>(x) }",
    ),
    Silent(
        "a loop-carried value",
        """g (int64 n, bool k, float[2] x) => (float[2] y) {
            y = Loop(n, k, x)<body = b (int64 i, bool c, float[2] v) => (bool co, float[2] w)
                { co = Identity(c)  w = Exp(v) }> }""",
    ),
    Silent(
        "read by the body of a Scan only",
        """g (float[3,2] x, float[2] h) => (float[2] y) {
            a = Exp(h)
            y = Scan<num_scan_inputs = 1, body = b (float[2] v, float[2] e) => (float[2] w) {
                u = Add(v, e)  w = Mul(u, a) }>(h, x) }""",
    ),
    Flagged(
        "a graph that declares no outputs is not emptied",
        """g (float[2] x) => () <float[2] w = {1, 2}> {
            a = Exp(x)  b = Neg(a)  c = Identity(b)  d = Add(c, w)  e = Cast<to = FLOAT>(d) }""",
        runs=False,
    ),
    Silent(
        "nor is a local function without outputs",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) { y = Neg(x) }
            <domain: "d", opset_import: ["" : 18]> f (u) => () { a = Exp(u)  b = Neg(a) }""",
        runs=False,
    ),
]
