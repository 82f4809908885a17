"""What a model takes: its inputs, the sizes and values that its operators demand, and examples that were run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import TensorProto

from onnxfix.sizes.ranges import Range, range_of
from onnxfix.verification.feeds import plan
from onnxfix.verification.feeds.signature import Signature, signature
from onnxfix.verification.ladder import verify
from onnxfix.verification.verdict import FeedResult


@dataclass(frozen=True)
class InputKind:
    """An input: its element type as ONNX writes it, its dimensions (sizes and symbols, None without a rank), whether it
    has a default, the values that the model compares it with, or that lie on the other side of a comparison, and in
    words the limits of what may be in it, as far as the graph shows them."""

    name: str
    type: str
    dims: tuple[int | str, ...] | None
    optional: bool
    values: tuple[int, ...]
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Way:
    """A way that the model takes for these ``values`` of inputs, with the sizes that it then demands."""

    values: dict[str, int]
    sizes: tuple[Range, ...]


@dataclass(frozen=True)
class Example:
    """Sizes and values, whether ONNX Runtime ran the model with them (None: it was not asked), and why not."""

    words: str
    ran: bool | None
    reason: str = ""


@dataclass(frozen=True)
class Intake:
    """What a model takes. ``examples`` are those that verification would begin with."""

    inputs: tuple[InputKind, ...]
    ways: tuple[Way, ...]
    examples: tuple[Example, ...]


def intake(path: Path) -> Intake:
    """What the model in a file takes. It is run, in a sandbox, where ONNX Runtime is installed.

    Raises:
        ModelError: the file holds no model.
    """
    known = signature(path)
    ways = tuple(way_of(known, pins) for pins in known.search.ways)
    return Intake(kinds_of(known), ways, _examples(path, known))


def kinds_of(known: Signature) -> tuple[InputKind, ...]:
    """The inputs."""
    return tuple(
        InputKind(
            one.name,
            TensorProto.DataType.Name(one.elem).lower() if one.kind == "tensor" and one.elem else one.kind,
            one.dims,
            one.default is not None,
            tuple(dict.fromkeys(pins[one.name] for pins in known.search.ways if one.name in pins)),
            tuple(dict.fromkeys(map(str, known.limits.get(one.name, ())))),
        )
        for one in known.inputs
    )


def way_of(known: Signature, pins: dict[str, int]) -> Way:
    """The sizes that a model takes where inputs have these values."""
    free = known.search.problem(pins).free
    # Different sizes, so that a size that is another's shows.
    typical = known.search.near({name: 3 + 2 * place for place, name in enumerate(free)}, pins=pins)
    other = known.search.near({name: 4 + 3 * place for place, name in enumerate(free)}, pins=pins)
    if typical is None:
        return Way(pins, tuple(Range(name, None) for name in free))
    return Way(pins, tuple(_range(known, pins, name, typical, other or typical) for name in free))


def _range(
    known: Signature, pins: dict[str, int], name: str, typical: dict[str, int], other: dict[str, int]
) -> Range:
    """The sizes of a symbol, and the symbols that they hang on: those of which another size changes them."""
    first, second = (_beside(known, pins, name, sizes) for sizes in (typical, other))
    if first.span == second.span:
        return first
    rest = [one for one in typical if one != name]
    for one in rest:
        if _is_only(first, typical[one]) and _is_only(second, other[one]):
            return replace(first, tied=(one,), always_same=True)
    moved = [one for one in rest if other[one] != typical[one]]
    alone = [
        one for one in moved if _beside(known, pins, name, {**typical, one: other[one]}).span != first.span
    ]
    return replace(first, tied=tuple(alone or moved))


def _is_only(found: Range, size: int) -> bool:
    return found.least == found.most == size


def _beside(known: Signature, pins: dict[str, int], name: str, sizes: dict[str, int]) -> Range:
    """The sizes of a symbol where all others have these: known as they are, more is known of it."""
    rest = {other: size for other, size in sizes.items() if other != name}
    found = range_of(known.search.problem(pins), name, sizes)
    closer = range_of(known.search.problem(pins, rest), name, {})
    return found if _says_nothing(closer) else closer


def _says_nothing(one: Range) -> bool:
    return one.least is None or (one.least <= 1 and one.most is None and one.step == 1)


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
    """The sizes of a feed, in words."""
    return plan.sizes_in_words(feed.assignment if feed is not None else {}) or "as declared"
