"""What children report about themselves. The functions are called in them, and answer with plain data."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any


def state() -> dict[str, Any]:
    """What a child has of its parent, or has not."""
    handlers = {
        number.name: str(signal.getsignal(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    return {
        "parent": os.getppid(),
        "files": sorted({os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()}),
        "handlers": handlers,
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "collecting": gc.isenabled(),
        "threads": threading.active_count(),
        "first": sys.path[0],
        "folder": os.getcwd(),
        "numpy": "numpy" in sys.modules,
        "session": os.getsid(0) == os.getpid(),
    }


def environment() -> dict[str, str]:
    """The child's environment variables."""
    return dict(os.environ)


def say(text: str, number: int = 0) -> None:
    """Print, as foreign code does, and end by a signal where one is given."""
    print(text, flush=True)
    os.kill(os.getpid(), number)


def take(mebibytes: int) -> int:
    """Use so much memory."""
    return len(bytearray(mebibytes << 20))


def end(number: int) -> None:
    """End by a signal."""
    os.kill(os.getpid(), number)
