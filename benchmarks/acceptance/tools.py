"""What is measured: onnxfix with different fixes, and its peers, each in a child that a model cannot take down."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnxfix
from onnxfix.files import saving
from onnxfix.replies import accept
from onnxfix.sandbox import Worker, one_line

PEER_CHILD = Path(__file__).resolve().parent / "peer_child.py"


@dataclass(frozen=True)
class Tool:
    """A column of the tables. ``options`` are those of ``onnxfix.apply``; None: a peer of that name, or nothing."""

    name: str
    title: str
    options: dict[str, Any] | None = None
    peer: bool = False


AS_IS = Tool("as-is", "as they are")
EXACT = Tool("exact", "`onnxfix apply`", {})
NUMERIC_RTX = Tool(
    "numeric-rtx", "`onnxfix apply --numeric-fixes --target rtx`", {"numeric_fixes": True, "target": "rtx"}
)
NUMERIC = Tool("numeric", "`onnxfix apply --numeric-fixes`", {"numeric_fixes": True})
ONNXFIX = (EXACT, NUMERIC_RTX, NUMERIC)
PEERS = (
    Tool("onnxsim", "`onnxsim`", peer=True),
    Tool("onnxslim", "`onnxslim`", peer=True),
    Tool("polygraphy", "`polygraphy surgeon sanitize --fold-constants`", peer=True),
)


@accept
@dataclass(frozen=True)
class Made:
    """How a tool ended on a model; the model lies at the target where ``status`` is ok and ``changed``.

    ``codes`` are onnxfix's fixes by rule, ``problems`` what it says about itself. ``seconds`` without imports.
    """

    status: Literal["ok", "refused", "crash", "timeout", "memory"]
    message: str = ""
    seconds: float = 0.0
    changed: bool = True
    codes: dict[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def apply_onnxfix(source: str, result: str, options: dict[str, Any]) -> Made:
    """In a sandbox: fix a model file and write the result, if it differs."""
    began = time.perf_counter()
    try:
        report = onnxfix.apply(source, **options)
    except onnxfix.OnnxfixError as error:
        return Made("refused", one_line(error), time.perf_counter() - began)
    codes = dict(Counter(fix.code for fix in report.applied))
    if report.changed:
        assert report.model is not None
        Path(result).write_bytes(saving.serialize(report.model))
    return Made(
        "ok", "", time.perf_counter() - began, report.changed, codes, tuple(map(str, report.problems))
    )


def run_onnxfix(worker: Worker, tool: Tool, source: Path, target: Path, timeout: float) -> Made:
    """One of onnxfix's columns. onnxfix itself runs nothing: what is measured here judges."""
    assert tool.options is not None
    options = {**tool.options, "verify": False}
    began = time.perf_counter()
    done = worker.call(
        "acceptance.tools:apply_onnxfix",
        timeout=timeout,
        source=str(source),
        result=str(target),
        options=options,
    )
    if done.ok:
        made: Made = done.value
        return made
    status: Any = "crash" if done.status == "error" else done.status  # no exception may leave onnxfix
    return Made(status, done.message, time.perf_counter() - began)


class Peers:
    """The peers' interpreter, with all three imported. Not for use by two threads at once."""

    def __init__(self, python: Path, timeout: float, memory_mb: int) -> None:
        self._timeout = timeout
        command = [str(python), str(PEER_CHILD), "--timeout", str(timeout), "--memory-mb", str(memory_mb)]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1
            )
        except OSError as error:
            raise onnxfix.OnnxfixError(f"{python}: cannot be run: {error.strerror or error}") from None
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._words: list[str] = []
        threading.Thread(target=self._pump_replies, daemon=True).start()
        self._listener = threading.Thread(target=self._pump_words, daemon=True)
        self._listener.start()
        hello = self._reply(120.0)
        if hello is None:
            raise self._ended(f"{python}: cannot run the peers")
        self.versions: dict[str, str] = {"Python": hello["python"], **hello["versions"]}

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        self._process.kill()
        self._process.wait()

    def run(self, tool: Tool, source: Path, target: Path) -> Made:
        """Rewrite one model."""
        assert self._process.stdin is not None
        request = {"tool": tool.name, "source": str(source), "target": str(target)}
        self._process.stdin.write(json.dumps(request) + "\n")
        reply = self._reply(self._timeout + 30.0)
        if reply is None:
            raise self._ended(f"the peers' interpreter ended at {source}")
        return Made(reply["status"], reply["message"], reply["seconds"])

    def _ended(self, what: str) -> onnxfix.OnnxfixError:
        """What to raise when it does not answer: with its last words."""
        self._process.kill()
        self._process.wait()
        self._listener.join(2.0)
        return onnxfix.OnnxfixError(f"{what}: {' '.join(self._words[-3:]) or 'no word'}")

    def _pump_replies(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(line)
        self._replies.put("")

    def _pump_words(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._words = [*self._words[-20:], line.strip()]

    def _reply(self, seconds: float) -> dict[str, Any] | None:
        try:
            line = self._replies.get(timeout=seconds)
        except queue.Empty:
            return None
        return json.loads(line) if line else None
