"""Names of dimensions that are arithmetic on other names: exporters write ``past + 1`` or ``2*(seq//4)``.

ONNX gives such a name no meaning: it is arithmetic only where the names in it are dimensions themselves, which is for
the caller to decide ("batch-size" is a name).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_PLAIN = re.compile(r"[A-Za-z_][\w.]*\Z")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
#: Longer and deeper than anything that is meant as a size; Python's parser and our walk recurse.
_LONGEST = 300


def own(dim: str) -> str:
    """The name of a dimension; "" for none. Some exporters write ``?`` or ``*`` for every size that they do not know:
    such dimensions have nothing in common. (TensorRT takes these for names and wants equal sizes.)"""
    return dim if any(map(str.isalnum, dim)) or "_" in dim else ""


def names(dim: str) -> tuple[str, ...] | None:
    """The names in ``dim`` read as arithmetic, each once; None where it is a plain name or no arithmetic."""
    tree = None if _PLAIN.match(dim) else _parse(dim)
    if tree is None:
        return None
    return tuple(dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)))


def evaluate(dim: str, sizes: Mapping[str, int]) -> int | None:
    """The size of ``dim`` when the names in it have these sizes, at least 0.

    None where it is no arithmetic (a plain name is, of itself), a name is missing, or it divides by 0.
    """
    tree = _parse(dim)
    if tree is None:
        return None
    try:
        return max(0, _evaluate(tree, sizes))
    except (KeyError, ZeroDivisionError):
        return None


def replace(dim: str, sizes: Mapping[str, int]) -> str | int:
    """``dim`` with names replaced by their sizes: a size where no other name is left.

    A dimension in which none of them occurs comes back as it is.
    """
    if dim in sizes:
        return sizes[dim]
    inside = names(dim) or ()
    if not set(inside).intersection(sizes):
        return dim
    whole = evaluate(dim, sizes)
    if whole is not None:
        return whole
    return re.sub(r"[A-Za-z_]\w*", lambda name: str(sizes.get(name[0], name[0])), dim)


def _parse(dim: str) -> ast.expr | None:
    if len(dim) > _LONGEST:
        return None
    try:
        tree = ast.parse(dim, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree.body if all(map(_is_arithmetic, ast.walk(tree.body))) else None


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in _OPERATORS
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub)
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, (ast.Name, ast.operator, ast.unaryop, ast.expr_context))


def _evaluate(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_evaluate(node.left, sizes), _evaluate(node.right, sizes))
    if isinstance(node, ast.UnaryOp):
        return -_evaluate(node.operand, sizes)
    if isinstance(node, ast.Name):
        return sizes[node.id]
    assert isinstance(node, ast.Constant)  # _parse lets nothing else pass
    return int(str(node.value))
