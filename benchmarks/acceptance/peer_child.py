"""Runs onnxsim, onnxslim or Polygraphy by its own command line on a folder of models, each in a fork with limits.

    PEERS_PYTHON peer_child.py TOOL SOURCES TARGETS SECONDS MEGABYTES

The interpreter is that of an environment with the tools; onnxfix need not be in it. The first line of output is JSON
with the versions, the others say of each model its ``name``, ``status`` (ok, refused, crash, timeout, memory),
``message`` and ``seconds``. The tool is imported once, so that a fork's seconds are the tool's work and no start-up.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

#: Tool -> (distribution, module, function of the command line).
TOOLS: dict[str, tuple[str, str, str]] = {
    "onnxsim": ("onnxsim", "onnxsim", "main"),
    "onnxslim": ("onnxslim", "onnxslim.cli", "main"),
    "polygraphy": ("polygraphy", "polygraphy.tools", "main"),
}
_NO_MEMORY = re.compile(
    r"bad_alloc|MemoryError|out of memory|(failed|unable) to allocate|cannot allocate", re.I
)


def arguments_of(tool: str, source: str, target: str) -> list[str]:
    """The command line that a user would type, after the tool's name."""
    if tool == "polygraphy":
        return ["surgeon", "sanitize", source, "-o", target, "--fold-constants"]
    return [source, target]


def versions() -> dict[str, str]:
    """Versions of the tools and of what they lean on."""
    names = (*(entry[0] for entry in TOOLS.values()), "onnx-graphsurgeon", "onnx", "onnxruntime", "numpy")
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


#: What the tools import on their first model.
_LATE = (
    "colorama", "colored", "onnx_graphsurgeon", "onnxruntime.tools.symbolic_shape_infer", "polygraphy.backend.onnx",
    "polygraphy.tools.inspect.subtool.model.extractors", "polygraphy.tools.surgeon.surgeon", "sympy.combinatorics",
    "sympy.tensor.tensor",
)  # fmt: skip


def warm(tool: str) -> Callable[[], Any]:
    """The command line's function, and everything imported that it would import late."""
    _, module, function = TOOLS[tool]
    call: Callable[[], Any] = getattr(importlib.import_module(module), function)
    for late in _LATE:
        with contextlib.suppress(ImportError):  # of another tool, or another version
            importlib.import_module(late)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    return call


def _in_fork(call: Callable[[], Any], argv: list[str], words: IO[bytes], memory_mb: int) -> None:
    """Never returns."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(words.fileno(), 1)
        os.dup2(words.fileno(), 2)
        sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (memory_mb << 20, memory_mb << 20))
        sys.argv = argv
        try:
            ended = call()
        except SystemExit as error:
            ended = error.code
        code = ended if isinstance(ended, int) else 0 if ended is None else 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}")
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code & 0xFF)


def _wait(pid: int, timeout: float) -> int | None:
    """The exit code (negative: a signal); None where it had to be killed."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def status_of(code: int | None, said: str, written: bool) -> tuple[str, str]:
    """Status and message of an end: the exit code, what was printed, and whether a model was written."""
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip(" \t─━│╭╮╰╯-=")]
    last = re.sub(r"\x1b\[[0-9;]*m", "", lines[-1])[:300] if lines else ""
    if code is None:
        return "timeout", "took too long and was killed"
    if code != 0 and _NO_MEMORY.search(said):
        return "memory", last
    if code < 0:
        return "crash", f"killed by {signal.Signals(-code).name}; last words: {last}"
    if code > 0:
        told = [line for line in lines if re.search(r"\w(Error|Exception)\b", line)]
        return "refused", (told[-1][:300] if told else last) or f"exited with status {code}"
    return ("ok", "") if written else ("refused", last or "wrote no model")


def main() -> None:
    """Run as the module's docstring says."""
    tool, sources, targets, timeout, memory_mb = sys.argv[1:]
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the tool prints is no reply
    call = warm(tool)
    replies.write(json.dumps({"Python": sys.version.split()[0], **versions()}) + "\n")
    for source in sorted(Path(sources).iterdir()):
        target = Path(targets, source.name)
        argv = [tool, *arguments_of(tool, str(source), str(target))]
        with tempfile.TemporaryFile() as words:
            began = time.perf_counter()
            pid = os.fork()
            if pid == 0:
                _in_fork(call, argv, words, int(memory_mb))
            code = _wait(pid, float(timeout))
            seconds = time.perf_counter() - began
            words.seek(0)
            said = words.read()[-20000:].decode("utf-8", "replace")
        status, message = status_of(code, said, target.exists())
        reply = {"name": source.stem, "status": status, "message": message, "seconds": seconds}
        replies.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main()
