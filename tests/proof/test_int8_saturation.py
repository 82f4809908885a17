"""ONNX Runtime's products of uint8 and int8, of which some processors cut off sums at 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxfix.files import walk
from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof.copies import CUT_OFF, UNSIGNED, product, unsigned
from onnxfix.proof.execution import run_check
from onnxfix.proof.request import Request
from onnxfix.proof.verdict import RungResult
from onnxfix.runtime.backends import ort
from onnxfix.runtime.sandbox import Outcome, Worker
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
    """A worker that answers for the processor, and counts how often it is asked. ``apart``: on it, runs of the two
    models differ."""

    def __init__(self, answer: Outcome, apart: bool = False) -> None:
        super().__init__()
        self.answer, self.apart, self.times = answer, apart, 0

    def call(self, target: str, *, timeout: float, **kwargs: Any) -> Outcome:
        if target == "onnxfix.runtime.backends.ort:cuts_off":
            self.times += 1
            return self.answer
        outcome = super().call(target, timeout=timeout, **kwargs)
        if self.apart and target.endswith(":run") and outcome.ok:
            metrics = tuple(replace(one, agreement="different") for one in outcome.value.metrics)
            return replace(outcome, value=replace(outcome.value, metrics=metrics))
        return outcome


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
    apart: bool = False,
) -> tuple[RungResult, int]:
    paths = [
        networks.write(folder / f"{number}.onnx", networks.model(text % body, 13))
        for number, body in enumerate(bodies)
    ]
    with Asked(answer, apart) as worker:
        request = Request(paths[0], paths[1], signature(paths[0]), worker, True, 0, {}, None, shown=shown)
        return run_check(request, rung), worker.times


@pytest.mark.parametrize("shown", ["reference", ""])
def test_what_differs_on_this_processor_alone_passes(tmp_path: Path, shown: str) -> None:
    same = (ORIGINAL, f"p = Identity(x)  {ORIGINAL.replace('x', 'p')}")
    result, times = climbed(tmp_path, YES, bodies=same, shown=shown, apart=True)
    assert (result.status, times) == ("passed", len(result.feeds))
    assert {feed.status for feed in result.feeds} == {"identical"}
    assert result.notes.count(UNSIGNED) == 1


@pytest.mark.parametrize("shown", ["reference", ""])
def test_what_differs_with_unsigned_weights_too_refutes(tmp_path: Path, shown: str) -> None:
    result, times = climbed(tmp_path, YES, shown=shown)
    assert (result.status, times) == ("failed", 1)
    assert UNSIGNED in result.notes


@pytest.mark.parametrize(("shown", "status"), [("reference", "skipped"), ("", "failed")])
def test_without_constant_weights_it_proves_nothing_that_another_rung_compared(
    tmp_path: Path, shown: str, status: str
) -> None:
    result, times = climbed(
        tmp_path,
        YES,
        PRODUCT.replace("int8[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, ", "").replace(
            "x) =>", "x, int8[4,3] w) =>"
        ),
        shown=shown,
    )
    assert result.status == status
    assert times > 0
    assert UNSIGNED not in result.notes
    if status == "skipped":
        assert {(feed.status, feed.reason) for feed in result.feeds} == {("not counted", CUT_OFF)}


@pytest.mark.parametrize("answer", [NO, DEAD])
def test_on_other_processors_it_refutes(tmp_path: Path, answer: Outcome) -> None:
    result, times = climbed(tmp_path, answer)
    assert result.status == "failed"
    assert times == 1
    assert UNSIGNED not in result.notes


def test_and_where_nothing_multiplies_bytes(tmp_path: Path) -> None:
    result, times = climbed(tmp_path, YES, PLAIN, ("y = Neg(x)", "p = Neg(x)  y = Add(p, one)"))
    assert (result.status, times) == ("failed", 0)


def test_what_agrees_counts_on_every_processor(tmp_path: Path) -> None:
    result, times = climbed(
        tmp_path, YES, bodies=(ORIGINAL, f"p = Identity(x)  {ORIGINAL.replace('x', 'p')}")
    )
    assert (result.status, times) == ("passed", 0)


# ------------------------------------------------------------------------------------- unsigned weights


def texts() -> dict[str, str]:
    scales = "float s = {0.5}, uint8 z = {3}"
    weights = "int8[2,2] w = {127, -128, 5, -6}"
    kernel = "int8[2,1,1,1] k = {127, -128}"
    return {
        "integer, without zero points": f"""g (uint8[3,2] x) => (int32[3,2] y) <{weights}> {{
            y = MatMulInteger(x, w) }}""",
        "integer, with zero points": f"""g (uint8[3,2] x) => (int32[3,2] y)
            <{weights}, uint8 z = {{3}}, int8 v = {{-7}}> {{
            y = MatMulInteger(x, w, z, v) }}""",
        "integer, of a Constant": """g (uint8[3,2] x) => (int32[3,2] y) {
            w = Constant<value = int8[2,2] {127, -128, 5, -6}>()  y = MatMulInteger(x, w) }""",
        "integer, dynamically quantized": f"""g (float[3,2] x) => (int32[3,2] y) <{weights}> {{
            q, s, z = DynamicQuantizeLinear(x)  y = MatMulInteger(q, w, z) }}""",
        "convolution": f"""g (uint8[1,1,2,2] x) => (int32[1,2,2,2] y) <{kernel}, uint8 z = {{3}}> {{
            y = ConvInteger(x, k, z) }}""",
        "linear": f"""g (uint8[3,2] x) => (uint8[3,2] y) <{weights}, {scales}, float[2] c = {{0.25, 0.5}},
            int8[2] v = {{-7, 1}}> {{ y = QLinearMatMul(x, s, z, w, c, v, s, z) }}""",
        "linear convolution": f"""g (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y) <{kernel}, {scales},
            float[2] c = {{0.25, 0.5}}, int8[2] v = {{0, 0}}, int32[2] b = {{9, -9}}> {{
            y = QLinearConv(x, s, z, k, c, v, s, z, b) }}""",
        "in a branch": f"""g (uint8[3,2] x, bool c) => (int32[3,2] y) <{weights}> {{
            y = If(c) <then_branch = t () => (int32[3,2] a) {{ a = MatMulInteger(x, w) }},
                       else_branch = e () => (int32[3,2] b) {{ m = MatMulInteger(x, w)  b = Neg(m) }}> }}""",
    }  # fmt: skip


def values(name: str, kind: int, shape: list[int]) -> Array:
    random = np.random.default_rng(len(name))
    if kind == onnx.TensorProto.BOOL:
        return np.array(True)
    if kind == onnx.TensorProto.FLOAT:
        return random.standard_normal(shape).astype(np.float32)
    return random.integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("what", texts())
def test_unsigned_weights_are_the_same_numbers(what: str) -> None:
    model = networks.model(texts()[what], 13)
    moved = unsigned(onnx.ModelProto.FromString(model.SerializeToString()))
    onnx.checker.check_model(moved, full_check=True)
    weights = {
        node.input[1 if "Integer" in node.op_type else 3] for node in walk.model_nodes(moved) if product(node)
    }
    kinds = {tensor.name: tensor.data_type for tensor in moved.graph.initializer}
    assert {kinds[name] for name in weights} == {onnx.TensorProto.UINT8}
    feed = {
        one.name: values(
            one.name,
            one.type.tensor_type.elem_type,
            [dim.dim_value for dim in one.type.tensor_type.shape.dim],
        )
        for one in model.graph.input
    }
    before, after = (ReferenceEvaluator(one).run(None, feed) for one in (model, moved))
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    session = ort.OrtSession(moved.SerializeToString(), ort.session_options(), ["CPUExecutionProvider"])
    assert all((a == b).all() for a, b in zip(before, session.run(feed), strict=True))


def test_other_readers_of_a_weight_and_signed_activations_keep_it() -> None:
    text = """g (uint8[3,2] x, int8[3,2] n) => (int32[3,2] y, int32[2,2] f, int32[3,2] m)
        <int8[2,2] w = {127, -128, 5, -6}> {
        y = MatMulInteger(x, w)  f = Cast<to = 6>(w)  m = MatMulInteger(n, w) }"""
    moved = unsigned(networks.model(text, 13))
    read = {node.op_type + node.output[0]: node.input for node in moved.graph.node}
    assert (read["Castf"][0], read["MatMulIntegerm"][1]) == ("w", "w")
    assert read["MatMulIntegery"][1] != "w"
