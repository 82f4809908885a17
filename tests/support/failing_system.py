"""A system on which one call of many fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

CALLS = (
    *("open", "write", "pread", "fsync", "replace", "rename", "link", "mkdir", "fchmod", "fchown"),
    *("ftruncate", "copy_file_range", "sendfile", "stat", "fstat", "listdir", "lseek"),
)
"""Functions of ``os`` that read and write files. Without those that clean up: what cannot be deleted is left."""


class Failing:
    """While ``failing``: the call number ``at`` (from 1) of those that ``concern`` fails with the error ``number``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, concern: Callable[[tuple[Any, ...]], bool]) -> None:
        self.at = self.number = self.count = 0
        self.name = ""
        self._on, self._concern = False, concern
        for name in CALLS:
            if hasattr(os, name):
                monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if self._on and self._concern(arguments):
                self.count += 1
                if self.count == self.at:
                    self.name = name
                    raise OSError(self.number, os.strerror(self.number))
            return real(*arguments, **more)

        return call

    @contextlib.contextmanager
    def failing(self, at: int, number: int) -> Iterator[None]:
        self.at, self.number, self.count, self.name, self._on = at, number, 0, "", True
        try:
            yield
        finally:
            self._on = False
