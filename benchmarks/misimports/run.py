"""Changes ONNX's node models one thing at a time and lists where TensorRT reads another model than ONNX.

    python benchmarks/misimports/run.py [--only PATTERN] [--jobs 2] [--seconds 5] [--write-docs]

Exits with 1 where TensorRT reads a variant differently and no rule of onnxfix says so, 2 where it cannot run.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "rules", ROOT, HERE.parent):
    sys.path.insert(0, str(folder))

from command import parser_of

from misimports import report
from misimports.measure import Row, measured

DOCUMENT = HERE / "found.md"


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help="models whose name this pattern finds")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (2)")
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="S", help="for each step of a variant (5)"
    )
    parser.add_argument("--write-docs", action="store_true", help="write found.md; of all models only")
    given = parser.parse_args(words)
    if given.write_docs and given.only:
        parser.error("--write-docs is for a run of all models, without --only")
    return given


def main(words: list[str] | None = None) -> int:
    """Run as the module's docstring says."""
    given = arguments(words)
    began = time.monotonic()
    rows: list[Row] = []
    for number, row in enumerate(measured(given.only, given.jobs, given.seconds), 1):
        rows.append(row)
        if number % 2000 == 0:
            print(f"{number} variants, {time.monotonic() - began:.0f} s: {row.case}", file=sys.stderr)
    if not rows:
        print(f"error: no node model is called like {given.only!r}", file=sys.stderr)
        return 2
    text = "\n".join(report.document(rows)).rstrip() + "\n"
    print(text)
    if given.write_docs:
        DOCUMENT.write_text(text, encoding="utf-8")
    open_ones = report.unexplained(report.groups(rows))
    print(f"{len(open_ones)} groups without explanation, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return int(bool(open_ones))


if __name__ == "__main__":
    sys.exit(main())
