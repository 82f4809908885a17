"""The tables of the README: node models by what became of them, exports one a line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from network import causes

if TYPE_CHECKING:
    from network.mutants import Row as Mutated
    from network.node_models import Row


def node_models(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: how many of each status, then every model that is not equal, by cause."""
    total = Counter(row.status for row in rows)
    equal = [row for row in rows if row.status == "equal"]
    ort = sum(row.backend == "ort-cpu" for row in equal)
    share = 100.0 * len(equal) / max(len(rows), 1)
    yield f"**{len(equal)} of {len(rows)} models that TensorRT builds are read back, run and equal: {share:.1f} %.**"
    yield ""
    named = {
        "built": len(rows),
        "equal": len(equal),
        "of these by ONNX Runtime": ort,
        "by onnx.reference": len(equal) - ort,
        "TensorRT reads it differently": total["differs"],
        "layer kind not lifted": total["unlifted"] + total["failed"],
        "cannot be run": total["not run"],
        "no kernels: rounded elsewhere": total["rounding"],
        "random": total["random"],
        "layers": f"{sum(row.layers for row in rows):,}",
        "parse, s": f"{sum(row.seconds[0] for row in rows):.1f}",
        "read back, s": f"{sum(row.seconds[1] for row in rows):.1f}",
    }
    yield f"| {' | '.join(named)} |"
    yield "|---" * len(named) + "|"
    yield f"| {' | '.join(map(str, named.values()))} |"
    yield from _by_cause(rows)
    yield from _listed("Layer kind not lifted", [row for row in rows if row.status in ("unlifted", "failed")])
    yield from _listed("Cannot be run", [row for row in rows if row.status == "not run"])
    yield from _listed(
        "ONNX Runtime has no kernels for the type, and rounds elsewhere",
        [row for row in rows if row.status == "rounding"],
    )
    yield from _listed("Random", [row for row in rows if row.status == "random"])
    yield from _listed("Equal by onnx.reference", [row for row in equal if row.backend != "ort-cpu"])


def _by_cause(rows: Sequence[Row]) -> Iterator[str]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.status == "differs":
            groups[row.cause or "unknown"].append(row)
    if groups:
        yield from ("", "### TensorRT reads it differently", "")
        yield "| cause | what | layer | models | for example |"
        yield "|---|---|---|---|---|"
    known = {cause.key: cause for cause in causes.CAUSES}
    for key in sorted(groups):
        what = known.get(key)
        names = " ".join(f"`{row.name}`" for row in groups[key])
        title, layer = (what.title, what.layer) if what is not None else ("", "")
        one = groups[key][0]
        yield f"| {key} | {title} | {layer} | {len(groups[key])}: {names} | {cell(one.shown or one.reason)} |"


def _listed(title: str, rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    groups: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        groups[row.shown or row.without or (row.gaps[0] if row.gaps else row.reason)].append(row.name)
    yield from ("", f"### {title}", "", "| why | models |", "|---|---|")
    for reason in sorted(groups):
        names = " ".join(f"`{name}`" for name in groups[reason])
        yield f"| {cell(reason)} | {len(groups[reason])}: {names} |"


def cell(text: str) -> str:
    """Text that fits into a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def exports(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Markdown: one line for each model."""
    yield (
        "| model | MB | shapes | largest difference, relative | float32 twin | bit-identical runs | layers "
        "| nodes read back | parse, s | read back, s | run, s (original) | trt-build, s (processors) "
        "| trt-network, s (processors) | times (processors) | largest process, MB | together, MB |"
    )
    yield "|---|" + "---|" * 15
    for row in rows:
        one = row["agreement"]
        cells = [
            f"`{one['name']}`",
            f"{one['megabytes']:,.1f}" if one["megabytes"] < 10 else f"{one['megabytes']:,.0f}",
            _shapes(one["shapes"]),
            _difference(one),
            "–" if one["twin"] is None else f"{one['twin']:.1e}",
            f"{one['identical']}/{len(one['shapes'])}",
            f"{one['layers']:,}",
            f"{one['nodes']:,}",
            f"{one['seconds'][0]:.2f}",
            f"{one['seconds'][1]:.2f}",
            f"{one['run_seconds']:.2f} ({one['original_seconds']:.2f})",
        ]
        if row["cost"] is not None:
            wall, busy = (
                [row["cost"][kind][rung] for rung in ("trt-build", "trt-network")]
                for kind in ("seconds", "processor")
            )
            largest, together = row["peak"]["trt-network"]
            cells += [
                f"{wall[0]:.2f} ({busy[0]:.2f})",
                f"{wall[1]:.2f} ({busy[1]:.2f})",
                f"{wall[1] / wall[0]:.2f} ({busy[1] / busy[0]:.2f})",
                f"{largest:,}",
                f"{together:,}",
            ]
        else:
            cells += ["–"] * 5
        yield "| " + " | ".join(cells) + " |"


def _difference(one: dict[str, Any]) -> str:
    if one["status"] != "lifted" or one["fault"]:
        return f"{one['status']}: {cell(one['fault'])}"
    half = f" ({one['half']}: {'within' if one['within'] else 'out of'} its tolerance)" if one["half"] else ""
    return f"{one['relative']:.1e}{half}"


def _shapes(shapes: Sequence[dict[str, int]]) -> str:
    """``batch, seq: 1,1 2,2 3,5``; ``static`` for a model without symbols."""
    if not shapes or not shapes[0]:
        return "static"
    names = ", ".join(shapes[0])
    return f"{names}: " + " ".join("×".join(str(size) for size in one.values()) for one in shapes)


def mutants(rows: Sequence[Mutated]) -> Iterator[str]:
    """Markdown: how many show and are caught, then one line for each mutant."""
    showing = [row for row in rows if row.outputs]
    caught = sum(row.caught for row in showing)
    alone = sum(row.by_outputs for row in showing)
    yield f"**{len(rows)} mutants, {len(showing)} of which change an output: {caught} are caught.**"
    yield f"By outputs alone, without comparing weights: {alone}."
    yield ""
    yield (
        "| model | changed | from what to what | runs with another bit | largest difference, relative "
        "| by outputs alone | the rung |"
    )
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        said = row.reason if row.outputs or row.caught else "changes no output"
        yield (
            f"| `{row.model}` | {row.kind} | {cell(row.what)} | {row.outputs}/{row.runs} | {row.relative:.1e} "
            f"| {'yes' if row.by_outputs else 'no'} | {cell(said)} |"
        )
