"""What was worked out about single operators, kept so that equal questions are answered once.

Real models ask the same thing over and over: every layer of a transformer multiplies ``[B, S, 768]`` by ``[768, 768]``.
Here equal descriptions of values are made one object, so that a question - an operator, its attributes, and what is
known of its inputs - can be looked up by the identity of its parts.
"""

from __future__ import annotations

from onnxfix.files.tensors import element_count
from onnxfix.graph.overlay import Node, Value
from onnxfix.shapes.ops.base import ABSENT, UNKNOWN, VALUE_LIMIT, Info
from onnxfix.shapes.ops.sources import initializer

LIMIT = 1 << 17
"""Descriptions and answers kept at most, of each kind; a model that has more is described the slow way from there."""

Question = tuple[object, ...]


class Knowledge:
    """Grows from pass to pass over one model, and goes with it."""

    def __init__(self) -> None:
        self.answers: dict[Question, tuple[Info, ...]] = {}
        """What is known of the outputs of an operator that made no symbols, by all that it depends on."""
        self.numbers: dict[Node, int] = {}
        """For each node the number of what it asks beside its inputs, 0 where that is not all (``number``); edits of
        what a node is take it out."""
        self._numbers: dict[Question, int] = {}
        self._infos: dict[Question, Info] = {_key(UNKNOWN): UNKNOWN}
        self._initializers: dict[Value, Info] = {}
        self._before: dict[Value, Info] = {}
        self._weights: dict[tuple[int, ...], Info] = {}

    def begin(self) -> None:
        """A new pass begins: of the initializers, those that it asks for stay."""
        self._before, self._initializers = self._initializers, {}

    def initializer(self, value: Value) -> Info:
        """What is known of a value that no node makes."""
        info = self._before.get(value) or self._weight(value) or self.interned(initializer(value))
        self._initializers[value] = info
        return info

    def _weight(self, value: Value) -> Info | None:
        """What is known of a tensor of which only type and dimensions are of interest, from one like it."""
        tensor = value.initializer
        if tensor is None or value.sparse or value.is_input:
            return None
        stored = (tensor.data_type, *tensor.dims[:])
        info = self._weights.get(stored)
        if info is None and element_count(stored[1:]) > VALUE_LIMIT:
            info = self._weights[stored] = self.interned(initializer(value))
        return info

    def number(self, node: Node, question: Question | None) -> int:
        """The number of what a node asks beside its inputs, the same for equal questions."""
        known = self._numbers
        found = 0
        if question is not None:
            found = known.get(question, 0)
            if not found and len(known) < LIMIT:
                found = known[question] = len(known) + 1
        self.numbers[node] = found
        return found

    def learn(self, question: Question, answer: tuple[Info, ...]) -> None:
        """Keep the answer to a question."""
        if len(self.answers) < LIMIT:
            self.answers[question] = answer

    def interned(self, info: Info) -> Info:
        """The one object for what ``info`` says."""
        if info is ABSENT or len(self._infos) >= LIMIT:
            return info
        return self._infos.setdefault(_key(info), info)


def _key(info: Info) -> Question:
    """What ``info`` says. Dimensions are interned and live as long as it does, so their identity stands for them."""
    shape = None if info.shape is None else tuple(map(id, info.shape))
    value: object = None
    if info.value is not None:
        # repr tells 0.0 from -0.0, and NaN is itself.
        items = [repr(item) if isinstance(item, float) else id(item) for item in info.value.reshape(-1)]
        value = (info.value.shape, *items)
    fill = None if info.fill is None else repr(info.fill)
    return (info.elem, shape, value, fill, info.kind, None if info.item is None else _key(info.item))
