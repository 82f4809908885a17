"""With what a report was made."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping

from onnxfix.report.render.html.markup import Content, tag
from onnxfix.report.render.html.parts import facts, seconds, section, size
from onnxfix.report.report import Report


def environment_section(report: Report, ident: str) -> Content:
    """Versions, target, files and times."""
    pairs: list[tuple[str, Content]] = [
        ("Command", f"onnxfix {report.command}"),
        ("Model", _file(report.path, report.bytes_before)),
        (
            "Second model" if report.command == "verify" else "Written",
            _file(report.output, report.bytes_after),
        ),
        *((f"Data ({one.kind})", _file(one.path, one.bytes)) for one in report.data),
        ("Engine", _file(report.engine, 0)),
        ("Target", report.target),
        ("Fixes up to", report.safety),
        ("Rounds", str(report.rounds) if report.rounds else ""),
        ("Time", seconds(report.seconds)),
        *versions(report.versions),
    ]
    if report.executed is not None:
        pairs.append(("GPU", f"{report.executed.gpu} ({report.executed.compute_capability})"))
    return section(ident, "Environment", facts(pairs))


def versions(found: Mapping[str, str]) -> list[tuple[str, Content]]:
    """The packages that were used, Python and the system."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return [
        *found.items(),
        ("Python", python),
        ("System", f"{platform.system()} {platform.machine()}, {sys.byteorder}-endian"),
    ]


def _file(path: str, count: int) -> Content:
    if not path:
        return None
    return [tag("span", path, class_="mono"), tag("small", size(count)) if count else None]
