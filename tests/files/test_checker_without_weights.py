"""The contract rung's checker, which is given no weights: it says of a model what onnx's checker says of the file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxfix.files import lazy, loading, walk
from onnxfix.proof import validity
from support.paths import ROOT
from support.peer_models import PEERS
from test_lazy_against_eager import onnx_data_folder
from test_lazy_weights import FLOATS, model_of, tensor_of


@pytest.fixture(autouse=True)
def everything_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files take the way of large ones, with short weights left in them too."""
    real = loading.open_model
    monkeypatch.setattr(loading, "open_model", lambda path, **_: real(path, large=lazy.TOKEN_SIZE))


def complaint(path: Path) -> str:
    """What onnx itself says of the file, its weights read."""
    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError as error:
        return " ".join(str(error).split()) or "invalid"
    return ""


def ours(path: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        said = validity.check(str(path), folder).refused
    assert "\n" not in said
    return said


def both(path: Path, *, lazily: bool = True) -> tuple[str, str]:
    loaded = loading.open_model(path)
    assert loaded.source is not None
    if lazily:
        assert any(lazy.range_of(tensor) for tensor in walk.model_tensors(loaded.proto)), (
            "nothing stayed in the file"
        )
    return complaint(path), ours(path)


def saved(folder: Path, model: ModelProto) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def numbers(name: str, kind: int, **fields: Any) -> TensorProto:
    return TensorProto(name=name, data_type=kind, **fields)


RAW = FLOATS.tobytes()
VALID: dict[str, Callable[[], TensorProto]] = {
    "raw": lambda: tensor_of("w"),
    "float_data": lambda: numbers("w", 1, dims=[1000], float_data=FLOATS),
    "int64_data": lambda: numbers("w", 7, dims=[1000], int64_data=range(1000)),
    "int32_data": lambda: numbers("w", 6, dims=[1000], int32_data=range(1000)),
    "half in int32_data": lambda: numbers("w", 10, dims=[1000], int32_data=range(1000)),
    "double_data": lambda: numbers("w", 11, dims=[1000], double_data=FLOATS),
    "uint64_data": lambda: numbers("w", 13, dims=[1000], uint64_data=range(1000)),
    "raw int4": lambda: numbers("w", 22, dims=[1999], raw_data=bytes(1000)),
    "scalar among others": lambda: tensor_of("w", FLOATS.reshape(10, 100, 1)),
    "raw bool": lambda: tensor_of("w", np.ones(1000, bool)),
    "raw complex": lambda: tensor_of("w", FLOATS.astype(np.complex64)),
    "raw bfloat16": lambda: numbers("w", 16, dims=[1000], raw_data=bytes(2000)),
    "raw float8": lambda: numbers("w", 17, dims=[1000], raw_data=bytes(1000)),
}
INVALID: dict[str, Callable[[], TensorProto]] = {
    "raw too short": lambda: numbers("w", 1, dims=[1000], raw_data=RAW[:-1]),
    "raw far too short": lambda: numbers("w", 1, dims=[1 << 20], raw_data=RAW),
    "raw of text": lambda: numbers("w", 8, dims=[1000], raw_data=RAW),
    "no type": lambda: TensorProto(name="w", dims=[1000], raw_data=RAW),
    "type 0": lambda: numbers("w", 0, dims=[1000], raw_data=RAW),
    "floats for int64": lambda: numbers("w", 7, dims=[1000], float_data=FLOATS),
    "int64 for floats": lambda: numbers("w", 1, dims=[1000], int64_data=range(1000)),
    "doubles for floats": lambda: numbers("w", 1, dims=[1000], double_data=FLOATS),
    "uint64 for floats": lambda: numbers("w", 1, dims=[1000], uint64_data=range(1000)),
    "int32 for floats": lambda: numbers("w", 1, dims=[1000], int32_data=range(1000)),
    "raw and floats": lambda: numbers("w", 1, dims=[1000], raw_data=RAW, float_data=FLOATS),
    "raw for nothing": lambda: numbers("w", 1, dims=[0], raw_data=RAW),
}
SAME: dict[str, Callable[[], TensorProto]] = {
    "raw too long": lambda: numbers("w", 1, dims=[999], raw_data=RAW),
    "raw much too long": lambda: numbers("w", 1, dims=[3], raw_data=RAW),
    "no dims": lambda: numbers("w", 1, raw_data=RAW),
    "floats too few": lambda: numbers("w", 1, dims=[1001], float_data=FLOATS),
    "floats too many": lambda: numbers("w", 1, dims=[999], float_data=FLOATS),
    "no name": lambda: tensor_of(""),
    "a negative dimension": lambda: numbers("w", 1, dims=[-1000], raw_data=RAW),
    "a type of tomorrow": lambda: numbers("w", 99, dims=[1000], raw_data=RAW),
    "segment": lambda: numbers(
        "w", 1, dims=[1000], raw_data=RAW, segment=TensorProto.Segment(begin=0, end=9)
    ),
    "external with raw": lambda: numbers("w", 1, dims=[1000], raw_data=RAW, data_location=1),
    "default location": lambda: numbers("w", 1, dims=[1000], raw_data=RAW, data_location=0),
}


def in_initializer(tensor: TensorProto) -> ModelProto:
    return model_of(tensor)


def in_constant(tensor: TensorProto) -> ModelProto:
    return model_of(nodes=(helper.make_node("Constant", [], ["c"], value=tensor),))


def in_branch(tensor: TensorProto) -> ModelProto:
    info = helper.make_tensor_value_info("w", tensor.data_type or 1, [1000])
    graph = helper.make_graph([], "b", [], [info], [tensor])
    condition = tensor_of("k", np.array(True))
    return model_of(
        condition, nodes=(helper.make_node("If", ["k"], ["r"], then_branch=graph, else_branch=graph),)
    )


def in_function(tensor: TensorProto) -> ModelProto:
    made = model_of()
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    imports = [helper.make_opsetid("", 18)]
    made.functions.append(helper.make_function("my", "F", [], ["c"], [constant], imports))
    made.opset_import.append(helper.make_opsetid("my", 1))
    return made


PLACES = (in_initializer, in_constant, in_branch, in_function)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("word", [*VALID, *INVALID, *SAME])
def test_the_same_verdict(tmp_path: Path, place: Callable[[TensorProto], ModelProto], word: str) -> None:
    tensor = {**VALID, **INVALID, **SAME}[word]()
    lazily = sum(len(getattr(tensor, name)) > 0 for name in lazy.PAYLOADS.values()) == 1
    theirs, mine = both(saved(tmp_path, place(tensor)), lazily=lazily)
    assert bool(mine) == bool(theirs), (theirs, mine)
    assert word not in VALID or not theirs
    if place is in_initializer:
        assert word not in INVALID or theirs


def sparse(values: TensorProto, indices: TensorProto) -> ModelProto:
    made = model_of()
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [5000]))
    return made


@pytest.mark.parametrize(
    "kind", ["valid", "indices beyond", "indices too few", "raw too short", "in an attribute"]
)
@pytest.mark.parametrize("raw", [False, True])
def test_sparse_tensors(tmp_path: Path, kind: str, raw: bool) -> None:
    values, indices = tensor_of("w"), numbers("", 7, dims=[1000], int64_data=range(2000, 3000))
    if kind == "indices beyond":
        indices.int64_data[999] = 5000
    if kind == "indices too few":
        del indices.int64_data[999:]
        indices.dims[0] = 999
    if kind == "raw too short":
        values.raw_data = values.raw_data[:-4]
    if raw:
        indices.raw_data = np.array(indices.int64_data, "<i8").tobytes()
        indices.ClearField("int64_data")
    made = sparse(values, indices)
    if kind == "in an attribute":
        stored = made.graph.sparse_initializer.pop()
        made.graph.node.insert(0, helper.make_node("Constant", [], ["c"], sparse_value=stored))
    theirs, mine = both(saved(tmp_path, made))
    assert bool(theirs) == (kind not in ("valid", "in an attribute")), theirs
    assert bool(mine) == bool(theirs), (theirs, mine)


def test_the_graph_is_checked_as_ever(tmp_path: Path) -> None:
    """What is wrong beside the weights is found, in onnx's words."""
    for node in (
        helper.make_node("Nonsense", ["x"], ["z"]),
        helper.make_node("Neg", ["nowhere"], ["z"]),
        helper.make_node("Neg", ["x", "x"], ["z"]),
        helper.make_node("Neg", ["x"], ["y"]),
    ):
        theirs, mine = both(saved(tmp_path, model_of(tensor_of("w"), nodes=(node,))))
        assert theirs
        assert theirs.split("==>")[0] in mine


def test_the_models_at_hand(tmp_path: Path) -> None:
    invalid = 0
    paths = [*sorted((ROOT / "fixtures").rglob("*.onnx")), *sorted(onnx_data_folder().rglob("*.onnx"))[:60]]
    for path in paths:
        theirs, mine = both(path, lazily=False)
        assert bool(mine) == bool(theirs), (path.name, theirs, mine)
    for peer in PEERS:
        theirs, mine = both(saved(tmp_path, peer.model()), lazily=False)
        assert bool(mine) == bool(theirs), (peer.id, theirs, mine)
        invalid += bool(theirs)
    assert len(paths) > 60
