"""Names of dimensions that are arithmetic on other names: exporters write ``past + 1`` or ``2*(seq//4)``.

In ONNX such a name has no meaning. It is arithmetic only if the names in it are dimensions themselves, which the caller
decides ("batch-size" is a name).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_PLAIN = re.compile(r"[A-Za-z_][\w.]*\Z")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
#: Limits of length and depth, above those of any real size: Python's parser and our walk recurse.
_LONGEST = 300


def own(dim: str) -> str:
    """The name of a dimension, or "". Some exporters write ``?`` or ``*`` for every unknown size: such dimensions have
    nothing in common. (TensorRT treats these as names, and requires equal sizes.) A name that is not UTF-8, which
    protobuf returns as bytes, is none."""
    if not isinstance(dim, str):
        return ""
    return dim if any(map(str.isalnum, dim)) or "_" in dim else ""


def names(dim: str) -> tuple[str, ...] | None:
    """The names in ``dim`` read as arithmetic, each once; None if it is a plain name or not arithmetic."""
    tree = None if _PLAIN.match(dim) else _parse(dim)
    if tree is None:
        return None
    return tuple(dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)))


def evaluate(dim: str, sizes: Mapping[str, int]) -> int | None:
    """The size of ``dim`` if the names in it have these sizes, at least 0.

    None if it is not arithmetic (a plain name is), if the size of a name is missing, or if it divides by 0.
    """
    tree = _parse(dim)
    if tree is None:
        return None
    try:
        return max(0, _evaluate(tree, sizes))
    except (KeyError, ZeroDivisionError):
        return None


def replace(dim: str, sizes: Mapping[str, int]) -> str | int:
    """``dim`` with names replaced by their sizes: a size if no other name is left.

    A dimension without any of them is returned as it is.
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
    assert isinstance(node, ast.Constant)  # _parse admits nothing else
    return int(str(node.value))
