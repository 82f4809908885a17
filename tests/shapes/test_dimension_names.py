"""Names of dimensions that are arithmetic on other names."""

from __future__ import annotations

import pytest

from onnxfix.inputs.feeds.signature import signature
from onnxfix.shapes import dimnames
from support import models

SIZES = {"a": 7, "b": 2, "_c": 3}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("a", 7),
        ("a + 1", 8),
        ("a*b - 1", 13),
        ("(a//b)*_c", 9),
        ("a / b", 3),
        ("a % _c", 1),
        ("-b + a", 5),
        ("a - 9", 0),  # no dimension is negative
        ("3", 3),
    ],
)
def test_arithmetic(text: str, size: int) -> None:
    assert dimnames.evaluate(text, SIZES) == size


@pytest.mark.parametrize(
    "text",
    [
        "n",
        "a + n",
        "a // (b - 2)",
        "a ** 2",
        "f(a)",
        "a.b",
        "a < b",
        "1.5",
        "'a'",
        "",
        "a +",
        " a",
        "a if b else a",
        "+a",
    ],
)
def test_what_is_no_arithmetic_has_no_size(text: str) -> None:
    assert dimnames.evaluate(text, SIZES) is None


@pytest.mark.parametrize(
    "text", ["+".join("a" * 970), "+".join("a" * 4000), "(" * 5000 + "a" + ")" * 5000, "9" * 5000, "a\0"]
)
def test_no_name_is_too_much(text: str) -> None:
    assert dimnames.evaluate(text, SIZES) is None
    assert dimnames.names(text) is None
    assert dimnames.replace(text, SIZES) == text


def test_names_of_arithmetic() -> None:
    assert dimnames.names("b + a*b") == ("b", "a")
    assert dimnames.names("7") == ()
    for plain in ("batch", "x.0", "batch size", "a::b"):
        assert dimnames.names(plain) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a", 7),
        ("n", "n"),
        ("a + 1", 8),
        ("a*n", "7*n"),
        ("n + aa", "n + aa"),
        ("a - n*b", "7 - n*2"),
        ("x.0", "x.0"),
    ],
)
def test_names_are_replaced(text: str, found: str | int) -> None:
    assert dimnames.replace(text, SIZES) == found


def test_a_name_of_its_own_is_replaced_whatever_it_looks_like() -> None:
    assert dimnames.replace("x.0", {"x.0": 1}) == 1
    assert dimnames.replace("batch-size", {"batch-size": 1}) == 1


def test_a_model_with_a_monstrous_name_is_read() -> None:
    model = models.model("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    name = "+".join(["N"] * 4000)
    model.graph.input[0].type.tensor_type.shape.dim.add().dim_param = name
    known = signature(model)
    assert known.symbols == ("N", name)
    assert known.size(name, {"N": 2}) is None


@pytest.mark.parametrize(
    ("dim", "name"), [("batch", "batch"), ("?", ""), ("*", ""), ("_", "_"), ("2", "2"), ("", "")]
)
def test_marks_for_unknown_sizes_are_no_names(dim: str, name: str) -> None:
    assert dimnames.own(dim) == name
