"""Values that constants alone determine, and the cost of folding them."""

from __future__ import annotations

from onnxfix.rule import Model, Node, UnknownAttribute, Value
from onnxfix_rules.gra._evaluate import FOLDABLE, Array, NotFoldable, evaluate, is_exact

GROWTH = 512
"""Maximum bytes by which the new constants may exceed those removed with the node."""
BUDGET = 1 << 26
"""Maximum bytes of results computed in one pass over a model."""


class Constants:
    """Values that constants alone determine; ``exact``: whether every backend computes the same bits."""

    def __init__(self, model: Model) -> None:
        self.arrays: dict[Value, Array] = {}
        self.exact: dict[Value, bool] = {}
        self._left = BUDGET
        for scope in model.scopes:
            for node in model.orders[scope]:
                if node.op_type in FOLDABLE:
                    self._visit(node)

    def _visit(self, node: Node) -> None:
        if not all(value is None or self._is_known(value) for value in node.inputs):
            return
        if not node.is_onnx or None in node.outputs or self._left < 0:
            return
        inputs = [None if value is None else self._array(value) for value in node.inputs]
        if any(array is None and value is not None for array, value in zip(inputs, node.inputs, strict=True)):
            return
        try:
            results = evaluate(node, inputs)
        except (NotFoldable, UnknownAttribute):
            return
        size = sum(array.nbytes for array in results)
        self._left -= size
        source = copied(node)
        if source is None and size > GROWTH + self._freed(node):
            return
        exact = is_exact(node.op_type) and all(self.exact.get(v, True) for v in node.inputs if v is not None)
        for value, array in zip(node.outputs, results, strict=True):
            assert value is not None
            self.arrays[value], self.exact[value] = array, exact

    def _is_known(self, value: Value) -> bool:
        return value in self.arrays or value.is_constant

    def _array(self, value: Value) -> Array | None:
        found = self.arrays.get(value)
        return value.constant() if found is None else found

    def _freed(self, node: Node) -> int:
        """Bytes of the inputs that no other node reads."""
        freed = 0
        for value in dict.fromkeys(node.inputs):
            if value is not None and _only_for(value, node):
                array = self._array(value)
                freed += 0 if array is None else array.nbytes
        return freed

    def readers(self, value: Value) -> list[Node]:
        """The nodes that read the value and are not folded themselves; empty if it must not be replaced."""
        array, exact = self.arrays[value], self.exact[value]
        divides = any(use.node.op_type in ("Div", "Mod") and use.index == 1 for use in value.uses)
        if divides and array.dtype.kind in "iu" and not array.all():
            return []  # ONNX Runtime refuses to load a constant divisor of 0; a computed one may divide an empty tensor
        nodes = dict.fromkeys(use.node for use in value.uses)
        return [node for node in nodes if not self._is_folded(node, exact)]

    def _is_folded(self, node: Node, exact: bool) -> bool:
        """Whether all outputs of the node are known; with ``exact``, to the last bit."""
        return bool(node.outputs) and all(
            value is None or self.exact.get(value, False) or (not exact and value in self.exact)
            for value in node.outputs
        )


def copied(node: Node) -> Value | None:
    """The constant that an Identity copies: PyTorch's exporter adds one for each further use of a weight."""
    source = node.input(0) if node.op_type == "Identity" else None
    return source if source is not None and source.is_constant else None


def _only_for(value: Value, node: Node) -> bool:
    """Whether only ``node`` needs the value and the constant that it copies."""
    if not value.replaceable or any(use.node is not node for use in value.uses):
        return False
    source = None if value.producer is None else copied(value.producer)
    return source is None or value.producer is None or _only_for(source, value.producer)
