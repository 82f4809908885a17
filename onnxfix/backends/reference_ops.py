"""Operators that onnx's own evaluator gets wrong, as the specification has them.

Each is a class for ``ReferenceEvaluator(new_ops=...)``. onnx.reference is imported on first use.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    from onnx import ValueInfoProto


@functools.cache
def corrected() -> tuple[type[Any], ...]:
    """Loop, Optional, GatherElements, ReduceSumSquare, LogSoftmax and the losses, ConvTranspose, norms of layers."""
    own = (_loop(), _optional(), _gather_elements(), _sum_of_squares(), _conv_transpose())
    return (*own, *_log_softmax(), *_norms())


def _loop() -> type[Any]:
    """Loop, as the specification has it.

    onnx 1.23 and older take a missing condition itself for the answer, which is true, and run such a loop zero times;
    they put scan outputs behind each other along their first axis, not along a new one, and fail where there are none;
    and a value outside hides the body's input of that name.
    """
    from onnx.reference.ops.op_loop import Loop as Own  # lazy: start-up

    class Loop(Own):
        op_domain = ""
        body: Any

        def _run(
            self,
            M: Any,
            cond: Any,
            *args: Any,
            context: Any = None,
            attributes: Any = None,
            bindings: Any = None,
            **_: Any,
        ) -> Any:
            names, carried, going = (
                self.body.input_names,
                list(args),
                np.array(True) if cond is None else cond,
            )
            rows: list[list[Any]] = [[] for _ in range(len(self.body.output_names) - 1 - len(carried))]
            step = 0
            while bool(np.all(going)) and (M is None or step < M):
                values = {**(context or {}), **dict(zip(names[2:], carried, strict=True))}
                values[names[0]], values[names[1]] = np.array(step, np.int64), going
                going, *found = self._run_body(values, attributes=attributes, bindings=bindings)  # type: ignore[attr-defined]
                carried = found[: len(carried)]
                for row, value in zip(rows, found[len(carried) :], strict=True):
                    row.append(value)
                step += 1
            infos = self.body.proto_.output[1 + len(carried) :]
            scans = (np.stack(row) if row else _no_rows(info) for row, info in zip(rows, infos, strict=True))
            return self._check_and_fix_outputs((*carried, *scans))

    return Loop


def _no_rows(info: ValueInfoProto) -> npt.NDArray[Any]:
    """The scan output of a Loop that runs zero times, whose type the body alone says; what it leaves open is 0."""
    from onnx.helper import tensor_dtype_to_np_dtype  # lazy: start-up

    kind = info.type.tensor_type
    return np.empty((0, *(dim.dim_value for dim in kind.shape.dim)), tensor_dtype_to_np_dtype(kind.elem_type))


def _optional() -> type[Any]:
    """Optional, which is its element: onnx 1.23 and older make a list of it, and OptionalGetElement leaves that."""
    from onnx.reference.op_run import OpRun  # lazy: start-up

    class Optional(OpRun):
        op_domain = ""

        def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:  # the attribute's name
            return (x,)

    return Optional


def _gather_elements() -> type[Any]:
    """GatherElements over an axis of any length: onnx 1.23 and older fail, or answer wrong, from 64 on."""
    from onnx.reference.op_run import OpRun  # lazy: start-up

    class GatherElements(OpRun):
        op_domain = ""

        def _run(self, data: Any, indices: Any, axis: int | None = None) -> tuple[npt.NDArray[Any]]:
            places = list(np.indices(indices.shape, sparse=True))
            places[axis or 0] = indices.astype(np.int64)
            return (np.asarray(data[tuple(places)]),)

    return GatherElements


def _sum_of_squares() -> type[Any]:
    """ReduceSumSquare in the type of its input: onnx 1.23 and older sum int32 as int64, and give that type."""
    from onnx.reference.ops._op import OpRunReduceNumpy  # lazy: start-up

    class ReduceSumSquare(OpRunReduceNumpy):
        op_domain = ""

        def _run(
            self, data: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0
        ) -> tuple[npt.NDArray[Any]]:
            # Before opset 18 the axes are a list, an attribute.
            given = np.asarray(axes, np.int64) if axes is not None else None
            along: Any = self.handle_axes(given, noop_with_empty_axes)  # type: ignore[no-untyped-call]
            total = np.sum(np.square(data), axis=along, keepdims=keepdims != 0, dtype=data.dtype)
            return (np.asarray(total),)

    return ReduceSumSquare


def _log_softmax() -> tuple[type[Any], ...]:
    """LogSoftmax, SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss as their functions have it: the logarithm of a
    probability that is too small to be held too.

    onnx 1.23 and older take the logarithm of the probabilities, which is -inf where one is 0, and LogSoftmax along one
    axis in every operator set. Before opset 13 "the input [...] will be coerced into a 2-dimensional tensor", and
    ``axis`` is 1 by default (ONNX operators, LogSoftmax-11).
    """
    from onnx.reference.op_run import OpRun  # lazy: start-up

    def logarithms(x: npt.NDArray[Any], axes: tuple[int, ...]) -> npt.NDArray[Any]:
        if x.size == 0:
            return x.copy()
        less = x - x.max(axis=axes, keepdims=True)
        total = np.exp(less).sum(axis=axes, keepdims=True, dtype=x.dtype)
        return np.asarray(less - np.log(total), x.dtype)

    class LogSoftmax(OpRun):
        op_domain = ""

        def _run(self, X: Any, axis: int = -1) -> tuple[npt.NDArray[Any]]:
            if self.run_params["opsets"].get("", 13) >= 13:
                return (logarithms(X, (axis,)),)
            given = any(one.name == "axis" for one in self.onnx_node.attribute)
            return (logarithms(X, tuple(range(axis % X.ndim if given else 1, X.ndim))),)

    class SoftmaxCrossEntropyLoss(OpRun):
        op_domain = ""

        def _run(
            self, x: Any, target: Any, weight: Any = None, ignore_index: Any = None, reduction: str = "mean"
        ) -> tuple[Any, ...]:
            found = logarithms(x, (1,))
            loss = _likelihood_loss(found, target, weight, ignore_index, reduction)
            return (loss, found)[: len(self.onnx_node.output)]

    class NegativeLogLikelihoodLoss(OpRun):
        op_domain = ""

        def _run(
            self, x: Any, target: Any, weight: Any = None, ignore_index: Any = None, reduction: str = "mean"
        ) -> tuple[Any, ...]:
            return (_likelihood_loss(x, target, weight, ignore_index, reduction),)

    return LogSoftmax, SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss


def _likelihood_loss(
    x: Any, target: Any, weight: Any, ignored: int | None, reduction: str
) -> npt.NDArray[Any]:
    """NegativeLogLikelihoodLoss of x [N, C, ...] and target [N, ...]: a mean is over what is not ignored, NaN over
    nothing, as by the operator's function. onnx 1.23 and older count everything where -1 is ignored, and no weights
    are given.

    Raises:
        ValueError: the target has other sizes than x.
    """
    if target.shape != (x.shape[0], *x.shape[2:]):
        raise ValueError(f"a target of {target.shape} does not fit scores of {x.shape}")
    seen = np.ones(target.shape, bool) if ignored is None else target != ignored
    places = np.where(seen, target, 0)
    factors = np.ones(x.shape[1], x.dtype) if weight is None else weight
    counted = np.where(seen, factors[places], 0).astype(x.dtype)
    loss = np.where(seen, -np.take_along_axis(x, places[:, None], 1)[:, 0] * counted, 0).astype(x.dtype)
    if reduction == "none":
        return np.asarray(loss)
    total = loss.sum(dtype=x.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(total if reduction == "sum" else total / counted.sum(dtype=x.dtype), x.dtype)


def _norms() -> tuple[type[Any], ...]:
    """LayerNormalization and RMSNormalization, whose first stage is computed in ``stash_type``: float32 by default.

    "If `stash_type` is 1, this operator casts all input variables to 32-bit float, perform the computation, and
    finally cast `Normalized` back to the original type of `X`" (ONNX operators, LayerNormalization-17). onnx 1.23 and
    older compute all of it in the type of ``X``, where half precision overflows, and give LayerNormalization's second
    and third output that type too.
    """
    from onnx.helper import tensor_dtype_to_np_dtype  # lazy: start-up
    from onnx.reference.op_run import OpRun  # lazy: start-up

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


def _conv_transpose() -> type[Any]:
    """ConvTranspose, as the specification has it since opset 11.

    onnx 1.23 and older fail with ``output_shape``, put the odd element of the padding at the wrong end, and forget
    ``output_padding`` beside ``auto_pad``.
    """
    from onnx.reference.op_run import OpRun  # lazy: start-up

    class ConvTranspose(OpRun):
        op_domain = ""

        def _run(
            self,
            X: npt.NDArray[Any],
            W: npt.NDArray[Any],
            B: npt.NDArray[Any] | None = None,
            auto_pad: str = "NOTSET",
            dilations: Any = None,
            group: int = 1,
            kernel_shape: Any = None,
            output_padding: Any = None,
            output_shape: Any = None,
            pads: Any = None,
            strides: Any = None,
        ) -> Any:
            axes = W.ndim - 2
            steps, gaps = [list(one or [1] * axes) for one in (strides, dilations)]
            more, spans = list(output_padding or [0] * axes), []
            for size, gap in zip(W.shape[2:], gaps, strict=True):
                spans.append((size - 1) * gap + 1)
            full = [(n - 1) * s + w + o for n, s, w, o in zip(X.shape[2:], steps, spans, more, strict=True)]
            begins, sizes = _cut(full, X.shape[2:], steps, auto_pad, output_shape, pads)
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

    return ConvTranspose


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
