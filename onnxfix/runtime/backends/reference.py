"""``onnx.reference``: ONNX's specification, executed in numpy. It is slow, supports all types, and needs only onnx."""

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
#: element-wise operators, far fewer for operators written as Python loops; the timeout stops these.
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
        """Run the model, without numpy's warnings about overflow and division: the outputs show both."""
        with np.errstate(all="ignore"):
            return list(self._evaluator.run(None, feed))

    def traced(self, feed: dict[str, Any]) -> tuple[list[Any], dict[str, int]]:
        """Run the model, and count the elements of each value that are not finite, also in subgraphs and functions. The
        counts are in the order of computation, and leave out values without such elements."""
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
    """The approximate number of element-operations in one run: each node touches as many elements as the inputs have,
    and each weight, which about one node uses, costs 20 operations."""
    weights, count = _size(model)
    return count * input_elements + 20 * weights


def _size(model: onnx.ModelProto) -> tuple[int, int]:
    """How many weights and nodes a model has."""
    weights = sum(math.prod(tensor.dims) for tensor in model.graph.initializer)
    return weights, sum(1 for _ in walk.model_nodes(model))


def infeasible(model: onnx.ModelProto, input_elements: int) -> str | None:
    """Why the evaluator would take more than about ten seconds for one run; None if it should not.

    ``input_elements`` is the number of elements of all inputs. A model whose loops run long is stopped by the timeout.
    """
    if work(model, input_elements) <= BUDGET:
        return None
    weights, count = _size(model)
    sizes = f"{count:,} nodes, {weights:,} weights, {input_elements:,} input elements"
    return f"too large for onnx.reference ({sizes}): it would take more than about 10 s"
