"""Give damaged models to onnxfix, and hold every run to what SECURITY.md promises.

    python benchmarks/fuzzing/run.py [--seed N] [--from A] [--count N | --only N] [--jobs N] [--minutes M]
                                     [--groups NAMES] [--verified SHARE] [--keep DIR]

Each number of a seed is one damaged model and one command. Without ``--seed`` a new one is drawn and printed.
``--only`` shows one number: what is damaged, the command, what it says. ``--keep`` writes the smallest case of each
kind of fault into a folder. The exit code is 1 where a run showed a fault. Linux only.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from command import parser_of

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a thread that numpy starts is missing in a fork

from fuzzing import harness, seeds, tables
from fuzzing.cases import VERIFIED_SHARE, Case, drawn
from fuzzing.running import Outcome, run, saved


def attempt(options: argparse.Namespace, deadline: float, number: int) -> Outcome | None:
    """In a process of the pool: try a number, unless time is up."""
    if time.monotonic() > deadline:
        return None
    tell = said if options.only is not None else id
    return run(drawn(options.seed, number, options.groups, options.verified), tell)


def outcomes(options: argparse.Namespace) -> list[Outcome]:
    """What became of each number, in order."""
    numbers = range(options.first, options.first + options.count) if options.only is None else [options.only]
    deadline = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    sys.stdout.flush()  # else each fork prints what is left
    with ProcessPoolExecutor(options.jobs, get_context("fork"), harness.prepare) as pool:
        found = list(pool.map(partial(attempt, options, deadline), numbers))
    return [outcome for outcome in found if outcome is not None]


def keep(options: argparse.Namespace, found: list[Outcome]) -> None:
    """Write the smallest case of each kind of fault into a folder."""
    groups: dict[tuple[str, str], Outcome] = {}
    for one in sorted(found, key=lambda one: one.bytes):
        for fault in one.faults:
            groups.setdefault((fault.kind, fault.sign), one)
    for place, ((kind, sign), one) in enumerate(sorted(groups.items())):
        fault = next(fault for fault in one.faults if (fault.kind, fault.sign) == (kind, sign))
        case = drawn(options.seed, one.number, options.groups, options.verified)
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{place:02} {kind} {sign}"[:60])
        saved(case, fault, options.keep / name, {"seed": options.seed, "number": one.number})
        print(f"{options.keep / name}: {one.bytes} bytes, {case.command.text}")


def show(case: Case) -> None:
    """One number, in full."""
    print(
        f"number {case.number} of seed {case.seed}: {case.model}, {len(case.data)} bytes, {', '.join(case.mutators)}"
    )
    print(f"$ {case.command.text}")


def said(ended: harness.Ended) -> None:
    """What a step printed, and how it ended."""
    for text in (ended.out, ended.err):
        sys.stdout.write(text.decode("utf-8", "backslashreplace"))
    print(
        f"exit code {ended.code}, {ended.cpu:.2f} s of {ended.wall:.2f} s, {ended.memory >> 20} MiB",
        flush=True,
    )


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--seed", help="any text; default: a new one")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="begin no more after this time")
    parser.add_argument("--groups", type=lambda text: tuple(text.split(",")), default=seeds.ALL)
    parser.add_argument("--verified", type=float, default=VERIFIED_SHARE, help="share that executes models")
    parser.add_argument("--keep", type=Path, help="a folder for what was found")
    return parser.parse_args()


def main() -> int:
    """Run as the module's docstring says."""
    options = parsed()
    options.seed = options.seed or secrets.token_hex(4)
    print(f"seed {options.seed}", flush=True)
    for group in options.groups:
        seeds.ring(group)
    if options.only is not None:
        show(drawn(options.seed, options.only, options.groups, options.verified))
    found = outcomes(options)
    if options.keep:
        keep(options, found)
    print("\n".join([*tables.tables(found), "", tables.costs(found), "", *tables.findings(found)]))
    return int(any(one.faults for one in found))


if __name__ == "__main__":
    sys.exit(main())
