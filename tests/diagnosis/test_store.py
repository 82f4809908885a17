"""What is stored comes back bit for bit, whatever its type, and leaves no file when it is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfix.diagnosis.child import Held, hold

NUMBERS = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip
EXOTIC = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int4", "uint4"]


def same(one: Any, two: Any) -> bool:
    """Bit for bit, type and shape included."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if not isinstance(one, np.ndarray):
        return type(one) is type(two) and one == two
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    if one.dtype.kind in "OUS":
        return bool((one == two).all())
    return one.tobytes() == two.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (300, 97)], ids=str)
@pytest.mark.parametrize("dtype", [*NUMBERS, *EXOTIC])
def test_an_array_of_any_type_and_size_comes_back(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype)) if dtype in EXOTIC else np.dtype(dtype)
    value = np.arange(int(np.prod(shape))).reshape(shape) % 7
    array = value.astype(np.float32).astype(kind)
    held = hold(array, tmp_path / "1")
    assert held.is_tensor
    assert held.dtype == dtype
    assert held.shape == shape
    assert held.nbytes == array.nbytes
    assert bool(held.file) == (array.nbytes > 16384)
    assert same(held.load(), array)
    held.drop()
    assert not list(tmp_path.iterdir())


def test_nan_payloads_and_negative_zero_are_kept(tmp_path: Path) -> None:
    array = np.tile(np.array([0x7FC00001, 0xFFC00000, 0x80000000, 0x7F800000], np.uint32), 5000)
    held = hold(array.view(np.float32), tmp_path / "1")
    assert held.file
    assert held.load().tobytes() == array.tobytes()


@pytest.mark.parametrize("turned", [lambda a: a.T, lambda a: a[::2], lambda a: np.asfortranarray(a)])
def test_an_array_that_is_not_contiguous_keeps_its_order(turned: Any, tmp_path: Path) -> None:
    array = turned(np.arange(40000, dtype=np.float32).reshape(200, 200))
    assert same(hold(array, tmp_path / "1").load(), np.ascontiguousarray(array))


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        [],
        [np.arange(3), np.zeros((2, 2), np.float32)],
        [np.zeros(9000), np.ones(9000)],
        {1: 0.5, 2: 0.25},
        np.array(["a", "bc"], object),
        np.array([["ü", ""]] * 9000, object),
    ],
    ids=["none", "text", "empty", "sequence", "large-sequence", "map", "strings", "large-strings"],
)
def test_what_is_no_array_of_numbers_comes_back(value: Any, tmp_path: Path) -> None:
    held = hold(value, tmp_path / "1")
    assert not held.is_tensor
    assert not held.nbytes
    assert held.is_strings == isinstance(value, np.ndarray)
    assert held.shape == (value.shape if isinstance(value, np.ndarray) else ())
    found = held.load()
    assert found is None if value is None else same(found, value)
    held.drop()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [3, 9000])
def test_an_array_is_converted_when_it_is_loaded(size: int, tmp_path: Path) -> None:
    array = np.arange(size, dtype=np.int64) + 2**33
    held = hold(array, tmp_path / "1").as_type("int32")
    assert (held.dtype, held.nbytes) == ("int32", 4 * size)
    assert same(held.load(), array.astype(np.int32))
    assert same(held.as_type("int64").load(), array)
    assert same(held.as_type("float64").load(), array.astype(np.float64))


def test_a_value_that_is_no_array_is_not_converted(tmp_path: Path) -> None:
    assert hold([np.ones(2)], tmp_path / "1").as_type("int32").load()[0].dtype == np.float64
    assert Held().as_type("float32") == Held()
