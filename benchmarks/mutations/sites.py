"""Where code can be mutated and how: every mutation replaces one expression of a function by another."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
EXITS = (ast.Return, ast.Continue, ast.Break, ast.Raise)
# Texts of errors and assertions are for people; what mutates them changes no behavior that a test should pin.
UNTOUCHED = (
    *FUNCTIONS,
    ast.ClassDef,
    ast.Raise,
    ast.Assert,
    ast.Import,
    ast.ImportFrom,
    ast.Global,
    ast.Nonlocal,
)


@dataclass(frozen=True)
class Site:
    """One possible mutation: ``node`` becomes ``mutated``."""

    kind: str
    variant: str
    """Which of several mutations of that kind the expression allows."""
    node: ast.expr
    mutated: ast.expr
    at: int
    """Which of the statement's expressions with the same text and mutation this is."""

    @property
    def text(self) -> str:
        return ast.unparse(self.node)

    @property
    def result(self) -> str:
        return ast.unparse(self.mutated)


@dataclass
class Function:
    """A function or method with the statements of its own, those of functions inside it left out."""

    path: Path
    package: str
    module: str
    """With the packages around it."""
    name: str
    """Qualified, without ``<locals>``."""
    statements: list[ast.stmt] = field(repr=False)
    headers: list[str] = field(default_factory=list, repr=False)
    """The text of each statement without the statements inside it."""

    def __post_init__(self) -> None:
        self.headers = [header(statement) for statement in self.statements]


def functions(path: Path, folder: Path, package: str) -> tuple[ast.Module, list[Function]]:
    """The syntax tree of a file in a package's folder and the functions in it."""
    tree = ast.parse(path.read_bytes(), str(path))
    parts = path.relative_to(folder).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def walk(body: list[ast.stmt], names: tuple[str, ...]) -> Iterator[Function]:
        for statement in body:
            if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                inner = (*names, statement.name)
                if not isinstance(statement, ast.ClassDef):
                    own = [one for one in flat(statement.body) if not isinstance(one, ast.ClassDef)]
                    yield Function(path, package, module, ".".join(inner), own)
                yield from walk(statement.body, inner)
            else:
                for block in blocks(statement):
                    yield from walk(block, names)

    return tree, list(walk(tree.body, ()))


def blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The lists of statements inside a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for part in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
        yield part.body


def flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements with those inside them, as they stand in the source; nested functions and classes closed."""
    for statement in body:
        yield statement
        if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            for block in blocks(statement):
                yield from flat(block)


def header(statement: ast.stmt) -> str:
    """A statement's text; of a compound one, only its first line."""
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return f"{'class' if isinstance(statement, ast.ClassDef) else 'def'} {statement.name}"
    if isinstance(statement, ast.Try | ast.TryStar):
        return "try:"
    if isinstance(statement, ast.Match):
        return f"match {ast.unparse(statement.subject)}:"
    if not getattr(statement, "body", None):
        return ast.unparse(statement)
    bare = copy.copy(statement)
    for name in ("body", "orelse"):
        if hasattr(bare, name):
            setattr(bare, name, [])
    return ast.unparse(bare)


def expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement's first line that may be replaced, outermost first."""
    if isinstance(statement, UNTOUCHED):
        return
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return  # a docstring
    for name, value in ast.iter_fields(statement):
        if name in {"annotation", "body", "orelse", "finalbody", "handlers", "cases"}:
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from below(part)


def below(node: ast.AST) -> Iterator[ast.expr]:
    """An expression and those in it, but for messages and types."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.expr):
        yield node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast":
        node = node.args[-1]  # the other is a type
        yield node
    for child in ast.iter_child_nodes(node):
        yield from below(child)


def sites(statement: ast.stmt) -> list[Site]:
    """The mutations of a statement's first line."""
    found: list[Site] = []
    counts: dict[tuple[str, str, str], int] = {}
    results: set[tuple[int, str]] = set()
    for node in expressions(statement):
        for kind, variant, mutated in mutations(statement, node):
            result = (id(node), ast.unparse(mutated))
            if result in results:
                continue  # `if not x: return` loses its `not` in one way only
            results.add(result)
            key = (kind, variant, ast.unparse(node))
            counts[key] = counts.get(key, 0) + 1
            found.append(Site(kind, variant, node, mutated, counts[key] - 1))
    return found


def mutations(statement: ast.stmt, node: ast.expr) -> Iterator[tuple[str, str, ast.expr]]:
    """What an expression of a statement may become: kind, variant and the other expression."""
    if isinstance(statement, ast.If) and node is statement.test and is_guard(statement):
        for forced in (False, True):
            yield "guard", str(forced), ast.Constant(forced)
    if isinstance(statement, ast.Return) and node is statement.value:
        if not (isinstance(node, ast.Constant) and node.value is None):
            yield "return", "None", ast.Constant(None)
        if truth(node):
            yield "return", "negated", ast.UnaryOp(ast.Not(), copy.deepcopy(node))
    alone = isinstance(statement, ast.Expr) and node is statement.value
    if alone and isinstance(node, ast.Call) and not node.keywords:
        yield "call", "removed", ast.Constant(None)
    yield from of_expression(node)


def is_guard(statement: ast.If) -> bool:
    """Whether it does little but leave."""
    return isinstance(statement.body[-1], EXITS) and len(statement.body) <= 2 and not statement.orelse


def of_expression(node: ast.expr) -> Iterator[tuple[str, str, ast.expr]]:
    """The mutations that do not depend on the statement around."""
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                other = copy.deepcopy(node)
                other.ops[place] = COMPARISONS[type(operator)]()
                yield "comparison", str(place), other
        case ast.BoolOp():
            swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and-or", "", ast.BoolOp(swapped, copy.deepcopy(node.values))
        case ast.UnaryOp(op=ast.Not()):
            yield "not", "", copy.deepcopy(node.operand)
        case ast.Constant(value=value) if type(value) is int:
            yield "constant", "+1", ast.Constant(value + 1)
            yield "constant", "-1", ast.Constant(value - 1)
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC and not textual(node):
            changed = ARITHMETIC[type(operator)]()
            yield "arithmetic", "", ast.BinOp(copy.deepcopy(node.left), changed, copy.deepcopy(node.right))


def truth(node: ast.expr) -> bool:
    """Whether an expression is plainly a bool."""
    if isinstance(node, ast.BoolOp):
        return all(map(truth, node.values))
    negation = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return (
        negation
        or isinstance(node, ast.Compare)
        or (isinstance(node, ast.Constant) and type(node.value) is bool)
    )


def textual(node: ast.BinOp) -> bool:
    """Whether it joins or formats text."""
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )


def walked(root: Path, packages: dict[str, str]) -> tuple[dict[Path, ast.Module], list[Function]]:
    """The syntax trees and functions of a checkout; packages: name to folder."""
    trees: dict[Path, ast.Module] = {}
    found: list[Function] = []
    for package, folder in packages.items():
        for path in sorted((root / folder).rglob("*.py")):
            trees[path], own = functions(path, root / folder, package)
            found += own
    return trees, found
