"""GRA005: duplicate node names in a graph."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fix, Fixed, Match, Model, RenameNode, Safety, Severity, Silent, rule


@rule("GRA005", per="model", safety=Safety.EXACT, severity=Severity.WARNING, hazards=[64])
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
            yield Match(
                f"an earlier node of this graph is also named {name!r}",
                node=node,
                fix=Fix(f"rename it to {new!r}", [RenameNode(node, new)]),
            )


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
        "a node with the name of a value",
        "g (float[N] x) => (float[N] y) { [y] a = Exp(x)  [x] y = Neg(a) }",
    ),
]
