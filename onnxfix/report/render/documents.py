"""Results in all forms: documents for programs, CI systems and readers, and what ``onnxfix.shown`` shows in Python.

Only what renders the form that is wanted is loaded.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfix.errors import UsageError
from onnxfix.report.render.lines import Line
from onnxfix.report.render.stream import as_json, stream_at
from onnxfix.shown import Shown

if TYPE_CHECKING:
    from onnxfix.report.report import Errors, Report


class Kind(enum.StrEnum):
    """The kind of a document, as ``--report KIND:FILE`` names it. ``--format`` takes the names in ``FORMATS``
    (``config.table``): text, and all kinds except html."""

    json = "json"
    jsonl = "jsonl"
    sarif = "sarif"
    github = "github"
    gitlab = "gitlab"
    junit = "junit"
    markdown = "markdown"
    html = "html"


#: Ends of file names. Messages name the first one of a kind. GitLab's own examples write their report to the last one.
SUFFIXES = {
    ".json": Kind.json,
    ".jsonl": Kind.jsonl,
    ".ndjson": Kind.jsonl,
    ".sarif": Kind.sarif,
    ".sarif.json": Kind.sarif,
    ".gitlab.json": Kind.gitlab,
    ".xml": Kind.junit,
    ".md": Kind.markdown,
    ".markdown": Kind.markdown,
    ".html": Kind.html,
    ".htm": Kind.html,
    "gl-code-quality-report.json": Kind.gitlab,
}

#: For each kind a module beside this one and its function, which takes reports, errors and warnings. The function
#: escapes names with ``stream.escaped``, because they are untrusted. ``render_document`` makes json and jsonl itself.
_RENDERERS = {
    Kind.sarif: "sarif:render_sarif",
    Kind.github: "issues:render_github",
    Kind.gitlab: "issues:render_gitlab",
    Kind.junit: "issues:render_junit",
    Kind.markdown: "markdown:render_markdown",
    Kind.html: "html.render:render_html",
}
#: Of each result the module beside this one, and there ``name_page`` for readers and ``name_data`` for JSON.
_RESULTS = {
    "Report": "report:report",
    "Diagnosis": "diagnosis:diagnosis",
    "Lowering": "results:precision",
    "Reduction": "results:reduction",
    "LayerReport": "layers:layers",
    "Lifted": "results:lift",
    "Examination": "doctor:examination",
}
#: What shows a result on a terminal, where that is not its page.
_LINES = {
    "Report": "text:render_report",
    "Examination": "doctor:examination_lines",
    "ModelDifference": "difference:difference_lines",
    "View": "difference:view_lines",
    "Inspection": "layers:inspection_lines",
}


def target_of(text: str) -> tuple[Kind | None, Path]:
    """The kind and the file that ``FILE`` or ``KIND:FILE`` names; None for a file whose name says no kind.

    Pipes, devices and standard streams have no telling name; without a kind they get JSON.
    """
    head, colon, rest = text.partition(":")
    if colon and rest and head in Kind.__members__:
        return Kind(head), Path(rest)
    path = Path(text)
    ends = [end for end in SUFFIXES if path.name.lower().endswith(end)]
    kind = SUFFIXES[max(ends, key=len)] if ends else None
    return (Kind.json if kind is None and _stream(path) else kind), path


def refuse_unknown_kind(kind: Kind | None, path: Path, known: Sequence[Kind] = tuple(Kind)) -> Kind:
    """The kind, if it is one of ``known``.

    Raises:
        UsageError: it is not, or the file's name says none.
    """
    if kind is not None and kind in known:
        return kind
    named = {kind: end for end, kind in reversed(SUFFIXES.items())} | {Kind.junit: ".xml (JUnit)"}
    suffixes = ", ".join(named[one] for one in known if one in named)
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
    kind: Kind, reports: Sequence[Report] = (), errors: Errors = (), warnings: Sequence[str] = ()
) -> str:
    """The document about the models of one call.

    Args:
        kind: what to render.
        reports: in the order of the command line.
        errors: path and message of each model that could not be processed; an empty path is about the whole call.
        warnings: about the installation, such as a broken rule pack.
    """
    if kind is Kind.json:
        return as_json(
            {
                "reports": [report.to_dict() for report in reports],
                "errors": [{"path": path, "message": message} for path, message in errors],
                "warnings": list(warnings),
            }
        )
    if kind is Kind.jsonl:
        return "\n".join([*map(report_line, reports), *note_lines(errors, warnings)])
    return str(_load(_RENDERERS[kind])(reports, errors, warnings))


def report_line(report: Report) -> str:
    """A report as JSON on one line, with the keys of ``Report.to_dict``. In ASCII: names may be no valid Unicode."""
    return json.dumps(report.to_dict(), allow_nan=False)


def note_lines(errors: Errors = (), warnings: Sequence[str] = ()) -> Iterator[str]:
    """``{"path": ..., "error": message}`` for each error, and ``{"warning": text}`` for each warning, on one line."""
    for path, message in errors:
        yield json.dumps({"path": path, "error": message})
    for warning in warnings:
        yield json.dumps({"warning": warning})


def render_result(kind: Kind, result: object) -> str:
    """The result of a command that makes no report on models, as JSON, Markdown or HTML. A record that does not show
    itself has its fields as JSON."""
    if not isinstance(result, Shown):
        from onnxfix.report.report import plain  # lazy: start-up

        return as_json(plain(result))
    if kind is Kind.html:
        return page(result)
    if kind is Kind.markdown:
        return str(_load("markdown:render_page")(_describe(result, "page")))
    return as_json(result.to_dict())


def result_lines(result: object, *, quiet: bool = False, verbose: bool = False) -> Iterator[Line]:
    """What the command line prints. ``quiet``: the outcome only; ``verbose`` adds details."""
    lines = _LINES.get(_class_of(result))
    if lines is not None:
        yield from _load(lines)(result, quiet=quiet, verbose=verbose)
    else:
        yield from _load("terminal:page_lines")(_describe(result, "page"), quiet=quiet, verbose=verbose)


def data(result: Shown) -> dict[str, Any]:
    """What ``--format json`` writes of this result."""
    found: dict[str, Any] = _describe(result, "data")
    return found


def text(result: Shown) -> str:
    """What the command line prints, without styles."""
    return "\n".join(line.plain for line in result_lines(result))


def page(result: Shown) -> str:
    """A whole HTML page."""
    if _class_of(result) == "Report":
        return str(_load("html.render:render_html")([result]))
    return str(_load("html.render:render_page")(_describe(result, "page")))


def cell(result: Shown) -> str:
    """HTML for a notebook's cell: small, without a script, and legible on light and on dark pages."""
    if _class_of(result) == "Report":
        return str(_load("html.render:render_cell")(_describe(result, "page"), result))
    return str(_load("html.render:render_lines")(result_lines(result)))


def _class_of(result: object) -> str:
    """The name of the class that is described here: the result's own, or one that it is made from."""
    return next(one.__name__ for one in type(result).__mro__ if one.__name__ in (*_RESULTS, *_LINES))


def _describe(result: object, form: str) -> Any:
    """The page or the data of a result."""
    return _load(f"{_RESULTS[_class_of(result)]}_{form}")(result)


def _load(name: str) -> Any:
    """A function of a module beside this one: ``module:function``."""
    module, _, function = name.partition(":")
    return getattr(import_module(f"onnxfix.report.render.{module}"), function)
