"""Arithmetic, read back from TensorRT. Three oracles: the ONNX model that the parser was given, TensorRT's own
evaluation of constants, and numbers by hand for what it does not evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfix.runtime.sandbox import Worker
from support import lifted
from support.handmade import Raw, Recipe, Step, folded, one, op, outputs, own, read
from support.lifted import Feed
from support.real_tensorrt import REAL

pytestmark = REAL
Array = np.ndarray[Any, Any]
F, I8, I32, I64 = np.float32, np.int8, np.int32, np.int64


# -- what TensorRT evaluates itself

REALS = np.array([-3.0, -2.5, -1.5, -0.75, -0.5, 0.0, 0.25, 0.5, 1.5, 2.5, 7.0, np.inf, -np.inf], F)
WHOLE = np.array([7, -7, 7, -7, 6, -6, 0, -1, 1], I64)
BY = np.array([2, 2, -2, -2, -3, 3, 5, 4, -1], I64)
SMALL = np.array([1, 2, 0, 3, 2, 1, 5, 2, -1], I64)
TABLE = np.array([[1, -2, 3], [3, 4, 8]], F)
BLOCK = np.arange(12, dtype=F).reshape(2, 1, 3, 2) - 4
EMPTY = Raw()


def evaluated() -> Iterator[tuple[str, Recipe]]:
    """Networks of constants, for each of the operations."""
    for kind in ("RELU", "SIGMOID", "TANH", "LEAKY_RELU", "ELU", "SELU", "SOFTPLUS", "CLIP", "HARD_SIGMOID"):
        yield f"ACTIVATION {kind}", one("activation", REALS, op("ActivationType", kind), alpha=0.25, beta=1.5)
    for kind in ("SCALED_TANH", "THRESHOLDED_RELU", "SOFTSIGN", "GELU_ERF", "GELU_TANH"):
        yield (
            f"ACTIVATION {kind}",
            one("activation", REALS[:-2], op("ActivationType", kind), alpha=0.25, beta=1.5),
        )
    yield "CLIP crossed", one("activation", REALS, op("ActivationType", "CLIP"), alpha=2.0, beta=1.0)
    for kind in UNARIES:
        yield f"UNARY {kind}", one("unary", REALS, op("UnaryOperation", kind))
    yield "UNARY ISNAN of NaN", one("unary", np.array([np.nan, 1, np.inf], F), op("UnaryOperation", "ISNAN"))
    yield "UNARY NOT", one("unary", np.array([True, False]), op("UnaryOperation", "NOT"))
    for kind in ("SUM", "PROD", "SUB", "MAX", "MIN", "DIV", "FLOOR_DIV", "EQUAL", "GREATER", "LESS", "POW"):
        for dtype in (I32, I64, F, np.float16):
            other = SMALL if kind == "POW" else BY
            call = ("elementwise", WHOLE.astype(dtype), other.astype(dtype), op("ElementWiseOperation", kind))
            yield f"ELEMENTWISE {kind} {dtype.__name__}", one(*call)
    for kind in ("AND", "OR", "XOR", "EQUAL"):
        flags = np.array([[True], [False]]), np.array([[True, False]])
        yield f"ELEMENTWISE {kind} bool", one("elementwise", *flags, op("ElementWiseOperation", kind))
    fractions = np.array([7.5, -7.5, 1, -1, -0.5, 2**0.5], F), np.array([2, 2, 0, 0, np.inf, 2**0.25], F)
    for kind in ("DIV", "FLOOR_DIV"):
        yield (
            f"ELEMENTWISE {kind} of fractions",
            one("elementwise", *fractions, op("ElementWiseOperation", kind)),
        )
    for dtype in (I32, I64):
        for kind in ("ABS", "NEG", "SIGN"):
            yield (
                f"UNARY {kind} {dtype.__name__}",
                one("unary", WHOLE.astype(dtype), op("UnaryOperation", kind)),
            )
    for dtype in (F, np.float16, I32, I64):
        for kind in ("SUM", "PROD", "MAX", "MIN", "AVG"):
            for mask in (1, 2, 3):
                call = ("reduce", TABLE.astype(dtype), op("ReduceOperation", kind), mask, mask != 2)
                yield f"REDUCE {kind} {mask} {dtype.__name__}", one(*call)
    yield from casts()
    yield from products()
    yield from scales()
    for values in (np.array([3, 7], F), np.array([3, 7], I32), np.array([True, False])):
        for axis in (0, 1, -1):
            call = ("one_hot", np.array([[1, -1], [5, 0]], I32), values, np.array(3, I32), axis)
            yield f"ONE_HOT {axis} {values.dtype}", one(*call)
    for dtype in (F, np.float16, I32, I64, np.bool_):
        sides = np.array([1, 0, 1], dtype), np.array([0], dtype)
        yield f"SELECT {dtype.__name__}", one("select", np.array([True, False, False]), *sides)


UNARIES = (
    "EXP", "LOG", "SQRT", "RECIP", "ABS", "NEG", "SIN", "COS", "TAN", "SINH", "COSH", "ASIN", "ACOS", "ATAN",
    "ASINH", "ACOSH", "ATANH", "CEIL", "FLOOR", "ERF", "SIGN", "ROUND", "ISINF", "ISNAN",
)  # fmt: skip


def casts() -> Iterator[tuple[str, Recipe]]:
    for to in ("INT32", "INT64", "BOOL", "HALF", "BF16", "FLOAT"):
        for values in (
            REALS[:-2],
            REALS[:-2].astype(np.float16),
            np.array([2, 0, -1], I32),
            np.array([True, False]),
        ):
            yield f"CAST {values.dtype} to {to}", one("cast", values, op("DataType", to))


def products() -> Iterator[tuple[str, Recipe]]:
    square, stack = TABLE.T.copy(), np.stack([TABLE, 2 * TABLE, TABLE - 1])
    forms: tuple[tuple[str, Array, str, Array], ...] = (
        ("NONE", TABLE, "NONE", square),
        ("TRANSPOSE", TABLE, "NONE", TABLE),
        ("NONE", stack, "TRANSPOSE", stack[:1]),
        ("TRANSPOSE", stack, "TRANSPOSE", np.stack([square])),
        ("VECTOR", TABLE[0], "NONE", square),
        ("VECTOR", TABLE, "TRANSPOSE", stack[:2]),
        ("NONE", TABLE, "VECTOR", TABLE[0]),
        ("VECTOR", TABLE[0], "VECTOR", TABLE[1]),
        ("VECTOR", TABLE, "VECTOR", TABLE[:1]),
    )
    for first, one_, second, other in forms:
        call = ("matrix_multiply", one_, op("MatrixOperation", first), other, op("MatrixOperation", second))
        yield f"MATRIX_MULTIPLY {first} {second} {one_.ndim}", one(*call)


def scales() -> Iterator[tuple[str, Recipe]]:
    three, channel = Raw(np.array([3, 1, 2], F)), op("ScaleMode", "CHANNEL")
    yield "SCALE CHANNEL", one("scale_nd", BLOCK, channel, three, three, three, 2)
    yield "SCALE nothing", one("scale_nd", BLOCK, channel, EMPTY, EMPTY, EMPTY, 2)


def of(dtype: str, call: str, *arguments: Any, shape: tuple[int, ...] = (2,), **sets: Any) -> Recipe:
    """A layer whose first argument is an input of this type."""
    return one(call, "a", *arguments, inputs={"a": (dtype, shape)}, **sets)


EVALUATED = dict(evaluated())


@pytest.mark.parametrize("name", EVALUATED)
def test_it_computes_what_tensorrt_evaluates(worker: Worker, tmp_path: Path, name: str) -> None:
    recipe = EVALUATED[name]
    found = np.asarray(outputs(worker, recipe, tmp_path, {})[0])
    np.testing.assert_allclose(
        found.reshape(-1).astype(np.float64), folded(worker, recipe), rtol=1e-3, atol=2e-5
    )


# -- what it does not evaluate, and types that constants cannot have

X8 = np.array([-128, -7, -1, 0, 7, 127], I8)
BY8 = np.array([3, 2, 5, -4, -2, -1], I8)
EIGHT = {
    "SUM": X8 + BY8,  # which wraps around
    "PROD": X8 * BY8,
    "SUB": X8 - BY8,
    "MAX": np.maximum(X8, BY8),
    "MIN": np.minimum(X8, BY8),
    "DIV": np.array([-42, -3, 0, 0, -3, -127], I8),
    "FLOOR_DIV": np.array([-43, -4, -1, 0, -4, -127], I8),
    "EQUAL": X8 == BY8,
    "GREATER": X8 > BY8,
    "LESS": X8 < BY8,
}


@pytest.mark.parametrize("kind", EIGHT)
def test_bytes_in_pairs(worker: Worker, tmp_path: Path, kind: str) -> None:
    inputs = {"a": ("INT8", (6,)), "b": ("INT8", (6,))}
    recipe = one("elementwise", "a", "b", op("ElementWiseOperation", kind), inputs=inputs)
    [found] = outputs(worker, recipe, tmp_path, {"a": X8, "b": BY8})
    assert found.dtype == EIGHT[kind].dtype
    assert found.tolist() == EIGHT[kind].tolist()


@pytest.mark.parametrize("dtype", [I32, I64])
def test_floor_division_holds_at_the_ends_of_the_range(worker: Worker, tmp_path: Path, dtype: Any) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a, b = np.array([low, low, high, high], dtype), np.array([3, high, -2, low], dtype)
    inputs = {name: (np.dtype(dtype).name.upper(), (4,)) for name in "ab"}
    recipe = one("elementwise", "a", "b", op("ElementWiseOperation", "FLOOR_DIV"), inputs=inputs)
    [found] = outputs(worker, recipe, tmp_path, {"a": a, "b": b})
    assert found.tolist() == [int(x) // int(y) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize(
    ("kind", "alpha", "beta", "wanted"),
    [
        ("RELU", 0.0, 0.0, [0, 0, 0, 0, 7, 127]),
        ("CLIP", -3.0, 5.0, [-3, -3, -1, 0, 5, 5]),
        ("CLIP", -3.4e38, 3.4e38, X8.tolist()),
        ("CLIP", 200.0, 300.0, [127] * 6),
        ("CLIP", 5.0, -3.0, [5] * 6),
    ],
)
def test_bytes_cut_off(
    worker: Worker, tmp_path: Path, kind: str, alpha: float, beta: float, wanted: list[int]
) -> None:
    sets = {"alpha": alpha, "beta": beta} if kind == "CLIP" else {}
    recipe = of("INT8", "activation", op("ActivationType", kind), shape=(6,), **sets)
    [found] = outputs(worker, recipe, tmp_path, {"a": X8})
    assert (found.dtype, found.tolist()) == (I8, wanted)


@pytest.mark.parametrize("dtype", ["INT32", "INT64"])
def test_rectified_integers(worker: Worker, tmp_path: Path, dtype: str) -> None:
    recipe = one("activation", "a", op("ActivationType", "RELU"), inputs={"a": (dtype, (-1,))})
    [found] = outputs(worker, recipe, tmp_path, {"a": np.array([-5, 0, 3], dtype.lower())})
    assert (found.dtype.name, found.tolist()) == (dtype.lower(), [0, 0, 3])


def test_powers_of_bytes_wrap_around(worker: Worker, tmp_path: Path) -> None:
    inputs = {"a": ("INT8", (3,)), "b": ("INT8", (3,))}
    recipe = one("elementwise", "a", "b", op("ElementWiseOperation", "POW"), inputs=inputs)
    [found] = outputs(
        worker, recipe, tmp_path, {"a": np.array([2, -3, 20], I8), "b": np.array([6, 3, 2], I8)}
    )
    assert found.tolist() == [64, -27, 400 - 512]


@pytest.mark.parametrize(("kind", "wanted"), [("ABS", [7, 0]), ("NEG", [7, 0]), ("SIGN", [-1, 0])])
def test_bytes_alone(worker: Worker, tmp_path: Path, kind: str, wanted: list[int]) -> None:
    recipe = one("unary", "a", op("UnaryOperation", kind), inputs={"a": ("INT8", (2,))})
    assert outputs(worker, recipe, tmp_path, {"a": np.array([-7, 0], I8)})[0].tolist() == wanted


@pytest.mark.parametrize("dtype", ["FLOAT", "HALF", "BF16", "INT8", "UINT8", "INT32", "INT64", "BOOL"])
def test_a_choice_stretches_all_three(worker: Worker, tmp_path: Path, dtype: str) -> None:
    inputs = {"c": ("BOOL", (1, -1)), "a": (dtype, (2, 1)), "b": (dtype, (1, 1))}
    feed = {
        "c": np.array([[True, False, True]]),
        "a": np.array([[1], [0]], own(dtype)),
        "b": np.array([[1]], own(dtype)),
    }
    [found] = outputs(worker, one("select", "c", "a", "b", inputs=inputs), tmp_path, feed)
    assert (found.dtype, found.astype(F).tolist()) == (own(dtype), [[1, 1, 1], [0, 1, 0]])


def test_slopes(worker: Worker, tmp_path: Path) -> None:
    recipe = one("parametric_relu", "a", np.array([[2], [0.5]], F), inputs={"a": ("FLOAT", (2, -1))})
    [found] = outputs(worker, recipe, tmp_path, {"a": TABLE * np.array([[1], [-1]], F)})
    assert found.tolist() == [[1, -4, 3], [-1.5, -2, -4]]


BRAIN = {
    "sum": one("elementwise", "a", "b", op("ElementWiseOperation", "SUM")),
    "floor_div": one("elementwise", "a", "b", op("ElementWiseOperation", "FLOOR_DIV")),
    "exp": one("unary", "a", op("UnaryOperation", "EXP")),
    "isinf": one("unary", "a", op("UnaryOperation", "ISINF")),
    "less": one("elementwise", "a", "b", op("ElementWiseOperation", "LESS")),
    "clip": one("activation", "a", op("ActivationType", "CLIP"), alpha=-1.0, beta=1.5),
    "mean": one("reduce", "a", op("ReduceOperation", "AVG"), 1, True),
    "product": one(
        "matrix_multiply", "a", op("MatrixOperation", "VECTOR"), "b", op("MatrixOperation", "VECTOR")
    ),
    "select": one("select", np.array([True, False, True]), "a", "b"),
}


@pytest.mark.parametrize("name", BRAIN)
def test_bfloat16(worker: Worker, tmp_path: Path, name: str) -> None:
    a, b = np.array([1.5, -2.25, 3], own("BF16")), np.array([0.5, 4, -1.25], own("BF16"))
    wide, other = a.astype(F), b.astype(F)
    wanted = {
        "sum": wide + other,
        "floor_div": np.floor(wide / other),
        "exp": np.exp(wide),
        "isinf": np.isinf(wide),
        "less": wide < other,
        "clip": np.clip(wide, -1, 1.5),
        "mean": wide.mean(keepdims=True),
        "product": np.dot(wide, other),
        "select": np.where([True, False, True], wide, other),
    }[name]
    recipe = Recipe({"a": ("BF16", (3,)), "b": ("BF16", (3,))}, BRAIN[name].steps)
    [found] = outputs(worker, recipe, tmp_path, {"a": a, "b": b})
    assert found.dtype == (np.bool_ if name in ("less", "isinf") else own("BF16"))
    np.testing.assert_array_equal(found, wanted.astype(found.dtype))


# -- forms that are named, not guessed


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (of("FLOAT", "cast", op("DataType", "FP8")), "no conversion from FLOAT to FP8"),
        (of("INT32", "cast", op("DataType", "INT4")), "no conversion from INT32 to INT4"),
        (of("INT8", "activation", op("ActivationType", "CLIP"), alpha=-0.5, beta=2.0), "clips INT8 at -0.5"),
        (of("INT8", "unary", op("UnaryOperation", "EXP")), "computes Exp of INT8"),
        (of("FP8", "elementwise", "a", op("ElementWiseOperation", "SUM")), "computes Add of FP8"),
        (one("einsum", ["a"], "i->i", inputs={"a": ("INT8", (2,))}), "computes Einsum of INT8"),
        (
            of("INT8", "scale", op("ScaleMode", "UNIFORM"), *[EMPTY] * 3, shape=(1, 2, 1, 1)),
            "which quantizes",
        ),
        (
            of("FLOAT", "scale", op("ScaleMode", "UNIFORM"), *[EMPTY] * 3, shape=(1, 2, 1, 1)),
            "a scale with weights UNIFORM",
        ),
        (of("FLOAT", "reduce", op("ReduceOperation", "SUM"), 0, True), "over 0 axes"),
    ],
)
def test_a_form_that_nothing_documents_is_named(
    worker: Worker, tmp_path: Path, recipe: Recipe, words: str
) -> None:
    found = read(worker, recipe, tmp_path)
    assert found.status == "unlifted"
    assert words in found.gaps[0].reason


def test_an_assertion_is_left_out_and_said_so(worker: Worker, tmp_path: Path) -> None:
    steps = (
        Step("elementwise", ("a", "a", op("ElementWiseOperation", "EQUAL")), names=("same",)),
        Step("assertion", ("same", "sizes\n differ"), names=()),
        Step("unary", ("a", op("UnaryOperation", "NEG"))),
    )
    found = read(worker, Recipe({"a": ("INT32", (2,))}, steps), tmp_path)
    assert (found.lifted, found.notes) == (True, ("an assertion is omitted: sizes differ",))
    assert [node.op_type for node in onnx.load(found.path).graph.node] == ["Neg"]


# -- what the parser makes of ONNX


def feeds(*arrays: Array) -> Feed:
    return dict(zip("xwv", arrays, strict=False))


N = np.random.default_rng(3).standard_normal
MODELS: dict[str, tuple[str, Feed]] = {
    "clip of integers": (
        "g (int64[n] x) => (int64[n] y) <int64 lo = {-3}, int64 hi = {5}> { y = Clip(x, lo, hi) }",
        feeds(np.array([-9, -3, 0, 7])),
    ),
    "division": (
        "g (int32[n] x, int32[1] w) => (int32[n] y) { y = Div(x, w) }",
        feeds(np.arange(-7, 8, dtype=I32), np.array([-2], I32)),
    ),
    "modulo": (
        "g (int64[n] x, int64[1] w) => (int64[n] y) { y = Mod(x, w) }",
        feeds(np.arange(-7, 8), np.array([-3])),
    ),
    "C's modulo": (
        "g (int64[n] x, int64[1] w) => (int64[n] y) { y = Mod<fmod = 1>(x, w) }",
        feeds(np.arange(-7, 8), np.array([-3])),
    ),
    "mean of integers": (
        "g (int32[2,n] x) => (int32[2,1] y) <int64[1] a = {1}> { y = ReduceMean(x, a) }",
        feeds(np.array([[1, -2], [3, 4]], I32)),
    ),
    "flat softmax": (
        "g (float[2,n,4] x) => (float[2,n,4] y) { y = LogSoftmax<axis = 1>(x) }",
        feeds(N((2, 3, 4)).astype(F)),
    ),
    "gemm": (
        "g (float[4,n] x, float[5,4] w, float[5] v) => (float[n,5] y) "
        "{ y = Gemm<transA = 1, transB = 1, alpha = 0.5, beta = 2.0>(x, w, v) }",
        feeds(N((4, 3)).astype(F), N((5, 4)).astype(F), N(5).astype(F)),
    ),
    "activations": (
        """g (float[n] x) => (float[n] y) {
            a = Selu<alpha = 1.5, gamma = 0.75>(x)
            b = HardSigmoid<alpha = 0.3, beta = 0.4>(a)
            c = ThresholdedRelu<alpha = 0.45>(b)
            d = Gelu<approximate = "tanh">(x)
            e = Softplus(d)
            y = Add(c, e)
        }""",
        feeds(np.linspace(-3, 3, 13).astype(F)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_the_parser_makes_agrees_with_onnx(worker: Worker, tmp_path: Path, name: str) -> None:
    source, feed = MODELS[name]
    lifted.agree(worker, lifted.text(source), tmp_path, feed)


# -- what the parser makes of ONNX, and should not


def test_where_the_bounds_of_a_clip_cross_the_lower_one_wins(worker: Worker, tmp_path: Path) -> None:
    source = "g (float[n] x) => (float[n] y) <float lo = {2.0}, float hi = {1.0}> { y = Clip(x, lo, hi) }"
    meant, seen = lifted.both(worker, lifted.text(source), tmp_path, {"x": np.array([0, 1.5, 3], F)})
    assert meant[0].tolist() == [1, 1, 1]
    assert seen[0].tolist() == [2, 2, 2]
