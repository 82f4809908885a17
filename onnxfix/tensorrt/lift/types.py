"""TensorRT's element types and ONNX's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

#: TensorRT's name of a type -> ONNX's type of the same values.
ONNX_TYPES: dict[str, int] = {
    "FLOAT": TensorProto.FLOAT,
    "HALF": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "INT8": TensorProto.INT8,
    "UINT8": TensorProto.UINT8,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "BOOL": TensorProto.BOOL,
    "FP8": TensorProto.FLOAT8E4M3FN,
    "INT4": TensorProto.INT4,
    "FP4": TensorProto.FLOAT4E2M1,
    "E8M0": TensorProto.FLOAT8E8M0,
}
#: The first opset in which QuantizeLinear, Cast and the like take a type, where that is later than OPSET.
OPSET = 21
NEWER = {"FP4": 23, "E8M0": 24}
FLOATS = ("FLOAT", "HALF", "BF16")
INTEGERS = ("INT8", "UINT8", "INT32", "INT64")


def numpy_type(dtype: str) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) type of a TensorRT type."""
    return onnx.helper.tensor_dtype_to_np_dtype(ONNX_TYPES[dtype])
