"""What results show of themselves in Python; see ``onnxfix.shown``. Only what a result needs is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from onnxfix.report.render.lines import Line
from onnxfix.shown import Shown


class _Forms(NamedTuple):
    """The command line's lines of a kind of result, and its JSON as data."""

    lines: Callable[[Any], Iterable[Line]]
    data: Callable[[Any], dict[str, Any]]


def text(result: Shown) -> str:
    """What the command line prints."""
    return "\n".join(line.plain for line in _forms(result).lines(result))


def data(result: Shown) -> dict[str, Any]:
    """What ``--format json`` writes of this result."""
    return _forms(result).data(result)


def cell(result: Shown) -> str:
    """HTML for a notebook's cell."""
    if _kind(result) == "Report":
        from onnxfix.report.render.notebook import report_cell  # lazy: start-up

        return report_cell(result)  # type: ignore[arg-type]
    from onnxfix.report.render.cell import lines_cell  # lazy: start-up

    return lines_cell(_forms(result).lines(result))


def page(result: Shown) -> str:
    """A whole HTML page."""
    if _kind(result) == "Report":
        from onnxfix.report.render.html import render_html  # lazy: start-up

        return render_html([result])  # type: ignore[list-item]
    if _kind(result) == "Diagnosis":
        from onnxfix.report.render.html.diagnosis import render_diagnosis_html  # lazy: start-up

        return render_diagnosis_html(result)  # type: ignore[arg-type]
    from onnxfix.report.render.cell import plain_page  # lazy: start-up

    return plain_page(f"onnxfix: {_kind(result)}", _forms(result).lines(result))


def _report() -> _Forms:
    from onnxfix.report.render.text import render_report  # lazy: only what is shown is loaded

    return _Forms(render_report, lambda found: found.to_dict())


def _diagnosis() -> _Forms:
    from onnxfix.report.render import diagnosis  # lazy: only what is shown is loaded

    return _Forms(diagnosis.diagnosis_lines, diagnosis.diagnosis_data)


def _lowering() -> _Forms:
    from onnxfix.report.render import precision  # lazy: only what is shown is loaded

    return _Forms(precision.precision_lines, precision.precision_data)


def _reduction() -> _Forms:
    from onnxfix.report.render import reduction  # lazy: only what is shown is loaded

    return _Forms(reduction.reduction_lines, reduction.reduction_data)


def _layers() -> _Forms:
    from onnxfix.report.render import layers  # lazy: only what is shown is loaded

    return _Forms(layers.layers_lines, layers.layers_data)


def _lifted() -> _Forms:
    from onnxfix.report.render import lift  # lazy: only what is shown is loaded

    return _Forms(lift.lifted_lines, lift.lifted_data)


def _examination() -> _Forms:
    from onnxfix.report.render import doctor  # lazy: it must work where onnx and numpy are broken

    return _Forms(doctor.examination_lines, lambda found: found.to_dict())


_KINDS = {
    "Report": _report,
    "Diagnosis": _diagnosis,
    "Lowering": _lowering,
    "Reduction": _reduction,
    "LayerReport": _layers,
    "Lifted": _lifted,
    "Examination": _examination,
}


def _kind(result: Shown) -> str:
    return next(one.__name__ for one in type(result).__mro__ if one.__name__ in _KINDS)


def _forms(result: Shown) -> _Forms:
    return _KINDS[_kind(result)]()
