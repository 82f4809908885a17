"""Runs rules over a model: once to find, or in rounds to fix, until nothing is left that may be fixed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from onnx import GraphProto

from onnxfix.commit import Transaction
from onnxfix.edits import rewired, touched
from onnxfix.errors import EditError, ShadowedError
from onnxfix.graph.imported import imported
from onnxfix.graph.overlay import Model, Node, UnknownAttribute, Value
from onnxfix.rule import Fix, Match, Rule, Safety, Severity

if TYPE_CHECKING:
    from onnxfix.backends.trt_reading import Reading
    from onnxfix.backends.trt_types import TrtBuild

MAX_ROUNDS = 200
"""A model needs a handful; collapsing halves chains, so even long ones stay far below."""


@dataclass(frozen=True)
class Found:
    """A match together with its rule."""

    rule: Rule
    match: Match

    @property
    def severity(self) -> Severity:
        """The match's own severity, else the rule's."""
        return self.rule.severity if self.match.severity is None else self.match.severity

    @property
    def key(self) -> FixKey:
        """Names the fix across runs on the same model."""
        return FixKey(self.rule.code, self.match.place, self.match.fix.title if self.match.fix else "")


@dataclass(frozen=True, order=True)
class FixKey:
    """What a fix is called when a run is repeated without it."""

    code: str
    place: str
    title: str


@dataclass(frozen=True)
class Applied:
    """A fix that was carried out."""

    key: FixKey
    message: str
    safety: Safety
    severity: Severity
    round: int


@dataclass(frozen=True)
class FixRun:
    """What ``fix`` did. ``problems`` are faults of onnxfix or of a rule, one line each.

    ``touched`` names the values whose producer, consumers or declaration changed; everything else must not have.
    """

    applied: tuple[Applied, ...]
    remaining: tuple[Found, ...]
    rounds: int
    problems: tuple[str, ...]
    touched: frozenset[str] = frozenset()


Allow = Callable[[FixKey], bool]


def check(model: Model, rules: Sequence[Rule], problems: list[str] | None = None) -> list[Found]:
    """All matches, ordered by rule code, then by place in the model. The model is not changed.

    A rule that raises is reported in ``problems`` and the others go on. Rules about builds and networks are left out.
    """
    found: list[Found] = []
    by_op: dict[tuple[str, str], list[Rule]] = {}
    everywhere: list[Rule] = []
    for rule in rules:
        if rule.per == "scope":
            for scope in model.scopes:
                found.extend(_run(rule, problems, scope, model))
        elif rule.per == "model":
            found.extend(_run(rule, problems, model))
        elif rule.per == "node":
            for key in rule.ops:
                (everywhere if key == ("", "*") else by_op.setdefault(key, [])).append(rule)
    for node in model.nodes():
        listening = by_op.get((node.domain, node.op_type), ())
        for rule in listening if not everywhere else (*listening, *everywhere):
            if (node.domain, node.op_type) in rule.ops and node.domain == "" and not node.is_onnx:
                continue  # a local function that has a standard operator's name
            found.extend(_run(rule, problems, node, model))
    return sorted(_reached(model, list(_telling(found))), key=lambda item: item.rule.code)


def _telling(found: Sequence[Found]) -> Iterator[Found]:
    """The findings without those of general rules at nodes of which another rule says as grave a thing."""
    graver: dict[Node, Severity] = {}
    for item in found:
        if not item.rule.general and item.match.node is not None:
            graver[item.match.node] = max(item.severity, graver.get(item.match.node, item.severity))
    for item in found:
        node = item.match.node
        if not item.rule.general or node is None or node not in graver or graver[node] < item.severity:
            yield item


def _reached(model: Model, found: list[Found]) -> list[Found]:
    """The findings, where what would be an error is a warning in a place that the parser may never come to.

    That is a function that nobody calls, and a branch that a constant condition does not take.
    """
    if not any(_inside(item, model) for item in found):
        return found
    reached = set(imported(model))
    return [
        Found(item.rule, replace(item.match, severity=Severity.WARNING))
        if _inside(item, model) and item.match.node not in reached
        else item
        for item in found
    ]


def _inside(item: Found, model: Model) -> bool:
    node = item.match.node
    return item.severity is Severity.ERROR and node is not None and node.scope is not model.main


def check_build(
    build: TrtBuild | None,
    rules: Sequence[Rule],
    problems: list[str] | None = None,
    *,
    reading: Reading | None = None,
) -> list[Found]:
    """All matches of the rules about builds and networks, ordered by rule code, then as TensorRT said them.

    ``reading`` is how TensorRT reads the model; None, for it as for ``build``, where it was not asked.
    """
    handed = {"build": build, "network": reading}
    about = sorted((rule for rule in rules if handed.get(rule.per) is not None), key=lambda rule: rule.code)
    return [found for rule in about for found in _run(rule, problems, handed[rule.per])]


def _run(rule: Rule, problems: list[str] | None, *arguments: object) -> Iterator[Found]:
    try:
        matches = list(rule.generate(*arguments))
    except UnknownAttribute:
        return  # it depends on an attribute of the surrounding function: nothing can be said
    except Exception as error:
        if problems is None:
            raise
        start = f"rule {rule.code} failed"
        if any(problem.startswith(start) for problem in problems):
            return  # one line a rule; the same fault on ten thousand nodes says no more
        where = f" at {arguments[0].place}" if isinstance(arguments[0], Node) else ""
        fault = " ".join(f"{type(error).__name__}: {error}".split())
        if not any(problem.endswith(fault) for problem in problems):  # what several rules ask fails alike
            problems.append(f"{start}{where}: {fault}")
        return
    for match in matches:
        yield Found(rule, match)


def fix(
    model: Model,
    rules: Sequence[Rule],
    *,
    safety: Safety = Safety.EXACT,
    allow: Allow | None = None,
    max_rounds: int = MAX_ROUNDS,
) -> FixRun:
    """Fix what may be fixed, in place, in rounds to a fixpoint.

    A round takes the fixes that do not meet: none changes what another one read or changes. ``allow`` says which
    fixes may be applied at all; the same model, rules and answers give the same bytes.
    """
    applied: list[Applied] = []
    problems: list[str] = []
    names: set[str] = set()
    seen = {_fingerprint(model)}
    for number in range(1, max_rounds + 1):
        found = check(model, rules, problems)
        wanted = [f for f in found if f.match.fix is not None and f.match.fix.safety <= safety]
        if allow is not None:
            wanted = [f for f in wanted if allow(f.key)]
        done = _round(model, wanted, number, problems, names)
        if not done:
            break
        applied.extend(done)
        mark = _fingerprint(model)
        if mark in seen:
            codes = sorted({item.key.code for item in done})
            problems.append(f"the fixes of {', '.join(codes)} undo each other; stopped after round {number}")
            break
        seen.add(mark)
    else:
        codes = sorted({item.key.code for item in applied[-50:]})
        problems.append(f"no fixpoint after {max_rounds} rounds; the last fixes were of {', '.join(codes)}")
    if done:  # stopped by a bound: what was found is older than the last round
        found = check(model, rules, problems)
    return FixRun(tuple(applied), tuple(found), number, tuple(dict.fromkeys(problems)), frozenset(names))


def _round(
    model: Model, wanted: Sequence[Found], number: int, problems: list[str], names: set[str]
) -> list[Applied]:
    """Apply those of the wanted fixes that do not meet; the rest waits for the next round."""
    done: list[Applied] = []
    refused: list[str] = []
    written: set[object] = set()
    read: set[object] = set()
    moved: set[object] = set()
    transaction = Transaction(model)
    for item in wanted:
        match, remedy = item.match, item.match.fix
        assert remedy is not None
        writes, reads, moves = touched(remedy.edits), _reads(match), rewired(remedy.edits)
        meets = not (
            written.isdisjoint(writes | reads | moves)
            and read.isdisjoint(writes | moves)
            and moved.isdisjoint(writes | reads)
        )
        if meets:
            continue
        try:
            transaction.apply(remedy.edits, item.rule.code)
        except ShadowedError:
            continue  # the finding stays, without its fix
        except EditError as error:
            refused.append(f"{item.rule.code} at {match.place}: {error}")
            continue
        written |= writes
        read |= reads
        moved |= moves
        done.append(_applied(item, remedy, number))
    transaction.close()
    names |= transaction.names
    if not done:  # refused for good, not merely because of another fix of this round
        problems.extend(refused)
    return done


def _reads(match: Match) -> set[object]:
    """What the match relied on: what it says, its node, and that node's inputs with their producers."""
    reads: set[object] = set(match.reads)
    if match.node is not None:
        reads.add(match.node)
        for value in match.node.inputs:
            if value is not None:
                reads.add(value)
                if value.producer is not None:
                    reads.add(value.producer)
    if isinstance(match.value, Value):
        reads.add(match.value)
    return reads


def _applied(item: Found, remedy: Fix, number: int) -> Applied:
    return Applied(item.key, item.match.message, remedy.safety, item.severity, number)


def _fingerprint(model: Model) -> bytes:
    """A hash of everything that fixes change; initializers count by name and shape, never by their bytes."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr([(entry.domain, entry.version) for entry in model.proto.opset_import]).encode())
    for scope in model.scopes:
        digest.update(scope.path.encode())
        for node in scope.nodes:
            # Subgraphs come as scopes of their own; serialising them here again would be quadratic in depth.
            if node.subgraphs:
                digest.update(
                    repr((node.proto.name, list(node.proto.input), list(node.proto.output))).encode()
                )
            else:
                digest.update(node.proto.SerializeToString(deterministic=True))
        if isinstance(scope.proto, GraphProto):
            for tensor in scope.proto.initializer:
                digest.update(repr((tensor.name, tensor.data_type, list(tensor.dims))).encode())
            for sparse in scope.proto.sparse_initializer:
                digest.update(repr((sparse.values.name, list(sparse.dims))).encode())
            for info in scope.proto.value_info:
                digest.update(info.SerializeToString(deterministic=True))
    return digest.digest()
