"""``onnxfix diff``, ``view`` and ``lift``, a look at models, and ``doctor``, a look at this machine. What loads onnx or
numpy is imported by the first three alone: ``doctor`` may find either of them broken."""

from __future__ import annotations

from pathlib import Path

import typer

from onnxfix.cli.given import Given, refuse_missing
from onnxfix.report.render.documents import Kind, render_result, result_lines
from onnxfix.report.render.lines import print_lines
from onnxfix.report.render.stream import output


def diff(given: Given) -> None:
    """Compare two models node by node."""
    from onnxfix.verbs.difference.compare import diff  # lazy: start-up

    report = Path(given.fixes) if given.fixes is not None else None
    _publish(given, diff(Path(given.first), Path(given.second), report))


def inspect(given: Given) -> None:
    """Show what a model consists of."""
    from onnxfix.verbs.viewing import inspect  # lazy: start-up

    _publish(given, inspect(Path(given.model), target=given.target))


def view(given: Given) -> None:
    """Show the nodes around a place."""
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
    _publish(given, result)


def lift(given: Given) -> None:
    """Write TensorRT's network as a model."""
    from onnxfix.report.render.stream import Steps  # lazy: start-up
    from onnxfix.tensorrt.records import TrtOptions  # lazy: start-up
    from onnxfix.verbs.layering import lift  # lazy: start-up

    model, trt = Path(given.model), TrtOptions(package=given.trt_package)
    refuse_missing(trt)
    with Steps(1) as steps:
        target = given.output if given.output is not None else model.with_name(f"{model.stem}.lifted.onnx")
        result = lift(given.model, target, trt=trt, progress=steps.of(given.model))
    _publish(given, result)


def doctor(given: Given) -> None:
    """Show which checks this machine can run."""
    from onnxfix.verbs.examination import examine  # lazy: start-up

    _publish(given, examine())


def _publish(given: Given, result: object) -> None:
    if given.format == "json":
        output().write(render_result(Kind.json, result) + "\n")
    else:
        quiet, verbose = (getattr(given, name, False) for name in ("quiet", "verbose"))
        print_lines(result_lines(result, quiet=quiet, verbose=verbose))
    raise typer.Exit(getattr(result, "exit_code", 0))
