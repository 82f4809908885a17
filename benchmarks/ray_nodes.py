"""A Ray cluster on this machine: each node a ``ray start`` process with a folder and ports of its own.

A node's processes are found again by their session and by a mark in their environment: killing a node or ending the
cluster touches no other Ray.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

MARK = "ONNXFIX_RAY_NODE"
START_SECONDS = 120.0


class Node:
    """One node. It has an address of its own in 127.0.0.0/8 (Linux), so that a driver is told from its neighbors."""

    def __init__(self, *arguments: str, cpus: int, memory_mb: int, environ: dict[str, str]) -> None:
        self.mark = secrets.token_hex(8)
        everywhere = (
            f"--num-cpus={cpus}",
            f"--memory={memory_mb << 20}",
            f"--object-store-memory={100 << 20}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--disable-usage-stats",
            "--block",
        )
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, *everywhere]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the node
        self.process = subprocess.Popen(
            command,
            env={**environ, MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def said(self) -> str:
        """What ``ray start`` printed."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def pids(self) -> list[int]:
        """Its processes, ``ray start``, daemons and workers alike, whoever their parents are by now.

        They are of one session, or carry the mark: Ray's own rewrite their environment, others leave the session.
        """
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdecimal():
                    continue
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                state, session = fields[0], int(fields[3])
                marked = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
                if state != "Z" and (session == self.process.pid or marked):
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """SIGKILL to all of them: the node is gone as if its power had been cut."""
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)


class Cluster:
    """A head and more nodes. Use it as a context: at its end nothing of it is left.

    ``environ`` is the environment of whoever connects to ``address``.
    """

    def __init__(
        self, nodes: int = 2, cpus: int = 2, memory_mb: int = 4096, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.cpus = cpus
        self.memory_mb = memory_mb
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets' paths have to be short
        self.nodes: list[Node] = []
        # Newer Rays ask for a token by default; with one of its own nobody else gets in.
        self.environ = {**environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        try:
            here = ("--head", f"--port={_free_port()}", f"--temp-dir={self.folder}")
            self.address = self._started(
                self._add(*here, "--include-dashboard=false"), r"--address='([^']+)'"
            )
            # Older Rays keep here which node a driver connects to: the last that started in this folder.
            own = self.folder / "session_latest" / "node_ip_address.json"
            said = own.read_bytes() if own.exists() else None
            for number in range(2, nodes + 1):
                node = self._add(f"--address={self.address}", f"--node-ip-address=127.0.0.{number}")
                self._started(node, r"(Ray runtime started)")  # the head knows it then
            if said is not None:
                own.write_bytes(said)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all nodes and delete their files."""
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _add(self, *arguments: str) -> Node:
        node = Node(*arguments, cpus=self.cpus, memory_mb=self.memory_mb, environ=self.environ)
        self.nodes.append(node)
        return node

    def _started(self, node: Node, pattern: str) -> str:
        """What ``ray start`` tells people when a node is up."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and node.process.poll() is None:
            found = re.search(pattern, node.said())
            if found:
                return found[1]
            time.sleep(0.1)
        raise RuntimeError(f"the Ray cluster does not start:\n{node.said()}")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
