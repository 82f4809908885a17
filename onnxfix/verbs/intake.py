"""The inputs that a model accepts: sizes and values that its operators require, and examples that were run.

After a run that proved nothing: the node at which a model stops that accepts no generated inputs, the node's
requirements, and a remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfix.errors import ModelError
from onnxfix.files import dtypes, walk
from onnxfix.graph.overlay import Node, Value
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import shape_of
from onnxfix.inputs.feeds.signature import Assignment, Input, Signature, signature
from onnxfix.inputs.sizes.demands import Demand, Kind, bounds
from onnxfix.inputs.sizes.operators import demanded
from onnxfix.inputs.sizes.problem import Problem
from onnxfix.inputs.sizes.search import Range, range_of
from onnxfix.model import Model
from onnxfix.place import Place
from onnxfix.proof.verdict import FeedResult, Verdict
from onnxfix.proof.verify import verify
from onnxfix.runtime.backends import ort_messages
from onnxfix.shapes.algebra.dim import from_sum, text_of


@dataclass(frozen=True)
class InputKind:
    """An input: its element type by ONNX's name, its dimensions (sizes and symbols, None without a rank), whether it
    has a default, values on both sides of the model's comparisons with it, and the known limits of its elements, as
    text."""

    name: str
    type: str
    dims: tuple[int | str, ...] | None
    optional: bool
    values: tuple[int, ...]
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Way:
    """A path through the model for these ``values`` of inputs, with the sizes that it requires, and ``conditions``
    between them, as text."""

    values: dict[str, int]
    sizes: tuple[Range, ...]
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Example:
    """Sizes and values, whether ONNX Runtime ran the model with them (None: it was not tried), and why not."""

    words: str
    ran: bool | None
    reason: str = ""


@dataclass(frozen=True)
class Intake:
    """The inputs that a model accepts. ``examples`` are those that verification starts with."""

    inputs: tuple[InputKind, ...]
    ways: tuple[Way, ...]
    examples: tuple[Example, ...]


def intake(path: Path) -> Intake:
    """The inputs that the model in a file accepts. It is run in a sandbox if ONNX Runtime is installed.

    Raises:
        ModelError: the file is not a model.
    """
    known = signature(path)
    ways = tuple(way_of(known, pins) for pins in known.search.ways)
    return Intake(kinds_of(known), ways, _examples(path, known))


def kinds_of(known: Signature) -> tuple[InputKind, ...]:
    """The inputs."""
    return tuple(
        InputKind(
            one.name,
            dtypes.name_of(one.elem) if one.kind == "tensor" and one.elem else one.kind,
            one.dims,
            one.default is not None,
            tuple(dict.fromkeys(pins[one.name] for pins in known.search.ways if one.name in pins)),
            tuple(dict.fromkeys(map(str, known.limits.get(one.name, ())))),
        )
        for one in known.inputs
    )


def way_of(known: Signature, pins: dict[str, int]) -> Way:
    """The sizes that a model accepts when inputs have these values."""
    problem = known.search.problem(pins)
    free, between = problem.free, _conditions(problem)
    # All different, so that sizes that must be equal show.
    typical = known.search.near({name: 3 + 2 * place for place, name in enumerate(free)}, pins=pins)
    other = known.search.near({name: 4 + 3 * place for place, name in enumerate(free)}, pins=pins)
    if typical is None:
        return Way(pins, tuple(Range(name, None) for name in free), between)
    return Way(pins, tuple(_range(known, pins, name, typical, other or typical) for name in free), between)


def _conditions(problem: Problem) -> tuple[str, ...]:
    """The inequalities between sizes: ``total must be at least past + seq``."""
    found: dict[str, None] = {}
    for term in (one.term for one in problem.demands):
        if term.kind is Kind.AT_LEAST and term.symbols.issubset(problem.symbols):
            parts = (term.left - term.right).terms
            left, right = (
                from_sum({mono: sign * factor for mono, factor in parts if sign * factor > 0})
                for sign in (1, -1)
            )
            if left.symbols and right.symbols:
                found[f"{text_of(left)} must be {term.kind} {text_of(right)}"] = None
    return tuple(found)


def _range(
    known: Signature, pins: dict[str, int], name: str, typical: dict[str, int], other: dict[str, int]
) -> Range:
    """The sizes of a symbol, and the symbols that they depend on: those that change them."""
    first, second = (_range_given(known, pins, name, sizes) for sizes in (typical, other))
    if first.span == second.span:
        return first
    rest = [one for one in typical if one != name]
    for one in rest:
        if first.least == first.most == typical[one] and second.least == second.most == other[one]:
            return replace(first, tied=(one,), always_same=True)
    moved = [one for one in rest if other[one] != typical[one]]
    alone = [
        one
        for one in moved
        if _range_given(known, pins, name, {**typical, one: other[one]}).span != first.span
    ]
    return replace(first, tied=tuple(alone or moved))


def _range_given(known: Signature, pins: dict[str, int], name: str, sizes: dict[str, int]) -> Range:
    """The sizes of a symbol when all others have these: with them fixed, more may be known about it."""
    rest = {other: size for other, size in sizes.items() if other != name}
    closer = range_of(known.search.problem(pins, rest), name, {})
    if closer.least is None or (closer.least <= 1 and closer.most is None and closer.step == 1):  # no limit
        return range_of(known.search.problem(pins), name, sizes)
    return closer


def _examples(path: Path, known: Signature) -> tuple[Example, ...]:
    verdict = verify(path, path, exact=True, rungs=("ort-cpu",))
    rung = verdict.rung("ort-cpu")
    feeds: Sequence[FeedResult] = rung.feeds if rung is not None else ()
    if not feeds:
        sweep = plan.feeds(known, plan.assignments(known, {}), 0, exact=True)
        return tuple(dict.fromkeys(Example(_sizes(one), None) for one in sweep))
    found: dict[str, Example] = {}
    for one in feeds:
        words = _sizes(one.feed)
        ran = one.status != "not counted"
        if words not in found or (ran and not found[words].ran):
            found[words] = Example(words, ran, "" if ran else one.reason)
    return tuple(found.values())


def _sizes(feed: plan.Feed | None) -> str:
    return plan.sizes_in_words(feed.assignment if feed is not None else {}) or "as declared"


_SHOWN = 3  # requirements of a node that are shown


@dataclass(frozen=True)
class Needed:
    """A requirement of a node, as text, and the inputs whose values it depends on; no inputs if it depends only on
    sizes."""

    words: str
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stopped:
    """The node at which ONNX Runtime stops in the original: its place and operator ("" if unknown).

    ``said`` is ONNX Runtime's message, ``feed`` the label of the feed, ``fed`` its sizes. ``needed`` are the node's
    requirements, and ``sizes`` the known limits of the sizes in them. ``shapes`` is a value for ``--input-shapes`` with
    ``?`` for the size that only the user knows; it has the feed's sizes if no valid sizes are known, and is "" if no
    size helps. If values are missing, a file for ``--inputs`` must hold ``inputs``. ``loaded`` is False if the model
    cannot be loaded, so that no inputs help. ``gap``: ONNX Runtime lacks something; the model has no fault.
    """

    place: Place
    op_type: str
    said: str
    feed: str = ""
    needed: tuple[Needed, ...] = ()
    sizes: tuple[Range, ...] = ()
    shapes: str = ""
    inputs: tuple[InputKind, ...] = ()
    loaded: bool = True
    gap: bool = False
    fed: Mapping[str, int] = field(default_factory=dict)


def find_stop(
    path: Path, proto: ModelProto, verdict: Verdict, pinned: Mapping[str, Any] | None = None
) -> Stopped | None:
    """Find where ONNX Runtime stops in the original (``proto``, stored in ``path``), after a verdict that proves
    nothing; None if the place is unknown. ``pinned`` are inputs with fixed values."""
    rung = verdict.rung("ort-cpu")
    if verdict.passed or verdict.failed or rung is None or rung.status != "skipped":
        return None
    if rung.stopped == "original":
        said = ort_messages.without_status(ort_messages.reason(rung.said)) or rung.reason
        gap = ort_messages.is_gap(rung.said) or ort_messages.is_unregistered(rung.said)
        return Stopped(Place(), "", said, loaded=False, gap=gap)
    refused = [one for one in rung.feeds if one.stopped == "original"]
    full = [one for one in refused if one.feed is not None and 0 not in one.feed.assignment.values()]
    if not refused:
        return None
    finder = _Finder(path, proto, dict(pinned or {}), (full or refused)[0])
    return replace(finder.find(), fed=dict(finder.sizes))


class _Finder:
    """Finds the node of a model at which a feed stops, and what would help."""

    def __init__(self, path: Path, proto: ModelProto, pinned: dict[str, Any], refused: FeedResult) -> None:
        self.path, self.pinned, self.refused = path, pinned, refused
        self.known: Signature = signature(proto)
        self.message = refused.said
        self.sizes: Assignment = dict(refused.feed.assignment) if refused.feed is not None else {}

    def find(self) -> Stopped:
        """Find the node, and what would help, as far as known."""
        said, feed = ort_messages.reason(self.message) or self.refused.reason, self.refused.label
        symbols, node = set(self.known.symbols), self._node()
        if node is None:
            return Stopped(Place(), "", said, feed, shapes=self._shape(symbols), inputs=self._inputs())
        demands = self._demands(node)
        chosen = {name for one in demands for name in one.term.symbols} & symbols
        # A demand on a size that is not an input's size depends on the values of inputs.
        by_sizes = [one.term.symbols <= symbols for one in demands]
        needed = [
            Needed(str(one), () if direct else _sources(node.inputs))
            for one, direct in zip(demands, by_sizes, strict=True)
        ]
        sources = {name for one in needed for name in one.inputs}
        needed += [Needed(str(one), _sources([one.value])) for one in bounds(node)]
        by_value = not demands or any(one.inputs for one in needed)
        their_dims = {str(dim) for one in self.known.inputs if one.name in sources for dim in one.dims or ()}
        # The feed's values of the inputs that select a path through the model.
        values = {
            name.removesuffix(".value"): size for name, size in self.sizes.items() if name.endswith(".value")
        }
        pins = next((pins for pins in self.known.search.ways if pins == values), {})
        result = Stopped(
            node.at,
            node.op_type,
            said,
            feed,
            tuple(needed),
            tuple(one for one in way_of(self.known, pins).sizes if one.symbol in chosen),
            self._shape(chosen or their_dims & symbols or (() if needed else symbols)),
            self._inputs() if by_value else (),
        )
        if any(one.least is None for one in result.sizes):
            result = replace(result, shapes=",".join(self._fed(one) for one in self._inputs() if one.dims))
        hopeless = any(one.term.decided is False for one in demands)
        return replace(result, sizes=(), shapes="", inputs=()) if hopeless else result

    def _node(self) -> Node | None:
        about = ort_messages.node(self.message)
        if about is None:
            return None
        copy = walk.copied(self.known.model)
        try:
            model = Model(copy, self.path.parent)
        except ModelError:
            return None
        op_type, name = about
        alike = [node for node in model.nodes() if node.op_type == op_type]
        named = [node for node in alike if name and node.name == name]
        return next((nodes[0] for nodes in (named, alike) if len(nodes) == 1), None)

    def _demands(self, node: Node) -> list[Demand]:
        """The node's demands that the feed violates; if there are none, the demands that cannot be decided."""
        found = [
            Demand(term, node.place, node.op_type, about)
            for about, term in demanded(node)
            if term.decided is not True and term.holds(self.sizes) is not True
        ]
        broken = [one for one in found if one.term.holds(self.sizes) is False]
        return list(dict.fromkeys(broken or found))[:_SHOWN]

    def _shape(self, symbols: Iterable[str]) -> str:
        """The input that has one of these symbols at the last axis, with ``?`` for its size; "" if no input has any."""
        wanted = set(symbols)
        places = [
            (axis, one, dim)
            for one in self.known.inputs
            for axis, dim in enumerate(one.dims or ())
            if isinstance(dim, str) and dim in wanted and one.name not in self.pinned
        ]
        if not places:
            return ""
        _, one, unknown = max(places, key=lambda place: place[0])
        return self._fed(one, unknown)

    def _fed(self, one: Input | InputKind, unknown: int | str = "") -> str:
        """An input with its shape in the feed; ``?`` replaces the dimension ``unknown``."""
        sizes = zip(one.dims or (), shape_of(self.known, self.known[one.name], self.sizes), strict=True)
        return f"{one.name}:{'x'.join('?' if dim == unknown else str(size) for dim, size in sizes)}"

    def _inputs(self) -> tuple[InputKind, ...]:
        return tuple(one for one in kinds_of(self.known) if not one.optional and one.name not in self.pinned)


def _sources(values: Sequence[Value | None]) -> tuple[str, ...]:
    """The graph inputs from which these values are computed."""

    def before(value: Value) -> Iterator[Value]:
        node = value.producer or value.scope.owner
        if node is not None:
            yield from (one for one in node.inputs if one is not None)
            yield from (one for scope in node.subgraphs for one in scope.captures())

    seen = walk.reached((one for one in values if one is not None), before)
    main = next((one.scope.model.main for one in seen), None)
    return tuple(one.name for one in main.inputs if one in seen) if main is not None else ()
