"""Sums, products of matrices, the largest and the places of some, read back from TensorRT: what it does not evaluate of
constants itself, against numbers by hand and numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfix.runtime.sandbox import Worker
from support.handmade import one, op, outputs, own
from support.lifted import Feed
from support.real_tensorrt import REAL

pytestmark = REAL
F, I8, I32, I64 = np.float32, np.int8, np.int32, np.int64
TOLERANCE = {"FLOAT": 1e-5, "HALF": 2e-3, "BF16": 1e-2}


def test_the_mean_of_integers_is_cut_off_whatever_the_size(worker: Worker, tmp_path: Path) -> None:
    recipe = one("reduce", "a", op("ReduceOperation", "AVG"), 2, False, inputs={"a": ("INT64", (-1, -1))})
    for values, wanted in (([[1, -2], [3, 4]], [0, 3]), ([[-7, 0, 0]], [-2])):
        [found] = outputs(worker, recipe, tmp_path, {"a": np.array(values, I64)})
        assert found.tolist() == wanted


def test_sums_of_bytes(worker: Worker, tmp_path: Path) -> None:
    for kind, wanted in (("SUM", [24, -6]), ("MAX", [100, -1]), ("MIN", [80, -3])):
        recipe = one("reduce", "a", op("ReduceOperation", kind), 2, False, inputs={"a": ("INT8", (2, 3))})
        [found] = outputs(worker, recipe, tmp_path, {"a": np.array([[100, 100, 80], [-1, -2, -3]], I8)})
        assert (found.dtype, found.tolist()) == (I8, wanted)  # 280 - 256


@pytest.mark.parametrize("dtype", ["FLOAT", "HALF", "BF16"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(worker: Worker, tmp_path: Path, dtype: str, axis: int) -> None:
    x = np.linspace(-2, 3, 12).reshape(2, 3, 2).astype(own(dtype))
    recipe = one("softmax", "a", axes=1 << axis, inputs={"a": (dtype, (-1, 3, 2))})
    [found] = outputs(worker, recipe, tmp_path, {"a": x})
    wide = np.exp(x.astype(F))
    assert found.dtype == own(dtype)
    np.testing.assert_allclose(found.astype(F), wide / wide.sum(axis, keepdims=True), rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["FLOAT", "HALF", "BF16", "INT8", "INT32", "INT64"])
@pytest.mark.parametrize("kind", ["MAX", "MIN"])
@pytest.mark.parametrize("run_time", [False, True])
def test_the_best(worker: Worker, tmp_path: Path, dtype: str, kind: str, run_time: bool) -> None:
    x = np.array([[3, 1, -2], [0, 5, 4]], own(dtype))
    inputs: dict[str, Any] = {"a": (dtype, (-1, 3)), **({"k": ("INT32", ())} if run_time else {})}
    feed: Feed = {"a": x, **({"k": np.array(2, I32)} if run_time else {})}
    sets = {"input 1": "k"} if run_time else {}
    recipe = one("topk", "a", op("TopKOperation", kind), 2, 2, inputs=inputs, outputs=("y", "i"), **sets)
    [best, places] = outputs(worker, recipe, tmp_path, feed)
    order = [[0, 1], [1, 2]] if kind == "MAX" else [[2, 1], [0, 2]]
    assert (best.dtype, places.dtype, places.tolist()) == (own(dtype), I32, order)
    assert best.astype(F).tolist() == np.take_along_axis(x, np.array(order), 1).astype(F).tolist()


@pytest.mark.parametrize(
    ("exclusive", "reverse", "wanted"),
    [(0, 0, [1, 3, 6]), (1, 0, [0, 1, 3]), (0, 1, [6, 5, 3]), (1, 1, [5, 3, 0])],
)
@pytest.mark.parametrize("dtype", ["FLOAT", "BF16", "INT32", "INT64"])
def test_running_sums(
    worker: Worker, tmp_path: Path, exclusive: int, reverse: int, wanted: list[int], dtype: str
) -> None:
    axis = np.array(1, I32)
    call = ("cumulative", "a", axis, op("CumulativeOperation", "SUM"), bool(exclusive), bool(reverse))
    [found] = outputs(
        worker, one(*call, inputs={"a": (dtype, (1, 3))}), tmp_path, {"a": np.array([[1, 2, 3]], own(dtype))}
    )
    assert (found.dtype, found.astype(F).tolist()) == (own(dtype), [wanted])


@pytest.mark.parametrize("rank", [4, 5])
def test_local_response(worker: Worker, tmp_path: Path, rank: int) -> None:
    """The third axis from the end, a window of 3, alpha divided by it."""
    x = np.linspace(-1, 2, 30).reshape(1, 5, 3, 2).astype(F)
    wanted = np.empty_like(x)
    for c in range(5):
        near = x[:, max(0, c - 1) : c + 2]
        wanted[:, c] = x[:, c] / (0.5 + 6 / 3 * (near**2).sum(1)) ** 0.75
    if rank == 5:
        x, wanted = np.stack([x, -x]), np.stack([wanted, -wanted])
    recipe = one("lrn", "a", 3, 6.0, 0.75, 0.5, inputs={"a": ("FLOAT", (-1,) * (rank - 3) + (5, 3, 2))})
    np.testing.assert_allclose(outputs(worker, recipe, tmp_path, {"a": x})[0], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("equation", "ranks"), [("ij,jk->ik", 2), ("ij,ij->", 2), ("ii->i", 1), ("ij,jk,kl->il", 3), ("ij,jk", 2)]
)
@pytest.mark.parametrize("dtype", ["FLOAT", "BF16"])
def test_equations(worker: Worker, tmp_path: Path, equation: str, ranks: int, dtype: str) -> None:
    square = np.array([[1, 2], [-3, 4]], own(dtype))
    names = ["a", "b", "c"][:ranks]
    recipe = one("einsum", list(names), equation, inputs=dict.fromkeys(names, (dtype, (2, 2))))
    [found] = outputs(worker, recipe, tmp_path, dict.fromkeys(names, square))
    np.testing.assert_array_equal(found.astype(F), np.einsum(equation, *[square.astype(F)] * ranks))


@pytest.mark.parametrize("dtype", ["FLOAT", "BF16", "INT32", "INT64", "BOOL"])
@pytest.mark.parametrize("places", ["INT32", "INT64"])
def test_places_that_are_not_zero(worker: Worker, tmp_path: Path, dtype: str, places: str) -> None:
    recipe = one("non_zero", "a", op("DataType", places), inputs={"a": (dtype, (2, 3))})
    [found] = outputs(worker, recipe, tmp_path, {"a": np.array([[0, 1, 1], [1, 0, 0]]).astype(own(dtype))})
    assert (found.dtype.name, found.tolist()) == (places.lower(), [[0, 0, 1], [1, 2, 0]])
