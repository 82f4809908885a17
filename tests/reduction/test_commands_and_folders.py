"""Reductions by commands of the user's, and the folder that is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.reduction.checks import npz
from support import models
from support.reductions import COMMAND, fresh, operators, reduced

# -------------------------------------------------------------------------------------------------------- commands


TANH = "g (float[4] x) => (float[4] y) { a = Exp(x)  s = Sqrt(a)  t = Tanh(s)  y = Neg(t) }"


def test_a_command(tmp_path: Path) -> None:
    found, model = reduced(tmp_path, models.model(TANH), check=COMMAND)
    assert operators(model) == ["Tanh"]  # without it, Sqrt fails with another exit code
    assert found.failure.code == "3"
    assert fresh(tmp_path / "out") == 1
    found, model = reduced(tmp_path, models.model(TANH), check=COMMAND, match="tanh is wrong")
    assert operators(model) == ["Tanh"]


def test_a_command_that_needs_two_nodes(tmp_path: Path) -> None:
    text = """g (float[4] x) => (float[4] y) {
        a = Exp(x)  e = Erf(a)  b = Neg(e)  c = Abs(b)  d = Softmax(c)  y = Ceil(d) }"""
    _, model = reduced(tmp_path, models.model(text), check=COMMAND)
    assert operators(model) == ["Erf", "Softmax"]


def test_a_command_whose_output_does_not_match(tmp_path: Path) -> None:
    path = models.write(tmp_path / "whole.onnx", TANH)
    found = onnxfix.reduce(path, tmp_path / "out", check=COMMAND, match="no such text")
    assert found.status == "passes"


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    path = models.write(tmp_path / "whole.onnx", TANH)
    found = onnxfix.reduce(path, tmp_path / "out", check="/nowhere/at-all {}")
    assert (found.status, found.exit_code) == ("unknown", 3)


# ------------------------------------------------------------------------------------------------------ the folder


def test_what_is_in_the_folder(tmp_path: Path) -> None:
    found, model = reduced(tmp_path, models.model(TANH), check=COMMAND)
    folder = tmp_path / "out"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "model.onnx", "inputs.npz", "expected.npz", "error.txt", "versions.json", "README.md", "reproduce.py",
        "reduction.json",
    }  # fmt: skip
    onnx.checker.check_model(model, full_check=True)
    assert json.loads((folder / "versions.json").read_text())["onnx"] == onnx.__version__
    readme = (folder / "README.md").read_text()
    assert found.command in readme
    assert all(name in readme for name in names)
    assert list(np.load(folder / "expected.npz")) == [info.name for info in model.graph.output]


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    path = models.write(tmp_path / "whole.onnx", TANH)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(onnxfix.UsageError, match=r"mine\.txt"):
        onnxfix.reduce(path, folder, check=COMMAND)
    (folder / "mine.txt").unlink()
    (folder / "model.onnx").write_text("not ours either")
    with pytest.raises(onnxfix.UsageError, match=r"model\.onnx"):
        onnxfix.reduce(path, folder, check=COMMAND)
    assert (folder / "model.onnx").read_text() == "not ours either"


def test_a_folder_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    reduced(tmp_path, models.model(TANH), check=COMMAND)
    _, model = reduced(tmp_path, models.model(TANH.replace("Exp", "Abs")), check=COMMAND)
    assert operators(model) == ["Tanh"]


def test_external_data_is_embedded(tmp_path: Path) -> None:
    whole = models.model(
        "g (float[64,64] x) => (float[64,64] y) { a = MatMul(x, w)  b = Tanh(a)  c = MatMul(b, v)  y = Neg(c) }",
        w=np.eye(64, dtype=np.float32), v=np.ones((64, 64), np.float32),
    )  # fmt: skip
    path = tmp_path / "whole.onnx"
    onnx.save(whole, path, save_as_external_data=True, location="whole.data", size_threshold=0)
    both = "! { grep -q MatMul {} && grep -q Tanh {}; }"
    found, model = reduced(tmp_path, path, check=both)
    assert sorted(operators(model)) == ["MatMul", "Tanh"]
    assert not any(one.external_data for one in model.graph.initializer)
    assert found.bytes_after < 20_000


def test_inputs_with_the_names_of_numpys_own_arguments(tmp_path: Path) -> None:
    """numpy.savez takes ``file`` for its own, and ``allow_pickle`` too or for one more array, as its release has it."""
    values = {name: np.float32([number]) for number, name in enumerate(("file", "allow_pickle", "a/b:0"))}
    texts = np.array(["é", ""], dtype=object)
    (tmp_path / "inputs.npz").write_bytes(npz({**values, "texts": texts, "several": [np.zeros(1)]}))
    with np.load(tmp_path / "inputs.npz", allow_pickle=False) as archive:
        assert archive.files == [*values, "texts"]
        assert all(archive[name] == value for name, value in values.items())
        assert archive["texts"].tolist() == ["é", ""]


@pytest.mark.parametrize("lacking", ["cwd", "names", "check", "package"])
def test_a_damaged_state_is_one_line_and_no_traceback(tmp_path: Path, lacking: str) -> None:
    reduced(tmp_path, models.model(TANH), check=COMMAND)
    state = tmp_path / "out" / "reduction.json"
    document = json.loads(state.read_text())
    del (document if lacking in document else document["identity"])[lacking]
    state.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=f"reduction.json: cannot be read: .*{lacking}"):
        onnxfix.reproduce(tmp_path / "out")
