"""Facts about ONNX element types: the values of a type, and whether another type can represent all of them.

Sources: onnx.proto (TensorProto.DataType) and ONNX's technical pages on float8, float4 and float6.
"""

from __future__ import annotations

from typing import NamedTuple

_NUMBERS = {
    "FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "STRING": 8, "BOOL": 9,
    "FLOAT16": 10, "DOUBLE": 11, "UINT32": 12, "UINT64": 13, "COMPLEX64": 14, "COMPLEX128": 15, "BFLOAT16": 16,
    "FLOAT8E4M3FN": 17, "FLOAT8E4M3FNUZ": 18, "FLOAT8E5M2": 19, "FLOAT8E5M2FNUZ": 20, "UINT4": 21, "INT4": 22,
    "FLOAT4E2M1": 23, "FLOAT8E8M0": 24, "UINT2": 25, "INT2": 26, "FLOAT6E2M3": 27, "FLOAT6E3M2": 28,
}  # fmt: skip
"""TensorProto.DataType by name, restated so that this module needs no onnx and works with older ones."""

_NAMES = {number: name.lower() for name, number in _NUMBERS.items()}


class IntFormat(NamedTuple):
    """An integer type: all integers from ``low`` to ``high``."""

    low: int
    high: int


class FloatFormat(NamedTuple):
    """A binary floating-point type.

    ``precision`` counts significant bits with the hidden one; finite values are multiples of 2**``lowest``
    (the smallest positive one) up to ``highest``.
    """

    precision: int
    lowest: int
    highest: float
    infinity: bool
    nan: bool
    negative_zero: bool
    zero: bool = True
    negative: bool = True


INTEGERS: dict[int, IntFormat] = {
    _NUMBERS["BOOL"]: IntFormat(0, 1),
    **{_NUMBERS[f"INT{b}"]: IntFormat(-(2 ** (b - 1)), 2 ** (b - 1) - 1) for b in (2, 4, 8, 16, 32, 64)},
    **{_NUMBERS[f"UINT{b}"]: IntFormat(0, 2**b - 1) for b in (2, 4, 8, 16, 32, 64)},
}

FLOATS: dict[int, FloatFormat] = {
    _NUMBERS["DOUBLE"]: FloatFormat(53, -1074, float.fromhex("0x1.fffffffffffffp1023"), True, True, True),
    _NUMBERS["FLOAT"]: FloatFormat(24, -149, float.fromhex("0x1.fffffep127"), True, True, True),
    _NUMBERS["FLOAT16"]: FloatFormat(11, -24, 65504.0, True, True, True),
    _NUMBERS["BFLOAT16"]: FloatFormat(8, -133, float.fromhex("0x1.fep127"), True, True, True),
    _NUMBERS["FLOAT8E4M3FN"]: FloatFormat(4, -9, 448.0, False, True, True),
    _NUMBERS["FLOAT8E4M3FNUZ"]: FloatFormat(4, -10, 240.0, False, True, False),
    _NUMBERS["FLOAT8E5M2"]: FloatFormat(3, -16, 57344.0, True, True, True),
    _NUMBERS["FLOAT8E5M2FNUZ"]: FloatFormat(3, -17, 57344.0, False, True, False),
    _NUMBERS["FLOAT8E8M0"]: FloatFormat(1, -127, 2.0**127, False, True, False, zero=False, negative=False),
    _NUMBERS["FLOAT6E2M3"]: FloatFormat(4, -3, 7.5, False, False, True),
    _NUMBERS["FLOAT6E3M2"]: FloatFormat(3, -4, 28.0, False, False, True),
    _NUMBERS["FLOAT4E2M1"]: FloatFormat(2, -1, 6.0, False, False, True),
}


def name_of(elem_type: int) -> str:
    """The type as ONNX's text format writes it: ``float``, ``int64``, ``bfloat16`` …"""
    return _NAMES.get(elem_type) or f"type {elem_type}"


def is_integer(elem_type: int) -> bool:
    """Whether the type holds integers only; bool does not count."""
    return elem_type in INTEGERS and elem_type != _NUMBERS["BOOL"]


def is_float(elem_type: int) -> bool:
    """Whether the type is a binary floating-point type of any width."""
    return elem_type in FLOATS


def holds_exactly(holder: int, source: int) -> bool:
    """Whether every value of type ``source`` is a value of type ``holder`` (TensorProto.DataType numbers).

    NaN counts as one value whatever its payload, and the sign of zero counts. False for strings, complex types
    and types that this module does not know, unless both are the same.
    """
    if holder == source:
        return True
    if source in INTEGERS and holder in INTEGERS:
        return INTEGERS[holder].low <= INTEGERS[source].low and INTEGERS[source].high <= INTEGERS[holder].high
    if holder not in FLOATS:
        return False
    wide = FLOATS[holder]
    if source in INTEGERS:
        # All integers up to 2**precision are values, and the odd number above it is not.
        low, largest = INTEGERS[source].low, max(-INTEGERS[source].low, INTEGERS[source].high)
        fits = largest <= 2**wide.precision and largest <= wide.highest and wide.lowest <= 0
        return wide.zero and (low >= 0 or wide.negative) and fits
    if source not in FLOATS:
        return False
    narrow = FLOATS[source]
    return (
        narrow.precision <= wide.precision
        and wide.lowest <= narrow.lowest
        and narrow.highest <= wide.highest
        and all(have or not need for have, need in zip(wide[3:], narrow[3:], strict=True))
    )
