"""Dead nodes, and order, names, leftovers and validity of a graph."""
# Long because: five rules that look at the whole of a graph.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.rule import (
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    RemoveInitializer,
    RemoveNode,
    RenameNode,
    Safety,
    Scope,
    Severity,
    Silent,
    SortNodes,
    Target,
    Value,
    dtypes,
    every_node,
    imported_nodes,
    is_read,
    name_of,
    rule,
    target_of,
)

if TYPE_CHECKING:
    from onnxfix.proof.validity import Checked


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


@rule("GRA002", per="scope", safety=Safety.EXACT, severity=Severity.INFO, hazards=[38, 50, 60])
def unused_initializer(scope: Scope, model: Model) -> Iterator[Match]:
    """An initializer that no node reads and that is no graph output.

    ## Why it matters
    TensorRT's parser imports all initializers before any node.

    - **error**: an unsupported type fails although nothing reads it: `Failed to import initializer` for string, int16,
      uint16, uint32, uint64, uint4, complex, float8e5m2, float8e8m0 and the FNUZ float8 types (measured with
      TensorRT-RTX 1.7.1), and, by NVIDIA's lists, for bfloat16 and float8 before TensorRT 9.0 and int4 before 10.0.
    - **info**: any other type only makes the file larger and parsing slower.

    ## Fix
    The initializer is removed. Exact: nothing is computed from it. These are kept: initializers that a subgraph
    captures, that callers may override as graph inputs (up to IR version 3, every initializer), and that training
    information or quantization annotations name. External data stays in its file.

    ## References
    - ONNX, "Graphs": https://onnx.ai/onnx/repo-docs/IR.html
    """
    target = target_of(model)
    for value in scope.values.values():
        if value.use_count or value.is_input or not value.replaceable:
            continue
        if value.initializer is not None:
            tensor = value.initializer
            kind = f"{dtypes.name_of(tensor.data_type)}[{','.join(str(d) for d in tensor.dims)}]"
            yield Match(
                f"nothing reads this initializer ({kind})",
                value=value,
                fix=Fix("remove it", [RemoveInitializer(value)]),
                severity=Severity.INFO if target.has_type(tensor.data_type) else Severity.ERROR,
            )
        elif value.sparse:
            remedy = Fix("remove it", [RemoveInitializer(value)])
            yield Match("nothing reads this sparse initializer", value=value, fix=remedy)


_SPARSE = "g (float[4] x) => (float[4] y) { y = Neg(x) }"


def _model(text: str) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')


def _sparse() -> ModelProto:
    model = _model(_SPARSE)
    values = numpy_helper.from_array(np.array([2.0], np.float32), "s")
    indices = numpy_helper.from_array(np.array([1], np.int64), "s_indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    return model


def _annotated() -> ModelProto:
    model = _model("g (float[4] x) => (float[4] y) <float scale = {0.5}> { y = Neg(x) }")
    annotation = model.graph.quantization_annotation.add()
    annotation.tensor_name = "y"
    entry = annotation.quant_parameter_tensor_names.add()
    entry.key, entry.value = "SCALE_TENSOR", "scale"
    return model


def _trained() -> ModelProto:
    model = _model(
        "g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}, float[4] v = {0, 0, 0, 0}> { y = Mul(x, w) }"
    )
    training = model.training_info.add()
    node = helper.make_node("Add", ["w", "v"], ["w_new"])
    result = helper.make_tensor_value_info("w_new", TensorProto.FLOAT, [4])
    training.algorithm.CopyFrom(helper.make_graph([node], "step", [], [result]))
    entry = training.update_binding.add()
    entry.key, entry.value = "w", "w_new"
    return model


unused_initializer.examples = [
    Fixed(
        "unused",
        before="g (float[N] x) => (float[N] y) <float[2] c = {1, 2}> { y = Neg(x) }",
        after="g (float[N] x) => (float[N] y) { y = Neg(x) }",
    ),
    Fixed("a sparse initializer", before=_sparse, after=_SPARSE),
    Silent(
        "captured by a subgraph",
        """g (float[2] x, bool k) => (float[2] y) <float[2] c = {1, 2}> {
            y = If(k)<then_branch = t () => (float[2] p) { p = Add(x, c) },
                      else_branch = e () => (float[2] q) { q = Neg(x) }> }""",
    ),
    Silent(
        "a graph input, which callers may override",
        "g (float[N] x, float[2] c) => (float[N] y) <float[2] c = {1, 2}> { y = Neg(x) }",
    ),
    Silent(
        "IR version 3, where every initializer is an input",
        "g (float[N] x, float[2] c) => (float[N] y) <float[2] c = {1, 2}> { y = Neg(x) }",
        opset=8,
        ir_version=3,
    ),
    Silent(
        "a graph output", "g (float[N] x) => (float[N] y, float[2] c) <float[2] c = {1, 2}> { y = Neg(x) }"
    ),
    Silent("used by a quantization annotation", _annotated),
    Silent(
        "used by training information", _trained, differs={"branch": "training names no value of a branch"}
    ),
]


@rule("GRA004", per="scope", safety=Safety.EXACT)
def unsorted_nodes(scope: Scope, model: Model) -> Iterator[Match]:
    """A node comes before one whose result it reads.

    ## Why it matters
    ONNX requires nodes in topological order. `onnx.checker` refuses any other order, shape inference loses the results
    of unsorted nodes, and many tools stop there.

    - **error**: in a local function: TensorRT-RTX 1.7.1 imports its nodes in the order of the file and fails with `Node
      input was not registered` (measured); ONNX Runtime does not load it either.
    - **warning**: in a graph or subgraph, which TensorRT and ONNX Runtime sort themselves (measured).

    ## Fix
    The nodes of the graph are sorted topologically. The sort is stable: a node moves only to come before its first
    reader. Exact: the order of nodes takes no part in what they compute.

    ## References
    - ONNX, "Graphs": nodes must be topologically sorted: https://onnx.ai/onnx/repo-docs/IR.html
    """
    order = model.orders[scope]
    if order == scope.nodes:
        return
    misplaced = [node for node, expected in zip(scope.nodes, order, strict=True) if node is not expected]
    first = misplaced[0]
    yield Match(
        f"this {first.op_type} comes before nodes whose results it reads",
        node=first,
        scope=scope,
        fix=Fix("sort the nodes", [SortNodes(scope)]),
        severity=Severity.ERROR if scope.root.kind == "function" else Severity.WARNING,
    )


unsorted_nodes.examples = [
    Fixed(
        "the reader comes first",
        before="g (float[N] x) => (float[N] y) { y = Neg(a)  a = Exp(x) }",
        after="g (float[N] x) => (float[N] y) { a = Exp(x)  y = Neg(a) }",
    ),
    Fixed(
        "a branch captures the result of a later node",
        before="""g (float[2] x, bool k) => (float[2] y) {
            y = If(k)<then_branch = t () => (float[2] p) { p = Neg(a) },
                      else_branch = e () => (float[2] q) { q = Abs(x) }>  a = Exp(x) }""",
        after="""g (float[2] x, bool k) => (float[2] y) { a = Exp(x)
            y = If(k)<then_branch = t () => (float[2] p) { p = Neg(a) },
                      else_branch = e () => (float[2] q) { q = Abs(x) }> }""",
    ),
    Fixed(
        "inside a local function, where TensorRT does not sort",
        before="""<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) { y = d.f(x) }
            <domain: "d", opset_import: ["" : 18]> f (u) => (w) { w = Neg(a)  a = Exp(u) }""",
        after="""<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) { y = d.f(x) }
            <domain: "d", opset_import: ["" : 18]> f (u) => (w) { a = Exp(u)  w = Neg(a) }""",
        runs=False,
    ),
    Silent(
        "sorted, if not in the order that one would choose",
        "g (float[N] x) => (float[N] y) { b = Abs(x)  a = Exp(x)  c = Neg(a)  y = Add(c, b) }",
    ),
    Silent(
        "a branch captures what is computed before",
        """g (float[2] x, bool k) => (float[2] y) { a = Exp(x)
            y = If(k)<then_branch = t () => (float[2] p) { p = Neg(a) },
                      else_branch = e () => (float[2] q) { q = Abs(x) }> }""",
    ),
]


@rule("GRA005", per="model", safety=Safety.EXACT, hazards=[64])
def duplicate_node_name(model: Model) -> Iterator[Match]:
    """Two nodes of one graph have the same name.

    ## Why it matters
    ONNX Runtime refuses to load such a model. TensorRT parses it with a warning (`A node named n already exists, the
    output tensors of this new instance will not be queryable`, TensorRT-RTX 1.7.1), and a precision or device that is
    set for a layer by name applies to the wrong one.

    ## Fix
    Every node but the first gets a number that makes its name unique. Exact: node names take no part in the
    computation. Names of values are not changed. Nodes in different branches, or in a branch and in the graph around
    it, may share a name: both ONNX Runtime and TensorRT-RTX accept that (measured).

    ## References
    - ONNX, "Names Within a Graph": https://onnx.ai/onnx/repo-docs/IR.html
    """
    names = {scope: [str(node.proto.name) for node in scope.nodes] for scope in model.scopes}
    used = {name for own in names.values() for name in own}
    for scope, own in names.items():
        seen: set[str] = set()
        numbers: dict[str, int] = {}
        if len(set(own)) == len(own):
            continue
        for node, name in zip(scope.nodes, own, strict=True):
            if not name or name not in seen:
                seen.add(name)
                continue
            number = numbers.get(name, 2)
            while f"{name}_{number}" in used:
                number += 1
            numbers[name] = number + 1
            new = f"{name}_{number}"
            used.add(new)
            message = f"an earlier node of this graph is also named {name!r}"
            yield Match(message, node=node, fix=Fix(f"rename it to {new!r}", [RenameNode(node, new)]))


duplicate_node_name.examples = [
    Fixed(
        "the second node is renamed",
        before="g (float[N] x) => (float[N] y) { [n] a = Exp(x)  [n] y = Neg(a) }",
        after="g (float[N] x) => (float[N] y) { [n] a = Exp(x)  [n_2] y = Neg(a) }",
    ),
    Fixed(
        "the first candidate for a new name is in use",
        before="g (float[N] x) => (float[N] y) { [n] a = Exp(x)  [n] b = Neg(a)  [n_2] c = Abs(b)  [n] y = Exp(c) }",
        after="g (float[N] x) => (float[N] y) { [n] a = Exp(x)  [n_3] b = Neg(a)  [n_2] c = Abs(b)  [n_4] y = Exp(c) }",
    ),
    Silent("unnamed nodes", "g (float[N] x) => (float[N] y) { a = Exp(x)  b = Neg(a)  y = Abs(b) }"),
    Silent(
        "the same name in two branches and in the graph around them",
        """g (float[2] x, bool k) => (float[2] y) { [n] a = Exp(x)
            y = If(k)<then_branch = t () => (float[2] p) { [n] p = Neg(a) },
                      else_branch = e () => (float[2] q) { [n] q = Abs(a) }> }""",
    ),
    Silent(
        "a node with the name of a value", "g (float[N] x) => (float[N] y) { [y] a = Exp(x)  [x] y = Neg(a) }"
    ),
]


@rule("GRA013", per="validity")
def invalid_original(original: Checked, fixed: Checked) -> Iterator[Match]:
    """The original model is not valid ONNX, so the fixes rely on an interpretation of it.

    ## Why it matters
    ONNX does not define what such a model computes. `onnx.checker` refuses it, ONNX Runtime usually does, while
    TensorRT and other tools accept many and interpret them in their own way. The fixed model may be valid; its results
    are proven only as far as a verification check could run the original. The tool that wrote the model has a bug.

    `apply` reports this if it fixes something: the check `contract` runs `onnx.checker` on the original and on the
    fixed model with `full_check`, which infers types and shapes. It ignores declared shapes of everything but inputs:
    GRA003 reports wrong ones, and they do not change what a model computes.

    - **warning**: `onnx.checker` itself refuses the model: unsorted nodes, an attribute or a number of inputs that the
      operator does not have, an opset that lacks the operator.
    - **info**: only `full_check` does: operands of different types, incompatible shapes. Most such models are invalid,
      but not all: onnx 1.23 refuses ONNX's own `MeanVarianceNormalization` without `axes`. Or the nodes were only
      unsorted, and the fixed model is valid: what such a model computes is clear.

    ## Fix
    None: correct the exporter. The message says whether the fixed model is valid, and the applied fixes show what was
    repaired. If that is intended, use `--ignore GRA013`.

    ## References
    - `onnx.checker.check_model` and its `full_check`: https://onnx.ai/onnx/api/checker.html
    - What a valid model is: https://onnx.ai/onnx/repo-docs/IR.html
    """
    from onnxfix.proof.validity import invalid  # lazy: start-up

    if original.complaint:
        sorted_only = original.unsorted and not fixed.complaint
        severity = Severity.WARNING if original.refused and not sorted_only else Severity.INFO
        yield Match(invalid(original, fixed), severity=severity)
