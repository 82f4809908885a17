"""Whether the tests notice 200 small changes of the code; the same changes before and after a refactoring.

    python benchmarks/mutations/run.py run NEW.json [--before OLD.json] [--jobs N] [--only ID] [-- PYTEST ARGUMENTS]
    python benchmarks/mutations/run.py compare BEFORE.json AFTER.json
    python benchmarks/mutations/run.py places
    python benchmarks/mutations/run.py apply ID
    python benchmarks/mutations/run.py sample [SAMPLE.json] [--seed N] [--of PACKAGE=COUNT ...]

``run`` tries the mutants of sample.json on this checkout, ``compare`` ends with exit code 1 where one that was killed
survives now or is tried no more, ``places`` tells where this checkout has each mutant, ``apply`` writes one into its
file, to look at it by hand, and ``sample`` draws others: ``--of rules=1170 --of onnxfix.shapes=330``.
"""

from __future__ import annotations

import argparse
import ast
import json
import marshal
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from command import commit, parser_of

from mutations.hook.sitecustomize import SLOTS, TESTS
from mutations.sample import (
    PACKAGES,
    SEED,
    SHARES,
    Index,
    Mutant,
    Place,
    drawn,
    narrowed,
    read,
    switched,
    write,
)
from mutations.sites import walked

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SAMPLE = HERE / "sample.json"
LATER = ("corpus", "slow")
"""Marks of tests that are run only where others leave mutants unreached."""
DEAD = ("killed", "timeout")


def placed(root: Path, mutants: list[Mutant]) -> tuple[dict[Path, ast.Module], dict[int, Place]]:
    """The code of a checkout, and where each mutant is in it, by its number; those that are gone are left out."""
    trees, found = walked(
        root, {name: folder for name, folder in PACKAGES.items() if (root / folder).is_dir()}
    )
    index = Index(found)
    places = {number: index.find(mutant) for number, mutant in enumerate(mutants)}
    return trees, {number: place for number, place in places.items() if place is not None}


def prepare(folder: Path, trees: dict[Path, ast.Module], places: dict[int, Place], width: int) -> None:
    """What hook/sitecustomize.py reads: files with switches, and an empty map."""
    files = {}
    for place, (path, tree) in enumerate(switched(trees, places).items()):
        files[str(path)] = f"code-{place}"
        (folder / f"code-{place}").write_bytes(marshal.dumps(compile(tree, str(path), "exec")))
    (folder / "files").write_bytes(marshal.dumps((width, files)))
    with open(folder / "map", "wb") as stream:
        stream.truncate(4 * SLOTS + TESTS * width)


def run(root: Path, mutants: list[Mutant], options: argparse.Namespace) -> dict[str, Any]:
    """Try mutants on a checkout."""
    began = time.monotonic()
    trees, places = placed(root, mutants)
    names = [mutant.id for mutant in mutants]
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folder = Path(name).resolve()
        prepare(folder, trees, places, len(mutants))
        (folder / "scratch").mkdir()
        before = json.loads(options.before.read_text(encoding="utf-8"))["mutants"] if options.before else {}
        wanted = [number for number, mutant in enumerate(mutants) if mutant.id in (options.only or names)]
        plan = {
            "wanted": wanted,
            "thorough": [
                number
                for number, mutant in enumerate(mutants)
                if before.get(mutant.id, {}).get("status") == "killed"
            ],
            "names": names,
            "hints": [mutant.function.rpartition(".")[2] for mutant in mutants],
            "jobs": options.jobs,
            "limit": options.limit,
            "tests": options.tests,
            "test_seconds": options.test_seconds,
            "later": LATER,
            "later_seconds": 60 * options.later_minutes,
            "scratch": str(folder / "scratch"),
        }
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        results: dict[str, Any] = session(root, folder, options.pytest)
    for number in wanted:
        if number not in places:
            results["mutants"][names[number]] = {"status": "gone"}
        elif places[number].how != "same":
            results["mutants"][names[number]]["found by"] = places[number].how
    own = commit(root, *PACKAGES.values(), "tests", changing=True)
    return {"commit": own, "minutes": round((time.monotonic() - began) / 60, 1), **results}


def session(root: Path, folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Run pytest with the plugin; its results."""
    paths = [HERE / "hook", root, root / "rules"]
    environment = {
        **os.environ,
        "MUTATIONS_FOLDER": str(folder),
        "PYTHONPATH": os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONHASHSEED": "0",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    # A choice by marks that leaves nothing out: conftest.py takes it for the wish to see tests of all lanes.
    everything = ["-m", f"{LATER[0]} or not {LATER[0]}"]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "mutation_session"]
    done = subprocess.run([*command, *everything, *arguments], cwd=root, env=environment, check=False)
    path = folder / "results.json"
    if not path.exists():
        raise SystemExit(f"pytest ended with {done.returncode} before there were results")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def apply(place: Place) -> None:
    """Write a mutant into its file."""
    node = place.site.node
    path = place.function.path
    lines = path.read_bytes().splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    head = lines[node.lineno - 1][: node.col_offset]
    tail = lines[node.end_lineno - 1][node.end_col_offset :]
    lines[node.lineno - 1 : node.end_lineno] = [head + f"({place.site.result})".encode() + tail]
    path.write_bytes(b"".join(lines))
    print(f"{path}:{node.lineno}: {place.site.text} → {place.site.result}")


def tell(results: dict[str, Any], mutants: list[Mutant]) -> None:
    """Print how many were killed, and those that were not."""
    by_name = {mutant.id: mutant for mutant in mutants}
    counts = Counter(entry["status"] for entry in results["mutants"].values())
    for status in ("survived", "not covered", "gone"):
        for name, entry in results["mutants"].items():
            if entry["status"] == status:
                why = f" ({entry['why']})" if "why" in entry else ""
                why = f" ({entry['tests']} tests of {entry['of']})" if "of" in entry else why
                print(f"{status}{why}: {line(by_name[name])}")
    print(", ".join(f"{count} {status}" for status, count in counts.most_common()), end="")
    print(f" of {len(results['mutants'])}, {results['minutes']} minutes")


def line(mutant: Mutant) -> str:
    """A mutant for people."""
    change = f"{mutant.expression} → {mutant.mutated}"
    return f"{mutant.id} {mutant.module}:{mutant.function}: {mutant.statement} [{change}]"


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what changed between two results; how many mutants that were killed are so no more, or unknown."""
    old, new = before["mutants"], after["mutants"]
    worse = 0
    for name, entry in old.items():
        now = new.get(name, {"status": "not tried"})
        if (entry["status"] in DEAD) == (now["status"] in DEAD) and now["status"] != "gone":
            continue
        was_killed = entry["status"] in DEAD
        worse += was_killed
        mark = "WORSE" if was_killed else "note"
        by = f" by {entry['by']}" if entry.get("by") else ""
        print(f"{mark}: {name} {entry['status']}{by} → {now['status']}")
    killed = sum(entry["status"] in DEAD for entry in old.values())
    print(f"{before['commit']} → {after['commit']}: {worse} of {killed} that were killed are so no more")
    return worse


def parsed(words: list[str]) -> argparse.Namespace:
    """The command line; what stands behind ``--`` is for pytest."""
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("result", type=Path)
    one.add_argument("--before", type=Path, help="a result: what it killed gets all tests that reach it")
    one.add_argument("--jobs", type=int, default=2)
    one.add_argument("--only", action="append", help="try this mutant; may be repeated")
    one.add_argument("--limit", type=float, default=90.0, help="seconds for a test with a mutant, at least")
    one.add_argument(
        "--tests", type=int, default=150, help="most tests for a mutant; 0 for all that reach it"
    )
    one.add_argument(
        "--test-seconds", type=float, default=25.0, help="the time that these take without mutants"
    )
    one.add_argument(
        "--later-minutes", type=float, default=10.0, help=f"for tests marked {' or '.join(LATER)}"
    )
    two = commands.add_parser("compare")
    two.add_argument("results", type=Path, nargs=2)
    three, five = commands.add_parser("places"), commands.add_parser("apply")
    five.add_argument("only", nargs=1, metavar="ID")
    for each in (one, three, five):
        each.add_argument("--sample", type=Path, default=SAMPLE)
        each.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    four = commands.add_parser("sample")
    four.add_argument("sample", type=Path, nargs="?", default=SAMPLE)
    four.add_argument("--seed", type=int, default=SEED)
    four.add_argument(
        "--of", action="append", metavar="PACKAGE=COUNT", help="from a package or a part of one"
    )
    own = words[: words.index("--")] if "--" in words else words
    options = parser.parse_args(own)
    options.pytest = words[len(own) + 1 :]
    return options


def main() -> int:
    """Run as the module's docstring says."""
    options = parsed(sys.argv[1:])
    if options.command == "compare":
        before, after = (json.loads(path.read_text(encoding="utf-8")) for path in options.results)
        return int(compare(before, after) > 0)
    if options.command == "sample":
        shares = {name: int(count) for name, _, count in (one.partition("=") for one in options.of or ())}
        found = narrowed(walked(ROOT, PACKAGES)[1], shares) if shares else walked(ROOT, PACKAGES)[1]
        write(options.sample, drawn(found, shares or SHARES, options.seed))
        return 0
    mutants = read(options.sample)
    root = options.root.resolve()
    if options.command == "apply":
        for one in placed(root, [mutant for mutant in mutants if mutant.id in options.only])[1].values():
            apply(one)
        return 0
    if options.command == "places":
        places = placed(root, mutants)[1]
        for number, mutant in enumerate(mutants):
            place = places.get(number)
            if place is None or place.how != "same":
                where = (
                    "gone" if place is None else f"{place.how}: {place.function.module}:{place.function.name}"
                )
                print(f"{where} ← {line(mutant)}")
        print(dict(Counter(place.how for place in places.values())), f"{len(mutants) - len(places)} gone")
        return 0
    results = run(root, mutants, options)
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in results.pop("mutants").items()
    )
    head = json.dumps(results, indent=1)[:-2]
    options.result.write_text(f'{head},\n "mutants": {{\n{lines}\n }}\n}}\n', encoding="utf-8")
    tell(json.loads(options.result.read_text(encoding="utf-8")), mutants)
    return 0


if __name__ == "__main__":
    sys.exit(main())
