"""Where the elements of initializers come from."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper


class Weights:
    """The weights of a model that is in memory."""

    def read(self, proto: TensorProto) -> np.ndarray[Any, Any]:
        """The elements of an initializer."""
        return numpy_helper.to_array(proto)

    def content(self, proto: TensorProto) -> bytes:
        """What tells the elements from others of the same type and shape. Equal elements may be told apart."""
        if proto.HasField("raw_data"):
            return proto.raw_data
        copy = TensorProto()
        copy.CopyFrom(proto)
        copy.ClearField("name")
        copy.ClearField("doc_string")
        return copy.SerializeToString(deterministic=True)
