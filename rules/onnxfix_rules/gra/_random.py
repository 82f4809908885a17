"""Nodes that draw random numbers in each run."""

from __future__ import annotations

from onnxfix.rule import Node

RANDOM = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    }
)
"""By name, in any domain. Dropout draws in training mode only, but its mode is not checked."""


def draws(node: Node) -> bool:
    """Whether the node, one of its subgraphs, or a function that they call draws random numbers."""
    seen: set[int] = set()
    pending = [node, *(inner for sub in node.subgraphs for scope in sub.walk() for inner in scope.nodes)]
    while pending:
        inner = pending.pop()
        if inner.op_type in RANDOM:
            return True
        function = inner.function
        if function is not None and id(function) not in seen:
            seen.add(id(function))
            pending.extend(n for scope in function.walk() for n in scope.nodes)
    return False
