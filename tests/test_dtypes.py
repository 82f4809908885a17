"""``files.dtypes`` against ml_dtypes and numpy: every value of the types up to 16 bits, the edges of the wider ones.

The oracle knows nothing of precisions and exponents: it asks whether a value survives the trip into a type.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxfix.files import dtypes

# An older onnx does not know the newest types.
TYPES = sorted({*dtypes.INTEGERS, *dtypes.FLOATS} & set(TensorProto.DataType.values()))
# numpy warns of overflow, and of signalling NaNs, which these tests make on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def numpy_type(elem_type: int) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))


def bits_of(elem_type: int) -> int:
    """Bits of the type itself: ml_dtypes keeps the short ones in a byte each."""
    if elem_type == TensorProto.BOOL:
        return 1
    known = ml_dtypes.finfo if elem_type in dtypes.FLOATS else ml_dtypes.iinfo
    return int(known(numpy_type(elem_type)).bits)


def key(value: int | float) -> str:
    """One text per value: NaN is one value, and -0.0 is not 0.0; an integer is the float of that value."""
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        if math.isinf(value) or not value.is_integer():
            return value.hex()
        return "-0" if value == 0 and math.copysign(1, value) < 0 else str(int(value))
    return str(value)


@functools.cache
def every_value(elem_type: int) -> dict[str, int | float]:
    """All values of a type of up to 16 bits."""
    bits = bits_of(elem_type)
    dtype = numpy_type(elem_type)
    if elem_type == TensorProto.BOOL:
        return {"0": 0, "1": 1}
    raw = np.arange(1 << bits, dtype=np.uint16 if bits > 8 else np.uint8)
    if elem_type in dtypes.INTEGERS and bits < 8:
        info = ml_dtypes.iinfo(dtype)
        values: list[int | float] = list(range(int(info.min), int(info.max) + 1))
    elif elem_type in dtypes.INTEGERS:
        values = [int(v) for v in raw.view(dtype)]
    else:
        values = [float(v) for v in raw.view(dtype).astype(np.float64)]
    return {key(v): v for v in values}


def edges(elem_type: int) -> dict[str, int | float]:
    """Values of a wide type at which others give up: powers of two and their neighbors, limits, specials."""
    if elem_type in dtypes.INTEGERS:
        info = np.iinfo(numpy_type(elem_type))
        near = (s * 2**e + d for e in range(65) for s in (-1, 1) for d in (-1, 0, 1))
        integers = [v for v in (*near, int(info.min), int(info.max)) if info.min <= v <= info.max]
        return {key(v): v for v in integers}
    dtype = numpy_type(elem_type)
    limits = np.finfo(dtype)
    powers = np.array([2.0**e for e in range(-1074, 1024)]).astype(dtype)
    above, below = np.nextafter(powers, dtype.type(np.inf)), np.nextafter(powers, dtype.type(0))
    special = np.array([0, np.nan, np.inf, limits.max, limits.tiny, limits.smallest_subnormal], dtype)
    floats = np.concatenate([powers, above, below, special])
    return {key(float(v)): float(v) for v in (*floats, *-floats)}


def values_of(elem_type: int) -> dict[str, int | float]:
    return every_value(elem_type) if bits_of(elem_type) <= 16 else edges(elem_type)


def survives(elem_type: int, values: Collection[int | float]) -> bool:
    """Whether all values come back unchanged from the type; asked of numpy and ml_dtypes."""
    if elem_type in dtypes.INTEGERS:
        span = dtypes.INTEGERS[elem_type]
        return all(
            (isinstance(value, int) or (value.is_integer() and key(value) != "-0"))
            and span.low <= value <= span.high
            for value in values
        )
    if any(isinstance(value, int) and int(float(value)) != value for value in values):
        return False  # not even a double holds it
    wide = np.array([float(value) for value in values])
    with np.errstate(all="ignore"):
        back = wide.astype(numpy_type(elem_type)).astype(np.float64)
    same = (back == wide) & (np.signbit(back) == np.signbit(wide))
    return bool((same | (np.isnan(back) & np.isnan(wide))).all())


@functools.cache
def surviving(holder: int, source: int) -> bool:
    return survives(holder, values_of(source).values())


def test_every_number_type_of_onnx_is_known() -> None:
    others = {"UNDEFINED", "STRING", "COMPLEX64", "COMPLEX128"}
    assert {TensorProto.DataType.Name(t) for t in TYPES} == set(TensorProto.DataType.keys()) - others


@pytest.mark.parametrize("holder", TYPES, ids=dtypes.name_of)
def test_holds_exactly(holder: int) -> None:
    """For types of up to 16 bits, twice: by the trip through the type, and as sets of values."""
    said = {dtypes.name_of(source) for source in TYPES if dtypes.holds_exactly(holder, source)}
    assert said == {dtypes.name_of(source) for source in TYPES if surviving(holder, source)}
    if bits_of(holder) <= 16:
        small = [source for source in TYPES if bits_of(source) <= 16]
        contained = [source for source in small if every_value(source).keys() <= every_value(holder).keys()]
        assert said & {*map(dtypes.name_of, small)} == {*map(dtypes.name_of, contained)}


@pytest.mark.parametrize("elem_type", [t for t in TYPES if t in dtypes.INTEGERS], ids=dtypes.name_of)
def test_integer_formats(elem_type: int) -> None:
    if elem_type == TensorProto.BOOL:
        assert dtypes.INTEGERS[elem_type] == dtypes.IntFormat(0, 1)
        return
    info = ml_dtypes.iinfo(numpy_type(elem_type))
    assert dtypes.INTEGERS[elem_type] == dtypes.IntFormat(int(info.min), int(info.max))


@pytest.mark.parametrize("elem_type", [t for t in TYPES if t in dtypes.FLOATS], ids=dtypes.name_of)
def test_float_formats(elem_type: int) -> None:
    """Each field against the values themselves (the widest two: against ml_dtypes.finfo)."""
    known = dtypes.FLOATS[elem_type]
    values = values_of(elem_type)
    finite = [v for v in values.values() if math.isfinite(v)]
    assert known.highest == max(finite)
    assert 2.0**known.lowest == min(v for v in finite if v > 0)
    assert known.infinity == ("inf" in values)
    assert known.nan == ("nan" in values)
    assert known.negative_zero == ("-0" in values)
    assert known.zero == ("0" in values)
    assert known.negative == any(v < 0 for v in finite)
    odd = (math.frexp(v)[0] for v in finite if v > 0)
    assert known.precision == max(_significant_bits(m) for m in odd)


def _significant_bits(mantissa: float) -> int:
    numerator, _ = mantissa.as_integer_ratio()
    return numerator.bit_length()


def test_other_types_hold_only_themselves() -> None:
    for other in (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128, 999):
        assert dtypes.holds_exactly(other, other)
        for known in TYPES:
            assert not dtypes.holds_exactly(other, known)
            assert not dtypes.holds_exactly(known, other)
    assert not dtypes.holds_exactly(TensorProto.COMPLEX128, TensorProto.COMPLEX64)


def test_names_and_kinds() -> None:
    for name, number in TensorProto.DataType.items():
        if name != "UNDEFINED":
            assert dtypes.name_of(number) == name.lower()
    assert dtypes.name_of(999) == "type 999"
    assert {t for t in TYPES if dtypes.is_integer(t)} == {*dtypes.INTEGERS} & {*TYPES} - {TensorProto.BOOL}
    assert {t for t in TYPES if dtypes.is_float(t)} == {*dtypes.FLOATS} & {*TYPES}
    assert not dtypes.is_integer(TensorProto.STRING)
    assert not dtypes.is_float(TensorProto.COMPLEX64)
