"""The models that are measured, and whether their files lie in the page cache."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from speed.tools import Bench, Cost, Job, Tool

_CHUNK = 1 << 24
_JUDGE = Path(__file__).resolve().parent / "judge.py"
_PARTS = Path(__file__).resolve().parent / "parts.py"

Kind = Literal["export", "large", "synthetic"]
KINDS = ("chain", "dag", "findings", "nested")
SIZES = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1m": 1_000_000}
#: A model of two nodes: what a tool takes to start.
BASE = "chain.1"
#: Ifs of a million nodes are left out: each level is copied into the one around it when they are made.
SYNTHETIC = [
    BASE,
    *(f"{kind}.{size}" for size in SIZES for kind in KINDS if (kind, size) != ("nested", "1m")),
]


@dataclass(frozen=True)
class Case:
    """A model: a full-size export, one of more than 2 GB with its weights beside it, or a synthetic one."""

    name: str
    path: Path

    @property
    def kind(self) -> Kind:
        """By its name."""
        if self.name in SYNTHETIC:
            return "synthetic"
        return "large" if self.external else "export"

    @property
    def external(self) -> bool:
        """Whether the weights lie in a file of their own."""
        return len(self.files) > 1

    @property
    def files(self) -> list[Path]:
        """The model's file, and that of its weights."""
        data = self.path.with_name(self.path.name + ".data")
        return [self.path, *([data] if data.exists() else [])]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.stat().st_size for file in self.files)

    def job(self, folder: Path) -> Job:
        """For a run that writes into ``folder``, which must hold nothing else: it is emptied before each run."""
        return Job(self.path, folder / f"{self.name}.onnx", self.external)


def cases(folders: Sequence[Path], patterns: Sequence[str]) -> list[Case]:
    """The models in the folders whose names match one of the patterns; all, without any."""
    found = [
        Case(path.name.removesuffix(".onnx"), path)
        for folder in folders
        for path in sorted(folder.glob("*.onnx"))
    ]
    return [case for case in found if not patterns or any(re.search(one, case.name) for one in patterns)]


def warm(case: Case) -> None:
    """Read the files once, so that the kernel has them in memory."""
    for path in case.files:
        with path.open("rb", buffering=0) as file:
            while file.read(_CHUNK):
                pass


def evict(case: Case) -> float:
    """Ask the kernel to forget the files; the share of their pages that it still holds."""
    for path in case.files:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)  # pages that are not on disk yet stay
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(number)
    return max(resident(path) for path in case.files)


def resident(path: Path) -> float:
    """The share of a file's pages that are in memory, by mincore(2)."""
    size = path.stat().st_size
    if not size:
        return 0.0
    pages = -(-size // mmap.PAGESIZE)
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view,
    ):
        anchor = ctypes.c_char.from_buffer(view)
        seen = (ctypes.c_ubyte * pages)()
        library = ctypes.CDLL(None, use_errno=True)
        failed = library.mincore(
            ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(size), ctypes.byref(seen)
        )
        del anchor  # a map that something points into cannot be closed
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore: {path}")
    return sum(one & 1 for one in bytes(seen)) / pages


def judged(bench: Bench, case: Case, job: Job, timeout: float = 900.0) -> dict[str, Any]:
    """What judge.py says of the result that lies at the job's target."""
    known = bench.scratch / "expected" / f"{case.name}.{case.bytes}.npz"
    known.parent.mkdir(exist_ok=True)
    asked = {
        "source": str(case.path),
        "target": str(job.target),
        "known": str(known),
        "feeds": 1 if case.kind == "large" else 2,
        "threads": 2,
    }
    try:
        done = subprocess.run(
            [str(bench.pythons["onnxfix"]), str(_JUDGE), json.dumps(asked)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=_without_pythonpath(),
        )
    except subprocess.TimeoutExpired:
        return {"right": False, "why": "ONNX Runtime takes too long", "interface": [], "data": "", "bytes": 0}
    if done.returncode:
        last = (done.stderr.splitlines() or ["killed"])[-1]
        return {"right": False, "why": f"ONNX Runtime ended: {last}", "interface": [], "data": "", "bytes": 0}
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def parts(bench: Bench, case: Case) -> dict[str, Any]:
    """What parts.py measures.

    Raises:
        RuntimeError: it failed.
    """
    command = [str(bench.pythons["onnxfix"]), str(_PARTS), str(case.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=_without_pythonpath())
    if done.returncode:
        raise RuntimeError(f"{case.name}: {done.stderr.strip().splitlines()[-1]}")
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def _without_pythonpath() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def measured(
    bench: Bench, tool: Tool, case: Case, folder: Path, *, watch: bool
) -> tuple[Cost, dict[str, Any]]:
    """One run and what was judged of its result; nothing where it wrote none."""
    job = case.job(folder)
    cost = bench.run(tool, job, watch)
    right = judged(bench, case, job) if cost.status == "ok" and tool.writes else {}
    return cost, right


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)
