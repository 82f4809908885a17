"""Random valid models, fixed and held to what onnxfix promises; the exit code is 1 where something does not hold.

    python benchmarks/random_models/run.py                          5,000 models of a fresh seed, which is printed
    python benchmarks/random_models/run.py --seed 7 --from 0 --to 300
    python benchmarks/random_models/run.py --seed 7 --only 41 --keep DIR --verbose
    python benchmarks/random_models/run.py --tensorrt build --command 100 --json FILE
    python benchmarks/random_models/run.py --table FILE...          the tables of the README, of one or more results

What is drawn and judged is in README.md.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from command import parser_of

from random_models import pieces, tables
from random_models.judge import Settings
from random_models.pool import judged

Row = dict[str, Any]


def main() -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    parser.add_argument("--seed", type=int, help="a fresh one without it")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--to", dest="last", type=int, default=5000)
    parser.add_argument("--only", type=int, help="this number alone")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--timeout", type=float, default=180.0, help="seconds for a model, native code included"
    )
    parser.add_argument("--tensorrt", choices=("no", "parse", "build"), default="no")
    parser.add_argument("--built", type=int, default=8, metavar="N", help="every Nth, with --tensorrt build")
    parser.add_argument(
        "--command", type=int, default=0, metavar="N", help="every Nth goes through the command"
    )
    parser.add_argument("--without-node-models", action="store_true", help="saves 6 s at the start")
    parser.add_argument("--keep", type=Path, help="a folder for the models with faults")
    parser.add_argument("--json", type=Path, help="write a line for each model to this file")
    parser.add_argument("--table", type=Path, nargs="+", help="only print the tables of such files")
    parser.add_argument("--verbose", action="store_true", help="print each row")
    arguments = parser.parse_args()
    if arguments.table:
        rows = [json.loads(line) for path in arguments.table for line in path.read_text().splitlines()]
        print("\n".join(tables.summary(rows)))
        return 0
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    numbers = range(arguments.first, arguments.last) if arguments.only is None else [arguments.only]
    print(f"seed {seed}, models {numbers[0]} to {numbers[-1]}", flush=True)
    began = time.monotonic()
    rows = list(_rows(arguments, seed, numbers))
    print("\n".join(tables.summary(rows)))
    print(f"{time.monotonic() - began:.0f} s")
    whole = len(numbers) >= len(pieces.examples())  # each rule has had its turn
    return int(any(row["faults"] for row in rows) or (whole and bool(tables.unreached(rows))))


def _rows(arguments: argparse.Namespace, seed: int, numbers: range | list[int]) -> Iterator[Row]:
    keep = str(arguments.keep) if arguments.keep else ""
    if keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    nodes = not arguments.without_node_models
    settings = Settings(seed, nodes, arguments.tensorrt, arguments.built, arguments.command, keep=keep)
    if nodes:
        pieces.node_models()  # once, before the processes are forked
    file = arguments.json.open("w", encoding="utf-8") if arguments.json else None
    for row in judged(settings, numbers, arguments.jobs, arguments.timeout):
        if file is not None:
            print(json.dumps(row), file=file, flush=True)
        if arguments.verbose:
            print(json.dumps(row, indent=1))
        for kind, text in row["faults"]:
            how = f"{row['safety']} {row['target']} {'/'.join(row['places'])} {' '.join(row['fixed'])}"
            print(f"{row['number']} {row['code']} [{how}] {kind}: {text}", flush=True)
        yield row
    if file is not None:
        file.close()


if __name__ == "__main__":
    sys.exit(main())
