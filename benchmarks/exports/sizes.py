"""Whether models run at the sizes that onnxfix finds for them, and fail at those that it excludes.

    python benchmarks/exports/sizes.py FOLDER [--json FILE]

For each model: the sizes of the plan by which results are verified, and those near to some more wishes, at which ONNX
Runtime has to run it; then, for each symbol, sizes that break a demand of some operator, at which it has to fail. Empty
tensors are counted apart. One session a model, without optimizations, which could drop a node that fails. The exit code
is 1 where sizes that were given failed, or sizes that were excluded ran; those with a 0 do not count.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from onnxfix.sizes.solve import GRID
from onnxfix.verification.feeds import plan
from onnxfix.verification.feeds.signature import Assignment, Signature, signature

#: Sizes that are wished for all symbols beside those of the plan: large images at 7 and more take minutes.
WISHES = (1, 3, 4)
LARGEST = 4096  # excluded sizes that are tried
HEAD = ("model", "symbols", "demands", "given: ran", "with a 0: ran", "excluded: failed", "with a 0: failed")
Row = dict[str, Any]


def given(known: Signature) -> list[Assignment]:
    """Sizes that the search gives, those of the plan first."""
    found = plan.assignments(known, {})
    for size in WISHES:
        one = known.search.near(dict.fromkeys(known.symbols, size), pins=known.search.ways[0])
        if one is not None and one not in found:
            found.append(one)
    return found


def excluded(known: Signature) -> Iterator[Assignment]:
    """For each symbol, the nearest sizes on both sides of a valid one that break a demand."""
    problem = known.search.problem(known.search.ways[0])
    valid = known.search.near(dict.fromkeys(known.symbols, 3), pins=known.search.ways[0])
    if valid is None:
        return
    for name in problem.free:
        bad = [
            size
            for size in sorted({*GRID, valid[name] - 1, valid[name] + 1})
            if 0 <= size <= LARGEST and problem.broken({**valid, name: size})
        ]
        below = [size for size in bad if size < valid[name]][-1:]
        above = [size for size in bad if size > valid[name]][:1]
        yield from ({**valid, name: size} for size in dict.fromkeys((*below, *above, *bad[-1:])))


def runner(path: Path, known: Signature) -> Callable[[Assignment], str]:
    """Runs the model at some sizes: why it fails, in a line, or "" where it does not."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(sizes: Assignment) -> str:
        try:
            session.run(None, plan.Feed(sizes, "small", 1).values(known))
        except Exception as error:
            return str(error).replace("\n", " ") or type(error).__name__
        return ""

    return run


def judged(path: Path) -> Row:
    """One model."""
    known = signature(path)
    run = runner(path, known)
    problem = known.search.problem(known.search.ways[0])
    row: Row = {"model": path.stem, "symbols": list(known.symbols), "demands": [*map(str, problem.demands)]}
    for kind, among in (("given", given(known)), ("excluded", list(excluded(known)))):
        row[kind] = [{"sizes": sizes, "error": run(sizes)} for sizes in among]
    return row


def counts(row: Row) -> list[tuple[int, int]]:
    """Sizes given and how many ran, sizes excluded and how many failed; each without and with a 0."""
    found = []
    for kind in ("given", "excluded"):
        for empty in (False, True):
            among = [one for one in row[kind] if (0 in one["sizes"].values()) == empty]
            found.append((len(among), sum(bool(one["error"]) == (kind == "excluded") for one in among)))
    return found


def table(rows: list[Row]) -> str:
    """The results as Markdown."""
    lines = [list(HEAD), ["---"] * len(HEAD)]
    for row in rows:
        cells = [f"`{row['model']}`", ", ".join(row["symbols"]), str(len(row["demands"]))]
        lines.append([*cells, *map(_cell, counts(row))])
    sums = [tuple(map(sum, zip(*column, strict=True))) for column in zip(*map(counts, rows), strict=True)]
    lines.append(["all", "", str(sum(len(row["demands"]) for row in rows)), *map(_cell, sums)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(found: Sequence[int]) -> str:
    tried, as_said = found
    return f"{tried}: {as_said}" if tried else "–"


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for path in sorted(arguments.folder.resolve().glob("*.onnx")):
        rows.append(judged(path))
        print(path.stem, counts(rows[-1]), flush=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(rows, indent=1))
    print(table(rows))
    return int(any(tried != as_said for row in rows for tried, as_said in counts(row)[::2]))


if __name__ == "__main__":
    sys.exit(main())
