"""onnxfix on other systems: what they lack is said, and what they do differently is used."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from onnxfix.report.render import doctor
from onnxfix.runtime import system


def test_every_lack_is_explained() -> None:
    assert set(doctor._LACKS) == set(system.Lack)


def test_what_is_taken_away_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(system.lacks())
    monkeypatch.delattr(os, "fork", raising=False)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert set(system.lacks()) == before | {system.Lack.FORK, system.Lack.FILE_LOCKS}


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
