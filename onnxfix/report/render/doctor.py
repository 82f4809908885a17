"""The doctor's examination as text and as JSON.

Imports neither report/report.py nor text.py: they import onnx and numpy, which may be broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from onnxfix.report.render import ui
from onnxfix.report.render.lines import Line
from onnxfix.report.render.terminal import section_lines
from onnxfix.rewrite.packs import Pack
from onnxfix.runtime.confinement import InForce
from onnxfix.runtime.system import Lack
from onnxfix.verbs.examination import Examination
from onnxfix.verbs.examination.records import Library, Machine

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


def examination_lines(machine: Examination, **_: bool) -> Iterator[Line]:
    """Machine, packages, checks, problems; nothing is left out without ``verbose``."""
    yield from section_lines(examination_page(machine).sections, verbose=True)


def examination_page(examined: Examination) -> ui.Page:
    """What this machine can run, and what keeps it from running more."""
    lacks = [_LACKS[Lack(lack)] for lack in examined.machine.lacks]
    sections = [_rows("machine", "Machine", _machine(examined.machine))]
    if lacks:
        blocks = [ui.Paragraph(lack) for lack in lacks]
        sections.append(ui.Section("lacks", "What this system lacks", blocks, titled=True))
    packages: list[tuple[ui.Content, ...]] = []
    for package in examined.packages:
        packages.append((package.name, package.version, package.note))
        packages += [("", "", ui.Chip("bad", package.fault))] if package.fault else []
    sections += [*_table("packages", "Packages", packages), *pack_sections(examined.packs)]
    checks: list[tuple[ui.Content, ...]] = []
    for check in examined.rungs:
        mark = ui.Chip("good", "yes") if check.available else ui.Chip("warn", "no")
        checks.append((check.name, mark, check.reason))
        checks += [("", "", _mend(check.mend))] if check.mend else []
    problems = [
        ui.Part(problem.text, (ui.Items([_mend(problem.mend)] if problem.mend else []),))
        for problem in examined.problems
    ]
    title = "Problems" if problems else "No problems"
    sections += [*_table("checks", "Checks", checks), ui.Section("problems", title, problems, titled=True)]
    chip = ui.Chip("bad", "problems") if problems else ui.Chip("good", "no problems")
    return ui.Page("onnxfix doctor", "", chip, examined.exit_code, sections=sections)


def pack_sections(packs: Sequence[Pack]) -> list[ui.Section]:
    """The rule packs, where there are others than the built-in one: their modules, where these come from."""
    if len(packs) < 2:
        return []
    rows: list[tuple[str, ui.Content]] = []
    for pack in packs:
        origin = " ".join(filter(None, (pack.distribution, pack.version)))
        folder = f"in {pack.folder}" if pack.folder else ""
        loaded = "" if pack.loaded else "(not loaded)"
        words = (pack.module, f"from {origin}" if origin else "", folder, loaded)
        rows.append((pack.name, " ".join(filter(None, words))))
    return [_rows("packs", "Rule packs", rows)]


def _rows(ident: str, title: str, pairs: Iterable[tuple[str, ui.Content]]) -> ui.Section:
    return ui.Section(ident, title, [ui.Facts([*pairs])], brief=True, folded=False, titled=True)


def _table(ident: str, title: str, rows: Sequence[Sequence[ui.Content]]) -> tuple[ui.Section, ...]:
    return ui.tabled(ident, title, ui.Table(("", "", ""), rows, title), titled=True)


def _mend(command: str) -> ui.Content:
    return ["fix: ", ui.command(command)]


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
