"""The inputs that a model accepts: sizes and values that its operators require, and examples that were run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnxfix.files import dtypes
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.signature import Signature, signature
from onnxfix.inputs.sizes.demands import Kind
from onnxfix.inputs.sizes.problem import Problem
from onnxfix.inputs.sizes.search import Range, range_of
from onnxfix.proof.verdict import FeedResult
from onnxfix.proof.verify import verify
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
    """The sizes of a feed, as text."""
    return plan.sizes_in_words(feed.assignment if feed is not None else {}) or "as declared"
