"""``onnx.reference``: the specification, executed in numpy. Slow, complete in types, and it needs onnx only."""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from onnxfix import walk
from onnxfix.backends import Unsupported
from onnxfix.backends.reference_legacy import legacy
from onnxfix.backends.reference_ops import corrected
from onnxfix.backends.reference_quantized import quantized
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


def warm() -> None:
    """Import the evaluator and its operators."""
    _watched()
    _own()


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
        watched, counts = _watched(), dict[str, int]()
        watched.counts = counts
        try:
            return self.run(feed), counts
        finally:
            watched.counts = None


def _named_alone(names: tuple[str, ...], results: Any) -> tuple[Any, ...]:
    return tuple(value if name else None for name, value in zip(names, results, strict=False))


def _infinite(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_infinite, value))
    if "float" not in getattr(getattr(value, "dtype", None), "name", ""):
        return 0
    return int(np.count_nonzero(~np.isfinite(np.asarray(value).astype(np.float64))))


def evaluator(source: str | onnx.ModelProto) -> ReferenceEvaluator:
    """ONNX's evaluator for a model or its file, with corrected operators."""
    made: ReferenceEvaluator = _watched()(source)
    return made


def _own() -> list[Any]:
    """The operators that are our own."""
    return [*corrected(), *quantized(), *legacy()]


@functools.cache
def _watched() -> Any:
    """The class of evaluators, which onnx makes of subgraphs and functions too: with the corrected operators in all of
    them, as onnx's own has not in functions, nodes in topological order, and an eye on what is not finite.

    An output that the node leaves out is dropped: onnx 1.23 and older keep it under its empty name, and each later node
    that leaves out an input reads it there.
    """
    from onnx.reference import ReferenceEvaluator  # lazy: start-up

    class Watched(ReferenceEvaluator):
        counts: ClassVar[dict[str, int] | None] = None

        def __init__(self, proto: Any, **how: Any) -> None:
            own = how.get("new_ops") or _own()
            super().__init__(proto, **{**how, "new_ops": own})
            self.rt_nodes_ = [
                self.rt_nodes_[number] for number in walk.order([o.onnx_node for o in self.rt_nodes_])
            ]
            for node in self.rt_nodes_:
                node.run = functools.partial(self._watch, node.run, tuple(node.output))

        @classmethod
        def _watch(cls, run: Any, names: tuple[str, ...], *args: Any, **how: Any) -> Any:
            results = run(*args, **how)
            if cls.counts is not None:
                for name, value in zip(names, results, strict=False):
                    if count := _infinite(value):
                        cls.counts[name] = cls.counts.get(name, 0) + count
            return results if all(names) else _named_alone(names, results)

    return Watched


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
