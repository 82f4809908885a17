"""Draw mutants, one in a function, and find them again in another checkout.

A mutant is recorded by what it says and not by where it stands: the function's name, the statement, the expression and
the statements before and after. Code that was moved, split or renamed is found by as much of it as still holds.
"""

from __future__ import annotations

import ast
import json
import keyword
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mutations.sites import Function, Site, sites

PACKAGES = {"onnxfix": "onnxfix", "rules": "rules"}
SHARES = {"onnxfix": 140, "rules": 60}
SEED = 20240607
WEIGHTS = {"return": 1}
"""Most functions return something, and that it is missing is easy to see: half as likely as other kinds."""
NAME = 5
LONG = 25
"""Characters of a text that names its place by itself, where it occurs once."""


@dataclass(frozen=True)
class Mutant:
    """A mutation that does not depend on paths and lines."""

    id: str
    package: str
    module: str
    function: str
    statement: str
    nth: int
    """Which of the function's statements with that text."""
    before: str
    after: str
    """The statements around it."""
    kind: str
    variant: str
    expression: str
    at: int
    mutated: str


@dataclass(frozen=True)
class Place:
    """Where a mutant is in a checkout."""

    function: Function
    site: Site
    how: str
    """``same``, or what else it was found by."""


def drawn(found: Iterable[Function], shares: dict[str, int] = SHARES, seed: int = SEED) -> list[Mutant]:
    """As many mutants of each package as ``shares`` says: functions first, all equally likely, then kinds."""
    by_package: dict[str, list[Function]] = defaultdict(list)
    for function in found:
        by_package[function.package].append(function)
    mutants: list[Mutant] = []
    for package, count in shares.items():
        generator = random.Random(f"{seed} {package}")
        shuffled = sorted(by_package[package], key=lambda one: (one.path, one.name))
        generator.shuffle(shuffled)
        taken = 0
        for function in shuffled:
            if taken == count:
                break
            by_kind: dict[str, list[tuple[int, Site]]] = defaultdict(list)
            for place, statement in enumerate(function.statements):
                for site in sites(statement):
                    by_kind[site.kind].append((place, site))
            if by_kind:
                kinds = sorted(by_kind)
                chosen = by_kind[generator.choices(kinds, [WEIGHTS.get(kind, 2) for kind in kinds])[0]]
                mutants.append(recorded(f"{package}-{taken:03}", function, *generator.choice(chosen)))
                taken += 1
    return mutants


def narrowed(found: Iterable[Function], parts: Iterable[str]) -> list[Function]:
    """The functions of packages or parts of them, such as ``onnxfix.shapes``, each with its part as the package."""
    longest = sorted(parts, key=len, reverse=True)
    chosen = []
    for function in found:
        place = f"{function.package}.{function.module}."
        part = next((one for one in longest if place.startswith(f"{one}.")), None)
        if part is not None:
            chosen.append(replace(function, package=part))
    return chosen


def recorded(name: str, function: Function, place: int, site: Site) -> Mutant:
    """What is kept of a mutant."""
    statement = function.headers[place]
    before, after = around(function, place)
    nth = function.headers[:place].count(statement)
    where = (function.package, function.module, function.name, statement, nth, before, after)
    return Mutant(name, *where, site.kind, site.variant, site.text, site.at, site.result)


def around(function: Function, place: int) -> tuple[str, str]:
    """The statements before and after one."""
    headers = ["", *function.headers, ""]
    return headers[place], headers[place + 2]


def shape(text: str) -> str:
    """A text without the names in it: what a renaming leaves."""
    return re.sub(r"[^\W\d]\w*", lambda word: word[0] if keyword.iskeyword(word[0]) else "_", text)


def last(name: str) -> str:
    """A function's own name, whether or not it is private."""
    return name.rpartition(".")[2].strip("_")


class Index:
    """The statements of a checkout, by text and by shape."""

    def __init__(self, found: Iterable[Function]) -> None:
        self.functions = list(found)
        self.texts: dict[str, list[tuple[Function, int]]] = defaultdict(list)
        self.shapes: dict[str, list[tuple[Function, int]]] = defaultdict(list)
        self.named: dict[str, list[Function]] = defaultdict(list)
        for function in self.functions:
            self.named[last(function.name)].append(function)
            for place, text in enumerate(function.headers):
                self.texts[text].append((function, place))
                self.shapes[shape(text)].append((function, place))

    def find(self, mutant: Mutant) -> Place | None:
        """Where a mutant is; None where nothing matches, or several places do equally well."""
        return (
            self._by_statement(mutant, self.texts[mutant.statement], str, "statement")
            or self._by_statement(mutant, self.shapes[shape(mutant.statement)], shape, "shape")
            or self._by_expression(mutant)
        )

    def _by_statement(
        self, mutant: Mutant, candidates: list[tuple[Function, int]], view: Callable[[str], str], how: str
    ) -> Place | None:
        statement = view(mutant.statement)
        scored: list[tuple[int, Place]] = []
        for function, place in candidates:
            site = matching(mutant, sites(function.statements[place]), view)
            if site is None:
                continue
            pairs = zip(around(function, place), (mutant.before, mutant.after), strict=True)
            neighbors = sum(view(here) == view(there) for here, there in pairs)
            nth = [*map(view, function.headers[:place])].count(statement)
            named = likeness(mutant, function)
            # The name, the neighbors, or a text that occurs nowhere else.
            if named >= NAME or neighbors or (len(candidates) == 1 and len(statement) >= LONG):
                score = 2 * named + 4 * neighbors + (nth == mutant.nth)
                same = view is str and function.name == mutant.function and function.module == mutant.module
                scored.append((score, Place(function, site, "same" if same else how)))
        return best(scored)

    def _by_expression(self, mutant: Mutant) -> Place | None:
        """In a statement that was changed: of the function with that name, or anywhere where the text is long."""
        scored: list[tuple[int, Place]] = []
        everywhere = len(mutant.expression) >= LONG
        for function in self.functions if everywhere else self.named[last(mutant.function)]:
            for statement, text in zip(function.statements, function.headers, strict=True):
                if mutant.expression in text:
                    site = matching(mutant, sites(statement), str)
                    if site is not None:
                        scored.append((likeness(mutant, function), Place(function, site, "expression")))
        return best(scored)


def likeness(mutant: Mutant, function: Function) -> int:
    """How much of a function's name is the mutant's; NAME or more where its last part is."""
    return (
        NAME * (last(function.name) == last(mutant.function))
        + 2 * (function.name == mutant.function)
        + 2 * (function.module.rpartition(".")[2] == mutant.module.rpartition(".")[2])
        + (function.module == mutant.module)
        + (function.package == mutant.package)
    )


def matching(mutant: Mutant, found: list[Site], view: Callable[[str], str]) -> Site | None:
    """The same mutation of the same expression among those of a statement."""
    alike = [site for site in found if (site.kind, site.variant) == (mutant.kind, mutant.variant)]
    alike = [site for site in alike if view(site.text) == view(mutant.expression)]
    same = [site for site in alike if site.at == mutant.at] if view is str else alike
    return same[0] if same else (alike[0] if len(alike) == 1 else None)


def best(scored: list[tuple[int, Place]]) -> Place | None:
    """The one with the highest score; none where two share it."""
    if not scored:
        return None
    top = max(score for score, _ in scored)
    winners = [place for score, place in scored if score == top]
    return winners[0] if len(winners) == 1 else None


class Switches(ast.NodeTransformer):
    """Put each mutation beside its expression: ``mutated if __mutant__(number) else expression``."""

    def __init__(self, chosen: dict[int, list[tuple[int, ast.expr]]]) -> None:
        self.chosen = chosen

    def visit(self, node: ast.AST) -> ast.AST:
        options = self.chosen.get(id(node), [])
        result: ast.AST = super().generic_visit(node)
        for number, mutated in options:
            test = ast.Call(ast.Name("__mutant__", ast.Load()), [ast.Constant(number)], [])
            assert isinstance(result, ast.expr)
            switch = ast.IfExp(test, mutated, result)
            for part in ast.walk(switch):
                if isinstance(part, ast.expr) and not hasattr(part, "lineno"):
                    ast.copy_location(part, node)
            result = switch
        return result


def switched(trees: dict[Path, ast.Module], places: dict[int, Place]) -> dict[Path, ast.Module]:
    """The files that hold mutants, each mutant behind a switch with its number. Changes the trees."""
    by_path: dict[Path, dict[int, list[tuple[int, ast.expr]]]] = defaultdict(lambda: defaultdict(list))
    for number, place in places.items():
        by_path[place.function.path][id(place.site.node)].append((number, place.site.mutated))
    for path, chosen in by_path.items():
        Switches(chosen).visit(trees[path])
        ast.fix_missing_locations(trees[path])
    return {path: trees[path] for path in by_path}


def write(path: Path, mutants: list[Mutant]) -> None:
    """One mutant a line, without the fields that are empty in most."""
    lines = ",\n".join(json.dumps(asdict(mutant)) for mutant in mutants)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def read(path: Path) -> list[Mutant]:
    """A sample from its file."""
    return [Mutant(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
