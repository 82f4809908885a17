"""Layers that move elements about, read back: joined, reshaped, filled, reversed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfix.runtime.sandbox import Worker
from support import handmade, lifted
from support.handmade import TYPES
from support.real_tensorrt import REAL, since

pytestmark = REAL
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
Settings = dict[str, Any]
BOTH = {"input 1": "a", "input 2": "b"}  # of a fill: alpha and beta


def _ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


# -- what the parser makes

PARSED = {
    "concat of bool": """g (float[a,2,3] x, float[a,2,3] y) => (bool[a,4,3] z) {
        p = Greater(x, y)
        q = Less(x, y)
        z = Concat<axis = 1>(p, q)
    }""",
    "reshape with 0 and -1": """g (float[a,2,3] x) => (float[b,2,c] y) {
        s = Constant<value_ints = [0, 2, -1, 1]>()
        y = Reshape(x, s)
    }""",
    "reshape to another's shape": """g (float[a,2,3] x, float[b,c] y) => (float[b,c] z) {
        s = Shape(y)
        z = Reshape<allowzero = 1>(x, s)
    }""",
    "unsqueeze": """g (float[a,2] x) => (float[1,a,2,1] y) {
        s = Constant<value_ints = [0, -1]>()
        y = Unsqueeze(x, s)
    }""",
    "expand what may be 1": """g (float[a,b] x, float[c,d] y) => (float[e,f] z) {
        s = Shape(y)
        z = Expand(x, s)
    }""",
    "tile": """g (float[a,2] x) => (float[b,6] y) {
        r = Constant<value_ints = [2, 3]>()
        y = Tile(x, r)
    }""",
    "range": """g (int64 n) => (int64[a] y) {
        o = Constant<value_int = 2>()
        d = Constant<value_int = -3>()
        y = Range(n, d, d)
    }""",
    "range of float": """g (float[k] x) => (float[a] y) {
        s = Size(x)
        n = Cast<to = 1>(s)
        o = Constant<value_float = 0.5>()
        d = Constant<value_float = 0.25>()
        y = Range(o, n, d)
    }""",
    "constant of shape": """g (float[a,2] x) => (int64[a,2] y) {
        s = Shape(x)
        y = ConstantOfShape<value = int64[1] {7}>(s)
    }""",
    "eye": """g (float[3,4] x) => (float[3,4] y) { y = EyeLike<k = 1>(x) }""",
    "reverse sequence": """g (float[a,2,3] x) => (float[a,2,3] y) {
        n = Constant<value_ints = [3, 1]>()
        y = ReverseSequence<batch_axis = 1, time_axis = 0>(x, n)
    }""",
    "space to depth": """g (float[a,2,4,6] x) => (float[a,8,2,3] y) { y = SpaceToDepth<blocksize = 2>(x) }""",
}
FEEDS: dict[str, dict[str, Any]] = {
    "concat of bool": {"x": (2, 2, 3), "y": (2, 2, 3)},
    "reshape to another's shape": {"x": (4, 2, 3), "y": (3, 8)},
    "unsqueeze": {"x": (1, 2)},
    "expand what may be 1": {"x": (3, 1), "y": (1, 5)},
    "tile": {"x": (3, 2)},
    "range": {"n": np.int64(8)},
    "range of float": {"x": (4,)},
    "constant of shape": {"x": (0, 2)},
    "eye": {"x": (3, 4)},
    "reverse sequence": {"x": (3, 2, 3)},
    "space to depth": {"x": (2, 2, 4, 6)},
}


@pytest.mark.parametrize("what", PARSED)
def test_what_the_parser_makes_computes_the_same(worker: Worker, tmp_path: Path, what: str) -> None:
    rng = np.random.default_rng(5)
    feed = {
        name: rng.normal(size=one).astype(np.float32) if isinstance(one, tuple) else np.array(one)
        for name, one in FEEDS.get(what, {"x": (5, 2, 3)}).items()
    }
    lifted.agree(worker, lifted.text(PARSED[what], 18), tmp_path, feed)


# -- shuffles

SHUFFLES: dict[str, tuple[Settings, Any, list[str]]] = {
    "nothing": ({}, X, ["Identity"]),
    "a transpose only": ({"first_transpose": (1, 2, 0)}, X.transpose(1, 2, 0), ["Transpose"]),
    "the second transpose only": ({"second_transpose": (2, 1, 0)}, X.transpose(2, 1, 0), ["Transpose"]),
    "all three": (
        {"first_transpose": (2, 0, 1), "reshape_dims": (8, 3), "second_transpose": (1, 0)},
        X.transpose(2, 0, 1).reshape(8, 3).T,
        ["Transpose", "Reshape", "Transpose"],
    ),
    "0 is what is there after the transpose": (
        {"first_transpose": (1, 2, 0), "reshape_dims": (0, -1)},
        X.transpose(1, 2, 0).reshape(3, 8),
        ["Transpose", "Reshape"],
    ),
    "more dimensions": (
        {"reshape_dims": (2, 1, 3, 4, 1), "second_transpose": (4, 3, 2, 1, 0)},
        X.reshape(2, 1, 3, 4, 1).transpose(4, 3, 2, 1, 0),
        ["Reshape", "Transpose"],
    ),
    "a shape from an input": ({"input 1": "s"}, X.reshape(4, 6), ["Reshape"]),
    "a shape from an input, no placeholders": (
        {"input 1": "s", "zero_is_placeholder": False},
        X.reshape(4, 6),
        ["Reshape"],
    ),
}


@pytest.mark.parametrize("what", SHUFFLES)
@pytest.mark.parametrize("dims", [(2, 3, 4), (-1, 3, -1)], ids=str)
def test_shuffle(worker: Worker, tmp_path: Path, what: str, dims: tuple[int, ...]) -> None:
    settings, expected, operators = SHUFFLES[what]
    inputs: Any = {"x": ("FLOAT", dims)}
    feed: lifted.Feed = {"x": X}
    if "input 1" in settings:
        inputs["s"], feed["s"] = ("INT64", (2,)), _ints(4, 6)
    found = handmade.made(worker, tmp_path, inputs, "shuffle", ("x",), settings)
    got = handmade.computed(found, feed)
    np.testing.assert_array_equal(got, expected, strict=True)
    assert handmade.operators(found) == operators


def test_a_reshape_to_a_scalar_is_no_missing_reshape(worker: Worker, tmp_path: Path) -> None:
    for settings, shape in (({"reshape_dims": ()}, ()), ({}, (1, 1))):
        found = handmade.made(worker, tmp_path, {"x": ("FLOAT", (1, 1))}, "shuffle", ("x",), settings)
        assert handmade.computed(found, {"x": np.ones((1, 1), np.float32)}).shape == shape


@pytest.mark.parametrize(
    ("placeholder", "dims", "shape"), [(True, (0, 5, -1), (2, 5, 0)), (False, (0, 5, 7), (0, 5, 7))]
)
def test_a_zero_in_a_shape(
    worker: Worker, tmp_path: Path, placeholder: bool, dims: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """Of (2, 0): a placeholder stands for 2, and is 0 elements otherwise. From an input as from a property."""
    data = np.ones((2, 0), np.float32)
    inputs: Any = {"x": ("FLOAT", (2, -1)), "s": ("INT32", (3,))}
    for source in ({"reshape_dims": dims}, {"input 1": "s"}, {"input 1": _ints(*dims)}):
        settings = {**source, "zero_is_placeholder": placeholder}
        found = handmade.made(worker, tmp_path, inputs, "shuffle", ("x",), settings)
        assert handmade.computed(found, {"x": data, "s": np.array(dims, np.int32)}).shape == shape


# -- squeezes

SQUEEZES: dict[str, tuple[str, tuple[int, ...], Any, tuple[int, ...], tuple[int, ...]]] = {
    "no axes": ("squeeze", (1, 3, 1), None, (1, 3, 1), (3,)),
    "no axes, a dynamic dimension that is 1": ("squeeze", (1, -1, 3), None, (1, 1, 3), (1, 3)),
    "no axes, nothing is 1": ("squeeze", (-1, 3), None, (1, 3), (1, 3)),
    "axes without an element": ("squeeze", (1, 3), _ints(), (1, 3), (1, 3)),
    "a negative axis": ("squeeze", (1, -1, 1), _ints(-1), (1, 1, 1), (1, 1)),
    "a dynamic axis": ("squeeze", (-1, 3), _ints(0), (1, 3), (3,)),
    "new axes": ("unsqueeze", (2, -1), _ints(0, -1), (2, 3), (1, 2, 3, 1)),
    "axes in int32": ("unsqueeze", (2, 3), np.array([1], np.int32), (2, 3), (2, 1, 3)),
}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=since("1.7", "squeeze without axes") if axes is None else ())
        for what, (_, _, axes, _, _) in SQUEEZES.items()
    ],
)
def test_squeeze(worker: Worker, tmp_path: Path, what: str) -> None:
    method, dims, axes, shape, expected = SQUEEZES[what]
    given = ("x",) if axes is None else ("x", axes)
    found = handmade.made(worker, tmp_path, {"x": ("FLOAT", dims)}, method, given, {})
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(handmade.computed(found, {"x": data}), data.reshape(expected), strict=True)


# -- types


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_moved(worker: Worker, tmp_path: Path, dtype: str) -> None:
    data = np.array([[0, 1, 2], [3, 1, 0]]).astype(TYPES[dtype])
    inputs = {"x": (dtype, (-1, 3)), "n": ("INT32", (3,))}
    feed = {"x": data, "n": np.array([2, 1, 2], np.int32)}
    turned = np.stack([data[1], data[0]])
    turned[:, 1] = data[:, 1]
    cases: list[tuple[str, Any, Settings, Any]] = [
        ("concatenation", (["x", "x"],), {"axis": 1}, np.concatenate([data, data], 1)),
        ("shuffle", ("x",), {"first_transpose": (1, 0), "reshape_dims": (2, -1)}, data.T.reshape(2, -1)),
        ("unsqueeze", ("x", _ints(1)), {}, data[:, None]),
        ("identity", ("x",), {}, data),
    ]
    if dtype != "FP8":  # which TensorRT does not reverse
        cases.append(("reverse_sequence", ("x", "n"), {}, turned))
    for method, given, settings, expected in cases:
        found = handmade.made(worker, tmp_path, inputs, method, given, settings)
        got = handmade.computed(found, feed)
        assert got.dtype == expected.dtype, method
        np.testing.assert_array_equal(
            got.astype(np.float32), expected.astype(np.float32), method, strict=True
        )


# -- fills


def _linspace(
    worker: Worker, folder: Path, dtype: str, shape: tuple[int, ...], settings: Settings, feed: lifted.Feed
) -> Any:
    names = {np.dtype(one): key for key, one in TYPES.items()}
    inputs = {name: (names[value.dtype], value.shape) for name, value in feed.items()} or {"u": ("FLOAT", ())}
    given = (shape, "trt.FillOperation.LINSPACE", f"trt.DataType.{dtype}")
    found = handmade.made(worker, folder, inputs, "fill", given, settings)
    return handmade.computed(found, feed or {"u": np.array(0, np.float32)})


@pytest.mark.parametrize("dtype", ["INT32", "INT64", "FLOAT"])
def test_linspace_of_rank_2(worker: Worker, tmp_path: Path, dtype: str) -> None:
    """alpha + i * beta[0] + j * beta[1]: the example of NvInfer.h, and everything from inputs."""
    kind = TYPES[dtype]
    expected = np.array([[1, 11, 21, 31], [101, 111, 121, 131], [201, 211, 221, 231]], kind)
    alpha, beta = np.array(1, kind), np.array([100, 10], kind)
    got = _linspace(worker, tmp_path, dtype, (3, 4), {"input 1": alpha, "input 2": beta}, {})
    np.testing.assert_array_equal(got, expected, strict=True)
    settings = {"input 0": "n", "input 1": "a", "input 2": "b"}
    for number in (np.int32, np.int64):
        feed = {"n": np.array([3, 4], number), "a": alpha, "b": beta}
        got = _linspace(worker, tmp_path, dtype, (1, 1), settings, feed)
        np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize(
    ("dtype", "settings", "expected"),
    [
        ("INT64", {"alpha": 5, "beta": -2}, [5, 3, 1, -1]),
        ("INT64", {"alpha": 0, "beta": 1}, [0, 1, 2, 3]),
        ("INT32", {"alpha": 2**31 - 2, "beta": 1}, [2**31 - 2, 2**31 - 1, -(2**31), 1 - 2**31]),
        (
            "INT32",
            {"input 1": np.array(2**31), "input 2": np.array([1])},
            [-(2**31) + one for one in range(4)],
        ),
        ("FLOAT", {"alpha": 0.5, "beta": 0.25}, [0.5, 0.75, 1.0, 1.25]),
        ("FLOAT", {"input 1": np.array(0.5, np.float32), "input 2": np.array([0], np.float32)}, [0.5] * 4),
    ],
)
def test_linspace(worker: Worker, tmp_path: Path, dtype: str, settings: Settings, expected: Any) -> None:
    got = _linspace(worker, tmp_path, dtype, (4,), settings, {})
    np.testing.assert_array_equal(got, np.array(expected, TYPES[dtype]), strict=True)


def test_linspace_without_elements_and_without_dimensions(worker: Worker, tmp_path: Path) -> None:
    feed = {"a": np.array(7, np.int32), "b": np.array([2, 3], np.int32)}
    assert _linspace(worker, tmp_path, "INT32", (2, 0), BOTH, feed).shape == (2, 0)
    feed = {"a": np.array(7, np.int32), "b": np.array([], np.int32)}
    np.testing.assert_array_equal(_linspace(worker, tmp_path, "INT32", (), BOTH, feed), np.int32(7))


@pytest.mark.parametrize("shape", ["input", "property"])
@pytest.mark.parametrize("operation", ["RANDOM_UNIFORM", "RANDOM_NORMAL"])
@pytest.mark.parametrize("dtype", ["FLOAT", "HALF"])
def test_random(worker: Worker, tmp_path: Path, operation: str, dtype: str, shape: str) -> None:
    """From alpha to beta; mean alpha and deviation beta. The output is known to be drawn."""
    alpha, beta = -100.0, 0.5
    named = {"alpha": alpha, "beta": beta} | ({"input 0": "n"} if shape == "input" else {})
    given = ((50, 80), f"trt.FillOperation.{operation}", f"trt.DataType.{dtype}")
    found = handmade.made(worker, tmp_path, {"n": ("INT32", (2,))}, "fill", given, named)
    got = handmade.computed(found, {"n": np.array([50, 80], np.int32)})
    assert got.dtype == TYPES[dtype]
    assert got.shape == (50, 80)
    wide = got.astype(np.float64)
    if operation == "RANDOM_UNIFORM":
        low, high = min(alpha, beta), max(alpha, beta)
        assert low <= wide.min() <= low + (high - low) / 50
        assert high - (high - low) / 50 <= wide.max() <= high
    else:
        assert abs(wide.mean() - alpha) < beta / 10
        assert abs(wide.std() - beta) < beta / 10
    assert found.drawn == ("y",)


@pytest.mark.parametrize(
    ("inputs", "settings", "shape", "said"),
    [
        ({"a": ("INT32", ())}, {"input 1": "a"}, (3,), "alpha or beta as a property"),
        ({"a": ("FLOAT", ())}, {}, (3, 2), "not of rank 1"),
        ({"a": ("INT32", ()), "b": ("INT32", (1,))}, BOTH, (3,), "alpha is INT32 and beta INT32"),
    ],
)
def test_a_fill_that_is_not_documented_is_named(
    worker: Worker, tmp_path: Path, inputs: Any, settings: Settings, shape: tuple[int, ...], said: str
) -> None:
    given = (shape, "trt.FillOperation.LINSPACE", "trt.DataType.FLOAT")
    found = handmade.made(worker, tmp_path, inputs, "fill", given, settings)
    assert found.status == "unlifted"
    assert [gap.kind for gap in found.gaps] == ["FILL"]
    assert said in found.reason


# -- the rest


@pytest.mark.parametrize(("batch", "sequence"), [(1, 0), (0, 1)])
def test_reverse_sequence_along_either_axis(
    worker: Worker, tmp_path: Path, batch: int, sequence: int
) -> None:
    lengths = np.array([2, 1, 3, 0])[: X.shape[batch]]
    lengths = np.minimum(lengths, X.shape[sequence])
    expected = np.moveaxis(X, (batch, sequence), (0, 1)).copy()
    for row, length in zip(expected, lengths, strict=True):
        row[:length] = row[:length][::-1].copy()
    inputs = {"x": ("FLOAT", (-1, 3, 4)), "n": ("INT64", lengths.shape)}
    settings = {"batch_axis": batch, "sequence_axis": sequence}
    found = handmade.made(worker, tmp_path, inputs, "reverse_sequence", ("x", "n"), settings)
    got = handmade.computed(found, {"x": X, "n": lengths.astype(np.int64)})
    np.testing.assert_array_equal(got, np.moveaxis(expected, (0, 1), (batch, sequence)), strict=True)


def test_the_shape_is_int64(worker: Worker, tmp_path: Path) -> None:
    found = handmade.made(worker, tmp_path, {"x": ("HALF", (-1, 3, -1))}, "shape", ("x",), {})
    got = handmade.computed(found, {"x": np.ones((2, 3, 0), np.float16)})
    np.testing.assert_array_equal(got, _ints(2, 3, 0), strict=True)


def test_a_random_tensor_marks_only_what_hangs_on_it(worker: Worker, tmp_path: Path) -> None:
    model = lifted.text(
        """g (float[2,2] x) => (float[2,2] a, float[2,2] b, float[2,2] c) {
            r = RandomUniformLike(x)
            a = Add(x, r)
            b = Neg(x)
            c = Mul(a, b)
        }"""
    )
    found = lifted.lifted(worker, model, tmp_path)
    assert found.lifted, found.reason
    assert found.drawn == ("a", "c")
    assert [one.name for one in onnx.load(found.path).graph.output] == ["a", "b", "c"]


def test_a_random_condition_marks_what_it_chooses(worker: Worker, tmp_path: Path) -> None:
    model = lifted.text(
        """g (float[2] x) => (float[2] y, float[2] z) {
            r = RandomUniformLike(x)
            m = ReduceMax<keepdims = 0>(r)
            k = Constant<value_float = 0.5>()
            c = Greater(m, k)
            y = If(c) <then_branch = t () => (float[2] p) { p = Neg(x) },
                else_branch = f () => (float[2] q) { q = Exp(x) }>
            z = Abs(x)
        }"""
    )
    found = lifted.lifted(worker, model, tmp_path)
    assert found.lifted, found.reason
    assert found.drawn == ("y",)
