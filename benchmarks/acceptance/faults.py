"""What onnxfix did wrong, and what counts for nothing though it builds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from acceptance.cases import AS_IS, EXACT, Tool
from acceptance.measure import Row

#: A rescue of more TensorRT layers than this must be asked for.
MOST_LAYERS = 200

_NOISE = "the exact result is 0, and ONNX expects the 2e-7 that its own arithmetic left there, within 1e-7"
#: Models that no rewrite can be right on but by repeating ONNX's rounding. They do not count, and are no fault.
NOISE = {"test_dft_inverse": _NOISE, "test_dft_inverse_opset19": _NOISE}


def lost(row: Row, tool: Tool) -> bool:
    """Built as it is, and not after the tool, be it that there is no model."""
    return row.results[AS_IS.name].accepted and not row.results[tool.name].accepted


def rescued(row: Row, tool: Tool) -> bool:
    """Refused as it is, and counts after the tool."""
    return not row.results[AS_IS.name].accepted and row.results[tool.name].counts


def faults(rows: Sequence[Row], tools: Sequence[Tool]) -> list[str]:
    """What onnxfix did wrong, one line each; the exit code is 1 where there is one."""
    found = []
    for tool in tools:
        if tool.options is None:
            continue
        for row in rows:
            found += [f"{tool.name} {row.name}: {text}" for text in _faults(row, tool)]
    return found


def _faults(row: Row, tool: Tool) -> Iterator[str]:
    result = row.results[tool.name]
    if result.made.status not in ("ok", "refused"):
        yield f"onnxfix: {result.made.status}: {result.made.message}"
        return
    yield from (f"onnxfix says of itself: {text}" for text in result.made.problems)
    if lost(row, tool):
        yield f"lost: {result.words or result.made.message}"
    yield from (f"interface changed: {text}" for text in result.interface)
    if result.outputs.verdict == "wrong" and row.name not in NOISE:
        yield f"outputs wrong on {result.outputs.backend}: {result.outputs.reason}"
    if tool == EXACT and result.outputs.identical is False and result.outputs.verdict != "random":
        yield "exact fixes, and outputs are not bit-identical to the original's"
    grown = result.nodes > row.results[AS_IS.name].nodes  # else the layers are the model's own
    if tool == EXACT and rescued(row, tool) and grown and result.layers > MOST_LAYERS:
        yield f"rescued by default with {result.layers:,} layers"


def remarks(rows: Sequence[Row], tools: Sequence[Tool]) -> Iterator[str]:
    """What builds as it is or after onnxfix and does not count, by name and reason; what onnxfix refuses to read."""
    for tool in tools:
        if tool.peer:
            continue
        for row in rows:
            result = row.results[tool.name]
            if result.accepted and not result.counts:
                why = NOISE.get(row.name, result.outputs.reason[:240])
                yield f"- {tool.name} `{row.name}`: {result.outputs.verdict}: {why}"
            if result.made.status == "refused":
                yield f"- {tool.name} `{row.name}`: refused by onnxfix: {result.made.message}"
