"""The result of ``layers`` as text and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from onnxfix.report.render.lines import Line, columns, line
from onnxfix.report.render.stream import printable

if TYPE_CHECKING:
    from onnxfix.report.layers import LayerReport
    from onnxfix.trt.layer_records import Fate, NodeLayers
    from onnxfix.verification.rungs.builds import Builds, BuiltEngine

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
    table, build = report.table, report.table.build
    return {
        "model": report.path,
        "package": build.package,
        "version": build.version,
        "compute_capability": build.compute_capability,
        "status": build.status,
        "reason": build.reason,
        "exit_code": report.exit_code,
        "source": table.source,
        "unknown": table.unknown,
        "nodes": [_node(row) for row in table.nodes],
        "layers": [dataclasses.asdict(layer) for layer in table.layers],
        "autotuning": [dataclasses.asdict(one) for one in table.autotuning],
        "builds": _builds(report.builds) if report.builds is not None else None,
        "engine": report.engine,
        "tactics_file": report.tactics_file,
        "tactics": len(report.tactics.entries) if report.tactics is not None else 0,
        "new_tactics": report.tactics.new if report.tactics is not None else 0,
        "notes": report.notes,
        "seconds": report.seconds,
    }


def _node(row: NodeLayers) -> dict[str, Any]:
    place = row.place
    return {
        "node": place.node or place.output,
        "op_type": place.op_type,
        "output": place.output,
        "graph": place.graph,
        "fate": row.fate,
        "imported": row.imported,
        "inputs": row.inputs,
        "outputs": row.outputs,
        "layers": row.layers,
        "fused_with": [one.node or one.output for one in row.fused_with],
        "tactics": row.tactics,
        "reformats": row.reformats,
    }


def _builds(found: Builds) -> dict[str, Any]:
    return {
        "kept": found.kept,
        "unexecuted": found.unexecuted,
        "oracle": found.oracle,
        "trials": found.trials,
        "engines": [_engine(one) for one in found.engines],
    }


def _engine(one: BuiltEngine) -> dict[str, Any]:
    return {
        "number": one.number,
        "status": one.table.build.status,
        "digest": one.digest,
        "engine_bytes": one.table.build.engine_bytes,
        "layers": len(one.table.layers),
        "differs": [place.node or place.output for place in one.differs],
        "outcome": one.outcome,
        "error": one.error if one.error is not None and math.isfinite(one.error) else None,
        "reason": one.reason,
        "median_ms": one.timing.median_ms if one.timing is not None else None,
        "noise": one.timing.noise if one.timing is not None else None,
    }


def layers_lines(report: LayerReport, *, quiet: bool = False, verbose: bool = False) -> Iterator[Line]:
    """The outcome; unless ``quiet``, the engines that were compared and the table of nodes; where ``verbose``, the
    engine's layers too."""
    build = report.table.build
    yield line(f"{report.path}: {outcome(report)}", style="bold", hang=2)
    for text in _files(report):
        yield line(f"  {text}", hang=4)
    if quiet:
        return
    for note in notes(report):
        yield line(f"  note: {note}", hang=8)
    for text in _engines(report):
        yield line(f"  {text}", hang=4)
    if not build.accepted:
        return
    yield from _table(report)
    if verbose:
        yield from _layers(report)


def notes(report: LayerReport) -> tuple[str, ...]:
    """Notes for a reader."""
    return (*report.notes, *report.table.unknown)


def facts(report: LayerReport) -> Iterator[str]:
    """What was written, the engines that were compared, and the nodes by what became of them."""
    yield from _files(report)
    yield from _engines(report)


def _engines(report: LayerReport) -> Iterator[str]:
    if report.builds is not None:
        yield from _compared(report.builds)
    if report.table.build.accepted:
        counts = Counter(row.fate for row in report.table.nodes)
        fates = (f"{counts[fate]} {words}" for fate, words in _FATES.items() if counts[fate])
        yield f"{len(report.table.nodes)} nodes: {', '.join(fates)}"


def outcome(report: LayerReport) -> str:
    """What TensorRT made of the model, in one sentence."""
    build = report.table.build
    if build.accepted:
        target = f"for compute capability {build.compute_capability}"
        count = f" of {len(report.table.layers)} layers" if report.table.source else ""
        return f"{report.product} builds an engine{count} {target}"
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


def _compared(found: Builds) -> Iterator[str]:
    """A line for each engine, and which one was kept."""
    if found.unexecuted:
        yield f"no engine was executed: {found.unexecuted}"
    elif found.oracle:
        yield f"compared with {found.oracle} on {found.trials} inputs"
    for one in found.engines:
        kept = ", kept" if one.number == found.kept else ""
        yield f"engine {one.number}: {', '.join(_figures(one, found))}{kept}"


def _figures(one: BuiltEngine, found: Builds) -> Iterator[str]:
    if not one.digest:
        yield f"not built: {one.reason}"
        return
    yield f"{len(one.table.layers)} layers"
    first = next(other for other in found.engines if other.digest)
    if one is not first:
        same = "the same bytes as" if one.digest == first.digest else "other bytes than"
        count = len(one.differs)
        yield f"{same} engine {first.number}"
        yield f"{count} nodes with other layers or tactics" if count else "the same layers and tactics"
    if one.error is not None:
        yield f"error {one.error:.3g}"
    if one.timing is not None:
        yield f"{one.timing.median_ms:.3f} ms"
    if one.outcome in ("wrong", "failed") or (one.reason and one.timing is None):
        yield f"{one.outcome or 'not timed'}: {one.reason}"


def _table(report: LayerReport) -> Iterator[Line]:
    """A row for each node, in stored order; two lines without columns where the terminal is too narrow for the rows."""
    found = [tuple(map(printable, row)) for row in rows(report)]
    widths = [max(map(len, column)) for column in zip(*found, strict=True)]
    head, terminal = found[0], columns()
    if terminal is not None and sum(widths) + 2 * len(widths) > terminal:
        for cells in found[1:]:
            yield line("  ", (cells[0], "bold"), "".join(f"  {cell}" for cell in cells[1:4] if cell), hang=4)
            more = "; ".join(f"{name} {cell}" for name, cell in zip(head[4:], cells[4:], strict=True) if cell)
            if more:
                yield line(f"    {more}", hang=6)
        return
    for number, cells in enumerate(found):
        text = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        yield line(f"  {text}", style="" if number else "bold")


def rows(report: LayerReport) -> Iterator[tuple[str, ...]]:
    """The cells of the table: its head, then a row for each node, in stored order."""
    numbers = {layer.name: number for number, layer in enumerate(report.table.layers)}
    kinds = {layer.name: layer.kind for layer in report.table.layers}
    yield "node", "operator", "precision", "layers", "fused with", "reformats", "tactics"
    for row in report.table.nodes:
        place = row.place
        made = [f"#{numbers[name]} {kinds[name]}" for name in row.layers]
        yield (
            _short(" / ".join((*place.graph, place.node or place.output))),
            place.op_type,
            _precision(row),
            _listed(made) or row.fate,
            _listed([one.node or one.output for one in row.fused_with]),
            " ".join(f"#{numbers[name]}" for name in row.reformats),
            " ".join(row.tactics),
        )


def _precision(row: NodeLayers) -> str:
    """The element types that the network's layers read and write."""
    read, written = ", ".join(row.inputs), ", ".join(row.outputs)
    return read if read == written else f"{read} → {written}"


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


def _layers(report: LayerReport) -> Iterator[Line]:
    """The engine's layers, with their tensors."""
    for number, layer in enumerate(report.table.layers):
        tactic = layer.tactic or layer.tactic_id or "no tactic yet"
        yield line(f"  #{number} {layer.kind} {layer.name}: {tactic}", style="bold", hang=5)
        for what, tensors in (("reads", layer.inputs), ("writes", layer.outputs)):
            for tensor in tensors:
                dims = ", ".join("?" if size == -1 else str(size) for size in tensor.dims)
                text = f"{tensor.name}  {tensor.dtype} [{dims}] {tensor.layout}"
                yield line(f"     {what:<6} {text}".rstrip(), hang=12)
