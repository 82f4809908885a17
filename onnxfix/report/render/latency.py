"""The latency of engines, as lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.report.render.lines import Line, line

if TYPE_CHECKING:
    from onnxfix.trt.timing import Latency, Timing

_LAUNCHES = {"cuda-graph": "CUDA graphs", "stream": "stream launches"}
_MIB = 1 << 20


def latency_lines(found: Latency) -> Iterator[Line]:
    """The medians, then the times of loading and building; or why nothing was measured."""
    if found.fixed is None:
        yield line(f"  {'latency':<10}", ("not measured", "dim"), f": {found.reason}")
        return
    sides = [("original ", found.original), ("new ", found.fixed)]
    there = [(name if found.original is not None else "", one) for name, one in sides if one is not None]
    medians = ", ".join(f"{name}{_ms(one.median_ms)}" for name, one in there)
    style = "yellow" if found.comparison == "slower" else ""
    yield line(f"  {'latency':<10}", f"{medians} ({_ratio(found)}", (_slower(found), style), _how(found))
    if found.fallback:
        yield line(f"  {'':<10}no CUDA graphs: {found.fallback}")
    yield line(f"  {'':<10}{'; '.join(_costs([one for _, one in there]))}")


def _ratio(found: Latency) -> str:
    return "" if found.ratio is None else f"{found.ratio:.2f}x, "


def _slower(found: Latency) -> str:
    return "slower, " if found.comparison == "slower" else ""


def _how(found: Latency) -> str:
    assert found.fixed is not None
    runs = {one.runs for one in (found.original, found.fixed) if one is not None}
    each = " each" if found.original is not None else ""
    count = f"{min(runs)} run{'s' * (min(runs) > 1)}{each}"
    return f"{_LAUNCHES.get(found.launch, '')}, {count}; noise {_percent(found.noise or 0.0)})"


def _ms(value: float) -> str:
    return f"{value:.3f} ms" if value >= 0.1 else f"{value:.4f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def _costs(sides: list[Timing]) -> Iterator[str]:
    """Original and fixed, in this order."""
    yield f"loaded in {_pair(one.load_seconds for one in sides)} s"
    yield f"first run {_pair(one.jit_seconds for one in sides)} s more"
    yield f"built in {_pair(one.build_seconds for one in sides)} s"
    yield f"engine {_pair(one.engine_bytes / _MIB for one in sides)} MiB"


def _pair(values: Iterator[float]) -> str:
    return " → ".join(f"{value:.2f}" for value in values)
