"""Changes ONNX's node models one thing at a time and lists where TensorRT reads another model than ONNX.

    python benchmarks/misimports/run.py [--only PATTERN] [--jobs 2] [--seconds 5] [--json FILE] [--from-json FILE]
        [--write-docs]

Exits with 1 where TensorRT reads a variant differently and no rule of onnxfix says so, 2 where it cannot run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "rules", ROOT, HERE.parent):
    sys.path.insert(0, str(folder))

from misimports import report
from misimports.measure import Row, measured, row_of

DOCUMENT = HERE / "found.md"


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="models whose name this regular expression finds"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (2)")
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="S", help="limit for each step of a variant (5)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every variant with its result")
    parser.add_argument("--write-docs", action="store_true", help="write found.md; of all models only")
    parser.add_argument(
        "--from-json", type=Path, metavar="FILE", help="run nothing: list what --json FILE wrote"
    )
    given = parser.parse_args(words)
    if given.jobs < 1 or given.seconds <= 0:
        parser.error("--jobs and --seconds are greater than 0")
    if given.write_docs and given.only:
        parser.error("--write-docs is for a run of all models, without --only")
    return given


def main(words: list[str] | None = None) -> int:
    """Run as the module's docstring says."""
    given = arguments(words)
    began = time.monotonic()
    done = [0, 0]

    def progress(case: str, rows: list[Row]) -> None:
        done[0] += 1
        done[1] += len(rows)
        if sys.stderr.isatty() or done[0] % 200 == 0:
            print(
                f"{done[0]} models, {done[1]} variants, {time.monotonic() - began:.0f} s: {case}",
                file=sys.stderr,
            )

    if given.from_json is not None:
        rows = [row_of(one) for one in json.loads(given.from_json.read_text(encoding="utf-8"))]
    else:
        rows = measured(given.only, given.jobs, given.seconds, progress)
    if not rows:
        print(f"error: no node model is called like {given.only!r}", file=sys.stderr)
        return 2
    text = "\n".join(report.document(rows)).rstrip() + "\n"
    print(text)
    if given.json is not None:
        given.json.write_text(
            json.dumps([asdict(row) for row in rows], indent=1, default=str), encoding="utf-8"
        )
    if given.write_docs:
        DOCUMENT.write_text(text, encoding="utf-8")
    open_ones = report.unexplained(report.groups(rows))
    print(f"{len(open_ones)} groups without explanation, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return int(bool(open_ones))


if __name__ == "__main__":
    sys.exit(main())
