"""ONNX Runtime's products of uint8 and int8, of which some processors cut off sums at 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfix.backends import ort
from onnxfix.sandbox import Outcome, Worker
from onnxfix.verification.execution import climb
from onnxfix.verification.feeds.signature import signature
from onnxfix.verification.products import CUT_OFF
from onnxfix.verification.request import Request
from onnxfix.verification.verdict import RungResult
from support import networks

Array = np.ndarray[Any, Any]


# ------------------------------------------------------------------------------- what the processor does


def exact(a: Array, b: Array) -> Array:
    return a.astype(np.int32) @ b.astype(np.int32)


def in_pairs(a: Array, b: Array) -> Array:
    """As vpmaddubsw does: neighbors are multiplied and added in 16 bits, which hold no more than 32767."""
    products = a.astype(np.int32)[:, :, None] * b.astype(np.int32)[None, :, :]
    pairs = np.clip(products[:, ::2] + products[:, 1::2], -(1 << 15), (1 << 15) - 1)
    found: Array = pairs.sum(axis=1).astype(np.int32)
    return found


class FakeSession:
    """ONNX Runtime with another processor below it."""

    product = staticmethod(exact)

    def __init__(self, model: bytes, options: object, providers: list[str]) -> None:
        proto = onnx.load_from_string(model)
        onnx.checker.check_model(proto, full_check=True)
        assert [node.op_type for node in proto.graph.node] == ["MatMulInteger"]
        self.weight = np.asarray(onnx.numpy_helper.to_array(proto.graph.initializer[0]))

    def run(self, feed: dict[str, Array]) -> list[Array]:
        (x,) = feed.values()
        assert (x.dtype, self.weight.dtype) == (np.uint8, np.int8)
        return [self.product(x, self.weight)]


@pytest.fixture
def anew() -> Iterator[None]:
    """What was found on this processor is forgotten before and after."""
    ort.cuts_off.cache_clear()
    yield
    ort.cuts_off.cache_clear()


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize(("product", "cut"), [(exact, False), (in_pairs, True)])
def test_it_is_tried(monkeypatch: pytest.MonkeyPatch, product: Any, cut: bool) -> None:
    monkeypatch.setattr(FakeSession, "product", staticmethod(product))
    monkeypatch.setattr(ort, "OrtSession", FakeSession)
    assert ort.cuts_off() is cut


@pytest.mark.usefixtures("anew")
def test_what_this_processor_does() -> None:
    """Whatever it is, it is one of the two."""
    a, b = np.full((4, 64), 255, np.uint8), np.full((64, 4), 127, np.int8)
    text = "g (uint8[4,64] x, int8[64,4] w) => (int32[4,4] y) { y = MatMulInteger(x, w) }"
    session = ort.OrtSession(
        networks.model(text, 13).SerializeToString(), ort.session_options(), ["CPUExecutionProvider"]
    )
    (found,) = session.run({"x": a, "w": b})
    assert (found == (in_pairs if ort.cuts_off() else exact)(a, b)).all()


# ------------------------------------------------------------------------------ what the rung makes of it


class Asked(Worker):
    """A worker that answers for the processor, and counts how often it is asked."""

    def __init__(self, answer: Outcome) -> None:
        super().__init__()
        self.answer, self.times = answer, 0

    def call(self, target: str, *, timeout: float, **kwargs: Any) -> Outcome:
        if target == "onnxfix.backends.ort:cuts_off":
            self.times += 1
            return self.answer
        return super().call(target, timeout=timeout, **kwargs)


PRODUCT = """g (uint8[2,4] x) => (int32[2,3] y) <int8[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, int32 one = {1}> {
    %s }"""
ORIGINAL, FIXED = "y = MatMulInteger(x, w)", "p = MatMulInteger(x, w)  y = Add(p, one)"
PLAIN = "g (int32[2,3] x) => (int32[2,3] y) <int32 one = {1}> { %s }"
YES, NO = Outcome("ok", value=True), Outcome("ok", value=False)
DEAD = Outcome("crash", message="killed")


def climbed(
    folder: Path,
    answer: Outcome,
    text: str = PRODUCT,
    bodies: tuple[str, str] = (ORIGINAL, FIXED),
    rung: str = "ort-cpu",
    shown: str = "reference",
) -> tuple[RungResult, int]:
    paths = [
        networks.write(folder / f"{number}.onnx", networks.model(text % body, 13))
        for number, body in enumerate(bodies)
    ]
    with Asked(answer) as worker:
        request = Request(paths[0], paths[1], signature(paths[0]), worker, True, 0, {}, {}, None, shown=shown)
        return climb(request, rung), worker.times


def test_a_difference_that_may_be_the_processors_proves_nothing(tmp_path: Path) -> None:
    result, times = climbed(tmp_path, YES)
    assert result.status == "skipped"
    assert times > 0
    assert {(feed.status, feed.reason) for feed in result.feeds} == {("not counted", CUT_OFF)}


@pytest.mark.parametrize("answer", [NO, DEAD])
def test_on_other_processors_it_refutes(tmp_path: Path, answer: Outcome) -> None:
    result, times = climbed(tmp_path, answer)
    assert result.status == "failed"
    assert times == 1


def test_so_it_does_where_no_other_rung_has_compared(tmp_path: Path) -> None:
    assert climbed(tmp_path, YES, shown="")[0].status == "failed"


def test_and_where_nothing_multiplies_bytes(tmp_path: Path) -> None:
    result, times = climbed(tmp_path, YES, PLAIN, ("y = Neg(x)", "p = Neg(x)  y = Add(p, one)"))
    assert (result.status, times) == ("failed", 0)


def test_and_on_the_reference_evaluator(tmp_path: Path) -> None:
    result, times = climbed(tmp_path, YES, rung="reference")
    assert (result.status, times) == ("failed", 0)


def test_what_agrees_counts_on_every_processor(tmp_path: Path) -> None:
    result, times = climbed(
        tmp_path, YES, bodies=(ORIGINAL, f"p = Identity(x)  {ORIGINAL.replace('x', 'p')}")
    )
    assert (result.status, times) == ("passed", 0)
