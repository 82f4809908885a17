"""What results show of themselves in Python; see ``onnxfix.shown``. Only what a result needs is loaded."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from onnxfix.shown import Shown

#: For each kind of result, in onnxfix.report.render: the command line's lines, its JSON as data ("": the result's own),
#: and its page.
_FORMS = {
    "Report": ("text:render_report", "", "sections.report:report_page"),
    "Diagnosis": (
        "diagnosis:diagnosis_lines",
        "diagnosis:diagnosis_data",
        "sections.diagnosis:diagnosis_page",
    ),
    "Lowering": ("precision:precision_lines", "precision:precision_data", "sections.results:precision_page"),
    "Reduction": ("reduction:reduction_lines", "reduction:reduction_data", "sections.results:reduction_page"),
    "LayerReport": ("layers:layers_lines", "layers:layers_data", "sections.results:layers_page"),
    "Lifted": ("lift:lifted_lines", "lift:lifted_data", "sections.results:lift_page"),
    "Examination": ("doctor:examination_lines", "", "sections.results:doctor_page"),
}


def text(result: Shown) -> str:
    """What the command line prints."""
    return "\n".join(line.plain for line in _call(result, 0))


def data(result: Shown) -> dict[str, Any]:
    """What ``--format json`` writes of this result."""
    return cast(dict[str, Any], _call(result, 1))


def markdown(result: Shown) -> str:
    """What ``--format markdown`` writes of a result that has a page."""
    from onnxfix.report.render.markdown import render_page  # lazy: start-up

    return render_page(_call(result, 2))


def cell(result: Shown) -> str:
    """HTML for a notebook's cell."""
    if _kind(result) == "Report":
        from onnxfix.report.render.html.render import render_cell  # lazy: start-up

        return render_cell(_call(result, 2), result)  # type: ignore[arg-type]
    from onnxfix.report.render.cell import lines_cell  # lazy: start-up

    return lines_cell(_call(result, 0))


def page(result: Shown) -> str:
    """A whole HTML page."""
    from onnxfix.report.render.html.render import render_html, render_page  # lazy: start-up

    if _kind(result) == "Report":
        return render_html([result])  # type: ignore[list-item]
    return render_page(_call(result, 2))


def _kind(result: Shown) -> str:
    return next(one.__name__ for one in type(result).__mro__ if one.__name__ in _FORMS)


def _call(result: Shown, form: int) -> Any:
    """The lines, the data or the page of a result."""
    module, _, name = _FORMS[_kind(result)][form].partition(":")
    if not module:
        return result.to_dict()
    make: Callable[[Any], Any] = getattr(import_module(f"onnxfix.report.render.{module}"), name)
    return make(result)
