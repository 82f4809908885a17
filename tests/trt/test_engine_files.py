"""The files that TensorRT writes and reads: engines and timing caches, whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import atomic
from onnxfix.files.atomic import Temporary
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.verify import verify
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import files
from onnxfix.tensorrt.build import attempt
from onnxfix.tensorrt.records import TrtOptions
from support.models import write
from support.patience import PATIENCE
from support.real_tensorrt import REAL

RELU = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"


@REAL
def test_a_file_that_cannot_be_written_any_more_is_told(tmp_path: Path) -> None:
    """The folder was there when it was looked at, and is gone when the engine is to be written."""
    path = write(tmp_path / "m.onnx", RELU)
    with Worker() as worker, pytest.raises(OnnxfixError, match=r"gone.*: cannot be written: No such file"):
        attempt(worker, path, package="tensorrt-rtx", save_engine=str(tmp_path / "gone" / "m.engine"))


@REAL
def test_a_failed_build_leaves_the_old_engine(tmp_path: Path) -> None:
    engine = tmp_path / "m.engine"
    engine.write_bytes(b"old")
    path = write(tmp_path / "m.onnx", "g (int32[2] x) => (int32[2] y) { y = Relu(x) }")
    with Worker() as worker:
        assert not attempt(worker, path, package="tensorrt-rtx", save_engine=str(engine)).accepted
    assert engine.read_bytes() == b"old"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.parametrize("option", ["save_engine", "timing_cache"])
@pytest.mark.parametrize(
    ("name", "words"),
    [("none/file", "does not exist"), ("", "is a directory; name a file"), ("n" * 300, "File name too long")],
)
def test_a_file_that_cannot_be_written_is_found_before_any_work(
    option: str, name: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(folder / "m.onnx", RELU)
    monkeypatch.setattr(Builder, "build", lambda *_, **__: pytest.fail("it was built all the same"))
    asked = TrtOptions(**{option: str(folder / name)})
    flag = f"--{option.replace('_', '-')}"
    for rungs in (["ort-cpu", "trt-build"], ["trt-build"]):
        with pytest.raises(UsageError, match=words) as caught:
            verify(path, path, exact=True, rungs=rungs, trt=asked)
        assert flag in str(caught.value)
        assert str(folder) in str(caught.value)
    assert [file.name for file in folder.iterdir()] == ["m.onnx"]


@REAL
def test_rtx_has_no_timing_cache_and_the_rung_says_so(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "m.onnx", RELU), tmp_path / "cache"
    for data in (None, b"what is this"):
        if data is not None:
            cache.write_bytes(data)
        options = TrtOptions(package="tensorrt-rtx", timing_cache=str(cache))
        rung = verify(path, path, exact=True, rungs=["trt-build"], trt=options).rungs[0]
        assert rung.status == "passed", rung.reason
        assert rung.notes[-1] == f"TensorRT-RTX keeps no timing cache: {cache} is neither read nor written"
        assert (cache.read_bytes() if cache.exists() else None) == data


class FakeConfig:
    """A builder's configuration, as TensorRT's: of what it cannot read it says so and makes an empty cache."""

    def __init__(self, *, fits: bool = True, none: bool = False) -> None:
        self.fits, self.none = fits, none
        self.words: list[str] = ["something that was said before"]

    def create_timing_cache(self, data: bytes) -> Any:
        if data not in (b"", b"good"):
            self.words.append("Failed to deserialize timing\ncache. Returning an empty timing cache.")
        return None if self.none else SimpleNamespace(data=data)

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        return self.fits


def test_a_timing_cache_is_taken_or_refused(tmp_path: Path) -> None:
    def take(data: bytes | None, config: FakeConfig) -> Any:
        path = tmp_path / "cache"
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)
        return files.timing_cache(config, path, lambda: config.words).data

    assert take(None, FakeConfig()) == take(b"", FakeConfig()) == b""
    assert take(b"good", FakeConfig()) == b"good"
    with pytest.raises(
        UsageError, match=r"cache: .* \(Failed to deserialize timing cache\. Returning .*\); delete it"
    ):
        take(b"bad", FakeConfig())
    for config in (FakeConfig(fits=False), FakeConfig(none=True)):
        with pytest.raises(UsageError, match="made for another GPU or version"):
            take(b"good", config)
    (tmp_path / "cache").unlink()
    (tmp_path / "cache").mkdir()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        files.timing_cache(FakeConfig(), tmp_path / "cache", list)


def real_timing_cache(path: str) -> str:
    """In the sandbox: what becomes of the file with NVIDIA's own module."""
    import tensorrt_rtx as trt

    from onnxfix.tensorrt.log import logger_of

    log, ear = logger_of(trt)
    config = trt.Builder(log).create_builder_config()
    try:
        found = files.timing_cache(config, Path(path), lambda: [one.text for one in ear.messages])
    except UsageError as error:
        return str(error)
    return type(found).__name__


@REAL
def test_the_real_module_says_what_it_cannot_read(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with Worker() as worker:
        fresh = worker.call(f"{__name__}:real_timing_cache", timeout=PATIENCE, path=str(cache))
        cache.write_bytes(b"what is this")
        spoiled = worker.call(f"{__name__}:real_timing_cache", timeout=PATIENCE, path=str(cache))
    assert fresh.value == "ITimingCache"
    assert str(cache) in spoiled.value
    assert spoiled.value.endswith("delete it or name another file")


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "engine"
    path.write_bytes(b"old")

    def full(file: Temporary) -> None:
        assert file.path.read_bytes() == b"new"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Temporary, "seal", full)
        with pytest.raises(OnnxfixError, match="cannot be written: No space"):
            atomic.put(path, b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("engine", b"old")]
    atomic.put(path, memoryview(b"new"))
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("engine", b"new")]
