"""Which shapes to verify at, and with which kind of data."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds.inputs import Kind, make_inputs, shape_of
from onnxfix.inputs.feeds.signature import FLOATS, Assignment, Input, Signature

#: Distinct sizes, so that a mix-up of two dimensions shows. They repeat: thirty symbols must not make huge tensors.
_MIXED = (3, 5, 7, 4, 6)
#: Sizes for dimensions that a model wants larger (an image, a window), tried in this order.
_GROWN = (4, 8, 16, 32, 64, 128, 224)
#: The same for signals: inputs with one free dimension after the leading one.
_LONG = (512, 2048, 8192, 32768)
_MILD: tuple[Kind, ...] = ("normal", "small", "ones")
Shapes = Sequence[str] | Mapping[str, Sequence[int]]
_NUMBERS = r"-?\d+(?:\s*[,x]\s*-?\d+)*"
_SHAPE = rf"\[\s*(?:{_NUMBERS})?\s*\]|{_NUMBERS}|"


@dataclass(frozen=True)
class Feed:
    """One test: sizes for the symbols, a kind of data and a seed. ``override`` feeds the inputs with defaults; ``gain``
    and ``turn`` go to ``make_inputs``. ``last`` is the kind of data of the batch's last item, if it is
    another one. ``has_batch`` says which models have a batch."""

    assignment: Assignment
    kind: Kind
    seed: int
    override: bool = False
    gain: float = 1.0
    turn: int = 0
    last: Kind | None = None

    @property
    def label(self) -> str:
        """For people: ``batch=2, seq=3; normal values; seed 1``."""
        sizes = sizes_in_words(self.assignment)
        more = "; defaults overridden" if self.override else ""
        times = f" times {self.gain:.3g}" if self.gain != 1.0 else ""
        last = f", {self.last} ones in the batch's last item" if self.last is not None else ""
        return f"{sizes + '; ' if sizes else ''}{self.kind} values{times}{last}; seed {self.seed}{more}"

    def kinds(self) -> tuple[Kind, ...]:
        """All kinds of data that it has."""
        return (self.kind,) if self.last is None else (self.kind, self.last)

    def values(self, signature: Signature) -> dict[str, Any]:
        """The inputs of a model. Raises UsageError if they cannot be made, and MemoryError."""
        inputs = make_inputs(
            signature,
            self.assignment,
            self.seed,
            kind=self.kind,
            override=self.override,
            gain=self.gain,
            turn=self.turn,
        )
        if self.last is None:
            return inputs
        other = make_inputs(signature, self.assignment, self.seed, kind=self.last)
        return {name: np.concatenate([value[:-1], other[name][-1:]]) for name, value in inputs.items()}


def sizes_in_words(sizes: Mapping[str, int]) -> str:
    """For people: ``batch=2, seq=3``."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def size(value: Any) -> int:
    """Elements of an input's value; the tensors of a sequence may have different shapes."""
    if isinstance(value, (list, tuple)):
        return sum(map(size, value))
    return 0 if value is None else int(np.size(value))


def elements(signature: Signature, assignment: Assignment) -> int:
    """How many elements all inputs have under an assignment."""
    sizes = ([signature.size(dim, assignment) or 2 for dim in info.dims or ()] for info in signature.inputs)
    return sum(math.prod(shape) for shape in sizes)


def parse_shapes(
    specs: Sequence[str] | str | Mapping[str, Sequence[int]], names: Sequence[str], *, signed: bool = False
) -> dict[str, tuple[int, ...]]:
    """Read shapes of inputs: ``x:[1,3]``, ``x:1,3``, ``x:1x3``. A text may hold several, separated by commas.
    A mapping already has shapes.

    ``names`` are the model's inputs; a name may itself hold a colon. ``x:[]`` and ``x:`` are scalars. ``signed``
    allows negative numbers: the text may hold values.
    Raises UsageError for an unknown input, an input with two shapes, or a text that is not a shape.
    """
    if isinstance(specs, Mapping):
        return {name: tuple(shape) for name, shape in specs.items()}
    shapes_by_name: dict[str, tuple[int, ...]] = {}
    for spec in [specs] if isinstance(specs, str) else specs:
        pairs = _split(spec.strip(), names)
        if pairs is None or not (signed or all(size >= 0 for _, shape in pairs for size in shape)):
            raise UsageError(
                f"cannot read the input shape '{spec}': write name:[1,3], name:1,3 or name:1x3;"
                f" the model's inputs are {', '.join(names) or 'none'}"
            )
        for name, shape in pairs:
            if shapes_by_name.setdefault(name, shape) != shape:
                raise UsageError(f"input {name} is given two shapes: {shapes_by_name[name]} and {shape}")
    return shapes_by_name


def _split(text: str, names: Sequence[str]) -> list[tuple[str, tuple[int, ...]]] | None:
    """The names and shapes in a text; None if it cannot be read. A shape ends where the next name begins."""
    name = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    pairs = []
    for part in re.split(f",(?=(?:{name}):)", text):
        match = re.fullmatch(f"({name}):({_SHAPE})", part, re.ASCII)
        if match is None or not match[1]:
            return None
        pairs.append((match[1], tuple(int(number) for number in re.findall(r"-?\d+", match[2]))))
    return pairs


def bind_shapes(signature: Signature, shapes: Mapping[str, Sequence[int]]) -> Assignment:
    """The symbols that input shapes fix. Raises UsageError if they contradict the model or each other."""
    bound: Assignment = {}
    for name, shape in shapes.items():
        if name not in signature.names:
            raise UsageError(
                f"the model has no input {name}; its inputs are {', '.join(signature.names) or 'none'}"
            )
        declared = signature[name]
        if declared.dims is None:
            bound[f"{name}.rank"] = len(shape)
            bound.update({f"{name}.{axis}": size for axis, size in enumerate(shape)})
            continue
        wanted = list(declared.dims)
        if len(shape) != len(wanted):
            raise UsageError(f"input {name} has rank {len(wanted)} {wanted}, got shape {list(shape)}")
        for axis, (dim, size) in enumerate(zip(wanted, shape, strict=True)):
            if isinstance(dim, int) and dim != size:
                raise UsageError(f"input {name} has size {dim} in dimension {axis}, got shape {list(shape)}")
            if (
                isinstance(dim, str)
                and signature.size(dim, {}) is None
                and bound.setdefault(dim, size) != size
            ):
                raise UsageError(f"dimension {dim} of input {name} is {size}, but {bound[dim]} elsewhere")
    for name, shape in shapes.items():  # sizes such as ``past + 1`` must agree with the other sizes
        for dim, size in zip(signature[name].dims or (), shape, strict=False):
            others = {symbol: other for symbol, other in bound.items() if symbol != dim}
            due = signature.size(dim, others) if isinstance(dim, str) else None
            if due is not None and due != size:
                raise UsageError(f"dimension {dim} of input {name} is {size}, but must be {due}")
    return bound


def bind_sizes(known: Signature, shapes: Shapes) -> Assignment:
    """The same, of shapes as the user gives them."""
    return bind_shapes(known, parse_shapes(shapes, known.names))


def assignments(signature: Signature, fixed: Mapping[str, int]) -> list[Assignment]:
    """The shape sweep: every symbol 1, every symbol 2, distinct larger values, and the first two 0 in turn.

    If the model rejects sizes, the nearest sizes that it accepts replace them; a rejected 0 is left out.
    Input values that select a branch of the model take turns over the assignments. A model with static shapes
    gets one empty assignment. ``fixed`` symbols keep their size.
    """
    free = _free(signature, fixed)
    base = {**_demands(signature), **fixed}
    if not free:
        return [{**base, **_pinned(pins)} for pins in signature.search.ways]
    mixed = {name: _MIXED[place % len(_MIXED)] for place, name in enumerate(free)}
    wishes: list[Assignment] = [dict.fromkeys(free, 1), dict.fromkeys(free, 2), mixed]
    wishes += [{**mixed, name: 0} for name in free[:2]]
    sweep: list[Assignment] = []
    for number, wish in enumerate(wishes):
        assignment = _accepted_sizes(signature, {**wish, **base}, fixed, number)
        if assignment in sweep:
            assignment = _accepted_sizes(
                signature, {**{name: 2 * assignment[name] + 1 for name in free}, **base}, fixed, number
            )
        if assignment is not None and assignment not in sweep:
            sweep.append(assignment)
    return sweep or [{**wishes[0], **base}]


def _accepted_sizes(
    signature: Signature, wish: Assignment, fixed: Mapping[str, int], turn: int
) -> Assignment | None:
    """The sizes nearest to ``wish`` that the model accepts, and the input values of this ``turn``.

    If no sizes are known to fit, the wished ones: the demands may come from nodes that do not matter. None if
    the model rejects a wished 0.
    """
    pins = signature.search.ways[turn % len(signature.search.ways)]
    zeros = {name: 0 for name, size in wish.items() if size == 0 and name not in fixed}
    nearest = signature.search.near(wish, {**zeros, **fixed}, pins)
    if nearest is None and zeros:
        return None
    return {**wish, **(nearest or {}), **_pinned(pins)}


def _pinned(pins: Mapping[str, int]) -> Assignment:
    return {f"{name}.value": value for name, value in pins.items()}


def grown(signature: Signature, fixed: Mapping[str, int]) -> Iterator[Assignment]:
    """Assignments for a model that rejects the sweep, in the order in which to try them: first equal sizes for
    dimensions at the same axis, then larger ones for all but the leading dimensions, then for these as well."""
    free, place = _free(signature, fixed), _places(signature)
    free_axes = [sum(dim in free for dim in (info.dims or ("", ""))[1:]) for info in signature.inputs]
    signals = max(free_axes, default=0) == 1  # two long dimensions would make a large tensor
    wishes: list[Sequence[int]] = [(2, 3, 4, 5), (1, 2, 2, 2), (3, 7, 6, 5)]
    for size in (*_GROWN, *(_LONG if signals else ())):
        wishes += [(batch, size, size, size) for batch in (2, 1)]
    wishes += [(size,) * 4 for size in _GROWN[:4]]
    base = {**_demands(signature), **fixed}
    for turn, sizes in enumerate(wishes if free else ()):
        wish = {name: sizes[place.get(name, 0) % 4] for name in free}
        assignment = _accepted_sizes(signature, {**wish, **base}, fixed, turn)
        if assignment is not None:
            yield assignment


def feeds(
    signature: Signature, sweep: Sequence[Assignment], seed: int, exact: bool, *, large: bool = False
) -> list[Feed]:
    """Plan the feeds: each assignment once, every kind of data at least once, and small inputs often.

    With ``exact``, there are feeds at the limits of the types as well; with ``large``, one of magnitudes whose squares
    and sums exceed half precision's largest number. Models without inputs run once.
    """
    if not signature.inputs:
        return [Feed(sweep[0], "normal", seed)]
    kinds: list[Kind] = ["normal", "normal", "edge"]
    plan = list(zip(sweep if len(sweep) > 1 else [*sweep] * 3, itertools.cycle(kinds), strict=False))
    full = wide(signature, sweep)
    hard: Kind = "extreme" if exact else "edge"
    # One feed of a few elements would miss most of the edge values.
    few = max(math.prod(shape_of(signature, info, full)) for info in signature.inputs) < 64
    plan += [(full, hard)] * (3 if few else 1 if exact or len(sweep) > 1 else 0)
    if large and any(info.elem in FLOATS for info in signature.inputs):
        plan.append((full, "large"))
    planned = [Feed(sizes, kind, seed + number) for number, (sizes, kind) in enumerate(plan)]
    if any(signature.may_override(info) for info in signature.inputs):
        planned.append(Feed(planned[1].assignment, "normal", seed + len(planned), override=True))
    return planned


def list_sizes(known: Signature, shapes: Shapes) -> list[Assignment]:
    """Sizes of the model's symbols to try, some of which the user may have fixed by shapes of inputs.

    Raises:
        UsageError: the shapes do not fit the model.
    """
    return assignments(known, bind_sizes(known, shapes))


def generate_mild(known: Signature, shapes: Shapes, seed: int) -> Iterator[Mapping[str, Any]]:
    """Mixed sizes first, then milder values, until the model accepts some."""
    sizes = list_sizes(known, shapes)
    order = [sizes[min(2, len(sizes) - 1)], *sizes]
    for kind in _MILD:
        for number, one in enumerate(order):
            try:
                yield Feed(one, kind, seed + number).values(known)
            except MemoryError:
                continue


def generate_large(known: Signature, shapes: Shapes, seed: int, count: int) -> Iterator[Mapping[str, Any]]:
    """``count`` samples, of larger sizes first: they show more values. Then some of sizes that the model may need."""
    every = list_sizes(known, shapes)
    sizes = [
        one for one in every if all(size or name.endswith(".value") for name, size in one.items())
    ] or every
    sizes.reverse()
    more = list(grown(known, bind_sizes(known, shapes)))
    for number, one in enumerate([*itertools.islice(itertools.cycle(sizes), count), *more]):
        yield Feed(one, "normal", seed + number).values(known)


def quantized(signature: Signature, sizes: Assignment, seed: int, gain: float = 1.0) -> list[Feed]:
    """Feeds around the limits of the model's quantizers: none, one, or two if an input has fewer elements
    than points to test. ``gain`` is the factor for inputs that feed inner quantizers."""
    points = signature.quantizers.points
    if not points and gain == 1.0:
        return []
    room = {name: math.prod(shape_of(signature, signature[name], sizes)) for name in points}
    few = any(0 < room[name] < len(values) for name, values in points.items())
    return [Feed(sizes, "quantized", seed + turn, gain=gain, turn=turn) for turn in range(1 + few)]


def hardest(planned: Sequence[Feed]) -> Kind:
    """The kind of the hardest planned values."""
    return "extreme" if any(feed.kind == "extreme" for feed in planned) else "edge"


def has_batch(signature: Signature, assignment: Assignment, fixed: Mapping[str, int]) -> bool:
    """Whether all inputs have the same leading symbol, its size is at least 2, and all other symbols are
    ``fixed``."""
    leading = {info.dims[0] if info.kind == "tensor" and info.dims else None for info in signature.inputs}
    batch = leading.pop() if len(leading) == 1 else None
    plain = not signature.pinned and all(info.default is None for info in signature.inputs)
    return (
        plain
        and isinstance(batch, str)
        and assignment.get(batch, 0) > 1
        and _free(signature, fixed) == [batch]
    )


def thrifty(signature: Signature, mixed: Assignment, fixed: Mapping[str, int]) -> Assignment:
    """The ``mixed`` sizes with leading sizes of 1, which makes runs cheap; {} if the model accepts none."""
    place = _places(signature)
    wish = {name: 1 if place.get(name) == 0 else size for name, size in mixed.items()}
    return _accepted_sizes(signature, {**wish, **_demands(signature), **fixed}, fixed, 2) or {}


def wide(signature: Signature, sweep: Sequence[Assignment]) -> Assignment:
    """The assignment of mixed sizes, with a larger first symbol: room for all edge values."""
    mixed = sweep[min(2, len(sweep) - 1)]
    # A size that is the same in all assignments is fixed.
    varied = [name for name in signature.symbols if len({assignment.get(name) for assignment in sweep}) > 1]
    first = next((name for name in varied if mixed.get(name) == _MIXED[0]), None)
    return {**mixed, first: 16} if first is not None and len(sweep) > 1 else mixed


def _free(signature: Signature, fixed: Mapping[str, int]) -> list[str]:
    """The symbols whose sizes neither the user nor an operator fixes, axes of inputs without a rank included."""
    demanded = _demands(signature)
    free = [name for name in signature.symbols if name not in fixed and name not in demanded]
    for info in signature.inputs:
        if info.dims is None and info.kind == "tensor" and f"{info.name}.rank" not in fixed:
            free += [str(name) for name in _list_dims(signature, info) if name not in demanded]
    return free


def _list_dims(signature: Signature, info: Input) -> Sequence[int | str]:
    """The dimensions of an input; made-up names if it declares no rank."""
    rank = signature.roles[info.name].rank or 2
    return info.dims if info.dims is not None else [f"{info.name}.{axis}" for axis in range(rank)]


def _demands(signature: Signature) -> Assignment:
    """Sizes that operators demand of symbols, and ranks for inputs that declare none."""
    demanded: Assignment = {}
    for info in signature.inputs:
        dims = _list_dims(signature, info)
        if info.dims is None and info.kind == "tensor":
            demanded[f"{info.name}.rank"] = len(dims)
        for axis, size in signature.roles[info.name].wants.items():
            dim = dims[axis] if -len(dims) <= axis < len(dims) else None
            if isinstance(dim, str) and size > 0:
                demanded.setdefault(dim, size)
    return demanded


def _places(signature: Signature) -> dict[str, int]:
    """Symbol -> the first axis that it is the size of."""
    places: dict[str, int] = {}
    for info in signature.inputs:
        for axis, dim in enumerate(_list_dims(signature, info)):
            if isinstance(dim, str):
                places.setdefault(dim, axis)
    return places
