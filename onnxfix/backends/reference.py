"""``onnx.reference``: the specification, executed in numpy. Slow, complete in types, and it needs onnx only."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onnxfix.backends import Unsupported
from onnxfix.sandbox import one_line

if TYPE_CHECKING:
    import onnx
    from onnx.reference import ReferenceEvaluator

#: Element-operations that the evaluator does in about ten seconds. Measured: 20-100 million a second for
#: element-wise operators, far fewer for the ones written as Python loops, which the timeout then stops.
BUDGET = 1_000_000_000


def missing() -> str | None:
    """Always None: the evaluator comes with onnx."""
    return None


def load(path: str) -> ReferenceSession:
    """Load a model file with its external data. Raises the evaluator's exceptions."""
    return ReferenceSession(path)


class ReferenceSession:
    """An ``onnx.reference.ReferenceEvaluator``."""

    def __init__(self, path: str) -> None:
        try:
            self._evaluator = evaluator(path)
        except Exception as error:
            if "No implementation for operator" in str(error):  # the operator exists: a gap of the evaluator
                raise Unsupported(f"onnx.reference has {one_line(error)}") from error
            raise
        self.outputs = list(self._evaluator.output_names)

    def run(self, feed: dict[str, Any]) -> list[Any]:
        """Execute. Numpy's warnings of overflow and division are not news here: the results hold them."""
        import numpy as np

        with np.errstate(all="ignore"):
            return list(self._evaluator.run(None, feed))


def evaluator(source: str | onnx.ModelProto) -> ReferenceEvaluator:
    """ONNX's evaluator for a model or its file, with what it gets wrong put right."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(source, new_ops=[_loop()])


@functools.cache
def _loop() -> type[Any]:
    """onnx's Loop, with the condition that the specification gives a loop without one: true.

    onnx 1.23 and older take the missing condition itself for the answer, and run such a loop zero times.
    """
    import numpy as np
    from onnx.reference.ops.op_loop import Loop as Own

    class Loop(Own):
        op_domain = ""

        def _run(self, M: Any, cond: Any, *args: Any, **how: Any) -> Any:
            given = np.array(True) if cond is None else cond
            return super()._run(M, given, *args, **how)  # type: ignore[no-untyped-call]

    return Loop


def infeasible(model: onnx.ModelProto, input_elements: int) -> str | None:
    """Why the evaluator would take more than about ten seconds for one run; None when it should not.

    ``input_elements`` is the number of elements of all inputs. The estimate takes every node to touch as many
    elements as the largest input or the mean weight; a model whose loops run long is stopped by the timeout.
    """
    weights = sum(math.prod(tensor.dims) for tensor in model.graph.initializer)
    count = sum(1 for _ in nodes(model))
    # A weight is used about once; an activation is as large as the input at nearly every node.
    work = count * input_elements + 20 * weights
    if work <= BUDGET:
        return None
    return (
        f"too large for onnx.reference ({count:,} nodes, {weights:,} weights, {input_elements:,} input elements):"
        " it would take more than about 10 s"
    )


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a model, those in subgraphs and local functions included."""
    stack = [list(model.graph.node), *(list(function.node) for function in model.functions)]
    while stack:
        for node in stack.pop():
            yield node
            for attribute in node.attribute:
                graphs = [attribute.g] if attribute.HasField("g") else attribute.graphs
                stack.extend(list(graph.node) for graph in graphs)
