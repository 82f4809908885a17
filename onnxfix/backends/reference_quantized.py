"""QLinearMatMul, QLinearConv and MatMulInteger as the specification has them: rounded, then moved by the zero point.

"For (x / y_scale), it is rounding to nearest ties to even" (ONNX operators, QLinearMatMul-21). onnx 1.23 and older add
the zero point before they round, so that a sum in the middle between two steps goes the other way where that is odd,
and they take zero points per row of the data for zero points per column, which a square matrix does not show.
onnx.reference is imported on first use.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


@functools.cache
def quantized() -> tuple[type[Any], ...]:
    """QLinearMatMul, QLinearConv and MatMulInteger."""
    return _matmul(), _conv(), _integer_matmul()


def _centered(x: npt.NDArray[Any], zero: Any) -> npt.NDArray[Any]:
    return np.asarray(x.astype(np.int32) - (0 if zero is None else zero.astype(np.int32)))


def _of_rows(parameter: Any) -> Any:
    """A number for each row of a matrix, given as a vector, so that it broadcasts; all other forms do as they are."""
    return parameter[:, None] if np.ndim(parameter) == 1 and np.size(parameter) > 1 else parameter


def _requantized(sums: npt.NDArray[Any], factor: Any, zero: Any, dtype: Any) -> tuple[npt.NDArray[Any]]:
    dtype = dtype if zero is None else zero.dtype
    moved = np.rint(sums * factor) + (0 if zero is None else zero)
    return (np.clip(moved, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype),)


def _matmul() -> type[Any]:
    from onnx.reference.op_run import OpRun  # lazy: start-up

    class QLinearMatMul(OpRun):
        op_domain = ""

        def _run(
            self,
            a: Any,
            a_scale: Any,
            a_zero: Any,
            b: Any,
            b_scale: Any,
            b_zero: Any,
            y_scale: Any,
            y_zero: Any,
        ) -> tuple[npt.NDArray[Any]]:
            sums = np.matmul(_centered(a, _of_rows(a_zero)), _centered(b, b_zero))
            return _requantized(sums, _of_rows(a_scale) * b_scale / y_scale, y_zero, a.dtype)

    return QLinearMatMul


def _integer_matmul() -> type[Any]:
    from onnx.reference.op_run import OpRun  # lazy: start-up

    class MatMulInteger(OpRun):
        op_domain = ""

        def _run(self, A: Any, B: Any, a_zero: Any = None, b_zero: Any = None) -> tuple[npt.NDArray[Any]]:
            return (np.matmul(_centered(A, _of_rows(a_zero)), _centered(B, b_zero)),)

    return MatMulInteger


def _conv() -> type[Any]:
    from onnx.reference.op_run import OpRun  # lazy: start-up
    from onnx.reference.ops.op_conv import _conv_implementation  # lazy: start-up

    class QLinearConv(OpRun):
        op_domain = ""

        def _run(
            self,
            x: Any,
            x_scale: Any,
            x_zero: Any,
            w: Any,
            w_scale: Any,
            w_zero: Any,
            y_scale: Any,
            y_zero: Any,
            B: Any = None,
            auto_pad: str = "NOTSET",
            dilations: Any = None,
            group: int = 1,
            kernel_shape: Any = None,
            pads: Any = None,
            strides: Any = None,
        ) -> tuple[npt.NDArray[Any]]:
            rank = w.ndim
            if w_zero is not None and np.size(w_zero) > 1:  # one for each filter
                w_zero = w_zero.reshape(-1, *[1] * (rank - 1))
            if np.size(w_scale) > 1:
                w_scale = w_scale.reshape(1, -1, *[1] * (rank - 2))
            data, filters = _centered(x, x_zero), _centered(w, w_zero)
            how = (auto_pad, dilations, group, kernel_shape, pads, strides)
            sums = _conv_implementation(data, filters, B, *how).astype(np.int32)  # type: ignore[no-untyped-call]
            return _requantized(sums, x_scale * w_scale / y_scale, y_zero, x.dtype)

    return QLinearConv
