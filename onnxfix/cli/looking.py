"""``onnxfix diff``, ``view`` and ``lift``, a look at models, and ``doctor``, a look at this machine. What loads onnx or
numpy is imported by the first three alone: ``doctor`` may find either of them broken."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

from onnxfix.cli.given import Given
from onnxfix.cli.guard import refuse_missing
from onnxfix.report.render.lines import Line, print_lines
from onnxfix.report.render.stream import as_json, output


def diff(given: Given) -> None:
    """Compare two models node by node."""
    from onnxfix.report.render.difference import difference_json, difference_lines  # lazy: start-up
    from onnxfix.verbs.difference.compare import diff  # lazy: start-up

    report = Path(given.fixes) if given.fixes is not None else None
    result = diff(Path(given.first), Path(given.second), report)
    lines = difference_lines(result, quiet=given.quiet, verbose=given.verbose)
    _publish(given, difference_json(result), lines, result.exit_code)


def inspect(given: Given) -> None:
    """Show what a model consists of."""
    from onnxfix.report.render.inspection import inspection_json, inspection_lines  # lazy: start-up
    from onnxfix.verbs.inspecting import inspect  # lazy: start-up

    result = inspect(Path(given.model), target=given.target)
    _publish(given, inspection_json(result), inspection_lines(result), 0)


def view(given: Given) -> None:
    """Show the nodes around a place."""
    from onnxfix.report.render.difference import view_json, view_lines  # lazy: start-up
    from onnxfix.verbs.viewing import view  # lazy: start-up

    result = view(
        Path(given.model),
        Path(given.output) if given.output is not None else None,
        rule=given.rule or "",
        node=given.node or "",
        place=given.place or "",
        distance=given.around,
        target=given.target,
    )
    _publish(given, view_json(result), view_lines(result), 0)


def lift(given: Given) -> None:
    """Write TensorRT's network as a model."""
    from onnxfix.report.render.documents import result_lines  # lazy: start-up
    from onnxfix.report.render.progress import Steps  # lazy: start-up
    from onnxfix.tensorrt.records import TrtOptions  # lazy: start-up
    from onnxfix.verbs.lifting import lift  # lazy: start-up

    model, trt = Path(given.model), TrtOptions(package=given.trt_package)
    refuse_missing(trt)
    with Steps(1) as steps:
        target = given.output if given.output is not None else model.with_name(f"{model.stem}.lifted.onnx")
        result = lift(given.model, target, trt=trt, progress=steps.of(given.model))
    _publish(given, as_json(result.to_dict()), result_lines(result), result.exit_code)


def doctor(given: Given) -> None:
    """Show which checks this machine can run."""
    from onnxfix.report.render.doctor import examination_lines  # lazy: start-up
    from onnxfix.verbs.examination import examine  # lazy: start-up

    result = examine()
    _publish(given, as_json(result.to_json()), examination_lines(result), result.exit_code)


def _publish(given: Given, document: str, lines: Iterable[Line], code: int) -> None:
    """Print a result and exit."""
    if given.format == "json":
        output().write(document + "\n")
    else:
        print_lines(lines)
    raise typer.Exit(code)
