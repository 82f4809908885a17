"""The results of ``layers``, what TensorRT made of each node, and of ``inspect``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxfix.report.render import ui
from onnxfix.report.render.findings import count_severities
from onnxfix.report.render.lines import Line, counted, labeled, line, size
from onnxfix.report.report import plain

if TYPE_CHECKING:
    from onnxfix.proof.asking import Builds, BuiltEngine
    from onnxfix.tensorrt.reading import Fate, LayerTable, NodeLayers
    from onnxfix.verbs.layering import LayerReport
    from onnxfix.verbs.viewing import Inspection

_WIDEST = 44
"""Characters of a name, or a list of names, in the table."""
_FATES: dict[Fate, str] = {
    "engine": "in layers of the engine",
    "merged": "merged or removed",
    "folded": "folded by the parser",
    "inside": "made of other nodes",
    "unknown": "unknown",
}


def layers_data(report: LayerReport) -> dict[str, Any]:
    """The model, TensorRT, ``nodes`` and ``layers`` as in ``LayerTable``, the ``builds`` that were compared and the
    files that were written, as dicts, lists, strings, numbers and None. Names of nodes are at a node's own level."""
    table, builds, tactics = report.table, report.builds, report.tactics
    return {
        "model": report.path,
        **_fields(table.build, "package", "version", "compute_capability", "status", "reason"),
        "exit_code": report.exit_code,
        **_fields(table, "source", "unknown"),
        "nodes": [_node_data(row) for row in table.nodes],
        **_fields(table, "layers", "autotuning"),
        "builds": None
        if builds is None
        else {
            **_fields(builds, "kept", "unexecuted", "oracle", "trials"),
            "engines": [_engine_data(engine) for engine in builds.engines],
        },
        **_fields(report, "engine", "tactics_file"),
        "tactics": len(tactics.entries) if tactics is not None else 0,
        "new_tactics": tactics.new if tactics is not None else 0,
        **_fields(report, "notes", "seconds"),
    }


def _fields(record: object, *names: str) -> dict[str, Any]:
    return {name: plain(getattr(record, name)) for name in names}


def _node_data(row: NodeLayers) -> dict[str, Any]:
    return {
        "node": row.place.node or row.place.output,
        **_fields(row.place, "op_type", "output", "graph", "source"),
        **_fields(row, "fate", "imported", "inputs", "outputs", "layers"),
        "fused_with": [one.node or one.output for one in row.fused_with],
        **_fields(row, "tactics", "reformats"),
    }


def _engine_data(engine: BuiltEngine) -> dict[str, Any]:
    return {
        "number": engine.number,
        "status": engine.table.build.status,
        "digest": engine.digest,
        "engine_bytes": engine.table.build.engine_bytes,
        "layers": len(engine.table.layers),
        "differs": [place.node or place.output for place in engine.differs],
        "outcome": engine.outcome,
        "error": engine.error if engine.error is not None and math.isfinite(engine.error) else None,
        "reason": engine.reason,
        "median_ms": engine.timing.median_ms if engine.timing is not None else None,
        "noise": engine.timing.noise if engine.timing is not None else None,
    }


def layers_page(report: LayerReport) -> ui.Page:
    """The outcome, the engines that were compared, the table of nodes, and the engine's layers."""
    table, build = report.table, report.table.build
    sections = [*ui.listed("notes", "Notes", (*report.notes, *table.unknown), "note")]
    entries = [*_engines(report)]
    if build.accepted:
        counts = Counter(row.fate for row in table.nodes)
        fates = (f"{counts[fate]} {words}" for fate, words in _FATES.items() if counts[fate])
        entries.append(f"{len(table.nodes)} nodes: {', '.join(fates)}")
    sections += ui.listed("engine", "Engine", entries)
    if table.nodes:
        head = ("Node", "Operator", "Precision", "Layers", "Fused with", "Reformats", "Tactics", "From")
        nodes = ui.Table(head, [*_rows(table)], "The nodes of the model in the engine")
        shown: ui.Shown = "always" if build.accepted else "never"
        sections.append(ui.Section("nodes", "Nodes", (nodes,), brief=True, folded=False, shown=shown))
    if build.accepted:
        sections.append(ui.Section("layers", "Layers", (ui.Lines([*_layers(table)]),), shown="verbose"))
    chip = ui.Chip("bad" if report.exit_code else "good", _outcome(report))
    lead = [ui.Paragraph(text, "written") for text in _files(report)]
    return ui.Page(report.path, "", chip, report.exit_code, lead, sections=sections)


def _outcome(report: LayerReport) -> str:
    """What TensorRT made of the model, in one sentence."""
    build = report.table.build
    if build.accepted:
        layers = f" of {len(report.table.layers)} layers" if report.table.source else ""
        return f"{report.product} builds an engine{layers} for compute capability {build.compute_capability}"
    what = "refuses it" if build.status == "refused" else "could not be asked"
    return f"{report.product} {what}: {build.reason}"


def _files(report: LayerReport) -> Iterator[str]:
    if report.engine:
        kept = f"engine {report.builds.kept}" if report.builds is not None else "the engine"
        yield f"{kept} → {report.engine}"
    if report.tactics_file and report.tactics is not None:
        yield f"{len(report.tactics.entries)} tactics → {report.tactics_file}"
    if report.tactics is not None and 0 < report.tactics.new < len(report.tactics.entries):
        yield f"{report.tactics.new} tactics were not in the file that was loaded, and were timed"


def _engines(report: LayerReport) -> Iterator[str]:
    """A line for each engine that was compared, and which one was kept."""
    builds = report.builds
    if builds is None:
        return
    if builds.unexecuted:
        yield f"no engine was executed: {builds.unexecuted}"
    elif builds.oracle:
        yield f"compared with {builds.oracle} on {builds.trials} inputs"
    for engine in builds.engines:
        kept = ", kept" if engine.number == builds.kept else ""
        yield f"engine {engine.number}: {', '.join(_figures(engine, builds))}{kept}"


def _figures(engine: BuiltEngine, builds: Builds) -> Iterator[str]:
    if not engine.digest:
        yield f"not built: {engine.reason}"
        return
    yield f"{len(engine.table.layers)} layers"
    first = next(other for other in builds.engines if other.digest)
    if engine is not first:
        same = "the same bytes as" if engine.digest == first.digest else "other bytes than"
        count = len(engine.differs)
        yield f"{same} engine {first.number}"
        yield f"{count} nodes with other layers or tactics" if count else "the same layers and tactics"
    if engine.error is not None:
        yield f"error {engine.error:.3g}"
    if engine.timing is not None:
        yield f"{engine.timing.median_ms:.3f} ms"
    if engine.outcome in ("wrong", "failed") or (engine.reason and engine.timing is None):
        yield f"{engine.outcome or 'not timed'}: {engine.reason}"


def _rows(table: LayerTable) -> Iterator[tuple[ui.Content, ...]]:
    numbers = {layer.name: number for number, layer in enumerate(table.layers)}
    kinds = {layer.name: layer.kind for layer in table.layers}
    for row in table.nodes:
        place = row.place
        read, written = ", ".join(row.inputs), ", ".join(row.outputs)
        yield (
            ui.name(_short(" / ".join((*place.graph, place.node or place.output)))),
            place.op_type,
            read if read == written else f"{read} → {written}",
            _listed([f"#{numbers[name]} {kinds[name]}" for name in row.layers]) or row.fate,
            _listed([one.node or one.output for one in row.fused_with]),
            " ".join(f"#{numbers[name]}" for name in row.reformats),
            " ".join(row.tactics),
            _short(place.source.where or place.source.module) if place.source is not None else "",
        )


def _listed(names: Sequence[str]) -> str:
    """The names, as many as fit, and how many more there are."""
    for count in range(len(names), 0, -1):
        more = f" +{len(names) - count}" if count < len(names) else ""
        text = ", ".join(names[:count]) + more
        if len(text) <= _WIDEST or count == 1:
            return text if len(text) <= _WIDEST else _short(names[0]) + more
    return ""


def _short(name: str) -> str:
    """A long name without its beginning: the end tells more."""
    return name if len(name) <= _WIDEST else f"…{name[1 - _WIDEST :]}"


def _layers(table: LayerTable) -> Iterator[str]:
    """The engine's layers, with their tensors."""
    for number, layer in enumerate(table.layers):
        yield f"#{number} {layer.kind} {layer.name}: {layer.tactic or layer.tactic_id or 'no tactic yet'}"
        for what, tensors in (("reads", layer.inputs), ("writes", layer.outputs)):
            for tensor in tensors:
                dims = ", ".join("?" if size == -1 else str(size) for size in tensor.dims)
                yield f"   {what:<6} {tensor.name}  {tensor.dtype} [{dims}] {tensor.layout}".rstrip()


_OPERATORS = 12
"""Operators that are named, the most frequent first."""


def inspection_lines(found: Inspection, **_: bool) -> Iterator[Line]:
    """One screen: interface, weights, operators, and what onnxfix finds."""
    opsets = ", ".join(f"{domain or 'opset'} {version}" for domain, version in found.opsets.items())
    origin = f"{found.producer}, " if found.producer else ""
    yield line(
        (found.path, "bold"), f"  {size(found.bytes)}  ({origin}IR {found.ir_version}, {opsets})", hang=2
    )
    yield from _tensors("inputs", found.inputs)
    yield from _tensors("outputs", found.outputs)
    types = ", ".join(f"{name} {size(count)}" for name, count in found.weights.items())
    yield labeled(
        "weights", f"{counted(found.elements, 'number')} in {counted(found.tensors, 'tensor')}: {types}"
    )
    operators = [*found.operators.operators.items()]
    named = ", ".join(f"{name} {count:,}" for name, count in operators[:_OPERATORS])
    more = len(operators) - _OPERATORS
    rest = f" and {counted(more, 'more operator')}" if more > 0 else ""
    inside = ((found.subgraphs, "subgraph"), (found.functions, "function"))
    where = "".join(f", {counted(count, noun)}" for count, noun in inside if count)
    yield labeled("nodes", f"{found.operators.compute:,}{where}: {named}{rest}")
    hazards = count_severities(found.findings) or "nothing found"
    yield labeled("hazards", f"{hazards} for {found.target} (onnxfix check lists them)")


def _tensors(label: str, them: Mapping[str, str]) -> Iterator[Line]:
    for number, (name, kind) in enumerate(them.items()):
        yield labeled("" if number else label, (name, "cyan"), f"  {kind}")
