"""``view``: the nodes around a finding or a node, written as a model that opens in Netron."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from onnxfix import engine
from onnxfix.errors import UsageError
from onnxfix.files import apart, atomic, loading, regular, saving
from onnxfix.forks import forked
from onnxfix.model import Model
from onnxfix.options import Rules, RunOptions
from onnxfix.pipeline.picturing import Atlas
from onnxfix.pipeline.plan import planned
from onnxfix.place import Place
from onnxfix.report.findings import Finding
from onnxfix.report.from_engine import finding_of
from onnxfix.verification.checker import check
from onnxfix.viewing.extract import around, extract

_SECONDS = 60.0
"""Time for onnx.checker."""


@dataclass(frozen=True)
class View:
    """What was written: ``finding`` (None: a node that was named) with the ``nodes`` around it, in ``output``.
    ``others`` are the places of further findings of the rule. ``complaint`` is onnx.checker's about the part, "" where
    it passes."""

    path: str
    output: str
    finding: Finding | None
    nodes: int
    others: tuple[Place, ...] = ()
    complaint: str = ""


def view(
    source: Path,
    output: Path,
    *,
    rule: str = "",
    node: str = "",
    place: str = "",
    distance: int = 2,
    target: str | None = None,
) -> View:
    """Write the nodes around a finding of a rule, or around a node, as a model.

    Args:
        source: the model.
        output: the file to write.
        rule: the code or the name of the rule.
        node: the name of a node, or of a value that it computes, also with ``*``: all such nodes of one graph.
        place: of which finding: the name of its node or value, also with ``*``; "": the first one.
        distance: how many values away the other nodes may be.
        target: the TensorRT to judge for, by name.

    Raises:
        ModelError: the model cannot be read.
        UsageError: the rule finds nothing there, or at no node, there is no such node, or the file may not be written.
    """
    if bool(rule) == bool(node) or (node and place):
        raise UsageError(
            "name what to show: --rule RULE, with --place for one of its findings, or --node NAME"
        )
    plan = planned(RunOptions(rules=Rules(select=[rule] if rule else None, target=target)), None)
    loaded = loading.load(source)
    _refuse_output(loaded, output)
    model = Model(loaded.proto, loaded.base_dir)
    model.target = plan.target
    finding: Finding | None = None
    others: tuple[Place, ...] = ()
    if node:
        named = [one for one in model.nodes() if _named(one.at, node) or node in one.proto.output]
        if not named:
            raise UsageError(f"{source}: has no node {node!r}, and none that computes a value of that name")
        seeds = [one for one in named if one.scope is named[0].scope]
        text = f"--node {node}"
    else:
        found = [finding_of(one) for one in engine.check(model, plan.rules)]
        atlas = Atlas(model)
        finding = next((one for one in found if _named(one.place, place) and atlas.at(one.place)), None)
        if finding is None:
            where = f" at {place!r}" if place else ""
            raise UsageError(
                f"{source}: {rule} finds nothing{where} that could be shown; onnxfix check lists the findings"
            )
        seeds = list(atlas.at(finding.place))
        text = f"{finding.code} {finding.name}: {finding.message}"
        others = tuple(one.place for one in found if one is not finding)
    nodes = around(seeds, distance)
    title = finding.place.text if finding is not None else seeds[0].at.text
    part = extract(model, nodes, dict.fromkeys(seeds, text), f"{title}\n{text}")
    loaded.check()
    atomic.put(output, saving.serialize(part))
    return View(str(source), str(output), finding, len(nodes), others, _complaint(output))


def _named(place: Place, wanted: str) -> bool:
    names = (place.node, place.output, place.short, place.text)
    return not wanted or any(name == wanted or fnmatchcase(name, wanted) for name in names if name)


def _refuse_output(loaded: loading.Loaded, output: Path) -> None:
    if output.is_dir():
        raise UsageError(f"{output}: is a directory; name the output file")
    real = regular.destination(output)
    if not real.parent.is_dir():
        raise UsageError(f"{real.parent}: no such directory for the output")
    apart.separate([apart.File("the output", output)], list(apart.files_of(loaded)))


def _complaint(path: Path) -> str:
    """What onnx.checker says about the file; it is foreign native code."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder:
        outcome = forked(check, str(path), folder, timeout=_SECONDS)
    return (
        outcome.message if outcome.status != "ok" else str(outcome.value.checker or outcome.value.inference)
    )
