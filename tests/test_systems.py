"""onnxfix on other systems: what they lack is said, and what they do differently is used."""

from __future__ import annotations

import errno
import ntpath
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from onnxfix.report.render import doctor
from onnxfix.report.render.stream import Stream
from onnxfix.runtime import _child, system


def test_every_lack_is_explained() -> None:
    assert set(doctor._LACKS) == set(system.Lack)


def test_what_is_taken_away_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(system.lacks())
    monkeypatch.delattr(os, "fork", raising=False)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert set(system.lacks()) == before | {system.Lack.FORK, system.Lack.FILE_LOCKS}


def test_bytes_are_read_at_an_offset_without_pread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    monkeypatch.delattr(os, "pread", raising=False)
    fd = os.open(path, system.READ)
    try:
        assert [system.read_at(fd, 3, at) for at in (7, 2, 9, 10)] == [b"789", b"234", b"9", b""]
    finally:
        os.close(fd)


@pytest.mark.parametrize(("system_name", "silent"), [("win32", True), ("linux", False)])
def test_a_pipe_that_windows_calls_invalid_is_a_reader_that_left(
    monkeypatch: pytest.MonkeyPatch, system_name: str, silent: bool
) -> None:
    monkeypatch.setattr(system, "sys", SimpleNamespace(platform=system_name))
    stream = Stream(None, "standard output")
    assert system.reader_left(OSError(errno.EINVAL, "Invalid argument")) is silent
    assert system.reader_left(BrokenPipeError())
    assert stream.write("text") == 4


def test_windows_exit_codes_are_crashes() -> None:
    ended = _child.describe_exit(0xC0000005, "")
    assert (ended.status, ended.killed, ended.message) == ("crash", True, "ended by an access violation")
    assert not _child.describe_exit(3, "").killed


def test_the_strongest_signal_is_one_that_exists() -> None:
    assert signal.Signals(system.KILL)


@pytest.mark.parametrize(
    ("system_name", "text", "quoted"),
    [
        ("linux", "a b", "'a b'"),
        ("linux", "a.onnx", "a.onnx"),
        ("win32", "C:\\models\\a.onnx", "C:\\models\\a.onnx"),
        ("win32", "C:\\my models\\a&b.onnx", '"C:\\my models\\a&b.onnx"'),
        ("win32", "", '""'),
    ],
)
def test_arguments_are_quoted_for_the_shell(
    monkeypatch: pytest.MonkeyPatch, system_name: str, text: str, quoted: str
) -> None:
    monkeypatch.setattr(system, "sys", SimpleNamespace(platform=system_name))
    assert system.quoted(text) == quoted


def test_another_drive_has_no_relative_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "path", ntpath)
    assert system.relative("D:\\models\\a.onnx", "D:\\models\\b") == "..\\a.onnx"
    assert system.relative("D:\\models\\a.onnx", "C:\\work") == "D:\\models\\a.onnx"
