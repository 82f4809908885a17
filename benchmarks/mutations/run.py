"""Whether the tests notice 200 small changes of the code; the same changes before and after a refactoring.

    python benchmarks/mutations/run.py run RESULT.json [--jobs N] [--only ID] [-- ARGUMENTS OF PYTEST]
    python benchmarks/mutations/run.py compare BEFORE.json AFTER.json
    python benchmarks/mutations/run.py places
    python benchmarks/mutations/run.py sample [SAMPLE.json] [--seed N]

``run`` tries the mutants of sample.json on this checkout, ``compare`` ends with exit code 1 where one that was killed
survives now or is tried no more, ``places`` tells where this checkout has each mutant, and ``sample`` draws others.
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
from mutations.hook.sitecustomize import SLOTS, TESTS
from mutations.sample import PACKAGES, SEED, SHARES, Index, Mutant, Place, drawn, read, switched, write
from mutations.sites import walked

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SAMPLE = HERE / "sample.json"
LATER = ("corpus", "slow")
"""Marks of tests that are run only where others leave mutants unreached."""
DEAD = ("killed", "timeout")


def placed(root: Path, mutants: list[Mutant]) -> tuple[dict[Path, ast.Module], dict[int, Place]]:
    """The code of a checkout, and where each mutant is in it, by its number; those that are gone are left out."""
    trees, found = walked(root, {name: folder for name, folder in PACKAGES.items() if (root / folder).is_dir()})
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
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folder = Path(name)
        prepare(folder, trees, places, len(mutants))
        (folder / "scratch").mkdir()
        plan = {
            "names": [mutant.id for mutant in mutants],
            "hints": [[mutant.function.rpartition(".")[2]] for mutant in mutants],
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
    for number, mutant in enumerate(mutants):
        if number not in places:
            results["mutants"][mutant.id] = {"status": "gone"}
        elif places[number].how != "same":
            results["mutants"][mutant.id]["found by"] = places[number].how
    commit = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {"commit": commit, "minutes": round((time.monotonic() - began) / 60, 1), **results}


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


def tell(results: dict[str, Any], mutants: list[Mutant]) -> None:
    """Print how many were killed, and those that were not."""
    by_name = {mutant.id: mutant for mutant in mutants}
    counts = Counter(entry["status"] for entry in results["mutants"].values())
    for status in ("survived", "not covered", "gone"):
        for name, entry in results["mutants"].items():
            if entry["status"] == status:
                why = f" ({entry['why']})" if "why" in entry else ""
                print(f"{status}{why}: {line(by_name[name])}")
    print(", ".join(f"{count} {status}" for status, count in counts.most_common()), end="")
    print(f" of {len(results['mutants'])}, {results['minutes']} minutes")


def line(mutant: Mutant) -> str:
    return f"{mutant.id} {mutant.module}:{mutant.function}: {mutant.statement} [{mutant.expression} → {mutant.mutated}]"


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


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("result", type=Path)
    one.add_argument("--sample", type=Path, default=SAMPLE)
    one.add_argument("--jobs", type=int, default=2)
    one.add_argument("--only", action="append", help="try this mutant; may be repeated")
    one.add_argument("--limit", type=float, default=90.0, help="seconds for the tests of a mutant, at least")
    one.add_argument("--tests", type=int, default=150, help="most tests for a mutant; 0 for all that reach it")
    one.add_argument("--test-seconds", type=float, default=40.0, help="the time that these take without mutants")
    one.add_argument("--later-minutes", type=float, default=10.0, help=f"for tests marked {' or '.join(LATER)}")
    one.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    two = commands.add_parser("compare")
    two.add_argument("results", type=Path, nargs=2)
    three = commands.add_parser("places")
    three.add_argument("--sample", type=Path, default=SAMPLE)
    three.add_argument("--root", type=Path, default=ROOT)
    four = commands.add_parser("sample")
    four.add_argument("sample", type=Path, nargs="?", default=SAMPLE)
    four.add_argument("--seed", type=int, default=SEED)
    own, _, for_pytest = "\0".join(sys.argv[1:]).partition("\0--\0")
    options = parser.parse_args(own.split("\0"))
    options.pytest = for_pytest.split("\0") if for_pytest else []
    if options.command == "compare":
        before, after = (json.loads(path.read_text(encoding="utf-8")) for path in options.results)
        return int(compare(before, after) > 0)
    if options.command == "sample":
        write(options.sample, drawn(walked(ROOT, PACKAGES)[1], SHARES, options.seed))
        return 0
    mutants = [mutant for mutant in read(options.sample) if not getattr(options, "only", None) or mutant.id in options.only]
    root = options.root.resolve()
    if options.command == "places":
        places = placed(root, mutants)[1]
        for number, mutant in enumerate(mutants):
            place = places.get(number)
            if place is None or place.how != "same":
                where = "gone" if place is None else f"{place.how}: {place.function.module}:{place.function.name}"
                print(f"{where} ← {line(mutant)}")
        print(dict(Counter(place.how for place in places.values())), f"{len(mutants) - len(places)} gone")
        return 0
    results = run(root, mutants, options)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in results.pop("mutants").items())
    head = json.dumps(results, indent=1)[:-2]
    options.result.write_text(f'{head},\n "mutants": {{\n{lines}\n }}\n}}\n', encoding="utf-8")
    tell(json.loads(options.result.read_text(encoding="utf-8")), mutants)
    return 0


if __name__ == "__main__":
    sys.exit(main())
