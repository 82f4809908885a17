"""What reading a network back gives: frozen records that cross the sandbox's pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto

from onnxfix.shown import Shown

#: "lifted": the model was written. "refused": TensorRT's parser rejects the model. "unlifted": the network has a layer
#: that onnxfix cannot read back; the written model has a node of no ONNX domain in its place.
#: "unstarted": TensorRT does not start here, so that it saw no model. The others: what became of the child, "error"
#: where code failed that should not, a fault of onnxfix.
LiftStatus = Literal["lifted", "refused", "unlifted", "unstarted", "crash", "timeout", "memory", "error"]


@dataclass(frozen=True)
class NetTensor:
    """An input or output of the network. ``dtype`` is TensorRT's name of the type ("FLOAT"), ``dims`` are sizes, or
    the names of dynamic dimensions."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True)
class Gap:
    """A layer that was not read back: its kind and name, the label of the ONNX node that it came from, and why."""

    kind: str
    layer: str
    label: str
    reason: str

    def __str__(self) -> str:
        """``RAGGED_SOFTMAX layer x of ONNX node y: why``, on one line."""
        node = f" of ONNX node {self.label}" if self.label else ""
        return f"{self.kind} layer {self.layer or '(unnamed)'}{node}: {self.reason}"


@dataclass(frozen=True, repr=False)
class Lifted(Shown):
    """A network as an ONNX model, or why there is none.

    ``path`` is the file of that model, ``model`` that of the ONNX model which TensorRT imported. ``names``
    leads from each tensor of the ONNX model that is a tensor of the network to its name in the lifted model, ``types``
    to its type there, by TensorRT's name. ``layers`` counts them by kind.
    ``gaps`` are layers that could not be read back (status "unlifted"); ``notes`` say what was omitted on purpose;
    ``drawn`` are outputs that depend on random numbers. ``seconds`` are those of parsing and of lifting.
    """

    status: LiftStatus
    reason: str = ""
    path: str = ""
    inputs: tuple[NetTensor, ...] = ()
    outputs: tuple[NetTensor, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[tuple[str, int], ...] = ()
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    model: str = ""
    package: str = ""
    version: str = ""
    seconds: tuple[float, float] = (0.0, 0.0)

    @property
    def lifted(self) -> bool:
        """Whether there is a model at ``path`` that can be run."""
        return self.status == "lifted"

    @property
    def exit_code(self) -> int:
        """0 for a whole model, 1 where TensorRT refuses it or a layer is missing, 2 where nothing was learnt."""
        return {"lifted": 0, "error": 2, "unstarted": 2}.get(self.status, 1)

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"model": self.model, "path": self.path, "status": self.status}
        if self.reason:
            return {**facts, "reason": self.reason}
        return {**facts, "layers": sum(count for _, count in self.layers), "gaps": len(self.gaps)}


#: TensorRT's name of a type -> ONNX's type of the same values.
ONNX_TYPES: dict[str, int] = {
    "FLOAT": TensorProto.FLOAT, "HALF": TensorProto.FLOAT16, "BF16": TensorProto.BFLOAT16,
    "INT8": TensorProto.INT8, "UINT8": TensorProto.UINT8, "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64, "BOOL": TensorProto.BOOL, "FP8": TensorProto.FLOAT8E4M3FN,
    "INT4": TensorProto.INT4, "FP4": TensorProto.FLOAT4E2M1, "E8M0": TensorProto.FLOAT8E8M0,
}  # fmt: skip
#: The first opset in which QuantizeLinear, Cast and the like take a type, where that is later than OPSET.
OPSET = 21
NEWER = {"FP4": 23, "E8M0": 24}
FLOATS = ("FLOAT", "HALF", "BF16")
INTEGERS = ("INT8", "UINT8", "INT32", "INT64")


def numpy_type(dtype: str) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) type of a TensorRT type."""
    return onnx.helper.tensor_dtype_to_np_dtype(ONNX_TYPES[dtype])
