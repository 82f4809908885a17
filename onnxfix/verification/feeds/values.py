"""Numbers, texts and lists as arrays of a given ONNX type, and nothing that the type does not hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxfix import dtypes
from onnxfix.errors import UsageError
from onnxfix.verification.feeds.integers import integer_range

Array = np.ndarray[Any, Any]


def array_of(where: str, elem: int, value: Any) -> Array:
    """``value`` (a number, a boolean, a text, or lists of them) as an array of the element type ``elem``.

    Floats are rounded to the type as ever; whatever else does not fit is an error, which begins with ``where``.

    Raises:
        UsageError: it does not fit the type, or rows of a list differ in length.
    """
    flat: list[Any] = []
    shape = _shape(where, value, flat)
    name, dtype = dtypes.name_of(elem), numpy_type(where, elem)
    wrong = [one for one in flat if not _fits(elem, one)]
    if wrong:
        raise UsageError(f"{where}: the input is {name}, which {wrong[0]!r} is not")
    if elem == TensorProto.STRING:
        return np.array(flat, dtype=object).reshape(shape)
    if elem == TensorProto.BOOL:
        return np.array(flat, dtype=bool).reshape(shape)
    if "int" in dtype.name:
        least, most = integer_range(dtype)
        outside = [one for one in flat if not least <= one <= most]
    else:
        outside = _outside_floats(dtype, flat)
    if outside:
        raise UsageError(f"{where}: {outside[0]!r} is outside the range of {name}")
    wide: Any = object if "int" in dtype.name else complex if dtype.kind == "c" else float
    exact = [int(one) for one in flat] if wide is object else flat
    return np.array(exact, dtype=wide).astype(dtype).reshape(shape)


def numpy_type(where: str, elem: int) -> np.dtype[Any]:
    """The type of arrays of an element type; objects for strings. ``where`` begins the message of an error.

    Raises:
        UsageError: ONNX does not have the type.
    """
    try:
        return helper.tensor_dtype_to_np_dtype(elem)
    except KeyError:
        raise UsageError(f"{where}: the input is {dtypes.name_of(elem)}, which has no values") from None


def _shape(where: str, value: Any, flat: list[Any]) -> tuple[int, ...]:
    """The shape of nested lists, whose items go to ``flat``."""
    if not isinstance(value, (list, tuple)):
        flat.append(value)
        return ()
    shapes = {_shape(where, one, flat) for one in value}
    if len(shapes) > 1:
        raise UsageError(f"{where}: the rows of the list differ in length")
    return (len(value), *next(iter(shapes), ()))


def _fits(elem: int, one: Any) -> bool:
    """Whether a value is of the sort that the type holds, whatever its size."""
    if elem == TensorProto.STRING:
        return isinstance(one, str)
    if elem == TensorProto.BOOL:
        return isinstance(one, bool) or (isinstance(one, int) and one in (0, 1))
    if isinstance(one, bool) or not isinstance(one, (int, float, complex)):
        return False
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    if "int" in dtype.name:
        return isinstance(one, int) or (isinstance(one, float) and one.is_integer())
    return dtype.kind == "c" or not isinstance(one, complex)


def _outside_floats(dtype: np.dtype[Any], flat: list[Any]) -> list[Any]:
    """Finite numbers that the type does not hold as such."""
    found = []
    for one in flat:
        try:
            with np.errstate(over="ignore"):
                kept = np.array(one, complex if dtype.kind == "c" else float).astype(dtype).astype(complex)
        except OverflowError:  # an integer of hundreds of digits
            found.append(one)
            continue
        if np.isfinite(complex(one)) and not np.isfinite(kept):
            found.append(one)
    return found
