"""What was measured so far, in a JSON file that survives the end of the process and is gone on with."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from onnxfix.errors import OnnxfixError

#: Seconds between two writes.
PAUSE = 3.0


class Ledger:
    """Results by key, beside a document that says what they are results of.

    An earlier file of the same document is read, and its results are kept. ``record`` writes every few seconds, and
    leaving the context writes the rest. Threads may share one.

    Raises:
        OnnxfixError: the file belongs to another document, or cannot be read or written.
    """

    def __init__(self, path: Path | None, document: dict[str, Any], *, pause: float = PAUSE) -> None:
        self._path, self._pause = path, pause
        self._head = json.dumps(document)
        self._lock = threading.Lock()
        self._written = 0.0
        self.results: dict[str, Any] = {}
        if path is not None and path.exists():
            self.results = self._earlier(path)
        self._lines = {key: json.dumps(result) for key, result in self.results.items()}
        self._write()  # so that a folder which does not exist shows before anything is measured

    def _earlier(self, path: Path) -> dict[str, Any]:
        stored = load(path)
        results: dict[str, Any] = stored.pop("results")
        document = json.loads(self._head)
        changed = sorted(key for key in document if stored.get(key) != document[key])
        if changed:
            raise OnnxfixError(
                f"{path}: is of another run ({', '.join(changed)} changed); give another name, or delete it"
            )
        return results

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._write()

    def __contains__(self, key: str) -> bool:
        return key in self.results

    def record(self, key: str, result: Any) -> None:
        """Add a result, which JSON can hold."""
        with self._lock:
            self.results[key] = result
            self._lines[key] = json.dumps(result)
            if time.monotonic() - self._written >= self._pause:
                self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        # Thousands of results every few seconds: each is put into words once.
        lines = ",\n".join(f"{json.dumps(key)}: {line}" for key, line in self._lines.items())
        start = self._head[:-1] + (", " if len(self._head) > 2 else "")
        fresh = self._path.with_name(f"{self._path.name}.part")
        try:
            fresh.write_text(f'{start}"results": {{\n{lines}\n}}}}\n', "utf-8")
            os.replace(fresh, self._path)
        except OSError as error:
            raise OnnxfixError(f"{self._path}: cannot be written: {error.strerror or error}") from None
        self._written = time.monotonic()


def load(path: Path) -> dict[str, Any]:
    """What a ledger wrote.

    Raises:
        OnnxfixError: it cannot be read, or something else wrote it.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OnnxfixError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise OnnxfixError(f"{path}: is no JSON: {error}") from None
    if not isinstance(stored, dict) or not isinstance(stored.get("results"), dict):
        raise OnnxfixError(f"{path}: holds no results")
    return stored
