"""Reports as workflow commands of GitHub Actions, which become annotations of a run and of a pull request.

GitHub shows at most 10 errors, 10 warnings and 10 notices of a step. So there is one annotation for each model and
rule, not for each node, the worst come first, and infos share one notice for each model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from onnxfix.report.render.issues import Issue, errors_of, issues_of, repository_path
from onnxfix.report.render.stream import printable
from onnxfix.report.report import FailOn, Report

SHOWN = 5
"""Places that one annotation names."""
_LEVELS = {"error": "error", "warning": "warning"}


def render_github(
    reports: Sequence[Report],
    errors: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    fail_on: FailOn = "",
) -> str:
    """One command a line, errors first, then a line for the log that counts them all."""
    issues = [*errors_of(errors), *(issue for report in reports for issue in issues_of(report))]
    groups: dict[tuple[str, str, str], list[Issue]] = {}
    for issue in issues:
        groups.setdefault((issue.severity, issue.path, issue.title), []).append(issue)
    lines = [
        _command(_LEVELS[severity], path, f"onnxfix {title}", _message(group))
        for level in _LEVELS
        for (severity, path, title), group in groups.items()
        if severity == level
    ]
    lines += [_command("warning", "", "onnxfix", text) for text in warnings]
    lines += _notices(issues)
    counts = Counter(issue.severity for issue in issues)
    total = ", ".join(
        f"{counts[name]} {name}{'s' * (counts[name] != 1)}" for name in ("error", "warning", "info")
    )
    number = len(reports) + len(errors)
    return "\n".join([*lines, f"onnxfix: {number} model{'s' * (number != 1)}: {total}"])


def _message(group: Sequence[Issue]) -> str:
    """What was found, then the places; where each place has words of its own, they stand with it."""
    if len(group) == 1:
        return printable(group[0].text)
    alike = len({one.what for one in group}) == 1
    more = [f"… and {len(group) - SHOWN} more"] if len(group) > SHOWN else []
    places = (printable(one.place.short if alike else one.text) for one in group[:SHOWN])
    return "\n".join(
        [f"{len(group)} places: {printable(group[0].what) if alike else ''}".rstrip(), *places, *more]
    )


def _notices(issues: Sequence[Issue]) -> Iterator[str]:
    """One notice for the infos of each model."""
    models: dict[str, Counter[str]] = {}
    for issue in issues:
        if issue.severity == "info":
            models.setdefault(issue.path, Counter())[issue.title] += 1
    for path, rules in models.items():
        counted = ", ".join(f"{printable(title)} ×{count}" for title, count in rules.most_common())
        yield _command("notice", path, "onnxfix notes", counted)


def _command(level: str, path: str, title: str, message: str) -> str:
    """``::error file=...,title=...::message``. Without escapes a name could end the command or begin another one."""
    named = {"file": repository_path(path), "title": printable(title)}
    properties = ",".join(f"{key}={_property(value)}" for key, value in named.items() if value)
    return f"::{level} {properties}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
