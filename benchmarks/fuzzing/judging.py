"""What every run is held to."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzzing.cases import Command
from fuzzing.harness import Ended

CPU_SECONDS, CPU_PER_MB = 4.0, 12.0
"""Processor time that a run may take in its main process: in any case, and for each MB of models."""
MEMORY, MEMORY_PER_BYTE = 200 << 20, 300
"""Bytes by which the main process may grow: in any case, and for each byte of models."""
BUG = re.compile(
    r"Traceback|internal error|please report|a bug in onnxfix|rule [A-Z]+\d+ failed|RecursionError|AssertionError"
    r"|fuzzing: "
)
PROBLEM = re.compile(rf"{BUG.pattern}|not ONNX: |undo each other")
_ASIDES = ("a bug in onnxfix", "please report", "RecursionError", "AssertionError")
_PLACE = re.compile(r"[\w./]*?(\w+\.py)[\", ]*(?:line |:)(\d+)")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Fault:
    """Something that a run must not do. ``kind`` and ``sign`` together say whether two are the same."""

    kind: str
    sign: str
    text: str


Files = dict[str, tuple[Any, ...]]


def files_in(folder: Path) -> Files:
    """What there is below a folder: kind, mode, and the content's digest."""
    found: Files = {}
    for top, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(top, name)
            about = os.lstat(path)
            content: Any = None
            if stat.S_ISREG(about.st_mode):
                with open(path, "rb") as stream:
                    content = hashlib.sha256(stream.read()).hexdigest()
            elif stat.S_ISLNK(about.st_mode):
                content = os.readlink(path)
            found[os.path.relpath(path, folder)] = (
                about.st_mode,
                about.st_ino if content is None else 0,
                content,
            )
    return found


def faults(
    command: Command, step: int, ended: Ended, before: Files, after: Files, size: int
) -> Iterator[Fault]:
    """What is wrong with one step of a command. ``size`` is that of the models, in bytes; ``before`` and ``after`` are
    the files around it."""
    out, err = ended.out.decode("utf-8", "replace"), ended.err.decode("utf-8", "replace")
    if ended.hung:
        yield Fault("hang", "", f"killed after {ended.wall:.0f} s")
    elif not 0 <= ended.code <= 3:
        yield Fault("exit code", str(ended.code), f"exit code {ended.code}: {err[-300:]}")
    yield from _bugs(out + err)
    most = CPU_SECONDS + CPU_PER_MB * size / 1e6
    if ended.cpu > most and not (ended.hung and command.verified):
        yield Fault("time", "", f"{ended.cpu:.1f} s of processor time, for {size} bytes")
    if ended.memory > MEMORY + MEMORY_PER_BYTE * size and not ended.hung:
        yield Fault("memory", "", f"grew by {ended.memory >> 20} MiB, for {size} bytes")
    if ended.orphans:
        yield Fault("process left", "", f"{ended.orphans} processes still ran")
    if not PROBLEM.search(out):  # a rule that could not run makes the exit code 2, and the result is written
        yield from _files(command, ended, before, after)
    if not ended.hung:
        yield from _texts(command.steps[step], ended, out, err)


def _bugs(text: str) -> Iterator[Fault]:
    """What the text says of bugs: those that a rule has by its name, others by their place."""
    found: dict[str, str] = {}
    for match in BUG.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
        if match[0] in ("Traceback", "fuzzing: "):
            line = text[match.start() : match.start() + 20_000]
        elif match[0] in _ASIDES and found:
            continue  # another word about the same
        found.setdefault(_sign(match[0], line), " ".join(line.split())[-600:])
    yield from (Fault("bug", sign, line) for sign, line in found.items())


def _sign(word: str, line: str) -> str:
    """What is the same in all messages about one bug: the rule and its error, or the last place in the code."""
    if word.startswith("rule "):
        error = re.search(r"[A-Za-z]*(?:Error|Exception|Interrupt)\b", line[line.find(word) :])
        return f"{word}: {error[0] if error else ''}"
    if places := _PLACE.findall(line):
        return ":".join(places[-1])
    rule = re.search(r"\b[A-Z]{3}\d{3}\b", line)
    words = re.sub(r"'[^']*'|\"[^\"]*\"|\d+|/\S+", "#", line)
    return rule[0] if rule else words[-80:]


def _files(command: Command, ended: Ended, before: Files, after: Files) -> Iterator[Fault]:
    allowed = {f"work/{name}" for name in command.writes} if ended.code in (0, 1) or ended.hung else set()
    allowed |= {f"work/{name}" for name in command.writes if name.startswith(("r.", "new.", "small", "out/"))}
    if "out" in command.writes:  # a folder: of several models, some may be written
        allowed.add("work/out")
    if "apply" in command.name and "twice" in command.name:
        allowed |= {"work/out.onnx", "work/out.onnx.data"}  # of the first step
    for name in sorted(before.keys() | after.keys()):
        one, other = before.get(name), after.get(name)
        if one == other or name in allowed or any(name.startswith(f"{folder}/") for folder in allowed):
            continue
        what = "file left" if one is None else "file gone" if other is None else "file changed"
        if ended.hung and name.startswith("scratch/"):
            continue  # it was killed, and cleaned up nothing
        yield Fault(
            what,
            re.sub(r"[0-9a-f]{6,}|\d+|[a-z0-9_]{8}(?=$|/)", "#", name),
            f"{name}, exit code {ended.code}",
        )


def _texts(step: tuple[str, ...], ended: Ended, out: str, err: str) -> Iterator[Fault]:
    if ended.code == 2 and not err.strip() and "error" not in out and not PROBLEM.search(out):
        yield Fault("silent", "", "exit code 2 without a line that says why")
    for name, data in (("output", ended.out), ("error output", ended.err)):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            yield Fault("not UTF-8", name, str(error))
        else:
            if found := _CONTROLS.search(text):
                yield Fault(
                    "control character", name, repr(text[max(0, found.start() - 80) : found.end() + 80])
                )
    if len(out) + len(err) > 5_000_000:
        yield Fault("flood", "", f"{len(out) + len(err)} characters of output")
    format = step[step.index("--format") + 1] if "--format" in step else ""
    if out and (reason := unreadable(format, out)):
        yield Fault("unreadable report", format, reason)


def unreadable(format: str, text: str) -> str:
    """Why a report is none of that format; "" if nothing is wrong with it."""
    try:
        if format in ("json", "sarif", "gitlab"):
            json.loads(text)
        elif format == "jsonl":
            for line in text.splitlines():
                json.loads(line)
        elif format == "junit":
            ElementTree.fromstring(text)
    except (ValueError, ElementTree.ParseError) as error:
        return f"{error}: {text[:200]!r}"
    return ""


def reports_read(folder: Path, names: tuple[str, ...]) -> Iterator[Fault]:
    """Reports in files that no program could read."""
    kinds = {
        "r.json": "json",
        "r.jsonl": "jsonl",
        "r.sarif": "sarif",
        "r.xml": "junit",
        "r.gitlab.json": "gitlab",
    }
    for name in names:
        path = folder / name
        if path.is_file():
            text = path.read_text("utf-8", "replace")
            if reason := unreadable(kinds.get(name, ""), text):
                yield Fault("unreadable report", name, reason)
            yield from _bugs(text)


def disagreement(check: Ended, apply: Ended) -> Iterator[Fault]:
    """``check`` and ``apply`` of one model: each fixed finding was found, or appeared by a fix; each that was found is
    fixed, left, withdrawn or gone by another fix; both accept the model or refuse it."""
    if (check.code == 2) != (apply.code == 2):
        yield Fault(
            "disagreement",
            "accepted",
            f"check ends with {check.code}, apply with {apply.code}: {apply.err[-300:]!r}",
        )
        return
    if check.code == 2:
        return
    (one,), (two,) = (json.loads(ended.out)["reports"] for ended in (check, apply))
    found = _counted(one["findings"])
    first = Counter(key for key in _counted(item for item in two["applied"] if item["round"] == 1).elements())
    if missing := first - found:
        yield Fault(
            "disagreement",
            min(missing)[0],
            f"fixed in the first round, and not found by check: {min(missing)}",
        )
    if not two["changed"]:
        left = _counted(two["findings"])
        if left != found:
            odd = min((left - found) + (found - left))
            yield Fault("disagreement", odd[0], f"nothing was changed, and yet findings differ: {odd}")


def _counted(items: Any) -> Counter[tuple[str, str]]:
    return Counter((item["code"], json.dumps(item["place"], sort_keys=True)) for item in items)


def not_idempotent(folder: Path, ended: list[Ended]) -> Iterator[Fault]:
    """``apply`` of what ``apply`` wrote: the same bytes."""
    if len(ended) < 2 or ended[0].code > 1:
        return
    if ended[1].code > 1:
        yield Fault("not idempotent", "refused", f"its own output is refused: {ended[1].err[-300:]!r}")
        return
    first, second = ((folder / name).read_bytes() for name in ("out.onnx", "again.onnx"))
    if first.replace(b"out.onnx.data", b"again.onnx.data") != second:
        yield Fault(
            "not idempotent", "", f"{len(first)} and {len(second)} bytes: {ended[1].out[-700:].decode()}"
        )
