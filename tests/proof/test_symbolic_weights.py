"""The proof for all values where the weights of the two models are in files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxfix.proof.symbolic.files import Proof, prove_files
from support import models

BEFORE = "g (float[2,M] x) => (float[2,N] y) {a = Identity(x) y = MatMul(a, w)}"
AFTER = "g (float[2,M] x) => (float[2,N] y) {y = MatMul(x, w)}"
SIZE = 700
NUMBERS = np.random.default_rng(1).normal(size=(SIZE, SIZE)).astype(np.float32)


def write(path: Path, text: str, array: np.ndarray | None = None, **external: object) -> Path:
    """A model whose weight ``w`` is an array in it, or external data."""
    model = models.model(text, 21)
    if array is not None:
        model.graph.initializer.append(numpy_helper.from_array(array, "w"))
    else:
        size = external.pop("size", SIZE)
        tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[size, size])
        models.external(tensor, **external)
    return models.write(path, model)


def prove(first: Path, second: Path, *shape: int) -> Proof:
    """At a shape of x; 2 rows by default."""
    return prove_files(str(first), str(second), [({"x": shape or (2, SIZE)}, {})], 60.0)


@pytest.mark.parametrize("changed", [None, 0, 500_001, NUMBERS.nbytes - 1])
def test_a_copy_of_the_data_is_compared_byte_by_byte(tmp_path: Path, changed: int | None) -> None:
    data = bytearray(NUMBERS.tobytes())
    (tmp_path / "a.data").write_bytes(data)
    if changed is not None:
        data[changed] ^= 1
    (tmp_path / "b.data").write_bytes(b"\0" * 4096 + data)
    before = write(tmp_path / "a.onnx", BEFORE, location="a.data")
    after = write(tmp_path / "b.onnx", AFTER, location="b.data", offset=4096, length=len(data))
    assert (prove(before, after).trials == 1) == (changed is None)


@pytest.mark.parametrize("same", [True, False])
def test_two_places_of_one_file_may_differ(tmp_path: Path, same: bool) -> None:
    (tmp_path / "a.data").write_bytes(NUMBERS.tobytes() + (NUMBERS if same else NUMBERS + 1).tobytes())
    before = write(tmp_path / "a.onnx", BEFORE, location="a.data", length=NUMBERS.nbytes)
    place = {"offset": NUMBERS.nbytes, "length": NUMBERS.nbytes}
    after = write(tmp_path / "b.onnx", AFTER, location="a.data", **place)
    assert (prove(before, after).trials == 1) == same


def test_data_that_both_models_share_is_not_read(tmp_path: Path) -> None:
    size = 1 << 18
    (tmp_path / "a.data").touch()
    os.truncate(tmp_path / "a.data", 4 * size * size)  # 256 GiB, none of it on the disk
    before = write(tmp_path / "a.onnx", BEFORE, location="a.data", size=size)
    after = write(tmp_path / "b.onnx", AFTER, location="a.data", size=size)
    assert prove(before, after, 2, size) == Proof(1, "", ())


@pytest.mark.parametrize("same", [True, False])
def test_weights_in_models_of_any_size_are_compared(tmp_path: Path, same: bool) -> None:
    small = NUMBERS[:200, :200]
    before = write(tmp_path / "a.onnx", BEFORE, small)
    after = write(tmp_path / "b.onnx", AFTER, small if same else small + 1)
    model = onnx.load(after)
    model.graph.initializer.append(numpy_helper.from_array(NUMBERS, "unused"))
    onnx.save(model, after)
    assert (prove(before, after, 2, 200).trials == 1) == same


def test_a_changed_element_is_found_where_only_the_shape_of_a_weight_changes(tmp_path: Path) -> None:
    text = "g (float[2,3,N] x) => (float[2,3,N] y) {y = Add(x, w)}"
    bias = NUMBERS[0]
    before = write(tmp_path / "a.onnx", text, bias)
    after = write(tmp_path / "b.onnx", text, bias[None, None])
    assert prove(before, after, 2, 3, SIZE) == Proof(1, "", ())
    bias = bias.copy()
    bias[333] += 1
    after = write(tmp_path / "b.onnx", text, bias[None, None])
    assert prove(before, after, 2, 3, SIZE).trials == 0


def test_equal_bytes_in_another_shape_have_other_columns(tmp_path: Path) -> None:
    text = (
        "g (int64[1] i) => (float[64] y) <int64[1] s = {64}> {a = Gather<axis = 1>(w, i) y = Reshape(a, s)}"
    )
    before = write(tmp_path / "a.onnx", text, NUMBERS[0, :128].reshape(8, 2, 8))
    for shape, same in (((8, 2, 8), True), ((16, 2, 4), False)):
        after = write(tmp_path / "b.onnx", text, NUMBERS[0, :128].reshape(shape))
        trial = {"i": (1,)}, {"i": np.zeros(1, np.int64)}
        assert (prove_files(str(before), str(after), [trial], 60.0).trials == 1) == same


@pytest.mark.parametrize(("kind", "weight"), [("Conv", (4, 2, 3)), ("BatchNormalization", (5,))])
def test_operators_that_do_not_fit_are_not_proven(tmp_path: Path, kind: str, weight: tuple[int, ...]) -> None:
    inputs = "x, w" if kind == "Conv" else "x, w, w, w, w"
    text = f"g (float[1,3,9] x) => (float[1,N,M] y) {{y = {kind}({inputs})}}"
    array = NUMBERS.reshape(-1)[: int(np.prod(weight))].reshape(weight)
    before = write(tmp_path / "a.onnx", text, array)
    after = write(
        tmp_path / "b.onnx", text.replace("{y = ", "{a = Identity(x) y = ").replace("(x, w", "(a, w"), array
    )
    assert prove(before, after, 1, 3, 9).trials == 0
