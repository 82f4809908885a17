"""Facts and conclusions as frozen records, with JSON by ``Examination.to_json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from onnxfix.rewrite.packs import Pack
from onnxfix.runtime.confinement import InForce
from onnxfix.runtime.nvidia import Gpu
from onnxfix.shown import Shown

SCHEMA = 1
"""Version of the JSON document; it increases when a field changes its meaning or is removed."""


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver as its library reports it.

    ``installed``: the library was found. ``cuda`` is the newest CUDA version that it supports, such as "13.0".
    ``status`` is the return value of ``cuInit`` (0: fine, 100: no GPU) and ``fault`` its name and text.
    """

    installed: bool = False
    cuda: str = ""
    status: int = 0
    fault: str = ""


@dataclass(frozen=True)
class Library:
    """A shared library of CUDA. ``cuda`` is the CUDA version that it is for, ``path`` where it was loaded from."""

    name: str
    version: str
    cuda: str
    path: str
    wheel: bool = False


@dataclass(frozen=True)
class Machine:
    """Hardware, operating system, Python, and NVIDIA's libraries.

    ``memory_mb`` is the memory of the machine or container, ``sandbox_mb`` the part that a verification may use now, in
    MiB; None if unknown. ``kernel_driver`` is the version of the driver that the kernel runs. ``lacks`` are
    values of ``onnxfix.runtime.system.Lack``: what onnxfix uses where it is there, and this operating system does not
    have. ``children`` says what child processes cannot do here.
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
    lacks: tuple[str, ...] = ()
    children: InForce = field(default_factory=InForce)


@dataclass(frozen=True)
class Package:
    """An installed distribution. ``note`` is what it was built for, ``fault`` what is wrong with it."""

    name: str
    version: str
    note: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Rung:
    """A check. ``reason`` is what it runs on, or why it cannot run; ``mend`` the command that fixes that,
    or ""."""

    name: str
    available: bool
    reason: str
    mend: str = ""


@dataclass(frozen=True)
class Problem:
    """Something that is broken or does not fit together, and the command (or another instruction) that fixes it."""

    text: str
    mend: str


@dataclass(frozen=True, repr=False)
class Examination(Shown):
    """The whole examination. ``print`` shows it as the command line does. An unavailable check is no
    problem by itself: not every machine needs every check."""

    machine: Machine
    packages: tuple[Package, ...]
    rungs: tuple[Rung, ...]
    problems: tuple[Problem, ...]
    packs: tuple[Pack, ...] = ()

    def rung(self, name: str) -> Rung:
        """The check of that name."""
        return next(rung for rung in self.rungs if rung.name == name)

    @property
    def exit_code(self) -> int:
        """0 without problems, else 1."""
        return int(bool(self.problems))

    def to_dict(self) -> dict[str, Any]:
        """The examination as dicts, lists, strings, numbers and None."""
        return {"schema": SCHEMA, **asdict(self)}

    to_json = to_dict

    def _facts(self) -> dict[str, object]:
        names = tuple(rung.name for rung in self.rungs if rung.available)
        return {"available": names, "ok": self.ok, "problems": len(self.problems)}
