"""ONNX's evaluator with the operators that it gets wrong, as the specification has them.

What imports this module loads onnx.reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop, op_max_pool
from onnx.reference.ops._op import OpRunReduceNumpy
from onnx.reference.ops.op_conv import _conv_implementation

from onnxfix.files import walk
from onnxfix.runtime.backends.reference_legacy import LEGACY

if TYPE_CHECKING:
    import numpy.typing as npt


class _Operator(OpRun):
    op_domain = ""


class Loop(op_loop.Loop):
    """Loop, as the specification has it.

    onnx 1.23 and older take a missing condition itself for the answer, which is true, and run such a loop zero times;
    they put scan outputs behind each other along their first axis, not along a new one, and fail where there are none;
    and a value outside hides the body's input of that name.
    """

    op_domain = ""
    body: Any

    def _run(self, M: Any, cond: Any, *args: Any, context: Any = None, **how: Any) -> Any:
        around = {name: how.get(name) for name in ("attributes", "bindings")}
        names, carried = self.body.input_names, list(args)
        going = np.array(True) if cond is None else cond
        rows: list[list[Any]] = [[] for _ in range(len(self.body.output_names) - 1 - len(carried))]
        step = 0
        while bool(np.all(going)) and (M is None or step < M):
            values = {**(context or {}), **dict(zip(names[2:], carried, strict=True))}
            values[names[0]], values[names[1]] = np.array(step, np.int64), going
            going, *found = self._run_body(values, **around)  # type: ignore[attr-defined]
            carried = found[: len(carried)]
            for row, value in zip(rows, found[len(carried) :], strict=True):
                row.append(value)
            step += 1
        scans = []
        for row, info in zip(rows, self.body.proto_.output[1 + len(carried) :], strict=True):
            kind = info.type.tensor_type
            if not row and not all(dim.HasField("dim_value") for dim in kind.shape.dim):
                raise ValueError(
                    f"without rows the body alone says the shape of {info.name}, and leaves it open"
                )
            empty = (0, *(dim.dim_value for dim in kind.shape.dim))
            scans.append(np.stack(row) if row else np.empty(empty, tensor_dtype_to_np_dtype(kind.elem_type)))
        return self._check_and_fix_outputs((*carried, *scans))


class Optional(_Operator):
    """Its element: onnx 1.23 and older make a list of it, and OptionalGetElement leaves that."""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:  # the attribute's name
        return (x,)


class GatherElements(_Operator):
    """Over an axis of any length: onnx 1.23 and older fail, or answer wrong, from 64 on."""

    def _run(self, data: Any, indices: Any, axis: int | None = None) -> tuple[npt.NDArray[Any]]:
        places = list(np.indices(indices.shape, sparse=True))
        places[axis or 0] = indices.astype(np.int64)
        return (np.asarray(data[tuple(places)]),)


class MaxPool(_Operator, op_max_pool.MaxPool):
    """Its indices count through the tensor: with strides of 1, onnx 1.23 and older count in one padded channel."""

    def _run(self, *values: Any, **how: Any) -> Any:
        run: Any = self._max_pool if len(self.onnx_node.output) > 1 else super()._run
        return run(*values, **how)


class ReduceSumSquare(_Operator, OpRunReduceNumpy):
    """In the type of its input: onnx 1.23 and older sum int32 as int64, and give that type."""

    def _run(self, data: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        given = None if axes is None else np.asarray(axes, np.int64)  # before opset 18 a list, an attribute
        along: Any = self.handle_axes(given, noop_with_empty_axes)  # type: ignore[no-untyped-call]
        return (np.asarray(self._over(data, axis=along, keepdims=keepdims != 0, dtype=data.dtype)),)

    def _over(self, data: Any, **how: Any) -> Any:
        return np.sum(np.square(data), **how)


class ReduceMean(ReduceSumSquare):
    """0 over nothing, as in ONNX Runtime: ONNX leaves it undefined, and onnx 1.23 and older have NaN."""

    def _over(self, data: Any, **how: Any) -> Any:
        return (np.mean if data.size else np.sum)(data, **how)


def _log_softmax(x: npt.NDArray[Any], axes: tuple[int, ...]) -> npt.NDArray[Any]:
    """The logarithm of a probability, of one that is too small to be held too. onnx 1.23 and older take the logarithm
    of the probabilities, which is -inf where one is 0."""
    if x.size == 0:
        return x.copy()
    less = x - x.max(axis=axes, keepdims=True)
    total = np.exp(less).sum(axis=axes, keepdims=True, dtype=x.dtype)
    return np.asarray(less - np.log(total), x.dtype)


class LogSoftmax(_Operator):
    """Along one axis from opset 13 on. Before, "the input [...] will be coerced into a 2-dimensional tensor", and
    ``axis`` is 1 by default (ONNX operators, LogSoftmax-11), which onnx 1.23 and older do not know."""

    def _run(self, X: Any, axis: int = -1) -> tuple[npt.NDArray[Any]]:
        if self.run_params["opsets"].get("", 13) >= 13:
            return (_log_softmax(X, (axis,)),)
        given = any(one.name == "axis" for one in self.onnx_node.attribute)
        return (_log_softmax(X, tuple(range(axis % X.ndim if given else 1, X.ndim))),)


class SoftmaxCrossEntropyLoss(_Operator):
    """With the logarithm as above."""

    def _run(self, x: Any, *values: Any, **how: Any) -> tuple[Any, ...]:
        found = _log_softmax(x, (1,))
        return (_likelihood_loss(found, *values, **how), found)[: len(self.onnx_node.output)]


class NegativeLogLikelihoodLoss(_Operator):
    """With the mean as above."""

    def _run(self, *values: Any, **how: Any) -> tuple[Any, ...]:
        return (_likelihood_loss(*values, **how),)


def _likelihood_loss(
    x: Any, target: Any, weight: Any = None, ignore_index: int | None = None, reduction: str = "mean"
) -> npt.NDArray[Any]:
    """NegativeLogLikelihoodLoss of x [N, C, ...] and target [N, ...]: a mean is over what is not ignored, NaN over
    nothing, as by the operator's function. onnx 1.23 and older count everything where -1 is ignored, and no weights
    are given.

    Raises:
        ValueError: the target has other sizes than x.
    """
    if target.shape != (x.shape[0], *x.shape[2:]):
        raise ValueError(f"a target of {target.shape} does not fit scores of {x.shape}")
    seen = np.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    places = np.where(seen, target, 0)
    factors = np.ones(x.shape[1], x.dtype) if weight is None else weight
    counted = np.where(seen, factors[places], 0).astype(x.dtype)
    loss = np.where(seen, -np.take_along_axis(x, places[:, None], 1)[:, 0] * counted, 0).astype(x.dtype)
    if reduction == "none":
        return np.asarray(loss)
    total = loss.sum(dtype=x.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(total if reduction == "sum" else total / counted.sum(dtype=x.dtype), x.dtype)


def _stage(x: npt.NDArray[Any], axis: int, stash_type: int) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
    """What LayerNormalization and RMSNormalization compute their first stage from, and its axes.

    "If `stash_type` is 1, this operator casts all input variables to 32-bit float, perform the computation, and
    finally cast `Normalized` back to the original type of `X`" (ONNX operators, LayerNormalization-17). onnx 1.23 and
    older compute all of it in the type of ``X``, where half precision overflows, and give LayerNormalization's second
    and third output that type too.
    """
    wide = x.astype(tensor_dtype_to_np_dtype(stash_type))
    return wide, tuple(range(axis % max(x.ndim, 1), x.ndim))


def _inverse(x: npt.NDArray[Any], axes: tuple[int, ...], epsilon: float) -> npt.NDArray[Any]:
    """1 / sqrt(mean(x**2) + epsilon)"""
    mean = (x * x).mean(axes, keepdims=True, dtype=x.dtype)
    return np.asarray(np.reciprocal(np.sqrt(mean + np.asarray(epsilon, x.dtype))))


class LayerNormalization(_Operator):
    """In two stages."""

    def _run(self, X: Any, Scale: Any, B: Any = None, **how: Any) -> tuple[npt.NDArray[Any], ...]:
        wide, axes = _stage(X, how["axis"], how["stash_type"])
        mean = wide.mean(axes, keepdims=True, dtype=wide.dtype)
        less = wide - mean
        by = _inverse(less, axes, how["epsilon"])
        y = (less * by).astype(X.dtype) * Scale
        return (y if B is None else y + B), mean, by


class RMSNormalization(_Operator):
    """In two stages."""

    def _run(self, X: Any, Scale: Any, **how: Any) -> tuple[npt.NDArray[Any]]:
        wide, axes = _stage(X, how["axis"], how["stash_type"])
        return ((wide * _inverse(wide, axes, how["epsilon"])).astype(X.dtype).astype(Scale.dtype) * Scale,)


class ConvTranspose(_Operator):
    """As the specification has it since opset 11. onnx 1.23 and older fail with ``output_shape``, put the odd element
    of the padding at the wrong end, and forget ``output_padding`` beside ``auto_pad``."""

    def _run(self, X: Any, W: Any, B: Any = None, **how: Any) -> Any:
        axes, group = W.ndim - 2, how["group"]
        steps, gaps = [list(how[name] or [1] * axes) for name in ("strides", "dilations")]
        more = list(how["output_padding"] or [0] * axes)
        spans = [(size - 1) * gap + 1 for size, gap in zip(W.shape[2:], gaps, strict=True)]
        full = [(n - 1) * s + w + o for n, s, w, o in zip(X.shape[2:], steps, spans, more, strict=True)]
        begins, sizes = _cut(full, X.shape[2:], steps, how["auto_pad"], how["output_shape"], how["pads"])
        outside = W.shape[1]
        # einsum sums in the type that it is given, and knows no bfloat16.
        wide = np.result_type(X.dtype, np.float32)
        x, w = X.astype(wide), W.astype(wide)
        out = np.zeros((X.shape[0], outside * group, *full), wide)
        for number in range(group):
            inside = slice(number * (W.shape[0] // group), (number + 1) * (W.shape[0] // group))
            rows = slice(number * outside, (number + 1) * outside)
            for tap in np.ndindex(*W.shape[2:]):
                places = [
                    slice(k * d, k * d + (n - 1) * s + 1, s)
                    for k, d, n, s in zip(tap, gaps, X.shape[2:], steps, strict=True)
                ]
                part = np.einsum("nc...,cm->nm...", x[:, inside], w[inside][(..., *tap)])
                out[(slice(None), rows, *places)] += part
        around = [(max(0, -b), max(0, b + n - f)) for b, n, f in zip(begins, sizes, full, strict=True)]
        out = np.pad(out, [(0, 0), (0, 0), *around])
        keep = [slice(max(0, b), max(0, b) + n) for b, n in zip(begins, sizes, strict=True)]
        out = out[(slice(None), slice(None), *keep)]
        if B is not None:
            out = out + B.astype(wide).reshape(-1, *[1] * axes)
        return (out.astype(X.dtype),)


def _cut(
    full: list[int], inputs: tuple[int, ...], steps: list[int], auto_pad: str, shape: Any, pads: Any
) -> tuple[list[int], list[int]]:
    """Where each axis of a transposed convolution's whole result begins to count, and how many elements do."""
    if not shape and auto_pad.startswith("SAME"):
        shape = [n * s for n, s in zip(inputs, steps, strict=True)]
    if shape:
        total = [f - n for f, n in zip(full, list(shape), strict=True)]
        return [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total], list(shape)
    ends = list(pads) if pads and auto_pad == "NOTSET" else [0] * (2 * len(full))
    begins, rest = ends[: len(full)], ends[len(full) :]
    return begins, [f - b - e for f, b, e in zip(full, begins, rest, strict=True)]


# "For (x / y_scale), it is rounding to nearest ties to even" (ONNX operators, QLinearMatMul-21). onnx 1.23 and older
# add the zero point before they round, so that a sum in the middle between two steps goes the other way where that is
# odd, and they take zero points per row of the data for zero points per column, which a square matrix does not show.


def _centered(x: npt.NDArray[Any], zero: Any) -> npt.NDArray[Any]:
    return np.asarray(x.astype(np.int32) - (0 if zero is None else zero.astype(np.int32)))


def _of_rows(parameter: Any) -> Any:
    """A number for each row of a matrix, given as a vector, so that it broadcasts; all other forms do as they are."""
    return parameter[:, None] if np.ndim(parameter) == 1 and np.size(parameter) > 1 else parameter


def _requantized(sums: npt.NDArray[Any], factor: Any, zero: Any, dtype: Any) -> tuple[npt.NDArray[Any]]:
    dtype = dtype if zero is None else zero.dtype
    moved = np.rint(sums * factor) + (0 if zero is None else zero)
    return (np.clip(moved, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype),)


class QLinearMatMul(_Operator):
    """Rounded, then moved by the zero point."""

    def _run(self, *values: Any) -> tuple[npt.NDArray[Any]]:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = values
        sums = np.matmul(_centered(a, _of_rows(a_zero)), _centered(b, b_zero))
        return _requantized(sums, _of_rows(a_scale) * b_scale / y_scale, y_zero, a.dtype)


class MatMulInteger(_Operator):
    """With zero points per row of the data."""

    def _run(self, A: Any, B: Any, a_zero: Any = None, b_zero: Any = None) -> tuple[npt.NDArray[Any]]:
        return (np.matmul(_centered(A, _of_rows(a_zero)), _centered(B, b_zero)),)


class QLinearConv(_Operator):
    """Rounded, then moved by the zero point."""

    def _run(self, *values: Any, **how: Any) -> tuple[npt.NDArray[Any]]:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = values
        rank = w.ndim
        if w_zero is not None and np.size(w_zero) > 1:  # one for each filter
            w_zero = w_zero.reshape(-1, *[1] * (rank - 1))
        if np.size(w_scale) > 1:
            w_scale = w_scale.reshape(1, -1, *[1] * (rank - 2))
        data, filters = _centered(x, x_zero), _centered(w, w_zero)
        window = [how[name] for name in ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")]
        found = _conv_implementation(data, filters, *(bias or [None]), *window)  # type: ignore[no-untyped-call]
        return _requantized(found.astype(np.int32), x_scale * w_scale / y_scale, y_zero, x.dtype)


CORRECTED: tuple[type[Any], ...] = (
    Loop, Optional, GatherElements, MaxPool, ReduceMean, ReduceSumSquare, ConvTranspose, LogSoftmax, LayerNormalization,
    RMSNormalization, SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss, QLinearMatMul, QLinearConv, MatMulInteger,
)  # fmt: skip


class Evaluator(ReferenceEvaluator):
    """ONNX's evaluator, which onnx makes of subgraphs and functions too: with the corrected operators in all of them
    (onnx's own has none in functions), nodes in topological order, and an eye on what is not finite.

    A value is dropped after the last node that reads it: onnx keeps all. It also keeps an output that the node leaves
    out under its empty name, and each later node that leaves out an input reads it there.
    """

    counts: ClassVar[Any] = None
    """A dict: by name, how many elements are not finite; None where nobody counts."""

    def __init__(self, proto: Any, **how: Any) -> None:
        super().__init__(proto, **{**how, "new_ops": how.get("new_ops") or [*CORRECTED, *LEGACY]})
        self.rt_nodes_ = [self.rt_nodes_[at] for at in walk.order([one.onnx_node for one in self.rt_nodes_])]
        last = {name: at for at, one in enumerate(self.rt_nodes_) for name in walk.captures(one.onnx_node)}
        self._last = last | dict.fromkeys(("", *self.output_names), -1)

    def run(self, output_names: Any, feed_inputs: Any, attributes: Any = None, **_: Any) -> list[Any]:  # type: ignore[override]
        """All outputs, in their order; ``output_names`` is None."""
        values = {"": None, **self.rt_inits_, **feed_inputs}
        for at, node in enumerate(self.rt_nodes_):
            how: dict[str, Any] = {"context": values} if node.need_context() else {}
            if node.has_linked_attribute and attributes:
                how["linked_attributes"] = attributes
            results = node.run(*(values[name] for name in node.input), **how)
            found = {name: value for name, value in zip(node.output, results, strict=False) if name}
            for name, value in found.items() if self.counts is not None else ():
                if count := _infinite(value):
                    self.counts[name] = self.counts.get(name, 0) + count
            values.update(found)
            for name in walk.captures(node.onnx_node):
                if self._last[name] == at:
                    values.pop(name, None)
        return [values[name] for name in self.output_names]


def _infinite(value: Any) -> int:
    """How many elements are not finite."""
    if isinstance(value, (list, tuple)):
        return sum(map(_infinite, value))
    if "float" not in getattr(getattr(value, "dtype", None), "name", ""):
        return 0
    return int(np.count_nonzero(~np.isfinite(np.asarray(value).astype(np.float64))))
