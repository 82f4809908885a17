"""Runs one command as a process of its own and says what it cost. The standard library only, in a process of its own.

    python -I -S launch.py '{"command": [...], "timeout": 60, "memory_mb": 8000, "watch": false, "words": FILE}'

Prints JSON: ``code`` (negative: a signal), ``status`` (ended, timeout, memory), ``wall`` and ``cpu`` (user + system, of
all processes that it waited for) in seconds, ``rss`` in MB of 2^20 bytes: ``ru_maxrss`` of ``os.wait4``, the greatest
resident size of one process, be it the command's or one that it waited for. The kernel counts what the process was
before its exec too, so the launcher has to be smaller than anything that it measures: nothing is imported but a few
modules of the library, 10 MB.

With ``watch`` it also looks at all processes, every 5 ms or, where a look takes long, for a fifth of the time:
``together`` is the greatest sum of Pss, which counts a shared page once. Processes that live shorter are not seen.
Looking takes time: a watched run's seconds are no result.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

_EVERY = 0.005


def tree(root: int) -> list[int]:
    """The process and its descendants."""
    found, stack = [], [root]
    while stack:
        one = stack.pop()
        found.append(one)
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children", encoding="utf-8") as file:
                    stack += map(int, file.read().split())
        except OSError:  # it has gone
            continue
    return found


def together(root: int) -> int:
    """Kilobytes of the process and its descendants; those that have gone count as 0."""
    found = 0
    for process in tree(root):
        try:
            with open(f"/proc/{process}/smaps_rollup", encoding="utf-8") as lines:
                found += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return found


def run(asked: dict[str, object]) -> dict[str, object]:
    """Start, wait, and end it where it takes too long or too much."""
    command = asked["command"]
    assert isinstance(command, list)
    timeout, limit = float(str(asked["timeout"])), int(str(asked["memory_mb"])) << 10
    status = "ended"
    peak = 0
    with open(str(asked["words"]), "wb") as words:
        began = time.perf_counter()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, start_new_session=True
        )

    def end(*_: object) -> None:
        nonlocal status
        status = "timeout"
        os.killpg(child.pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    if asked["watch"]:
        while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            looked = time.perf_counter()
            peak = max(peak, together(child.pid))
            looked = time.perf_counter() - looked
            if peak > limit:
                status = "memory"
                os.killpg(child.pid, signal.SIGKILL)
            time.sleep(max(_EVERY, 4 * looked))
    _, code, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - began
    signal.setitimer(signal.ITIMER_REAL, 0)
    return {
        "code": os.waitstatus_to_exitcode(code),
        "status": status,
        "wall": wall,
        "cpu": usage.ru_utime + usage.ru_stime,
        "rss": usage.ru_maxrss / 1024,
        "together": peak / 1024,
    }


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
