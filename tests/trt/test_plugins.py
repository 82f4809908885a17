"""``--plugins``: libraries that the user names are loaded in TensorRT's processes, or refused in one line."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.proof.checks.builder import Builder
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.log import PLUGINS, register_plugins
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import TrtOptions
from support.cli import errors
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
    told = errors(2, *command.split(), *models, "--plugins", tmp_path / "none.so")
    assert told.endswith(f" --plugins {tmp_path / 'none.so'}: there is no such file\n")
    assert len(told.splitlines()) == 1


def test_what_is_no_library_of_plugins_is_refused_in_tensorrts_words(tmp_path: Path) -> None:
    library = tmp_path / "text.so"
    library.write_text("no library")
    with pytest.raises(
        UsageError, match=r"--plugins .*text\.so: TensorRT does not load this .*: file too short"
    ):
        onnxfix.check(write(tmp_path / "m.onnx", RELU), trt=TrtOptions(plugins=library))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What TensorRT takes for a library of the plugin Twice."""

    def choose(options: TrtOptions) -> Builder:
        return Builder(Choice("tensorrt-rtx", "1.7.1", "8.9", served=("Twice",)), options, Worker())

    monkeypatch.setattr("onnxfix.proof.asking.require_tensorrt", choose)
    path = tmp_path / "own.so"
    path.write_text("kept")
    return path


def test_a_library_is_not_written_over(library: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", RELU)
    with pytest.raises(UsageError, match="a library of --plugins"):
        onnxfix.apply(path, library, trt=TrtOptions(plugins=(library,)))
    assert library.read_bytes() == b"kept"


class Registry:
    """A registry of plugins with one creator, to which each library adds what its file names."""

    def __init__(self) -> None:
        self.all_creators = [SimpleNamespace(name="ROIAlign_TRT")]

    def load_library(self, path: str) -> object:
        self.all_creators.append(SimpleNamespace(name=Path(path).read_text(encoding="utf-8")))
        return object()


@pytest.mark.parametrize("package", ["tensorrt", "tensorrt_rtx"])
def test_a_library_serves_the_operators_of_its_creators(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.so").write_text("FusedNorm")
    (tmp_path / "b.so").write_text("Scan2")
    registry, inited = Registry(), []
    module = SimpleNamespace(
        __name__=package,
        Builder=lambda log: object(),
        get_plugin_registry=lambda: registry,
        init_libnvinfer_plugins=lambda log, namespace: inited.append(namespace),
    )
    monkeypatch.setenv(PLUGINS, os.pathsep.join([str(tmp_path / "a.so"), str(tmp_path / "b.so")]))
    assert register_plugins(module, None) == ("FusedNorm", "Scan2")
    assert inited == ([""] if package == "tensorrt" else [])


def test_an_operator_that_a_library_serves_is_no_finding(library: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", TWICE)
    assert {one.code for one in onnxfix.check(path).findings} == {"OPS101"}
    report = onnxfix.apply(path, tmp_path / "o.onnx", verify=False, trt=TrtOptions(plugins=library))
    assert not report.findings
