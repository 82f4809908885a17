"""Operators of operator sets before 7, as the specification has them: operands are aligned by ``axis``.

onnx's own evaluator runs the newest kernel whatever the model imports, and aligns as numpy does. Each is a class for
``ReferenceEvaluator(new_ops=...)``, which answers for all versions of its operator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_batch_normalization, op_prelu

if TYPE_CHECKING:
    import numpy.typing as npt

_BINARY = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_BATCH_NORM: Any = op_batch_normalization


def _binary(op_type: str) -> type[Any]:
    """An operator of two operands. Before opset 7 "the shape of B must be a contiguous subset of the shape of A", which
    starts at ``axis`` where that is given (ONNX operators, Add-6)."""
    own = getattr(importlib.import_module(f"onnx.reference.ops.op_{op_type.lower()}"), op_type)

    def _run(self: Any, a: Any, b: Any, **unused: Any) -> Any:
        axis = getattr(self, "axis", None)  # of the node: onnx hands these operators no attributes
        if axis is not None and b.ndim:
            b = _shifted(b, a.ndim - (axis + a.ndim if axis < 0 else axis) - b.ndim)
        return own._run(self, a, b)

    return type(op_type, (own,), {"op_domain": "", "_run": _run})


class PRelu(op_prelu.PRelu):
    """Its slope of rank 1 belongs to the channels before opset 7."""

    op_domain = ""

    def _run(self, x: Any, slope: Any, **unused: Any) -> Any:
        old = self.run_params["opsets"].get("", 7) < 7
        if old and slope.ndim == 1 and slope.size > 1:
            slope = _shifted(slope, x.ndim - 2)
        return super()._run(x, slope)  # type: ignore[no-untyped-call]


class BatchNormalization(OpRun):
    """From operator set 7 to 13 it is in training mode where it gives more than one output, and normalizes with the
    batch's mean and variance; onnx's evaluator takes it for training mode throughout, with the running ones, and half
    precision overflows in its statistics."""

    op_domain = ""

    def _run(self, *values: Any, **how: Any) -> Any:
        version = self.run_params["opsets"].get("", 0)
        # What the newest version has and the node does not comes with its default.
        known = {**_DEFAULTS, **{name: value for name, value in how.items() if value is not None}}
        if version < 7:
            known["is_test"] = getattr(self, "is_test", 0)
            return _BATCH_NORM.BatchNormalization_6._run(self, *values, **_some(known, "is_test"))
        if version < 14:
            known["training_mode"] = len([name for name in self.onnx_node.output if name]) > 1
        x, kinds = values[0], [values[index].dtype for index in (0, 3, 4)]
        wide = x.astype("float32") if x.dtype.itemsize == 2 else x  # ONNX computes mean and variance in float
        some = _some(known, "training_mode")
        results = _BATCH_NORM.BatchNormalization_14._run(self, wide, *values[1:], **some)
        return tuple(result.astype(kind) for result, kind in zip(results, kinds, strict=False))


_DEFAULTS = {"epsilon": 1e-5, "momentum": 0.9, "training_mode": 0}


def _some(known: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: known[name] for name in ("epsilon", "momentum", *names)}


def _shifted(array: npt.NDArray[Any], places: int) -> npt.NDArray[Any]:
    """The array with so many dimensions of 1 behind its own."""
    return array.reshape(*array.shape, *[1] * max(places, 0))


LEGACY: tuple[type[Any], ...] = (*map(_binary, _BINARY), PRelu, BatchNormalization)
"""The broadcasting operators that take a second operand, PRelu, and BatchNormalization."""
