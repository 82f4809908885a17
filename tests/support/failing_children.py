"""Children of which one call of many runs out of memory, in each way that a system and a library have."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from onnxfix.runtime import sandbox

WAYS = ("killed", "raised", "aborted")
"""The kernel kills the process; Python raises MemoryError; C++ throws what nobody catches."""


def starve(way: str) -> None:
    """Run out of memory, here."""
    if way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "aborted":
        os.write(
            2, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
        )
        os.abort()
    raise MemoryError


class Starving:
    """While ``starving``: the call number ``at`` (from 1) to any child runs out of memory. ``called`` is that call's
    function, "" where none was reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = self.count = 0
        self.way = self.called = ""
        self.calls: list[str] = []
        real_send = sandbox._Child.send

        def send(child: Any, payload: bytes, timeout: float) -> None:
            _, target, *_ = asked = pickle.loads(payload)
            if self._due(target):
                asked = (asked[0], f"{__name__}:starve", (self.way,), {})
            real_send(child, pickle.dumps(asked, protocol=5), timeout)

        monkeypatch.setattr(sandbox._Child, "send", send)

    def _due(self, target: str) -> bool:
        self.count += 1
        self.calls.append(target)
        if self.count == self.at:
            self.called = target
        return self.count == self.at

    @contextlib.contextmanager
    def starving(self, at: int, way: str) -> Iterator[None]:
        """Let the call number ``at`` fail in this ``way``; 0 for none."""
        self.at, self.count, self.way, self.called, self.calls = at, 0, way, "", []
        try:
            yield
        finally:
            self.at = 0
