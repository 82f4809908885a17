"""Weights of a model against those of TensorRT's network, bit by bit; which tensors the search for a difference
blames."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfix.proof.compare.tolerance import shaken
from onnxfix.proof.readback import network as trt_network
from onnxfix.proof.readback.weights import Compared, compare, weights
from onnxfix.proof.verify import verify
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import lift
from support import networks
from support.lifted import text
from support.real_tensorrt import REAL

W = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def stored(name: str, array: Any, layer: str = "") -> TensorProto:
    tensor = numpy_helper.from_array(np.asarray(array), name)
    if layer:
        tensor.metadata_props.add(key="trt_layer", value=layer)
    return tensor


def held(folder: Path, name: str, *tensors: TensorProto, nodes: Any = (), external: bool = False) -> str:
    """A model file that holds these."""
    graph = helper.make_graph(list(nodes), "g", [], [], initializer=list(tensors))
    path = folder / f"{name}.onnx"
    model = helper.make_model(graph)
    onnx.save(model, path, save_as_external_data=external, size_threshold=0, location=f"{name}.data")
    return str(path)


def told(folder: Path, own: list[TensorProto], network: list[TensorProto], **rest: Any) -> Compared:
    return compare(held(folder, "own", *own, **rest), held(folder, "network", *network, **rest))


def bumped(array: Any, at: int = 5) -> Any:
    """With one element one bit further."""
    changed = array.copy()
    flat = changed.reshape(-1)
    flat[at] = np.nextafter(flat[at], np.float32(np.inf))
    return changed


@pytest.mark.parametrize("external", [False, True])
def test_one_bit_of_one_element(tmp_path: Path, external: bool) -> None:
    own, network = (
        [stored("w", W), stored("v", W + 1)],
        [stored("w_output", bumped(W), "w"), stored("x", W + 1, "v")],
    )
    found = told(tmp_path, own, network, external=external)
    assert found.same == 1
    assert found.unmatched == ()
    [changed] = found.changed
    assert (changed.name, changed.index, changed.extent) == ("w", (1, 1), "1 of 12 elements")
    assert (changed.onnx, changed.tensorrt) == (str(W[1, 1]), str(bumped(W)[1, 1]))
    assert changed.onnx != changed.tensorrt


def test_the_same_in_another_shape_is_the_same(tmp_path: Path) -> None:
    assert told(tmp_path, [stored("w", W)], [stored("w", W.reshape(2, 6), "w")]) == Compared(1, (), ())


def test_another_number_of_elements_is_not(tmp_path: Path) -> None:
    [changed] = told(tmp_path, [stored("w", W)], [stored("w", W[:2], "w")]).changed
    assert (changed.onnx, changed.tensorrt) == ("shape [3, 4]", "shape [2, 4]")


def test_zeros_have_signs_and_nan_is_itself(tmp_path: Path) -> None:
    odd = np.array([0.0, np.nan], np.float32)
    assert told(tmp_path, [stored("w", odd)], [stored("w", odd, "w")]).changed == ()
    [changed] = told(
        tmp_path, [stored("w", odd)], [stored("w", np.array([-0.0, np.nan], np.float32), "w")]
    ).changed
    assert (changed.index, changed.onnx, changed.tensorrt) == ((0,), "0.0", "-0.0")


def test_float64_may_be_rounded_and_clamped_to_float32(tmp_path: Path) -> None:
    wide = np.array([0.1, 1e300, -np.inf, np.nan])
    narrow = np.array([0.1, np.finfo(np.float32).max, -np.inf, np.nan], np.float32)
    assert told(tmp_path, [stored("w", wide)], [stored("w", narrow, "w")]) == Compared(1, (), ())
    [changed] = told(tmp_path, [stored("w", wide)], [stored("w", bumped(narrow, 0), "w")]).changed
    assert changed.index == (0,)


@pytest.mark.parametrize(
    ("own", "other", "differs"),
    [
        (np.array([200], np.uint8), np.array([200], np.int32), False),
        (np.array([200], np.uint8), np.array([-56], np.int8), True),
        (np.array([2**40], np.int64), np.array([2**31 - 1], np.int32), True),
        (np.array([1.5], ml_dtypes.bfloat16), np.array([1.5], np.float32), False),
        (np.array([1.5], ml_dtypes.bfloat16), np.array([1.25], ml_dtypes.bfloat16), True),
        (np.array([3], ml_dtypes.int4), np.array([3], ml_dtypes.int4), False),
        (np.array([3], ml_dtypes.int4), np.array([-3], ml_dtypes.int4), True),
    ],
)
def test_other_types_are_compared_by_value(tmp_path: Path, own: Any, other: Any, differs: bool) -> None:
    assert bool(told(tmp_path, [stored("w", own)], [stored("w", other, "w")]).changed) is differs


def test_constant_nodes_are_weights(tmp_path: Path) -> None:
    node = helper.make_node("Constant", [], ["w"], value=stored("", W))
    path = held(tmp_path, "own", nodes=[node])
    assert compare(path, held(tmp_path, "network", stored("w", W, "w"))) == Compared(1, (), ())
    assert compare(path, held(tmp_path, "network", stored("w", bumped(W), "w"))).changed[0].name == "w"


def test_weights_that_a_layer_took_are_looked_for_by_their_bits(tmp_path: Path) -> None:
    kernel = W.reshape(3, 4, 1)
    found = told(tmp_path, [stored("k", kernel)], [stored("weights", W), stored("other", W + 1)])
    assert found == Compared(1, (), ())
    found = told(tmp_path, [stored("k", kernel)], [stored("other", W + 1), stored("weights", bumped(W))])
    assert [one.name for one in found.changed] == ["k"]
    assert found.unmatched == ()


def test_what_the_parser_computed_is_not_taken_for_a_changed_copy(tmp_path: Path) -> None:
    own = [stored("k", W), stored("twin", bumped(W)), stored("few", np.ones(4, np.float32))]
    network = [
        stored("scaled", W * 2),
        stored("exact", bumped(W)),
        stored("few_1", np.array([1, 1, 1, 2], np.float32)),
    ]
    # The network's copy of `twin` is nearly `k`, and is somebody else's; four elements agree by chance.
    assert told(tmp_path, own, network) == Compared(1, (), ("k", "few"))


# ------------------------------------------------------------------------------------------------- in the rung


def test_what_kept_weights_from_being_compared_is_told(tmp_path: Path) -> None:
    none: Any = SimpleNamespace(path=str(tmp_path / "none.onnx"))
    none.lifted = none
    with Worker() as worker:
        found, unsure = weights(worker, none, 30.0)
    assert found == []
    assert unsure == f"weights were not compared: {tmp_path / 'none.onnx'}: no such file"


@REAL
def test_the_rung_sees_one_bit_of_a_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "seen.onnx"
    product = text("g (float[2,3] x) => (float[2,4] y) { y = MatMul(x, w) }")
    product.graph.initializer.append(stored("w", W))
    onnx.save(product, path)
    with Worker() as worker:
        found = lift.attempt(worker, path, out, package="tensorrt-rtx")
    assert verify(path, path, exact=False, rungs=("trt-network",)).rungs[0].status == "passed"

    network = onnx.load(out)
    [weight] = [one for one in network.graph.initializer if one.data_type == TensorProto.FLOAT]
    weight.raw_data = bumped(numpy_helper.to_array(weight)).tobytes()
    onnx.save(network, out)
    monkeypatch.setattr(trt_network.lift, "attempt", lambda *_, **__: found)
    [rung] = verify(path, path, exact=False, rungs=("trt-network",), seed=1).rungs
    assert rung.status == "failed"
    [misread] = rung.networks[0].misreads
    assert (misread.kind, misread.about, misread.index) == ("value", "weight w", (1, 1))
    assert (misread.place.op_type, misread.extent) == ("MatMul", "1 of 12 elements")


COUNT = 7  # too few for a weight to be taken for a changed copy of another
TEXT = """g (float[7] x) => (float[1] y) <float[7] factors = {FACTORS}, int64[1] k = {1}, float[7] table = {TABLE}> {
    s = Mul(x, factors) v, i = TopK(s, k) a = Gather(table, i) y = Relu(a) }"""


def listed(usual: str, other: str, at: int) -> str:
    return ", ".join(other if place == at else usual for place in range(COUNT))


@pytest.mark.parametrize(("factor", "cause"), [("1.0000004", "choice"), ("1.1", "")])
def test_a_choice_within_noise_explains_what_differs_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: Worker, factor: str, cause: str
) -> None:
    """Moved inputs choose others as well, so that the indices are within noise; what is made of them may not be."""
    x = np.ones(COUNT, np.float32)
    first = int(np.argmax(shaken({"x": x})["x"] < 1))
    x[:first] = 0.5  # the model takes the first of what is equal, which is less once it is moved
    moved = int(np.argmax(shaken({"x": x})["x"]))
    other = next(place for place in range(first + 1, COUNT) if place != moved)
    text = TEXT.replace("TABLE", listed("9", "1", other))
    model, network = (text.replace("FACTORS", listed("1", one, other)) for one in ("1", factor))
    stage = networks.Stage(tmp_path, monkeypatch, [], worker)
    rung = stage.climb((model, network), inputs=[{"x": x}])
    assert rung.cause == cause
    assert [one.name for one in rung.networks[0].misreads] == ([] if cause else ["s"])
