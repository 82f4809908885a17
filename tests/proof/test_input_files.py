"""Inputs that the user brings."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds.files import check_inputs, load_inputs
from onnxfix.inputs.feeds.signature import signature
from support.models import model

X = np.arange(6, dtype=np.float32).reshape(2, 3)
IDS = np.array([1, 2], np.int64)


def save_npz(folder: Path) -> Path:
    np.savez(folder / "data.npz", **{"x": X, "a/b:0": IDS})
    return folder / "data.npz"


def save_folder(folder: Path) -> Path:
    np.save(folder / "x.npy", X)
    np.save(folder / "ids.npy", IDS)
    return folder


def encode(array: Any) -> dict[str, str]:
    """As Polygraphy's JSON contains a NumPy array."""
    raw = io.BytesIO()
    np.save(raw, array, allow_pickle=False)
    return {"array": base64.b64encode(raw.getvalue()).decode(), "polygraphy_class": "ndarray"}


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content, indent=4), encoding="utf-8")
    return path


def test_npz(tmp_path: Path) -> None:
    (feed,) = load_inputs(save_npz(tmp_path))
    assert list(feed) == ["x", "a/b:0"]
    assert np.array_equal(feed["x"], X)


def test_single_npy(tmp_path: Path) -> None:
    save_folder(tmp_path)
    (feed,) = load_inputs(tmp_path / "x.npy")
    assert np.array_equal(feed["x"], X)


def test_folder_of_npy(tmp_path: Path) -> None:
    (feed,) = load_inputs(str(save_folder(tmp_path)))
    assert sorted(feed) == ["ids", "x"]
    assert feed["ids"].dtype == np.int64


def test_folders_of_npy_come_in_numeric_order(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        (tmp_path / f"set_{number}").mkdir()
        np.save(tmp_path / f"set_{number}" / "x.npy", np.float32(number))
    assert [float(feed["x"]) for feed in load_inputs(tmp_path)] == [1.0, 9.0, 10.0]


def test_polygraphy_json(tmp_path: Path) -> None:
    path = write_json(tmp_path / "inputs.json", [{"x": encode(X), "ids": encode(IDS)}, {"x": encode(X + 1)}])
    feeds = load_inputs(path)
    assert len(feeds) == 2
    assert np.array_equal(feeds[0]["x"], X)
    assert feeds[0]["ids"].dtype == np.int64
    assert np.array_equal(feeds[1]["x"], X + 1)
    (feed,) = load_inputs(
        write_json(tmp_path / "one.json", {"x": {"values": encode(X), "polygraphy_class": "LazyArray"}})
    )
    assert np.array_equal(feed["x"], X)


def test_a_folder_of_polygraphy_files(tmp_path: Path) -> None:
    for number in range(3):
        write_json(tmp_path / f"{number:010d}.json", {"x": encode(np.float32(number))})
    assert [float(feed["x"]) for feed in load_inputs(tmp_path)] == [0.0, 1.0, 2.0]


def torch_json(folder: Path) -> Path:
    return write_json(folder / "torch.json", [{"x": {"tensor": "", "polygraphy_class": "Tensor"}}])


def pickled(folder: Path) -> Path:
    np.save(folder / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    return folder / "x.npy"


def text(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content)
    return folder / name


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: folder / "missing.npz",
        lambda folder: text(folder, "x.txt", "1 2 3"),
        lambda folder: text(folder, "x.npz", "no zip"),
        lambda folder: text(folder, "x.npy", ""),
        lambda folder: text(folder, "x.json", "{"),
        lambda folder: text(folder, "x.json", "[1, 2]"),
        lambda folder: text(folder, "x.json", '[{"x": {"array": "AAAA", "polygraphy_class": "ndarray"}}]'),
        lambda folder: text(folder, "x.json", '[{"x": {"y": 1}}]'),
        lambda folder: folder,
        torch_json,
        pickled,
    ],
)
def test_what_cannot_be_read_gets_one_line(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    with pytest.raises(UsageError) as error:
        load_inputs(path)
    assert "\n" not in str(error.value)
    assert str(error.value)


MODEL = model(
    """g (float[N, 3] x, int64[N] ids, bfloat16[2] b, string[1] s, float[3] w = {1, 2, 3}) => (float[N, 3] y)
    { y = Add(x, w) }"""
)


def feed(**more: Any) -> dict[str, Any]:
    given = {"x": X, "ids": IDS, "b": np.ones(2, ml_dtypes.bfloat16), "s": np.array(["a"])} | more
    return {name: value for name, value in given.items() if value is not None}


def test_good_inputs_pass_and_types_are_restored(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **feed())
    (loaded,) = load_inputs(tmp_path / "x.npz")
    assert loaded["b"].dtype.kind == "V", "numpy does not keep bfloat16 in a file"
    (checked,) = check_inputs(signature(MODEL), [loaded])
    assert checked["b"].dtype == ml_dtypes.bfloat16
    assert checked["s"].dtype == object
    assert "w" not in checked
    check_inputs(signature(MODEL), [feed(w=np.ones(3, np.float32))])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"z": X}, "have z, which is not an input of the model; its inputs are x, ids, b, s, w"),
        ({"x": None}, "lack x"),
        ({"x": X.astype(np.float64)}, "input x: expected float32, got float64"),
        ({"ids": IDS.astype(np.int32)}, "input ids: expected int64, got int32"),
        ({"s": X}, "input s: expected strings, got float32"),
        ({"x": X[0]}, "input x: expected rank 2 ['N', 3], got shape [3]"),
        ({"x": X.T}, "input x: expected size 3 in dimension 1, got shape [3, 2]"),
        ({"ids": np.arange(5)}, "input ids: expected size N = 2 in dimension 0, got shape [5]"),
    ],
)
def test_wrong_inputs_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        check_inputs(signature(MODEL), [feed(**change)])
    assert words in str(error.value)
    with pytest.raises(UsageError, match=r"\(feed 1\)"):
        check_inputs(signature(MODEL), [feed(), feed(**change)])


def test_a_sequence_passes_as_it_is() -> None:
    known = signature(model("g (seq(float[N]) x) => (int64 y) { y = SequenceLength(x) }"))
    (checked,) = check_inputs(known, [{"x": list(X)}])
    assert len(checked["x"]) == 2
