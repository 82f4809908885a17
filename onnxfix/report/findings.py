"""Findings as records: those that are left, fixed, withdrawn, accepted and gone; what identifies them; and what is
around them, in the user's own code and in the model.

A fingerprint identifies a finding from one run to the next, for baselines and for tools that track findings. It depends
on the rule and on the place by name: the graphs around it, the node, its first output, or TensorRT's layer. It does not
depend on positions, messages, severities or versions, so that it stands while other parts of the model, the target, or
the wording change. What is about no place, such as a warning of TensorRT's about the model as a whole, is told apart by
its message.

A model names the files of the user's own code, so only Python files of the repository are read. Nodes around a finding
are gathered by ``verbs.picturing``.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from onnxfix.place import Place
from onnxfix.rewrite.packs import BUILT_IN
from onnxfix.source import Source

if TYPE_CHECKING:
    from onnxfix.report.report import Report
    from onnxfix.rewrite.engine import Applied, Found
    from onnxfix.rule import Rule

SEVERITIES = ("error", "warning", "info")
"""The worst first."""
SAFETIES = ("exact", "numeric", "unsafe")
"""The safest first."""
OPTIONS = {"exact": "", "numeric": "--numeric-fixes", "unsafe": "--unsafe-fixes"}
"""The option of ``apply`` that fixes of a safety require."""
LENGTH = 32
"""Hexadecimal digits of a fingerprint."""
VERSION = 1
"""Increases when what goes into a fingerprint changes, so that old ones match nothing by accident."""


class AtPlace:
    """What is at a place of a model."""

    place: Place

    @property
    def source(self) -> Source | None:
        """The code that the node there comes from; None where the model does not say it."""
        return self.place.source


@dataclass(frozen=True)
class Finding(AtPlace):
    """A hazard at a place. ``fix`` and ``safety`` are empty if there is no fix.

    ``confirmed`` is TensorRT's own message about the same thing at the same place, "" if there is none. ``on_engine``:
    an engine of the model was executed, and was wrong because of this. ``pointer`` says which rule helps with a finding
    of TensorRT's. ``rule_url`` is the rule's page in onnxfix's repository, "" for the rule of another pack.
    """

    code: str
    name: str
    severity: str
    place: Place
    message: str
    fix: str = ""
    safety: str = ""
    confirmed: str = ""
    on_engine: bool = False
    pointer: str = ""
    rule_url: str = ""


@dataclass(frozen=True)
class AppliedFix(AtPlace):
    """A fix that is in the result. ``confirmed`` is TensorRT's message about the original at that place, or "".

    ``on_engine``: engines were executed; that of the original was wrong because of what this fix repairs, and that of
    the result is right.
    """

    code: str
    name: str
    severity: str
    place: Place
    message: str
    fix: str
    safety: str
    round: int
    confirmed: str = ""
    on_engine: bool = False
    rule_url: str = ""


@dataclass(frozen=True)
class Withdrawn(AtPlace):
    """A fix that was withdrawn because the model did not verify with it."""

    code: str
    place: Place
    fix: str
    reason: str


@dataclass(frozen=True)
class Suppressed:
    """A finding that does not fail the run. ``by`` is "configuration" or "baseline", ``origin`` the file that says so.

    ``reason`` is the user's; ``until`` the last day on which it holds, as ISO 8601 writes it, "" for good.
    """

    finding: Finding
    by: str
    reason: str = ""
    origin: str = ""
    until: str = ""


@dataclass(frozen=True)
class Vanished:
    """A known finding of a baseline that is no longer there. ``place`` is for people."""

    code: str
    place: str
    fingerprint: str
    origin: str = ""


COLUMNS = (
    "status", "code", "name", "severity", "graph", "node", "op_type", "output", "message", "fix", "safety",
    "confirmed", "on_engine", "source",
)  # fmt: skip
"""The keys of a row."""


def row_of(status: str, one: Finding | AppliedFix | Withdrawn) -> dict[str, Any]:
    """A finding or a fix, with the fields of its place beside its own; "" for what it does not have. ``graph`` is the
    path of subgraphs and functions around the node, ``output`` the node's first output, ``source`` the code that it
    comes from. The message of a withdrawn fix is why it was withdrawn."""
    place = one.place
    row = dict.fromkeys(COLUMNS, "") | {
        "status": status,
        "graph": " / ".join(place.graph),
        "node": place.node,
        "op_type": place.op_type,
        "output": place.output,
        "on_engine": False,
        "message": getattr(one, "reason", ""),
    }
    row |= {name: getattr(one, name) for name in COLUMNS if hasattr(one, name)}
    return row | {"source": place.source.text if place.source is not None else ""}


def required_option(safety: str) -> str:
    """The option that a fix of this safety requires, as the end of a sentence; "" for an exact fix."""
    return f", with {OPTIONS[safety]}" if OPTIONS.get(safety) else ""


def finding_of(found: Found) -> Finding:
    """A match of the rule engine as a finding."""
    fix = found.match.fix
    return Finding(
        code=found.rule.code,
        name=found.rule.name,
        severity=found.severity.name.lower(),
        place=found.match.place,
        message=found.match.message,
        fix=fix.title if fix else "",
        safety=fix.safety.name.lower() if fix else "",
        rule_url=_page(found.rule),
    )


def applied_of(applied: Applied, rule: Rule) -> AppliedFix:
    """An applied fix of the rule engine as a record."""
    return AppliedFix(
        code=applied.key.code,
        name=rule.name,
        severity=applied.severity.name.lower(),
        place=applied.key.place,
        message=applied.message,
        fix=applied.title,
        safety=applied.safety.name.lower(),
        round=applied.round,
        rule_url=_page(rule),
    )


def _page(rule: Rule) -> str:
    return f"docs/rules/{rule.code}.md" if rule.module.split(".")[0] == BUILT_IN else ""


class Located(Protocol):
    """A finding, an applied fix, or anything else that a rule says about a place."""

    @property
    def code(self) -> str: ...

    @property
    def place(self) -> Place: ...


def fingerprints(findings: Iterable[Located], path: str = "") -> tuple[str, ...]:
    """The fingerprint of each finding of one model, in order; all differ.

    ``path`` names the model where several share one document; with "", they say nothing of the file. Several findings
    of a rule at one place are counted: the first keeps its fingerprint when another one comes after it.
    """
    import hashlib  # lazy: start-up (loads OpenSSL, which small runs do not need)

    seen: Counter[tuple[str, ...]] = Counter()
    digests = []
    for finding in findings:
        place = finding.place
        key = (
            path.replace("\\", "/"),
            finding.code,
            *(f"graph {name}" for name in place.graph),
            f"output {place.label}",
            f"node {'' if place.node == place.output else place.node}",
            f"layer {place.layer}",
            *(() if place.known else (f"message {getattr(finding, 'message', '')}",)),
        )
        # Lengths keep the parts apart, whatever is in a name; names may be no valid Unicode.
        text = "".join(f"{len(part)}:{part}" for part in (str(VERSION), *key, str(seen[key])))
        digests.append(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH])
        seen[key] += 1
    return tuple(digests)


ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Where GitHub and GitLab say which folder is the repository."""
Item = TypeVar("Item", Finding, AppliedFix, Withdrawn)
_LARGEST = 4 << 20
"""Bytes of a file above which it is not read."""


class Spot(NamedTuple):
    """A line of a file: ``path`` is absolute, ``line`` counts from 1. ``around`` are numbered lines of the file."""

    path: str
    line: int
    around: tuple[tuple[int, str], ...]


def repositories() -> tuple[str, ...]:
    """The folders that may be the repository, the likeliest first: what GitHub or GitLab names, the current one."""
    return tuple(os.path.abspath(root) for root in (*map(os.environ.get, ROOTS), os.getcwd()) if root)


def repository_path(path: str) -> str:
    """A path as CI systems expect it: below the repository's folder, with slashes. Paths elsewhere become absolute, and
    URLs stay as they are."""
    if not path or "://" in path:
        return path
    absolute = Path(os.path.abspath(path))
    for root in repositories():
        if absolute.is_relative_to(root):
            return absolute.relative_to(root).as_posix()
    return absolute.as_posix()


def move_sources(report: Report, roots: Sequence[str]) -> Report:
    """The report with the files of its findings and fixes where ``--source-root`` says that they are. ``FOLDER`` is
    where the exporter saw the repository, ``FOLDER=HERE`` also names it on this machine."""
    if not roots:
        return report
    return replace(
        report,
        findings=tuple(_move(item, roots) for item in report.findings),
        applied=tuple(_move(item, roots) for item in report.applied),
        withdrawn=tuple(_move(item, roots) for item in report.withdrawn),
    )


def _move(item: Item, roots: Sequence[str]) -> Item:
    source = item.source
    for there, _, here in (root.partition("=") for root in roots if source is not None):
        prefix = there.rstrip("/") + "/"
        if source is not None and source.file.startswith(prefix):
            file = os.path.join(here, source.file.removeprefix(prefix))
            return replace(item, place=replace(item.place, source=replace(source, file=file)))
    return item


def find_spot(source: Source | None, reach: int = 4) -> Spot | None:
    """The line in the repository that a node comes from, with up to ``reach`` lines before and after it. None if the
    file is not there, or if it has changed so that the line cannot be told."""
    if source is None or not source.file.endswith(".py"):
        return None
    path = os.path.abspath(source.file)
    if not any(Path(path).is_relative_to(root) for root in repositories()):
        return None
    try:
        status = os.stat(path)
        usable = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST
        lines = _lines_of(path, status.st_mtime_ns) if usable else ()
    except (OSError, ValueError):
        return None
    line = _find(source, lines)
    if not line:
        return None
    first = max(1, line - reach)
    return Spot(path, line, tuple(enumerate(lines[first - 1 : line + reach], first)))


def _find(source: Source, lines: Sequence[str]) -> int:
    """The number of the line with the text that the exporter saw, or of the only line that has it; 0 for none."""
    if not source.code:
        return source.line if source.line <= len(lines) else 0
    code = source.code.strip()
    if any(text.strip() == code for text in lines[source.line - 1 : source.line]):
        return source.line
    same = [number for number, text in enumerate(lines, 1) if text.strip() == code]
    return same[0] if len(same) == 1 else 0


@lru_cache(256)
def _lines_of(path: str, modified: int) -> tuple[str, ...]:
    """The lines of a file as it is since it was ``modified``."""
    return tuple(Path(path).read_text("utf-8", "replace").splitlines())


def describe_source(source: Source | None) -> str:
    """File, line, method and text of the line, for people; "" where only the module is known, which the node's name
    says as well."""
    if source is None or not source.file:
        return ""
    spot = None if source.code else find_spot(source, 0)
    code = source.code if spot is None else spot.around[0][1].strip()
    return replace(source, file=repository_path(source.file), code=code).text


#: "node": an operator. "input", "output": of the graph, or a value from outside of the subgraph.
Kind = Literal["node", "input", "output"]
#: What became of a node between the original and the result. "": it is in both, unchanged, or there is one model only.
Mark = Literal["", "removed", "added", "changed"]


@dataclass(frozen=True)
class Box:
    """A node, an input or an output of the graph.

    ``title`` is the operator or the value's name, ``name`` the node's name or its output's. ``lines`` are its
    attributes and constant inputs. ``focus``: the finding is here. ``above`` counts the omitted nodes that it
    reads, and ``below`` the omitted nodes that read it.
    """

    kind: Kind
    title: str
    name: str = ""
    lines: tuple[str, ...] = ()
    focus: bool = False
    mark: Mark = ""
    above: int = 0
    below: int = 0


@dataclass(frozen=True)
class Wire:
    """A value, from box ``source`` to box ``target``. ``label`` is its type and shape, as far as they are known."""

    source: int
    target: int
    value: str
    label: str = ""


@dataclass(frozen=True)
class Neighborhood:
    """Some nodes of a graph and the values between them. Wires run from a box to a later one."""

    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]


@dataclass(frozen=True)
class Picture:
    """What is around ``place``, where rule ``code`` has a finding or a fix, in the model that it was found in.
    ``after`` is the same part of the result, for a fix that was applied; None for a finding."""

    code: str
    place: Place
    before: Neighborhood | None
    after: Neighborhood | None = None
