"""``onnx.reference``: the specification, executed in numpy. Slow, complete in types, and it needs onnx only."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfix.files import walk
from onnxfix.runtime.backends import Unsupported
from onnxfix.runtime.sandbox import one_line

if TYPE_CHECKING:
    import onnx

    from onnxfix.runtime.backends.reference_ops import Evaluator

#: Element-operations that the evaluator does in about ten seconds. Measured: 20-100 million a second for
#: element-wise operators, far fewer for the ones written as Python loops, which the timeout then stops.
BUDGET = 1_000_000_000


def missing() -> str | None:
    """Always None: the evaluator comes with onnx."""
    return None


def warm() -> None:
    """Import the evaluator and its operators."""
    importlib.import_module("onnxfix.runtime.backends.reference_ops")


def load(path: str) -> ReferenceSession:
    """Load a model file with its external data. Raises the evaluator's exceptions, and Unsupported for its gaps."""
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
        called = Counter((one.domain, one.name) for one in self._evaluator.proto_.functions)
        if max(called.values(), default=1) > 1:
            raise Unsupported("onnx.reference takes the overloads of a function for one")
        self.outputs = list(self._evaluator.output_names)

    def run(self, feed: dict[str, Any]) -> list[Any]:
        """Execute. Numpy's warnings of overflow and division are not news here: the results hold them."""
        with np.errstate(all="ignore"):
            return list(self._evaluator.run(None, feed))

    def traced(self, feed: dict[str, Any]) -> tuple[list[Any], dict[str, int]]:
        """Execute, and count by name the elements that are not finite, in the order of computation, those in subgraphs
        and functions included; names without any are left out."""
        watched, counts = type(self._evaluator), dict[str, int]()
        watched.counts = counts
        try:
            return self.run(feed), counts
        finally:
            watched.counts = None


def evaluator(source: str | onnx.ModelProto) -> Evaluator:
    """ONNX's evaluator for a model or its file, with corrected operators."""
    from onnxfix.runtime.backends.reference_ops import Evaluator  # lazy: start-up

    return Evaluator(source)


def work(model: onnx.ModelProto, input_elements: int) -> int:
    """About how many element-operations one run takes: every node touches as many elements as the largest input or the
    mean weight."""
    weights, count = _size(model)
    # A weight is used about once; an activation is as large as the input at nearly every node.
    return count * input_elements + 20 * weights


def _size(model: onnx.ModelProto) -> tuple[int, int]:
    """How many weights and nodes a model has."""
    weights = sum(math.prod(tensor.dims) for tensor in model.graph.initializer)
    return weights, sum(1 for _ in walk.model_nodes(model))


def infeasible(model: onnx.ModelProto, input_elements: int) -> str | None:
    """Why the evaluator would take more than about ten seconds for one run; None when it should not.

    ``input_elements`` is the number of elements of all inputs. A model whose loops run long is stopped by the timeout.
    """
    if work(model, input_elements) <= BUDGET:
        return None
    weights, count = _size(model)
    return (
        f"too large for onnx.reference ({count:,} nodes, {weights:,} weights, {input_elements:,} input elements):"
        " it would take more than about 10 s"
    )
