"""``--plugins``: libraries that the user names are loaded in TensorRT's processes, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.trt.records import TrtOptions
from support.cli import run
from support.models import write
from support.real_tensorrt import REAL

pytestmark = REAL
TWICE = (
    '<ir_version: 9, opset_import: ["" : 17, "own" : 1]> g (float[2] x) => (float[2] y) { y = own.Twice(x) }'
)
RELU = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


@pytest.mark.parametrize(
    "command", ["check --trt", "apply", "verify", "layers", "diagnose --against trt-network"]
)
def test_a_library_that_is_not_there_is_refused(command: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", RELU)
    models = [path, path] if command == "verify" else [path]
    code, _, told = run(*command.split(), *models, "--plugins", tmp_path / "none.so")
    assert code == 2
    assert told.endswith(f" --plugins {tmp_path / 'none.so'}: there is no such file\n")
    assert len(told.splitlines()) == 1


def test_what_is_no_library_of_plugins_is_refused_in_tensorrts_words(tmp_path: Path) -> None:
    library = tmp_path / "text.so"
    library.write_text("no library")
    with pytest.raises(
        UsageError, match=r"--plugins .*text\.so: TensorRT does not load this .*: file too short"
    ):
        onnxfix.check(write(tmp_path / "m.onnx", RELU), trt=TrtOptions(plugins=library))


def test_a_library_is_not_written_over(tmp_path: Path) -> None:
    library = tmp_path / "own.so"
    library.write_text("kept")
    path = write(tmp_path / "m.onnx", RELU)
    with pytest.raises(UsageError, match="a library of --plugins"):
        onnxfix.apply(path, library, trt=TrtOptions(plugins=(library,)))
    assert library.read_text() == "kept"
