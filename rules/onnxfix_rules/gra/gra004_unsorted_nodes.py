"""GRA004: nodes that read results of later nodes."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fix, Fixed, Match, Model, Safety, Scope, Severity, Silent, SortNodes, rule


@rule("GRA004", per="scope", safety=Safety.EXACT, severity=Severity.WARNING)
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
    function = scope
    while function.parent is not None:
        function = function.parent
    first = misplaced[0]
    yield Match(
        f"this {first.op_type} comes before nodes whose results it reads",
        node=first,
        scope=scope,
        fix=Fix("sort the nodes", [SortNodes(scope)]),
        severity=Severity.ERROR if function.kind == "function" else Severity.WARNING,
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
