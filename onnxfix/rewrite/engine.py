"""Runs rules over a model: once to check, or in rounds to fix, until no fix is left."""

# Long because: the rounds of check and fix, and what becomes of a rule that fails in any of their steps.
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from onnxfix.errors import EditError, ShadowedError
from onnxfix.graph.overlay import Node, Unknown, Value
from onnxfix.graph.shared import elem_types, every_node, fingerprint, imported_nodes
from onnxfix.model import Model
from onnxfix.place import Place
from onnxfix.rewrite.edits import Edit
from onnxfix.rewrite.fitting import find_hidden, refuse_misfit, unsound
from onnxfix.rule import Fix, Match, Rule, Safety, Severity
from onnxfix.runtime import deadline
from onnxfix.runtime.causes import Problem, cause_of
from onnxfix.targets import Target, together

if TYPE_CHECKING:
    from onnxfix.proof.validity import Checked
    from onnxfix.proof.verdict import Executed
    from onnxfix.tensorrt.reading import Reading
    from onnxfix.tensorrt.records import TrtBuild

MAX_ROUNDS = 200
"""Models need a handful. Collapsing halves chains, so that even long ones need few."""


class Found(NamedTuple):
    """A match together with its rule."""

    rule: Rule
    match: Match

    @property
    def severity(self) -> Severity:
        """The match's own severity, else the rule's."""
        return self.rule.severity if self.match.severity is None else self.match.severity


class FixKey(NamedTuple):
    """Identifies a fix across runs on the same model: ``number`` counts the rule's fixes at the place before it."""

    code: str
    place: Place
    number: int


class Applied(NamedTuple):
    """A fix that was applied."""

    key: FixKey
    title: str
    message: str
    safety: Safety
    severity: Severity
    round: int


class FixRun(NamedTuple):
    """The result of ``fix``. ``problems`` are faults of onnxfix or of a rule, one line each.

    ``touched`` are the names of the values whose producer, consumers or declaration changed; everything else must be
    unchanged. Node counts include subgraphs and functions.
    """

    applied: tuple[Applied, ...]
    remaining: tuple[Found, ...]
    rounds: int
    problems: tuple[Problem, ...]
    touched: frozenset[str] = frozenset()
    nodes_before: int = 0
    nodes_after: int = 0


Allow = Callable[[FixKey], bool]


def check(model: Model, rules: Sequence[Rule], problems: list[Problem] | None = None) -> list[Found]:
    """All matches, ordered by rule code, then by place in the model. The model is not changed.

    A rule that raises is reported in ``problems``, and the others go on. Rules that repeat the results of other tools
    (``NO_MODEL``) are left out. ``deadline.Expired`` is raised when a time limit is over.
    """
    several = model.target is not None and model.target.members
    return (_check_releases if several else _check)(model, rules, problems)


_TITLE, _SOURCE = "\0title\0", "\0source\0"
"""What stands in a message for the releases that have the finding, until they are known."""
_OWN = ("package", "oldest", "newest", "types_measured")
"""What a rule asks of each release by itself, even for a fix."""


def _check_releases(model: Model, rules: Sequence[Rule], problems: list[Problem] | None) -> list[Found]:
    """What any of the target's releases finds, with fixes in forms that all of them take.

    A rule judges for one target. So it is asked for each release, and for its fix again, with what all releases take in
    place of what this one takes.
    """
    target: Target = model.target
    having: dict[tuple[object, ...], dict[Target, Found]] = {}
    fixed: dict[tuple[object, ...], Match] = {}
    try:
        for release in target.releases:
            model.target = replace(release, title=_TITLE, source=_SOURCE)
            found = _check(model, rules, problems)
            for item in found:
                key = item.rule.code, item.match.place, item.match.message
                having.setdefault(key, {})[release] = item
            own = {name: getattr(release, name) for name in _OWN}
            model.target = replace(target, title=_TITLE, source=_SOURCE, **own)
            fixing = {item.rule for item in found if item.match.fix is not None}
            for rule, match in _check(model, [rule for rule in rules if rule in fixing], problems):
                if match.fix is not None:
                    fixed.setdefault((rule.code, match.place, match.message), match)
                    fixed.setdefault((rule.code, match.place), match)
    finally:
        model.target = target
    joined = [_join(each, fixed.get(key) or fixed.get(key[:2]), target) for key, each in having.items()]
    order: dict[Node | None, int] = {node: number for number, node in enumerate(every_node(model))}
    return sorted(joined, key=lambda item: (item.rule.code, order.get(item.match.node, -1)))


def _join(having: dict[Target, Found], fixed: Match | None, target: Target) -> Found:
    """The finding of some releases, as severe as for any of them, with their names and a fix for all."""
    releases, items = [*having], [*having.values()]
    rule, match = items[0]
    both = together(releases)
    message = match.message.replace(_TITLE, both.title).replace(_SOURCE, both.source)
    if message == match.message and len(releases) < len(target.releases):
        message = f"{message} ({both.title})"
    match = fixed if fixed is not None and any(item.match.fix for item in items) else replace(match, fix=None)
    return Found(rule, replace(match, message=message, severity=max(item.severity for item in items)))


def _check(model: Model, rules: Sequence[Rule], problems: list[Problem] | None) -> list[Found]:
    found: list[Found] = []
    rules = _possible(model, rules)
    for rule in rules:
        deadline.check()
        if rule.per == "scope":
            for scope in model.scopes:
                found.extend(_run(rule, problems, scope, model))
        elif rule.per == "model":
            found.extend(_run(rule, problems, model))
    listening = _dispatch(model, rules)
    for node in every_node(model):
        deadline.check()
        for rule in listening[node.domain, node.op_type]:
            found.extend(Found(rule, match) for match in _matches(rule, problems, (node, model), node))
    return sorted(_reached(model, _without_repeated(found)), key=lambda item: item.rule.code)


def _possible(model: Model, rules: Sequence[Rule]) -> Sequence[Rule]:
    """The rules that can match a model of these element types."""
    if not any(rule.types for rule in rules):
        return rules
    present = elem_types(model)
    return [rule for rule in rules if not rule.types or not present.isdisjoint(rule.types)]


def _dispatch(model: Model, rules: Sequence[Rule]) -> dict[tuple[str, str], tuple[Rule, ...]]:
    """The rules to call for each of the model's operators."""
    by_op: dict[tuple[str, str], list[Rule]] = {}
    everywhere: list[Rule] = []
    for rule in rules:
        if rule.per == "node":
            for key in rule.ops:
                (everywhere if key == ("", "*") else by_op.setdefault(key, [])).append(rule)
    return {
        # A rule about a standard operator is not about a local function of the same name.
        key: (*(() if key[0] == "" and key in model.function_names else by_op.get(key, ())), *everywhere)
        for key in every_node(model).operators
    }


def _without_repeated(found: list[Found]) -> list[Found]:
    """The findings, each cause once: without those of general rules at nodes with a finding of at least the same
    severity, and with one of those of rules that are alike."""
    found = _without_alike(found)
    if not any(item.rule.general for item in found):
        return found
    worst: dict[Node, Severity] = {}
    for item in found:
        if not item.rule.general and item.match.node is not None:
            worst[item.match.node] = max(item.severity, worst.get(item.match.node, item.severity))
    return [
        item
        for item in found
        if not item.rule.general
        or item.match.node is None
        or item.match.node not in worst
        or worst[item.match.node] < item.severity
    ]


def _without_alike(found: list[Found]) -> list[Found]:
    """The findings, with one of those of rules that are alike at each place."""
    dropped: list[Found] = []
    for item in found:
        if item.rule.alike:
            place = item.match.place
            others = [one for one in found if one.rule.code in item.rule.alike and one.match.place == place]
            # The first one of the best: theirs before its own.
            best = min((*others, item), key=lambda one: (-one.severity, _safety(one)))
            dropped += [one for one in (*others, item) if others and one is not best]
    return [item for item in found if not any(item is one for one in dropped)] if dropped else found


def _safety(item: Found) -> int:
    """How safe the fix is, the safest first; those without one last."""
    return len(Safety) if item.match.fix is None else item.match.fix.safety


def _reached(model: Model, found: list[Found]) -> list[Found]:
    """The findings, with errors as warnings in places that the parser may never import: functions that no node calls,
    and branches that a constant condition does not take.
    """
    if not any(_inside(item, model) for item in found):
        return found
    reached = imported_nodes(model)
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
    problems: list[Problem] | None = None,
    *,
    reading: Reading | None = None,
    executed: Executed | None = None,
    checks: tuple[Checked, Checked] | None = None,
) -> list[Found]:
    """All matches of the rules that repeat the results of other tools, by rule code.

    The results are TensorRT's ``build`` and ``reading`` of the model, what its engine computed (``executed``), and
    ``checks``, those of onnx.checker for the original and the fixed model. None: the tool was not run.
    """
    arguments: dict[str, tuple[object, ...]] = {
        "build": (build,) if build is not None else (),
        "network": (reading,) if reading is not None else (),
        "execution": (executed,) if executed is not None else (),
        "validity": checks or (),
    }
    ordered = sorted(rules, key=lambda rule: rule.code)
    called = [(rule, given) for rule in ordered if (given := arguments.get(rule.per))]
    return [found for rule, given in called for found in _run(rule, problems, *given)]


def _run(rule: Rule, problems: list[Problem] | None, *arguments: object) -> list[Found]:
    return [Found(rule, match) for match in _matches(rule, problems, arguments)]


def _matches(
    rule: Rule, problems: list[Problem] | None, arguments: tuple[object, ...], node: Node | None = None
) -> list[Match]:
    """The rule's matches up to where something is unknown; none where it fails."""
    found: list[Match] = []
    try:
        for match in rule.generate(*arguments):
            found.append(match)
    except Unknown:
        return found
    except Exception as error:
        model = next((one for one in arguments if isinstance(one, Model)), None)
        _failed(rule, error, problems, model, node)
        return []
    return found


def _failed(
    rule: Rule,
    error: Exception,
    problems: list[Problem] | None,
    model: Model | None,
    node: Node | None = None,
) -> None:
    """Report that a rule raised, or raise again without ``problems``. A rule need not expect what ONNX does not allow:
    then the model is named, not the rule."""
    if isinstance(error, Unknown):
        return  # raised as a fix makes its edits
    if problems is None:
        raise error
    if model is not None and not isinstance(error, MemoryError) and (fault := _fault_of(model)):
        text = f"not ONNX: {fault}; rules that it confuses are left out"
        if not any(problem.source == "model" for problem in problems):
            problems.append(Problem(text, "", "model"))
        return
    if any(problem.rule == rule.code and problem.raised for problem in problems):
        return  # one line for each rule, not for each of ten thousand nodes
    where = f" at {node.place}" if node is not None else ""
    raised = " ".join(f"{type(error).__name__}: {error}".split())
    # several rules may call the same failing code
    if not any(problem.raised == raised for problem in problems):
        cause = "memory" if isinstance(error, MemoryError) else cause_of(raised) or "fault"
        text = f"rule {rule.code} failed{where}: {raised}"
        problems.append(Problem(text, cause, rule=rule.code, raised=raised))


def _fault_of(model: Model) -> str:
    """What the model has that ONNX does not allow, as far as that can be told."""
    try:
        return unsound(model)
    except Exception:  # what failed for the rule fails here
        return ""


def fix(
    model: Model,
    rules: Sequence[Rule],
    *,
    safety: Safety = Safety.EXACT,
    allow: Allow | None = None,
    max_rounds: int = MAX_ROUNDS,
) -> FixRun:
    """Apply the fixes that are allowed, in place, in rounds to a fixpoint.

    A round applies a non-conflicting set of fixes: none changes what another one reads or changes. ``allow`` decides
    which fixes may be applied at all. The same model, rules and decisions give the same bytes.
    """
    return _fix(_State(model, rules, allow), safety, max_rounds)


@dataclass
class _State:
    """A run so far. ``digests`` caches the hashes of the nodes until a fix changes them; ``counts`` are the fixes
    so far, by rule and place."""

    model: Model
    rules: Sequence[Rule]
    allow: Allow | None
    problems: list[Problem] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    digests: dict[Node, bytes] = field(default_factory=dict)
    counts: Counter[tuple[str, Place]] = field(default_factory=Counter)


def _fix(state: _State, safety: Safety, max_rounds: int) -> FixRun:
    model, problems = state.model, state.problems
    applied: list[Applied] = []
    nodes = model.node_count
    seen = {fingerprint(model, state.digests)}
    if hidden := find_hidden(model):
        problems.append(Problem(f"not ONNX: {hidden}; nothing is fixed", "", "model"))
    for number in range(1, max_rounds + 1):
        found = check(model, state.rules, problems)
        wanted = [f for f in found if f.match.fix is not None and f.match.fix.safety <= safety]
        wanted = [] if hidden else wanted
        done = _round(state, wanted, number)
        if not done:
            break
        applied.extend(done)
        mark = fingerprint(model, state.digests)
        if mark in seen:
            codes = sorted({item.key.code for item in done})
            text = f"the fixes of {', '.join(codes)} undo each other; stopped after round {number}"
            problems.append(Problem(text))
            break
        seen.add(mark)
    else:
        codes = sorted({item.key.code for item in applied[-50:]})
        text = f"no fixpoint after {max_rounds} rounds; the last fixes were of {', '.join(codes)}"
        problems.append(Problem(text))
    if done:  # stopped by a limit: the findings are older than the last round
        found = check(model, state.rules, problems)
    return FixRun(
        tuple(applied),
        tuple(found),
        number,
        tuple(dict.fromkeys(problems)),
        frozenset(state.names),
        nodes,
        model.node_count,
    )


def _round(state: _State, wanted: Sequence[Found], number: int) -> list[Applied]:
    """Apply a non-conflicting set of the wanted fixes; the others wait for the next round."""
    # `check` applies nothing.
    from onnxfix.rewrite.changes.footprint import held, rewired, touched  # lazy: start-up
    from onnxfix.rewrite.transaction import Transaction  # lazy: start-up

    done: list[Applied] = []
    refused: list[Problem] = []
    written: set[object] = set()
    read: set[object] = set()
    moved: set[object] = set()
    transaction = Transaction(state.model, hold_names=True)
    places = [item.match.place for item in wanted]  # before an edit renames what they name
    for item, place in zip(wanted, places, strict=True):
        deadline.check()
        match, remedy = item.match, item.match.fix
        assert remedy is not None
        reads = _reads(match)
        # First what can be decided without the edits: making them may read what another fix changed or removed.
        if not (_apart(reads, written, moved) and _apart(held(remedy.replaces), written, moved)):
            continue
        edits = _edits(item, remedy, state)
        if edits is None:
            continue
        writes, moves = touched(edits), rewired(edits)
        at = item.rule.code, place
        key = FixKey(*at, state.counts[at])
        free = _apart(writes, written, read, moved) and _apart(moves, written, read)
        if not free or (state.allow is not None and not state.allow(key)):
            continue
        try:
            refuse_misfit(state.model, edits)
            transaction.apply(edits, item.rule.code)
        except ShadowedError:
            continue  # the finding stays, without its fix
        except EditError as error:
            if _fault_of(state.model):
                continue
            text = f"{item.rule.code} at {place}: {error}"
            refused.append(Problem(text, rule=item.rule.code))
            continue
        written |= writes
        read |= reads
        moved |= moves
        state.counts[at] += 1
        done.append(Applied(key, remedy.title, match.message, remedy.safety, item.severity, number))
    transaction.close()
    state.names |= transaction.names
    for node in transaction.changed:
        state.digests.pop(node, None)
    if not done:  # refused for good, not because of another fix of this round
        state.problems.extend(refused)
    return done


def _apart(one: set[object], *others: set[object]) -> bool:
    return all(map(one.isdisjoint, others))


def _edits(item: Found, remedy: Fix, state: _State) -> tuple[Edit, ...] | None:
    """The edits of a fix; None if its rule raises while it makes them."""
    try:
        return remedy.edits
    except Exception as error:
        _failed(item.rule, error, state.problems, state.model, item.match.node)
        return None


def _reads(match: Match) -> set[object]:
    """What the match depends on: what it declares, its node, and that node's inputs with their producers."""
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
