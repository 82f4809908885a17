"""Broadcasts of two dimensions that may be neither equal nor 1, and how they depend on the batch size.

Symbols that algebra cannot decide are decided by examples: the dimensions are evaluated at several assignments, and a
conflict counts only if it occurs in all of them. So ``S`` against ``min(S, 512)`` and ``H`` against ``4 * floor(H /
4)`` are not reported, although they fail at some sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from onnxfix.rule import Dim, Model, Node, UnknownAttribute, equal, every_node, shared
from onnxfix.shapes.symbols import broadcast as broadcast_dims
from onnxfix.shapes.symbols import evaluate, substitute, symbol

from ._common import BROADCASTING, Broadcast, Form, Operand, broadcast_of, form_of, is_static_one, text

SCALES = (
    (2, 3, 5, 7, 11, 13),
    (88, 104, 136, 152, 184, 232),
    (5040 * 11, 5040 * 13, 5040 * 17, 5040 * 19, 5040 * 23, 5040 * 29),
)
"""Sizes for up to five symbols: small ones, multiples of 8, and multiples of every number up to 10. Each row
has six distinct sizes, so that one can be skipped if the other side has the same static size."""


class Meeting(NamedTuple):
    """Dimension ``a`` of ``first`` and ``b`` of ``second`` at one axis of the result."""

    broadcast: Broadcast
    axis: int
    first: Operand
    second: Operand
    a: Dim
    b: Dim

    @property
    def key(self) -> frozenset[str]:
        """Equal for all broadcasts of these two dimensions."""
        return frozenset((str(self.a), str(self.b)))

    @property
    def is_static(self) -> bool:
        """Whether both sizes are known."""
        return self.a.value is not None and self.b.value is not None

    def fits(self, env: Mapping[str, int]) -> bool | None:
        """Whether the operator works at this assignment; None if the sizes are unknown."""
        a, b = evaluate(self.a, env), evaluate(self.b, env)
        if a is None or b is None:
            return None
        return a == b or (a == 1 and self.first.stretches) or (b == 1 and self.second.stretches)


def meetings(broadcast: Broadcast) -> Iterator[Meeting]:
    """All undecided meetings of one node. On each axis, the first size that is not 1 meets all later ones."""
    for axis, (first, a), (second, b) in _open_pairs(broadcast):
        yield Meeting(broadcast, axis, first, second, a, b)


_Side = tuple[Operand, Dim]


def _open_pairs(broadcast: Broadcast | Form) -> Iterator[tuple[int, _Side, _Side]]:
    for axis in range(broadcast.rank):
        first: _Side | None = None
        for operand in broadcast.operands:
            dim = broadcast.dim(operand, axis)
            if dim is None or (is_static_one(dim) and operand.stretches):
                continue
            if first is None:
                first = (operand, dim)
            elif not is_static_one(dim) and not equal(first[1], dim).yes:
                yield axis, first, (operand, dim)


class _Answers(NamedTuple):
    """``is_open``: has meetings; ``crosses``: has crossings; ``has_single``: a single sample meets a batch."""

    is_open: bool
    crosses: bool
    has_single: bool


class Symbols:
    """The symbols of a model's inputs, and which of them are batch sizes."""

    def __init__(self, model: Model) -> None:
        self.known: set[str] = set()
        leading: set[str] = set()
        inner: set[str] = set()
        for value in model.main.inputs:
            shape = model.shapes.shape(value)
            for axis, dim in enumerate(shape or ()):
                self.known |= dim.symbols
                (inner if axis else leading).update(dim.symbols)
        self.batch = frozenset(leading - inner)
        """Symbols of axis 0 of graph inputs that occur at no other axis of an input."""
        self._forms: dict[Form, _Answers] = {}

    def answers(self, form: Form) -> _Answers:
        """Properties of all broadcasts of this form."""
        answers = self._forms.get(form)
        if answers is None:
            answers = self._forms[form] = _Answers(
                is_open=any(True for _ in _open_pairs(form)),
                crosses=any(True for _ in crossings(form, self)),
                has_single=self._has_single(form),
            )
        return answers

    def _has_single(self, form: Form) -> bool:
        leading = [dim for operand in form.operands if (dim := form.dim(operand, 0)) is not None]
        return any(map(self.batch_symbol, leading)) and any(map(is_static_one, leading))

    def batch_symbol(self, dim: Dim | None) -> str | None:
        """The symbol of a dimension that is exactly a batch size, or None."""
        if dim is None or len(dim.symbols) != 1:
            return None
        (name,) = dim.symbols
        return name if name in self.batch and symbol(name) is dim else None

    def environments(self, meeting: Meeting) -> list[dict[str, int]]:
        """Assignments to try; empty if a symbol does not come from an input, or if there are too many."""
        names = meeting.a.symbols | meeting.b.symbols
        if not names <= self.known or len(names) >= len(SCALES[0]):
            return []
        static = (meeting.a.value, meeting.b.value)
        return [
            dict(zip(sorted(names), (n for n in scale if n not in static), strict=False)) for scale in SCALES
        ]

    def conflicts(self, meeting: Meeting) -> bool:
        """Whether the dimensions differ, and neither is 1, at all tried sizes."""
        environments = self.environments(meeting)
        return bool(environments) and all(meeting.fits(env) is False for env in environments)

    def is_trap(self, meeting: Meeting) -> bool:
        """Whether the operator works at batch 1 and fails at most other batch sizes."""
        names = meeting.a.symbols | meeting.b.symbols
        batch = sorted(names & self.batch)
        environments = self.environments(meeting)
        if not batch or not environments:
            return False
        for env in environments:
            outcome = [meeting.fits({**env, **dict.fromkeys(batch, size)}) for size in (1, 2, 3, 5, 7)]
            if outcome[0] is not True or outcome[1:].count(False) < 3:
                return False
        return True

    def only_at_one(self, meeting: Meeting) -> bool:
        """Whether the two sizes are equal at batch 1, rather than one being repeated."""
        names = meeting.a.symbols | meeting.b.symbols
        at_one = dict.fromkeys(names & self.batch, 1)
        return equal(substitute(meeting.a, at_one), substitute(meeting.b, at_one)).yes


def at_batch(broadcast: Broadcast, names: frozenset[str], size: int) -> str:
    """The result with the batch symbols ``names`` set to ``size``: ``[2, 1] and [2] give [2, 2]``."""
    env = dict.fromkeys(names, size)
    shapes = [tuple(substitute(dim, env) for dim in operand.shape) for operand in broadcast.operands]
    result: list[Dim] = []
    for axis in range(broadcast.rank):
        dims = [shape[axis - broadcast.rank] for shape in shapes if axis >= broadcast.rank - len(shape)]
        dims = [dim for dim in dims if not is_static_one(dim)]
        if any(equal(dims[0], dim).no for dim in dims):
            return f"{' and '.join(map(text, shapes))} do not broadcast"
        result.append(broadcast_dims(*dims))
    return f"{' and '.join(map(text, shapes))} give {text(tuple(result))}"


def crossings(broadcast: Broadcast | Form, symbols: Symbols) -> Iterator[tuple[Operand, Operand, int, str]]:
    """Tuples ``(straight, shifted, axis, symbol)``: a batch that is not aligned with the result's batch axis.

    ``straight`` has the batch at axis 0 of the result. ``shifted`` has it at its own axis 0. Aligned from the
    right, that is ``axis`` of the result, where ``straight`` has another dimension.
    """
    # A Sum may have thousands of operands, with few different shapes.
    distinct = {operand.shape: operand for operand in reversed(broadcast.operands)}
    for straight, shifted in product(reversed(distinct.values()), repeat=2):
        missing = broadcast.rank - len(shifted.shape)
        if straight is shifted or not shifted.shape or len(straight.shape) != broadcast.rank:
            continue
        name = symbols.batch_symbol(straight.shape[0])
        if name is None or symbols.batch_symbol(shifted.shape[0]) != name:
            continue
        if not equal(straight.shape[missing], shifted.shape[0]).yes:
            yield straight, shifted, missing, name


def collapsed(broadcast: Broadcast, symbols: Symbols) -> Iterator[tuple[Operand, Operand, str]]:
    """Triples ``(straight, flat, symbol)``: a Reshape turned batched data into a single sample, ``flat``."""
    flat_operands = [
        operand
        for operand in broadcast.operands
        if operand.value is not None and _is_reshape(operand.value.producer)
    ]
    distinct = {operand.shape: operand for operand in reversed(broadcast.operands)} if flat_operands else {}
    for straight, flat in product(reversed(distinct.values()), flat_operands):
        if straight is flat or not len(straight.shape) == len(flat.shape) == broadcast.rank > 0:
            continue
        name = symbols.batch_symbol(straight.shape[0])
        node = flat.value.producer if flat.value is not None else None
        if name is None or not is_static_one(flat.shape[0]) or node is None:
            continue
        if _has_batch(node, symbols, name):
            yield straight, flat, name


def is_plain(node: Node, form: Form, symbols: Symbols) -> bool:
    """Whether neither the batch nor a dynamic size matters for the node, which holds for most nodes."""
    answers = symbols.answers(form)
    if answers.is_open or answers.crosses:
        return False
    return not answers.has_single or not any(
        value is not None and (value.is_input or _is_reshape(value.producer)) for value in node.inputs
    )


def _is_reshape(node: Node | None) -> bool:
    return node is not None and node.is_onnx and node.op_type == "Reshape"


def _has_batch(node: Node, symbols: Symbols, name: str) -> bool:
    data = node.input(0)
    shape = node.model.shapes.shape(data) if data is not None else None
    return shape is not None and len(shape) > 0 and symbols.batch_symbol(shape[0]) == name


def broadcasts(model: Model, wanted: Callable[[Node, Form], object]) -> Iterator[Broadcast]:
    """The model's broadcasts of operands with known shapes that satisfy ``wanted``."""
    for node, form in shared(model, _nodes_with_forms):
        if wanted(node, form):
            broadcast = broadcast_of(node, model)
            assert broadcast is not None
            yield broadcast


def _nodes_with_forms(model: Model) -> list[tuple[Node, Form]]:
    pairs = []
    for node in every_node(model).of(lambda operator: operator[1] in BROADCASTING):
        try:
            form = form_of(node, model)
        except UnknownAttribute:
            continue  # e.g. Gemm's transA in a function body, which may differ between calls
        if form is not None:
            pairs.append((node, form))
    return pairs
