"""Documents for programs, CI systems and readers: their kinds, which suffix names which, and what renders each."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfix.errors import UsageError
from onnxfix.report.render import objects
from onnxfix.report.render.stream import as_json, stream_at
from onnxfix.shown import Shown

if TYPE_CHECKING:
    from onnxfix.report.report import FailOn, Report


class Kind(enum.StrEnum):
    """What a document is."""

    json = "json"
    jsonl = "jsonl"
    sarif = "sarif"
    github = "github"
    gitlab = "gitlab"
    junit = "junit"
    markdown = "markdown"
    html = "html"


#: Ends of file names, the longer ones first. GitLab's own examples write their report to the last of these names.
SUFFIXES = {
    ".gitlab.json": Kind.gitlab,
    ".sarif.json": Kind.sarif,
    ".json": Kind.json,
    ".jsonl": Kind.jsonl,
    ".ndjson": Kind.jsonl,
    ".sarif": Kind.sarif,
    ".xml": Kind.junit,
    ".md": Kind.markdown,
    ".markdown": Kind.markdown,
    ".html": Kind.html,
    ".htm": Kind.html,
    "gl-code-quality-report.json": Kind.gitlab,
}
#: One suffix of each kind, for messages.
NAMED = {
    Kind.json: ".json",
    Kind.jsonl: ".jsonl",
    Kind.sarif: ".sarif",
    Kind.gitlab: ".gitlab.json",
    Kind.junit: ".xml (JUnit)",
    Kind.markdown: ".md",
    Kind.html: ".html",
}

#: What renders each kind of document; only the one that is wanted is loaded.
_RENDERERS = {
    Kind.json: "json:render_json",
    Kind.jsonl: "json:render_jsonl",
    Kind.sarif: "sarif:render_sarif",
    Kind.github: "github:render_github",
    Kind.gitlab: "gitlab:render_gitlab",
    Kind.junit: "junit:render_junit",
    Kind.markdown: "markdown:render_markdown",
    Kind.html: "html.render:render_html",
}


def target_of(text: str) -> tuple[Kind | None, Path]:
    """The kind and the file that ``FILE`` or ``KIND:FILE`` names; None for a file whose name says no kind.

    Pipes, devices and standard streams have no telling name; without a kind they get JSON.
    """
    head, colon, rest = text.partition(":")
    if colon and rest and head in Kind.__members__:
        return Kind(head), Path(rest)
    path = Path(text)
    name = path.name.lower()
    kind = next(
        (SUFFIXES[end] for end in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(end)), None
    )
    return (Kind.json if kind is None and _stream(path) else kind), path


def refuse_unknown_kind(kind: Kind | None, path: Path, known: Sequence[Kind] = tuple(Kind)) -> Kind:
    """The kind, if it is one of ``known``.

    Raises:
        UsageError: it is not, or the file's name says none.
    """
    if kind is not None and kind in known:
        return kind
    suffixes = ", ".join(NAMED[one] for one in NAMED if one in known)
    how = f"end the name in {suffixes}, or write KIND:FILE, such as {known[-1]}:{path}"
    if kind is not None:
        raise UsageError(f"--report {path}: this command writes no {kind} report; {how}")
    raise UsageError(f"--report {path}: the name does not say what kind of report to write; {how}")


def _stream(path: Path) -> bool:
    try:
        return (path.exists() and not path.is_file()) or stream_at(path) is not None
    except OSError:
        return False


def render_document(
    kind: Kind,
    reports: Sequence[Report] = (),
    errors: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    fail_on: FailOn = "",
) -> str:
    """The document about the models of one call.

    Args:
        kind: what to render.
        reports: in the order of the command line.
        errors: path and message of each model that could not be processed; an empty path is about the whole call.
        warnings: about the installation, such as a broken rule pack.
        fail_on: from which severity on a finding is a failure; None: from none; "": as each report says.
    """
    module, _, name = _RENDERERS[kind].partition(":")
    render = getattr(import_module(f"onnxfix.report.render.{module}"), name)
    return str(render(reports, errors, warnings, fail_on))


def render_result(kind: Kind, result: Shown) -> str:
    """The result of a command that makes no report on models, as JSON, Markdown or HTML."""
    if kind is Kind.html:
        return result.to_html()
    return objects.markdown(result) if kind is Kind.markdown else as_json(result.to_dict())
