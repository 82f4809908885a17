"""The doctor's examination as text and as JSON.

Imports neither report/report.py nor text.py: they import onnx and numpy, which may be broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.confinement import InForce
from onnxfix.examination import Examination
from onnxfix.examination.records import Library, Machine
from onnxfix.packs import Pack
from onnxfix.report.render.lines import Line, line
from onnxfix.report.render.stream import printable
from onnxfix.system import Lack

_LACKS = {
    Lack.FORK: "Processes cannot be forked: a check that may crash starts a fresh Python, which takes longer.",
    Lack.FOLDER_DESCRIPTORS: "Folders cannot be held open: who may write to an output folder can redirect a write.",
    Lack.FILE_LOCKS: "Files cannot be locked: two runs that use one journal may do models twice.",
    Lack.MEMORY_LIMITS: "Memory of child processes cannot be limited: --memory-limit has no effect on this system.",
    Lack.DEATH_SIGNAL: "When onnxfix itself is killed, its child processes go on until their present call ends.",
    Lack.ALARM: "A child process cannot set itself a time limit; the one of its parent remains.",
    Lack.REPLACING_OPEN_FILES: "Open files cannot be replaced: close other programs that have the output open.",
    Lack.OWNERS: "Files have no owners and modes that onnxfix could keep or check: rights come from the folder.",
}
"""What it means for a run, for each thing that a system may lack."""


def examination_lines(found: Examination) -> Iterator[Line]:
    """Machine, packages, checks, problems."""
    yield line("machine", style="bold")
    for label, text in _machine(found.machine):
        yield _row(label, 14, text)
    if found.machine.lacks:
        yield line("what this system lacks", style="bold")
    for lack in found.machine.lacks:
        yield _indented(_LACKS[Lack(lack)], 2)
    yield line("packages", style="bold")
    width = max((len(package.name) for package in found.packages), default=0) + 2
    for package in found.packages:
        yield _row(package.name, width, package.note, package.version)
        if package.fault:
            yield _indented(package.fault, width + 2, "bold red")
    yield from pack_lines(found.packs)
    yield line("checks", style="bold")
    for rung in found.rungs:
        mark, style = ("yes", "green") if rung.available else ("no", "yellow")
        yield _row(rung.name, 13, rung.reason, f"{mark:<5}", style)
        if rung.mend:
            yield _fix(rung.mend, 20)
    if not found.problems:
        yield line("no problems", style="bold green")
        return
    yield line("problems", style="bold red")
    for problem in found.problems:
        yield _indented(problem.text, 2)
        if problem.mend:
            yield _fix(problem.mend, 4)


def pack_lines(packs: Sequence[Pack]) -> Iterator[Line]:
    """The rule packs, where there are others than the built-in one: their modules, where these come from."""
    if len(packs) < 2:
        return
    yield line("rule packs", style="bold")
    width = max(len(pack.name) for pack in packs) + 2
    for pack in packs:
        origin = " ".join(filter(None, (pack.distribution, pack.version)))
        parts = [
            pack.module,
            *([f"from {origin}"] if origin else []),
            *([f"in {pack.folder}"] if pack.folder else []),
            *([] if pack.loaded else ["(not loaded)"]),
        ]
        yield _row(pack.name, width, " ".join(parts))


def _row(label: str, width: int, text: str, mark: str = "", style: str = "") -> Line:
    """``  label  mark  text``, with the text wrapped below itself."""
    start = f"  {printable(label):<{width}}"
    gap = "" if not mark or mark.endswith(" ") or not text else "  "
    return line(start, (mark, style), f"{gap}{text}", hang=len(start) + len(mark) + len(gap))


def _indented(text: str, indent: int, style: str = "") -> Line:
    return line(" " * indent + text, style=style, hang=indent)


def _fix(command: str, indent: int) -> Line:
    return line(" " * indent, ("fix: ", "dim"), (command, "cyan"))


def _machine(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "system", machine.system
    yield "Python", f"{machine.python} {machine.executable}".rstrip()
    yield "CPUs", str(machine.cpus)
    memory = _gib(machine.memory_mb)
    if machine.sandbox_mb is not None:
        memory += f", of which a verification may use {_gib(machine.sandbox_mb)} now"
    yield "memory", memory
    yield "children", _children(machine.children)
    for gpu in machine.gpus:
        yield "GPU", f"{gpu.name}, compute capability {gpu.capability}"
    if not machine.gpus:
        yield "GPU", "none found"
    yield "driver", _driver(machine)
    for name in ("CUDA runtime", "cuDNN"):
        here = [item for item in machine.libraries if item.name == name]
        for item in here:
            yield name, _library(item)
        if not here:
            yield name, "not found"


def _children(found: InForce) -> str:
    """What child processes, in which other people's libraries run, cannot do."""
    denied = {
        "network": found.network,
        "signals to other processes": found.processes,
        "private files": found.files,
    }
    parts = [f"no {name}" for name, holds in denied.items() if holds]
    missing = [name for name, holds in denied.items() if not holds]
    if missing:
        parts.append(f"not denied: {', '.join(missing)} ({found.reason})")
    return "; ".join(parts)


def _gib(mb: int | None) -> str:
    return "unknown" if mb is None else f"{mb / 1024:.1f} GiB"


def _driver(machine: Machine) -> str:
    driver = machine.driver
    parts = [f"NVIDIA {machine.kernel_driver}"] if machine.kernel_driver else []
    if driver.installed:
        parts.append(f"supports up to CUDA {driver.cuda}" if driver.cuda else "library found")
    elif parts:
        parts.append("its library was not found")
    if driver.fault:
        parts.append(driver.fault)
    return ", ".join(parts) or "no NVIDIA driver found"


def _library(item: Library) -> str:
    made = f" for CUDA {item.cuda}" if item.cuda and item.cuda != item.version else ""
    return f"{item.version}{made} ({'Python package' if item.wheel else item.path})"
