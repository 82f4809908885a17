"""A cache of inference results for single operators.

Real models repeat themselves: every layer of a transformer multiplies ``[B, S, 768]`` by ``[768, 768]``. Equal
descriptions of values are interned here, so that a question (an operator, its attributes, and the descriptions of its
inputs) is looked up by the identity of its parts.
"""

from __future__ import annotations

from onnxfix.errors import ModelError
from onnxfix.graph.overlay import Value
from onnxfix.shapes.ops.base import ABSENT, FLOATS, INTEGERS, UNKNOWN, VALUE_LIMIT, Info, from_array, small
from onnxfix.shapes.symbols import as_dim, constant

LIMIT = 1 << 17
"""Maximum number of descriptions and of answers; beyond it, results are computed again."""

Question = tuple[object, ...]


class Knowledge:
    """Results of one pass."""

    def __init__(self) -> None:
        self.answers: dict[Question, tuple[Info, ...]] = {}
        """Output descriptions by question, for operators that create no symbols."""
        self._infos: dict[Question, Info] = {_key(UNKNOWN): UNKNOWN}

    def learn(self, question: Question, answer: tuple[Info, ...]) -> None:
        """Keep the answer to a question."""
        if len(self.answers) < LIMIT:
            self.answers[question] = answer

    def interned(self, info: Info) -> Info:
        """The only object for descriptions equal to ``info``."""
        if info is ABSENT or len(self._infos) >= LIMIT:
            return info
        return self._infos.setdefault(_key(info), info)


def _key(info: Info) -> Question:
    """A key for equal descriptions. Dimensions are interned and live as long as ``info``, so that their ids are
    keys."""
    shape = None if info.shape is None else tuple(map(id, info.shape))
    value: object = None
    if info.value is not None:
        # repr distinguishes 0.0 from -0.0, and is the same for every NaN.
        items = [repr(item) if isinstance(item, float) else id(item) for item in info.value.reshape(-1)]
        value = (info.value.shape, *items)
    fill = None if info.fill is None else repr(info.fill)
    return (info.elem, shape, value, fill, info.kind, None if info.item is None else _key(info.item))


def initializer(value: Value) -> Info:
    """Type, dimensions and, if it is small and no caller can override it, the value of an initializer."""
    if value.sparse:
        for sparse in getattr(value.scope.proto, "sparse_initializer", ()):
            if sparse.values.name == value.name:
                return Info(sparse.values.data_type, tuple(constant(d) for d in sparse.dims))
        return UNKNOWN
    tensor = value.initializer
    if tensor is None or value.is_input:
        return UNKNOWN
    elem = tensor.data_type or None
    shape = tuple(as_dim(d) for d in tensor.dims)
    elements = None
    if (elem in INTEGERS or elem in FLOATS) and small(shape) is not None:
        try:
            array = value.constant(VALUE_LIMIT * 16)
        except ModelError:
            array = None  # external data that is missing: reported where the weights are read
        if array is not None and elem is not None:
            elements = from_array(array, elem)
    return Info(elem, shape, elements)
