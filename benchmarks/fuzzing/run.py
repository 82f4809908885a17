"""Give damaged models to onnxfix, and hold every run to what SECURITY.md promises.

    python benchmarks/fuzzing/run.py [--seed N] [--count N | --from A --to B | --only N] [--jobs N] [--minutes M]
                                     [--groups NAMES] [--verified SHARE] [--keep DIR] [--result FILE.jsonl]
    python benchmarks/fuzzing/run.py --merge FILE.jsonl... [--detailed]

Each number of a seed is one damaged model and one command. Without ``--seed`` a new one is drawn and printed.
``--only`` shows one number: what is damaged, the command, what it says. ``--keep`` writes the smallest case of each
kind of fault into a folder. The exit code is 1 where a run showed a fault. Linux only.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from command import parser_of

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a thread that numpy starts is missing in a fork

from fuzzing import harness, seeds, tables
from fuzzing.cases import VERIFIED_SHARE, Case, drawn
from fuzzing.running import Outcome, outcome_of, run, saved


def numbers(options: argparse.Namespace) -> range:
    """The numbers to try."""
    if options.only is not None:
        return range(options.only, options.only + 1)
    start = options.first
    return range(start, options.last + 1 if options.last is not None else start + options.count)


def work(options: argparse.Namespace, share: int, path: Path) -> None:
    """Try every ``jobs``-th number; a line for each into ``path``."""
    tell = said if options.only is not None else id
    deadline = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    with open(path, "w", encoding="utf-8", buffering=1) as stream:
        for number in numbers(options)[share :: options.jobs]:
            if time.monotonic() > deadline:
                break
            print(
                run(drawn(options.seed, number, options.groups, options.verified), tell).line(), file=stream
            )


def outcomes(options: argparse.Namespace) -> list[Outcome]:
    """What became of each number, in order; ``jobs`` processes share them."""
    with tempfile.TemporaryDirectory(prefix="fuzzing-results-") as name:
        paths = [Path(name, f"{share}.jsonl") for share in range(options.jobs)]
        sys.stdout.flush()
        workers = []
        for share, path in enumerate(paths):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    harness.prepare()
                    work(options, share, path)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            workers.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
        if any(codes):
            raise SystemExit(f"the processes that try numbers ended with {codes}")
        return sorted(read(paths), key=lambda one: one.number)


def read(paths: list[Path]) -> Iterator[Outcome]:
    """The outcomes in files of JSON lines."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            yield outcome_of(line)


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
    parser.add_argument("--to", dest="last", type=int)
    parser.add_argument("--only", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="begin no more after this time")
    parser.add_argument("--groups", type=lambda text: tuple(text.split(",")), default=seeds.ALL)
    parser.add_argument("--verified", type=float, default=VERIFIED_SHARE, help="share that executes models")
    parser.add_argument("--keep", type=Path, help="a folder for what was found")
    parser.add_argument("--result", type=Path, help="a file of JSON lines to write")
    parser.add_argument("--merge", type=Path, nargs="+", help="results to print together")
    parser.add_argument("--detailed", action="store_true", help="each mutator by itself")
    return parser.parse_args()


def main() -> int:
    """Run as the module's docstring says."""
    options = parsed()
    if options.merge:
        found = list(read(options.merge))
    else:
        options.seed = options.seed or secrets.token_hex(4)
        print(f"seed {options.seed}", flush=True)
        for group in options.groups:
            seeds.ring(group)
        if options.only is not None:
            show(drawn(options.seed, options.only, options.groups, options.verified))
        found = outcomes(options)
        if options.result:
            options.result.write_text("".join(f"{one.line()}\n" for one in found), encoding="utf-8")
        if options.keep:
            keep(options, found)
    for line in (
        *tables.tables(found, options.detailed),
        "",
        tables.costs(found),
        "",
        *tables.findings(found),
    ):
        print(line)
    return int(any(one.faults for one in found))


if __name__ == "__main__":
    sys.exit(main())
