"""What the doctor found and concluded: frozen, and JSON-able through ``Diagnosis.to_json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from onnxfix.nvidia import Gpu

SCHEMA = 1
"""Version of the JSON document; it grows when a field changes its meaning or goes."""


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver as its library presents it.

    ``installed``: the library is there. ``cuda`` is the newest CUDA that it serves, such as "13.0". ``status`` is what
    ``cuInit`` returned (0: fine, 100: no GPU) and ``fault`` its name and text.
    """

    installed: bool = False
    cuda: str = ""
    status: int = 0
    fault: str = ""


@dataclass(frozen=True)
class Library:
    """A shared library of CUDA. ``cuda`` is the version it is for, ``path`` where it was loaded from."""

    name: str
    version: str
    cuda: str
    path: str
    wheel: bool = False


@dataclass(frozen=True)
class Machine:
    """Hardware, operating system, Python, and what NVIDIA installed outside of Python's packages.

    ``memory_mb`` is the machine's or the container's memory, ``sandbox_mb`` what a verification may use of it now, in
    MiB; None where that cannot be found out. ``kernel_driver`` is the version of the driver that the kernel runs.
    """

    system: str
    python: str
    executable: str
    cpus: int
    memory_mb: int | None
    sandbox_mb: int | None
    gpus: tuple[Gpu, ...]
    driver: Driver
    kernel_driver: str
    libraries: tuple[Library, ...]


@dataclass(frozen=True)
class Package:
    """An installed distribution. ``note`` is what it is made for, ``fault`` what is wrong with it."""

    name: str
    version: str
    note: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Rung:
    """A rung of the ladder. ``reason`` is what it runs on, or why it cannot; ``mend`` what to do about that, where
    there is something to be done."""

    name: str
    available: bool
    reason: str
    mend: str = ""


@dataclass(frozen=True)
class Problem:
    """Something that does not fit together, and the command (or else the act) that mends it."""

    text: str
    mend: str


@dataclass(frozen=True)
class Diagnosis:
    """All of it. A rung that is not available is no problem by itself: not every machine needs each of them."""

    machine: Machine
    packages: tuple[Package, ...]
    rungs: tuple[Rung, ...]
    problems: tuple[Problem, ...]

    def rung(self, name: str) -> Rung:
        """The rung of that name."""
        return next(rung for rung in self.rungs if rung.name == name)

    def exit_code(self) -> int:
        """0 without problems, else 1."""
        return int(bool(self.problems))

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as dicts, lists, strings, numbers and None."""
        return {"schema": SCHEMA, **asdict(self)}
