"""Normalization layers, sums, products of matrices, the largest and the places of some, read back from TensorRT: what
it does not evaluate of constants itself, against numbers by hand and numpy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.lift import Lifted
from support import handmade, lifted
from support.handmade import one, op, outputs, own
from support.lifted import Feed
from support.real_tensorrt import REAL

pytestmark = REAL
Array = Any
DTYPES: dict[str, Any] = {"FLOAT": np.float32, "HALF": np.float16, "BF16": ml_dtypes.bfloat16}
WORDS = {"FLOAT": "float", "HALF": "float16", "BF16": "bfloat16"}
TOLERANCE = {"FLOAT": 1e-5, "HALF": 4e-3, "BF16": 4e-2}


def _random(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> Array:
    return (np.random.default_rng([seed, *shape]).normal(size=tuple(shape)) * 2 + 1).astype(dtype)


def _normal(data: Array, axes: Sequence[int], epsilon: float = 1e-5, groups: int = 1) -> Array:
    """(X - mean) / sqrt(variance + epsilon) in double precision; groups also over their channels."""
    rows = data.astype(np.float64)
    if groups != 1:
        rows = rows.reshape(data.shape[0], groups, -1)
        axes = (2,)
    off = rows - rows.mean(axis=tuple(axes), keepdims=True)
    return (off / np.sqrt((off * off).mean(axis=tuple(axes), keepdims=True) + epsilon)).reshape(data.shape)


def _spread(values: Array, rank: int) -> Array:
    """A vector along axis 1."""
    return values.astype(np.float64).reshape(1, -1, *[1] * (rank - 2))


def _lift(worker: Worker, folder: Path, source: str, opset: int) -> Lifted:
    found = lifted.lifted(worker, lifted.text(source, opset), folder)
    assert found.lifted, found.reason
    assert dict(found.layers)["NORMALIZATION"] == 1
    onnx.checker.check_model(found.path, full_check=True)
    return found


def _run(found: Lifted, *values: Array) -> Array:
    [got] = lifted.run(Path(found.path), dict(zip("xsb", values, strict=False)))
    return got


def _close(got: Array, wanted: Array, dtype: str = "FLOAT") -> None:
    assert got.dtype == DTYPES[dtype]
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def _nodes(found: Lifted) -> list[str]:
    return [
        node.op_type for node in onnx.load(found.path).graph.node if node.op_type.endswith("Normalization")
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5), (2, 3, 2, 4, 3)])
def test_instance_normalization(worker: Worker, tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    word, dims = WORDS[dtype], ",".join(map(str, shape))
    found = _lift(
        worker,
        tmp_path,
        f"g ({word}[{dims}] x, {word}[3] s, {word}[3] b) => ({word}[{dims}] y) "
        "{ y = InstanceNormalization<epsilon = 0.01>(x, s, b) }",
        21,
    )
    data, scale, bias = (_random(one, DTYPES[dtype], seed) for seed, one in enumerate((shape, (3,), (3,))))
    wanted = _normal(data, range(2, len(shape)), 0.01)
    _close(
        _run(found, data, scale, bias), wanted * _spread(scale, len(shape)) + _spread(bias, len(shape)), dtype
    )
    assert _nodes(found) == ["InstanceNormalization"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("groups", [2, 4])
def test_group_normalization(worker: Worker, tmp_path: Path, groups: int, opset: int, dtype: str) -> None:
    """Opset 18 has a scale for each group, opset 21 for each channel."""
    word, many = WORDS[dtype], 4 if opset == 21 else groups
    found = _lift(
        worker,
        tmp_path,
        f"g ({word}[n,4,3,w] x, {word}[{many}] s, {word}[{many}] b) => ({word}[n,4,3,w] y) "
        f"{{ y = GroupNormalization<num_groups = {groups}, epsilon = 0.01>(x, s, b) }}",
        opset,
    )
    data, scale, bias = (
        _random(one, DTYPES[dtype], seed) for seed, one in enumerate(((2, 4, 3, 5), (many,), (many,)))
    )
    wanted = _normal(data, (), 0.01, groups)
    for_channels = (_spread(np.repeat(one, 4 // many), 4) for one in (scale, bias))
    _close(_run(found, data, scale, bias), wanted * next(for_channels) + next(for_channels), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("axis", "bias"), [(0, True), (1, False), (2, True), (-1, True), (-1, False)])
def test_layer_normalization(worker: Worker, tmp_path: Path, axis: int, bias: bool, dtype: str) -> None:
    word, shape = WORDS[dtype], (2, 3, 4, 5)
    inner = ",".join(map(str, shape[axis:]))
    found = _lift(
        worker,
        tmp_path,
        f"g ({word}[2,3,4,5] x, {word}[{inner}] s{f', {word}[{inner}] b' if bias else ''}) => ({word}[2,3,4,5] y) "
        f"{{ y = LayerNormalization<axis = {axis}, epsilon = 0.01>(x, s{', b' if bias else ''}) }}",
        21,
    )
    values = [
        _random(one, DTYPES[dtype], seed) for seed, one in enumerate((shape, shape[axis:], shape[axis:]))
    ]
    data, scale, shift = (one.astype(np.float64) for one in values)
    wanted = _normal(data, range(axis % 4, 4), 0.01) * scale + (shift if bias else 0)
    _close(_run(found, *values[: 3 if bias else 2]), wanted, dtype)
    assert _nodes(found) == ["LayerNormalization"]


def test_half_is_normalized_in_float(worker: Worker, tmp_path: Path) -> None:
    """The squares of what is off the mean are beyond HALF's 65504, and epsilon 1e-12 is below its least number."""
    found = _lift(
        worker,
        tmp_path,
        "g (float16[2,8] x, float16[8] s, float16[8] b) => (float16[2,8] y) "
        "{ y = LayerNormalization<epsilon = 1e-12>(x, s, b) }",
        21,
    )
    data = np.array([[-3000.0, 3000.0] * 4, [1e-4, -1e-4] * 4], np.float16)
    ones, zeros = np.ones(8, np.float16), np.zeros(8, np.float16)
    _close(_run(found, data, ones, zeros), np.array([[-1.0, 1.0] * 4, [1.0, -1.0] * 4]), "HALF")


#: Layers that the parser does not make: shape of the data, of scale and bias, axes, groups, version 2.
#: Dynamic dimensions of the data are 7 at run time, those of scale and bias 1.
HAND: dict[str, tuple[tuple[int, ...], tuple[int, ...], Sequence[int], int, bool]] = {
    "axes with one between": ((2, 3, 4, 5), (1, 3, 4, 5), (1, 3), 1, True),
    "an inner axis, a scale of all after it": ((2, 3, 4, 5), (1, 3, 4, 5), (1,), 1, True),
    "dynamic trailing axis": ((2, 3, -1), (1, 1, -1), (2,), 1, True),
    "spatial, dynamic channels": ((2, -1, 4), (1, -1, 1), (2,), 1, True),
    "two dimensions": ((4, 5), (1, 5), (0,), 1, True),
    "one inner axis": ((2, 3, 4, 5), (1, 3, 1, 5), (1,), 1, True),
    "the batch": ((4, 3, 5), (1, 3, 5), (0,), 1, True),
    "first and last": ((2, 3, 4), (1, 3, 1), (0, 2), 1, True),
    "trailing axes, a scale of one of them": ((2, 3, 4, 5), (1, 1, 1, 5), (2, 3), 1, True),
    "trailing axes, a scale of all": ((2, 3, 5), (2, 3, 5), (2,), 1, True),
    "one scale": ((2, 3, 5), (1, 1, 1), (2,), 1, True),
    "spatial, version 1": ((2, 3, 5), (1, 3, 1), (2,), 1, False),
    "dynamic channels": ((-1, -1, 5), (1, 1, 5), (2,), 1, True),
    "groups of version 1": ((2, 6, 5), (1, 3, 1), (2,), 3, False),
}


def _made(
    worker: Worker,
    folder: Path,
    shape: Any,
    scale: Any,
    axes: Any,
    groups: int,
    second: bool,
    bias: Any = None,
) -> Lifted:
    inputs = {"x": ("FLOAT", shape), "s": ("FLOAT", scale), "b": ("FLOAT", bias or scale)}
    call = "normalization_v2" if second else "normalization"
    given = ("x", "s", "b", sum(1 << axis for axis in axes))
    return handmade.made(worker, folder, inputs, call, given, {"num_groups": groups, "epsilon": 0.01})


@pytest.mark.parametrize("form", HAND)
def test_layers_made_by_hand(worker: Worker, tmp_path: Path, form: str) -> None:
    shape, scale_shape, axes, groups, second = HAND[form]
    found = _made(worker, tmp_path, *HAND[form])
    assert found.lifted, found.reason
    onnx.checker.check_model(found.path, full_check=True)
    real = [7 if size < 0 else size for size in shape]
    few = [abs(size) for size in scale_shape]
    data, scale, bias = (_random(one, seed=seed) for seed, one in enumerate((real, few, few)))
    got = _run(found, data, scale, bias)
    if not second and groups != 1:
        scale, bias = (np.repeat(one, shape[1] // groups, axis=1) for one in (scale, bias))
    if -1 in scale_shape:  # ONNX promises no broadcast there
        assert _nodes(found) == []
    _close(got, _normal(data, axes, 0.01, groups) * scale + bias)


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (((2, 4, 3, 5), (1, 4, 1, 1), (1, 2, 3), 2, True), "TensorRT finds no shape"),
        (((2, 4, 3, 5), (1, 4, 1, 1), (2, 3), 2, False), "2 groups with a scale of (1, 4, 1, 1)"),
        (((2, 6, 5), (1, 6, 5), (2,), 3, True), "3 groups with a scale of (1, 6, 5)"),
        (((2, 4, 3), (1, 4, 3), (), 1, True), "TensorRT finds no shape"),
    ],
)
def test_layers_that_are_not_documented(worker: Worker, tmp_path: Path, form: Any, why: str) -> None:
    found = _made(worker, tmp_path, *form)
    assert found.status == "unlifted"
    assert why in found.reason


F, I8, I32, I64 = np.float32, np.int8, np.int32, np.int64
RELATIVE = {"FLOAT": 1e-5, "HALF": 2e-3, "BF16": 1e-2}


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
    np.testing.assert_allclose(found.astype(F), wide / wide.sum(axis, keepdims=True), rtol=RELATIVE[dtype])


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
