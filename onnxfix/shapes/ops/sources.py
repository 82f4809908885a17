"""Values without a producer: initializers."""

from __future__ import annotations

from onnxfix.errors import ModelError
from onnxfix.graph.overlay import Value
from onnxfix.shapes.ops.base import FLOATS, INTEGERS, UNKNOWN, VALUE_LIMIT, Info, from_array, small
from onnxfix.shapes.symbols import as_dim, constant


def initializer(value: Value) -> Info:
    """Type, dimensions and, if it is small and no caller can override it, the value of an initializer."""
    if value.sparse:
        for sparse in getattr(value.scope.proto, "sparse_initializer", ()):
            if sparse.values.name == value.name:
                return Info(sparse.values.data_type, tuple(constant(d) for d in sparse.dims))
        return UNKNOWN
    tensor = value.initializer
    if tensor is None or value.is_input:
        return UNKNOWN
    elem = tensor.data_type or None
    shape = tuple(as_dim(d) for d in tensor.dims)
    elements = None
    if (elem in INTEGERS or elem in FLOATS) and small(shape) is not None:
        try:
            array = value.constant(VALUE_LIMIT * 16)
        except ModelError:
            array = None  # external data that is missing: reported where the weights are read
        if array is not None and elem is not None:
            elements = from_array(array, elem)
    return Info(elem, shape, elements)
