"""Operators that onnx's own evaluator gets wrong, as the specification has them.

Each is a class for ``ReferenceEvaluator(new_ops=...)``. onnx is imported when they are first asked for.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt


@functools.cache
def corrected() -> tuple[type[Any], ...]:
    """Loop, GatherElements, LayerNormalization and RMSNormalization."""
    return (_loop(), _gather_elements(), *_norms())


def _loop() -> type[Any]:
    """Loop, with the condition that the specification gives a loop without one: true.

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


def _gather_elements() -> type[Any]:
    """GatherElements over an axis of any length: onnx 1.23 and older fail, or answer wrong, from 64 on."""
    import numpy as np
    from onnx.reference.op_run import OpRun

    class GatherElements(OpRun):
        op_domain = ""

        def _run(self, data: Any, indices: Any, axis: int | None = None) -> tuple[npt.NDArray[Any]]:
            places = list(np.indices(indices.shape, sparse=True))
            places[axis or 0] = indices.astype(np.int64)
            return (np.asarray(data[tuple(places)]),)

    return GatherElements


def _norms() -> tuple[type[Any], ...]:
    """LayerNormalization and RMSNormalization, whose first stage is computed in ``stash_type``: float32 by default.

    "If `stash_type` is 1, this operator casts all input variables to 32-bit float, perform the computation, and
    finally cast `Normalized` back to the original type of `X`" (ONNX operators, LayerNormalization-17). onnx 1.23 and
    older compute all of it in the type of ``X``, where half precision overflows, and give LayerNormalization's second
    and third output that type too.
    """
    import numpy as np
    from onnx.helper import tensor_dtype_to_np_dtype
    from onnx.reference.op_run import OpRun

    def inverse(x: npt.NDArray[Any], axes: tuple[int, ...], epsilon: float) -> npt.NDArray[Any]:
        """1 / sqrt(mean(x**2) + epsilon)"""
        mean = (x * x).mean(axes, keepdims=True, dtype=x.dtype)
        return np.asarray(np.reciprocal(np.sqrt(mean + np.asarray(epsilon, x.dtype))))

    def stage(x: npt.NDArray[Any], axis: int, stash_type: int) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
        wide = x.astype(tensor_dtype_to_np_dtype(stash_type))
        return wide, tuple(range(axis % max(x.ndim, 1), x.ndim))

    class LayerNormalization(OpRun):
        op_domain = ""

        def _run(
            self,
            X: Any,
            Scale: Any,
            B: Any = None,
            axis: int = -1,
            epsilon: float = 1e-5,
            stash_type: int = 1,
        ) -> tuple[npt.NDArray[Any], ...]:
            wide, axes = stage(X, axis, stash_type)
            mean = wide.mean(axes, keepdims=True, dtype=wide.dtype)
            less = wide - mean
            by = inverse(less, axes, epsilon)
            y = (less * by).astype(X.dtype) * Scale
            return (y if B is None else y + B), mean, by

    class RMSNormalization(OpRun):
        op_domain = ""

        def _run(
            self, X: Any, Scale: Any, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
        ) -> tuple[npt.NDArray[Any]]:
            wide, axes = stage(X, axis, stash_type)
            normalized = (wide * inverse(wide, axes, epsilon)).astype(X.dtype)
            return ((normalized.astype(Scale.dtype) * Scale),)

    return LayerNormalization, RMSNormalization
