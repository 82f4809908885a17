"""Functions that call themselves, and long chains of functions: what stops parsers, and what takes time in none."""

from __future__ import annotations

import sys

import pytest
from onnx import ModelProto

import onnxfix
from onnxfix.errors import ModelError
from onnxfix.graph.order import callees_first
from onnxfix.model import Model
from support.patience import processor_seconds
from support.wire import field, function, graph, model, node, whole

IMPORT = field(8, field(1, b"d") + whole(2, 1))


def calling(name: bytes, *functions: bytes) -> bytes:
    """A model that calls a function."""
    return model(more=IMPORT + b"".join(field(25, one) for one in functions), nodes=call(name))


def call(name: bytes) -> bytes:
    return field(1, node(field(7, b"d"), name))


INSIDE = field(5, field(1, b"then_branch") + field(6, graph(nodes=call(b"f"))) + whole(20, 5))
BRANCH = field(7, field(1, b"x") + field(2, b"z") + field(4, b"If") + INSIDE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "circle"),
    [
        (calling(b"f", function(b"f", b"", b"f")), "d::f → d::f"),
        (calling(b"f", function(b"f", b"", b"g"), function(b"g", b"", b"f")), "d::f → d::g → d::f"),
        (calling(b"g", function(b"g", b"", b"f"), function(b"f", b"", b"f")), "d::f → d::f"),
        (model(more=IMPORT + field(25, function(b"f", b"", b"f"))), "d::f → d::f"),
        (calling(b"f", function(b"f", BRANCH)), "d::f → d::f"),
        (
            calling(b"f0", *(function(b"f%d" % k, b"", b"f%d" % ((k + 1) % 50)) for k in range(50))),
            "d::f0 → d::f1 → d::f2 → d::f3 → … → d::f0",
        ),
    ],
    ids=["direct", "mutual", "behind another", "not called", "in a branch", "a long way round"],
)
def test_a_function_that_calls_itself_is_refused_in_one_line(data: bytes, circle: str) -> None:
    for verb in (onnxfix.check, onnxfix.apply, onnxfix.verify):
        with pytest.raises(ModelError) as caught:
            verb(data)
        assert str(caught.value).endswith(f"a function calls itself, which ONNX forbids: {circle}")


def test_a_function_stands_after_those_that_it_calls() -> None:
    data = calling(
        b"a", function(b"a", b"", b"b", b"c"), function(b"b"), function(b"c", b"", b"b"), function(b"e")
    )
    one = Model(ModelProto.FromString(data))
    assert [scope.path for scope in one.callees_first] == ["fn d::b", "fn d::c", "fn d::a", "fn d::e"]
    assert callees_first([], {}) == []


def chain(length: int, times: int = 1) -> bytes:
    """Each function calls the next one so many times."""
    last = length - 1
    names = [[b"f%d" % (k + 1)] * times if k < last else [] for k in range(length)]
    return calling(b"f0", *(function(b"f%d" % k, b"", *names[k]) for k in range(length)))


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2], ids=["chain", "doubling"])
def test_a_chain_longer_than_the_stack_breaks_no_rule(times: int) -> None:
    report = onnxfix.check(chain(sys.getrecursionlimit() + 100, times))
    assert not report.problems


@pytest.mark.slow
def test_time_grows_with_the_length_of_a_chain() -> None:
    """It took the square of it, and 32 times that."""

    def seconds(length: int) -> float:
        return processor_seconds(lambda: Model(ModelProto.FromString(chain(length))).shapes)

    short, long = seconds(200), seconds(1600)
    assert long < 8 * short * 3
