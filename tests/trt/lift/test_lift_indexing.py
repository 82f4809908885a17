"""Layers that pick elements by their coordinates, read back: slices, paddings, gathers, scatters."""
# Long because: TensorRT has more forms of these than its parser makes, each compared with numbers worked out here.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.lift import Lifted
from support import handmade, lifted
from support.handmade import TYPES
from support.real_tensorrt import REAL

pytestmark = REAL
Array = np.ndarray[Any, Any]
Numbers = tuple[int, ...]
MODES = ("STRICT_BOUNDS", "WRAP", "CLAMP", "FILL", "REFLECT")
X = np.arange(1, 61, dtype=np.float32).reshape(3, 4, 5)


def _same(got: Array, expected: Array) -> None:
    """The same type, shape and values; types that numpy cannot compare hold nothing that float32 does not."""
    assert got.dtype == expected.dtype
    if got.dtype.kind == "V" or got.dtype not in (np.int64, np.int32):
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(got, expected, strict=True)


# -- what the parser makes

PARSED: dict[str, tuple[str, dict[str, Any]]] = {
    "slice, dynamic": (
        """g (float[a,4,b] x, int64[2] s, int64[2] e) => (float[c,4,d] y) {
            c = Constant<value_ints = [0, 2]>()
            y = Slice(x, s, e, c)
        }""",
        {"x": X, "s": np.array([1, -3]), "e": np.array([-1, 99])},
    ),
    "split": (
        """g (float[a,4,5] x) => (float[a,1,5] y, float[a,3,5] z) {
            s = Constant<value_ints = [1, 3]>()
            y, z = Split<axis = 1>(x, s)
        }""",
        {"x": X},
    ),
    "pad with the edge": (
        """g (float[a,4,5] x) => (float[a,7,8] y) {
            p = Constant<value_ints = [0, 3, 1, 0, 0, 2]>()
            y = Pad<mode = "edge">(x, p)
        }""",
        {"x": X},
    ),
    "gather nd": (
        """g (float[a,4,5] x, int64[a,2,1] i) => (float[a,2,5] y) { y = GatherND<batch_dims = 1>(x, i) }""",
        {"x": X, "i": np.array([[[0], [1]], [[3], [-1]], [[2], [2]]])},
    ),
    "scatter nd": (
        """g (float[a,4,5] x, int64[2,2] i, float[2,5] u) => (float[a,4,5] y) { y = ScatterND(x, i, u) }""",
        {"x": X, "i": np.array([[0, 1], [2, 3]]), "u": -np.ones((2, 5), np.float32)},
    ),
    "trilu": ("g (float[a,4,5] x) => (float[a,4,5] y) { y = Trilu<upper = 1>(x) }", {"x": X}),
}


@pytest.mark.parametrize("what", PARSED)
def test_what_the_parser_makes_computes_the_same(worker: Worker, tmp_path: Path, what: str) -> None:
    source, feed = PARSED[what]
    lifted.agree(worker, lifted.text(source, 18), tmp_path, feed)


# -- SLICE


@dataclass(frozen=True)
class Cut:
    """A slice of a tensor that counts from 1. ``sources``: where start, size, stride, axes come from, "property",
    "constant" or "input"; ``filler``: a number that is a constant, "input" for 7, or None for no such input."""

    shape: Numbers
    start: Numbers
    size: Numbers
    stride: Numbers
    mode: str = "STRICT_BOUNDS"
    axes: Numbers | None = None
    sources: tuple[str, str, str, str] = ("property",) * 4
    dynamic: tuple[bool, ...] = (False,) * 3
    filler: int | str | None = None
    dtype: str = "FLOAT"
    indices: str = "INT64"


def _where(places: Array, extent: int, mode: str) -> Array:
    """TensorRT's operator reference, Slice; of FILL, what is outside is one past the end."""
    if mode == "WRAP":
        return places % extent
    if mode == "CLAMP":
        return np.clip(places, 0, extent - 1)
    if mode == "REFLECT":
        turn = np.abs(places) % max(2 * extent - 2, 1)
        return np.where(turn >= extent, 2 * extent - 2 - turn, turn)
    inside = (places >= 0) & (places < extent)
    assert mode == "FILL" or inside.all()
    return np.where(inside, places, extent)


def _data(cut: Cut) -> Array:
    data = np.arange(1, 1 + int(np.prod(cut.shape))).reshape(cut.shape)
    return (data % 3 == 0) if cut.dtype == "BOOL" else data.astype(TYPES[cut.dtype])


def _expected(cut: Cut) -> Array:
    data = _data(cut)
    filler = np.array({None: 0, "input": 7}.get(cut.filler, cut.filler)).astype(data.dtype)
    axes = cut.axes if cut.axes is not None else range(len(cut.shape))
    for axis, start, size, stride in zip(axes, cut.start, cut.size, cut.stride, strict=True):
        places = _where(start + np.arange(size) * stride, data.shape[axis], cut.mode)
        past = np.full_like(
            np.take(data, [], axis), filler, shape=[*data.shape[:axis], 1, *data.shape[axis:][1:]]
        )
        data = np.take(np.concatenate([data, past], axis), places.astype(int), axis)
    return data


def _cut(worker: Worker, folder: Path, cut: Cut) -> tuple[Lifted, lifted.Feed]:
    inputs: Any = {
        "x": (
            cut.dtype,
            tuple(-1 if free else size for free, size in zip(cut.dynamic, cut.shape, strict=False)),
        )
    }
    feed: lifted.Feed = {"x": _data(cut)}
    sets: dict[str, Any] = {"mode": f"trt.SampleMode.{cut.mode}"}
    numbers = (cut.start, cut.size, cut.stride, cut.axes)
    for name, place, source, given_ in zip("abcd", (1, 2, 3, 5), cut.sources, numbers, strict=True):
        if given_ is None or source == "property":
            continue
        array = np.array(given_, TYPES[cut.indices])
        sets[f"input {place}"] = array if source == "constant" else name
        if source == "input":
            inputs[name], feed[name] = (cut.indices, array.shape), array
    if cut.axes is not None and cut.sources[3] == "property":
        sets["axes"] = cut.axes
    if cut.filler is not None:
        filler = np.array(7 if cut.filler == "input" else cut.filler).astype(TYPES[cut.dtype])
        sets["input 4"] = "f" if cut.filler == "input" else filler
        if cut.filler == "input":
            inputs["f"], feed["f"] = (cut.dtype, ()), filler
    found = handmade.made(worker, folder, inputs, "slice", ("x", cut.start, cut.size, cut.stride), sets)
    return found, feed


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    mode = draw(st.sampled_from(MODES))
    outside = mode not in (
        "FILL",
        "STRICT_BOUNDS",
    )  # what reads the data itself for it needs an element to read
    shape = tuple(draw(st.lists(st.integers(int(outside), 4), min_size=1, max_size=3)))
    rank = len(shape)
    axes = draw(st.none() | st.lists(st.integers(0, rank - 1), unique=True, min_size=1).map(tuple))
    rows = []
    for axis in range(rank) if axes is None else axes:
        start, size, stride = (draw(st.integers(*ends)) for ends in ((-7, 7), (0, 6), (-3, 3)))
        if mode == "STRICT_BOUNDS":
            extent = shape[axis]
            start, size = start % max(extent, 1), size if extent else 0
            room = (extent - 1 - start if stride > 0 else start) // abs(stride) + 1 if stride else size
            size = min(size, room)
        rows.append((start, size, stride))
    back = axes is not None and draw(st.booleans())
    return Cut(
        shape,
        *(tuple(column) for column in zip(*rows, strict=True)),
        mode,
        tuple(axis - rank for axis in axes) if axes is not None and back else axes,
        draw(st.tuples(*[st.sampled_from(("property", "constant", "input"))] * 4)),
        draw(st.tuples(*[st.booleans()] * 3)),
        draw(st.sampled_from((None, 0, 7, "input"))) if mode == "FILL" else None,
        draw(st.sampled_from(("FLOAT", "HALF", "INT8", "INT32", "INT64", "BOOL"))),
        draw(st.sampled_from(("INT32", "INT64"))),
    )


ALL_INPUTS = ("input",) * 4


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@example(Cut((5,), (4,), (5,), (-1,)))  # to the first element: as an end, -1 is the last
@example(Cut((5,), (4,), (5,), (-1,), sources=ALL_INPUTS))
@example(Cut((5,), (3,), (0,), (-1,), sources=ALL_INPUTS))
@example(Cut((0,), (0,), (0,), (0,), sources=ALL_INPUTS, dynamic=(True,) * 3))
@example(Cut((1, 3), (0, 0), (4, 3), (0, 1), sources=ALL_INPUTS))
@example(Cut((2, 3), (0, 1), (2, 4), (1, 0), sources=("property", "input", "property", "property")))
@example(Cut((2, 3), (1,), (2,), (1,), axes=(-1,), sources=ALL_INPUTS))
@example(Cut((2, 3), (1,), (2,), (0,), axes=(-1,)))
@example(Cut((3, 4), (3, 0), (2, 2), (-2, 1), axes=(1, 0), sources=("input", "input", "input", "property")))
@example(Cut((0, 2), (-1, 0), (3, 2), (1, 1), "FILL", filler=7))  # nothing but what it is filled with
@example(Cut((5,), (7,), (2,), (1,), "FILL", sources=ALL_INPUTS))  # all of it past the end
@example(Cut((5,), (-7,), (3,), (2,), "FILL", sources=ALL_INPUTS))  # all of it before the start
@example(Cut((5,), (6,), (4,), (-3,), "FILL", sources=ALL_INPUTS, filler="input"))
@example(Cut((5,), (-2,), (4,), (0,), "FILL", filler=7))
@example(Cut((3,), (-9,), (20,), (1,), "REFLECT"))
@example(Cut((3,), (-9,), (20,), (1,), "REFLECT", sources=ALL_INPUTS))
@example(Cut((1,), (-2,), (5,), (1,), "REFLECT"))  # one element has nothing to reflect at
@example(Cut((1,), (-2,), (5,), (1,), "REFLECT", sources=ALL_INPUTS))
@example(Cut((3,), (-4,), (6,), (-2,), "WRAP", sources=ALL_INPUTS))
@example(Cut((3,), (9,), (6,), (-4,), "CLAMP", sources=ALL_INPUTS))
@given(cut=cuts())
def test_slice(worker: Worker, tmp_path_factory: pytest.TempPathFactory, cut: Cut) -> None:
    """Every form of a slice computes what TensorRT's operator reference says."""
    found, feed = _cut(worker, tmp_path_factory.getbasetemp(), cut)
    _same(handmade.computed(found, feed), _expected(cut))


PLAIN: dict[str, tuple[Cut, list[str]]] = {
    "all of it": (Cut((2, 3), (0, 0), (2, 3), (1, 1)), ["Identity"]),
    "a part": (Cut((5, 3), (1, 0), (2, 3), (2, 1)), ["Slice"]),
    "backwards": (Cut((5,), (4,), (3,), (-2,)), ["Slice"]),
    "one row again and again": (Cut((1, 3), (0, 0), (4, 3), (0, 1)), ["Expand"]),
    "an element again and again": (Cut((5,), (2,), (3,), (0,)), ["Slice", "Expand"]),
    "start and size from inputs": (
        Cut((5, 3), (1, 0), (2, 3), (1, 1), sources=("input", "input", "property", "property")),
        ["Add", "Slice"],
    ),
    "size from an input": (
        Cut((5, 3), (0, 0), (2, 3), (1, 1), sources=("property", "input", "property", "property")),
        ["Slice"],
    ),
    "repeated, size from an input": (
        Cut((1, 1), (0, 0), (2, 3), (0, 0), sources=("property", "input", "property", "property")),
        ["Expand"],
    ),
    "constants are as good as properties": (
        Cut((5, 3), (1, 0), (2, 3), (2, 1), axes=(0, 1), sources=("constant",) * 4),
        ["Slice"],
    ),
    "padded": (Cut((2, 3), (-1, 0), (4, 3), (1, 1), "FILL", filler=7), ["Pad"]),
    "padded and cut": (Cut((5, 3), (1, -1), (3, 5), (1, 1), "FILL"), ["Pad", "Slice"]),
    "nothing outside": (Cut((5,), (1,), (3,), (1,), "FILL"), ["Slice"]),
    "picked": (Cut((5, 3), (-2, 0), (9, 3), (1, 1), "REFLECT"), ["Gather"]),
    "nothing to pick": (Cut((5, 3), (0, 0), (5, 3), (1, 1), "WRAP"), ["Identity"]),
}


@pytest.mark.parametrize("what", PLAIN)
def test_a_plain_slice_is_a_plain_operator(worker: Worker, tmp_path: Path, what: str) -> None:
    cut, operators = PLAIN[what]
    found, feed = _cut(worker, tmp_path, cut)
    _same(handmade.computed(found, feed), _expected(cut))
    assert handmade.operators(found) == operators


@pytest.mark.parametrize(
    ("mode", "source"),
    [
        ("STRICT_BOUNDS", "input"),
        ("WRAP", "property"),
        ("CLAMP", "input"),
        ("FILL", "input"),
        ("REFLECT", "property"),
    ],
)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_sliced(worker: Worker, tmp_path: Path, mode: str, dtype: str, source: str) -> None:
    inside = mode == "STRICT_BOUNDS"
    rows: Any = ((1, 0), (2, 3), (1, 0)) if inside else ((-1, 1), (4, 5), (1, -2))
    filler = (
        None if mode != "FILL" else 3 if source == "property" and dtype not in ("BF16", "FP8") else "input"
    )
    cut = Cut((3, 2), *rows, mode, sources=(source,) * 4, filler=filler, dtype=dtype)
    found, feed = _cut(worker, tmp_path, cut)
    _same(handmade.computed(found, feed), _expected(cut))


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (Cut((5,), (-1,), (1,), (1,)), "reads from -1 to -1 along axis 0, which is outside"),
        (Cut((5,), (3,), (3,), (1,)), "reads from 3 to 5 along axis 0"),
        (Cut((5,), (1,), (3,), (-1,)), "reads from -1 to 1 along axis 0"),
        (Cut((5,), (5,), (2,), (0,)), "reads from 5 to 5 along axis 0"),
        (Cut((5,), (-1,), (1,), (1,), dynamic=(True,) * 3), "reads from -1 to -1"),
        (
            Cut((5,), (-1,), (1,), (1,), sources=("property", "input", "property", "property")),
            "reads from -1",
        ),
        (Cut((0,), (0,), (2,), (1,), "WRAP"), "along axis 0, which has no elements"),
        (Cut((0,), (0,), (2,), (1,), "CLAMP"), "along axis 0, which has no elements"),
    ],
)
def test_what_tensorrt_fails_on_is_named(worker: Worker, tmp_path: Path, cut: Cut, said: str) -> None:
    found, _ = _cut(worker, tmp_path, cut)
    assert found.status == "unlifted"
    assert said in found.reason


def test_a_filler_may_have_a_dimension_and_not_another_type(worker: Worker, tmp_path: Path) -> None:
    sets = {"mode": "trt.SampleMode.FILL", "input 4": "f"}
    cut = ("x", (-1,), (3,), (1,))
    inputs = {"x": ("FLOAT", (2,)), "f": ("FLOAT", (1,))}
    found = handmade.made(worker, tmp_path, inputs, "slice", cut, sets)
    feed = {"x": np.array([1, 2], np.float32), "f": np.array([7], np.float32)}
    _same(handmade.computed(found, feed), np.array([7, 1, 2], np.float32))
    assert handmade.operators(found) == ["Reshape", "Pad"]  # ONNX's Pad wants a scalar
    other = handmade.made(worker, tmp_path, {**inputs, "f": ("HALF", ())}, "slice", cut, sets)
    assert "it fills FLOAT with HALF" in other.reason


# -- GATHER


def _picked(data: Array, index: Sequence[int]) -> Array:
    """What lies at an index, from the end where it is negative; zeros where it is outside."""
    for axis, number in enumerate(index):
        if not -data.shape[axis] <= number < data.shape[axis]:
            return np.zeros(data.shape[len(index) :], data.dtype)
    return np.asarray(data[tuple(index)])


def _gathered(data: Array, indices: Array, mode: str, axis: int, batch: int) -> Array:
    """NvInfer.h, IGatherLayer."""
    if mode == "ELEMENT":
        out = np.empty(indices.shape, data.dtype)
        for place in np.ndindex(indices.shape):
            line = data[(*place[:axis], slice(None), *place[axis + 1 :])]
            out[place] = _picked(line, [int(indices[place])])
        return out
    if batch:
        each = [_gathered(*one, mode, axis, batch - 1) for one in zip(data, indices, strict=True)]
        return np.stack(each)
    if mode == "ND":
        flat = [
            _picked(data, [int(number) for number in one]) for one in indices.reshape(-1, indices.shape[-1])
        ]
        return np.stack(flat).reshape((*indices.shape[:-1], *data.shape[indices.shape[-1] :]))
    first = np.moveaxis(data, axis, 0)
    flat = [_picked(first, [int(number)]) for number in indices.reshape(-1)]
    found = np.stack(flat).reshape((*indices.shape, *first.shape[1:]))
    return np.moveaxis(found, range(indices.ndim), range(axis, axis + indices.ndim))


GATHERS: dict[
    str, tuple[str, int, int, Numbers, Numbers]
] = {  # mode, axis, batch, shapes of data and indices
    "the first axis": ("DEFAULT", 0, 0, (3, 4, 5), (2,)),
    "a scalar": ("DEFAULT", 1, 0, (3, 4, 5), ()),
    "the last axis": ("DEFAULT", 2, 0, (3, 4, 5), (2, 3)),
    "elements": ("ELEMENT", 1, 0, (3, 4, 5), (3, 6, 5)),
    "fewer elements": ("ELEMENT", 0, 0, (3, 4, 5), (2, 4, 3)),
    "tuples": ("ND", 0, 0, (3, 4, 5), (6, 2)),
    "whole tuples": ("ND", 0, 0, (3, 4, 5), (2, 3, 3)),
    "tuples in rows": ("ND", 0, 1, (3, 4, 5), (3, 2, 1)),
    "tuples in two dimensions of rows": ("ND", 0, 2, (3, 4, 5), (3, 4, 1)),
    "whole tuples in rows": ("ND", 0, 1, (3, 4, 5), (3, 2, 2)),
}


def _gather(
    worker: Worker, folder: Path, what: str, data: Array, indices: Array, dims: Numbers, dtype: str, how: str
) -> tuple[Lifted, lifted.Feed]:
    mode, axis, batch = GATHERS[what][:3]
    kind = "INT32" if indices.dtype == np.int32 else "INT64"
    inputs: Any = {"x": (dtype, dims)} | ({"i": (kind, indices.shape)} if how == "input" else {})
    given_ = ("x", "i" if how == "input" else indices, f"trt.GatherMode.{mode}")
    sets = {"axis": axis, "num_elementwise_dims": batch}
    found = handmade.made(worker, folder, inputs, "gather_v2", given_, sets)
    return found, {"x": data, "i": indices} if how == "input" else {"x": data}


@pytest.mark.parametrize("what", GATHERS)
@pytest.mark.parametrize(("how", "dynamic"), [("input", True), ("constant", False), ("constant", True)])
@pytest.mark.parametrize("reach", [3, 9], ids=["inside", "beyond"])
def test_gather(worker: Worker, tmp_path: Path, what: str, how: str, reach: int, dynamic: bool) -> None:
    """Negative indices count from the end, and an index outside of the data reads 0."""
    mode, axis, batch, shape, few = GATHERS[what]
    rng = np.random.default_rng(len(what))
    data = rng.integers(1, 99, shape).astype(np.float32)
    limit = min(shape) if reach == 3 and mode == "ND" else shape[axis] if reach == 3 else reach
    indices = rng.integers(-limit, limit, few).astype(rng.choice(["int32", "int64"]))
    free = range(len(shape)) if mode == "ND" else [axis]
    dims = tuple(-1 if dynamic and place in free else size for place, size in enumerate(shape))
    found, feed = _gather(worker, tmp_path, what, data, indices, dims, "FLOAT", how)
    _same(handmade.computed(found, feed), _gathered(data, indices, mode, axis, batch))


@pytest.mark.parametrize("index", [-4, -3, 2, 3])
def test_the_first_index_that_is_outside(worker: Worker, tmp_path: Path, index: int) -> None:
    for dims in ((3, 4, 5), (-1, 4, 5)):
        for what, indices in (("the first axis", [index]), ("tuples", [[index, 1]])):
            numbers = np.array(indices, np.int64)
            found, feed = _gather(worker, tmp_path, what, X, numbers, dims, "FLOAT", "constant")
            _same(handmade.computed(found, feed), _gathered(X, numbers, GATHERS[what][0], 0, 0))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("what", ["the last axis", "elements", "tuples"])
def test_every_type_is_gathered(worker: Worker, tmp_path: Path, dtype: str, what: str) -> None:
    mode, axis, batch, shape, few = GATHERS[what]
    data = (np.arange(60) % 7 + 1).reshape(shape).astype(TYPES[dtype])
    indices = np.random.default_rng(3).integers(-9, 9, few)
    found, feed = _gather(worker, tmp_path, what, data, indices, shape, dtype, "input")
    _same(handmade.computed(found, feed), _gathered(data, indices, mode, axis, batch))


@pytest.mark.parametrize(
    ("what", "indices", "dims", "operators"),
    [
        ("the first axis", [2, -3], (3, 4, 5), ["Gather"]),
        ("the first axis", [0, -1], (-1, 4, 5), ["Gather"]),
        ("a scalar", 3, (-1, 4, 5), ["Gather"]),
        ("tuples", [[2, 3], [0, -4]], (3, 4, 5), ["GatherND"]),
    ],
)
def test_constant_indices_that_are_inside_need_no_care(
    worker: Worker, tmp_path: Path, what: str, indices: Any, dims: Numbers, operators: list[str]
) -> None:
    mode, axis, batch = GATHERS[what][:3]
    numbers = np.array(indices, np.int64)
    found, feed = _gather(worker, tmp_path, what, X, numbers, dims, "FLOAT", "constant")
    _same(handmade.computed(found, feed), _gathered(X, numbers, mode, axis, batch))
    assert handmade.operators(found) == operators
    assert bool(found.notes) == (dims[axis] < 0 and bool((numbers < 0).any()))


# -- SCATTER


@pytest.mark.parametrize("dtype", [one for one in TYPES if one != "FP8"])
@pytest.mark.parametrize("kind", ["INT32", "INT64"])
def test_scatter(worker: Worker, tmp_path: Path, dtype: str, kind: str) -> None:
    data = (np.arange(12) % 5).reshape(3, 4).astype(TYPES[dtype])
    indices = np.array([[3, 0], [-1, 1], [2, 3]], TYPES[kind])
    updates = (np.arange(6) % 2 == 0).reshape(3, 2).astype(TYPES[dtype])
    expected = data.copy()
    np.put_along_axis(expected, indices.astype(np.int64), updates, 1)
    inputs: Any = {"x": (dtype, (-1, 4)), "i": (kind, (3, 2)), "u": (dtype, (3, 2))}
    feed = {"x": data, "i": indices, "u": updates}
    given_ = ("x", "i", "u", "trt.ScatterMode.ELEMENT")
    found = handmade.made(worker, tmp_path, inputs, "scatter", given_, {"axis": 1})
    _same(handmade.computed(found, feed), expected)
    # Slices: rows 2 and 0 become what the updates are.
    rows, whole = np.array([[2], [0]], TYPES[kind]), np.stack([data[1], data[1]])
    expected = data.copy()
    expected[[2, 0]] = whole
    inputs |= {"i": (kind, (2, 1)), "u": (dtype, (2, 4))}
    given_ = ("x", "i", "u", "trt.ScatterMode.ND")
    found = handmade.made(worker, tmp_path, inputs, "scatter", given_, {})
    _same(handmade.computed(found, {"x": data, "i": rows, "u": whole}), expected)
