"""Record what onnxfix does with some 2,100 models, and compare two recordings: a refactoring changes nothing of it.

    python benchmarks/behavior/record.py FILE.json [--verify] [--exports DIR] [--only GROUP] [--every N]
    python benchmarks/behavior/record.py --compare OLD.json NEW.json

Groups: ONNX's node models, its other backend models, the fixtures (fixtures/trt and fixtures/misread with them) and,
with --exports, the models of a folder. Results are verified for fixtures only, unless --verify asks for it. The onnxfix
that is recorded is the one that Python imports. Comparing ends with exit code 1 where there is a difference.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from command import commit, parser_of
from onnx_cases import onnx_cases

from behavior.actions import PLAIN, VERIFIED, Entry, act, sha256
from behavior.differences import differences
from behavior.workers import results

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("node", "backend", "fixtures", "exports")
FORMAT = 1


@dataclass(frozen=True)
class Case:
    """A model file, named "group/model", and what is recorded of it."""

    name: str
    path: Path
    actions: tuple[str, ...] = PLAIN


def node_cases(folder: Path, actions: tuple[str, ...] = PLAIN, every: int = 1) -> Iterator[Case]:
    """Every ``every``-th of ONNX's node models, written into ``folder``."""
    for name, case in list(onnx_cases().items())[::every]:
        path = folder / f"{name}.onnx"
        path.write_bytes(case.model.SerializeToString(deterministic=True))
        yield Case(f"node/{name}", path, actions)


def folder_cases(group: str, folder: Path, actions: tuple[str, ...] = PLAIN, every: int = 1) -> list[Case]:
    """Every ``every``-th model below a folder."""
    found = sorted(folder.rglob("*.onnx"))[::every]
    return [Case(f"{group}/{path.relative_to(folder).as_posix()}", path, actions) for path in found]


def cases(
    groups: Sequence[str], scratch: Path, exports: Path | None = None, verify: bool = False, every: int = 1
) -> list[Case]:
    """The models of some groups. Those that take longest come first, so that no worker is left with them at the end."""
    everything = (*PLAIN, *VERIFIED)
    actions = everything if verify else PLAIN
    found: list[Case] = []
    if "exports" in groups and exports is not None:
        found += folder_cases("exports", exports, PLAIN, every)
    if "fixtures" in groups:
        found += folder_cases("fixtures", ROOT / "fixtures", everything, every)
    if "backend" in groups:
        found += folder_cases(
            "backend", Path(onnx.__file__).parent / "backend" / "test" / "data", actions, every
        )
    if "node" in groups:
        found += node_cases(scratch, actions, every)
    return found


def record(models: Sequence[Case], jobs: int, timeout: float) -> dict[str, Entry]:
    """What onnxfix does with each model: name -> action -> entry, and the model's own digest."""
    entries: dict[str, Entry] = {case.name: {"model": sha256(case.path)} for case in models}
    names = {case.path: case.name for case in models}
    calls = [(case.path, action) for case in models for action in case.actions]
    for done, ((path, action), entry) in enumerate(results(act, calls, jobs, timeout), 1):
        entries[names[path]][action] = entry
        if "ended" in entry:
            print(f"{names[path]}, {action}: {entry['ended']}", file=sys.stderr, flush=True)
        if done % 500 == 0:
            print(f"{done} of {len(calls)}", file=sys.stderr, flush=True)
    return {name: dict(sorted(parts.items())) for name, parts in entries.items()}


def versions() -> dict[str, str]:
    """What was recorded, and with what."""
    import onnxfix

    own = commit(Path(onnxfix.__file__).parents[1], "onnxfix", "rules")
    found = {"python": platform.python_version(), "onnxfix": own}
    for package in ("onnx", "onnxruntime", "numpy", "ml_dtypes"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    packs = importlib.metadata.entry_points(group="onnxfix.rules")
    return {**found, "rule packs": ", ".join(sorted({pack.value for pack in packs}))}


def write(path: Path, recording: Entry) -> None:
    """As JSON with one line for each model."""
    models = recording["models"]
    head = json.dumps({key: value for key, value in recording.items() if key != "models"}, indent=1)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(models[name])}" for name in sorted(models))
    path.write_text(f'{head[:-2]},\n "models": {{\n{lines}\n }}\n}}\n', encoding="utf-8")


def read(path: Path) -> Entry:
    """A recording from its file."""
    recording: Entry = json.loads(path.read_text(encoding="utf-8"))
    if recording["format"] != FORMAT:
        raise SystemExit(f"{path}: has format {recording['format']}, not {FORMAT}")
    return recording


def compare(old: Entry, new: Entry) -> int:
    """Print every difference, grouped by kind; how many there are."""
    for key in sorted((old["versions"].keys() & new["versions"].keys()) - {"onnxfix"}):
        if old["versions"][key] != new["versions"][key]:
            print(f"note: {key} {old['versions'][key]} → {new['versions'][key]}")
    if old["scope"] != new["scope"]:
        print(f"note: only what both hold is compared: {old['scope']} → {new['scope']}")
    found = differences(old, new)
    for kind, lines in found.items():
        print(f"\n{kind}: {len(lines)}")
        print("\n".join(f"  {line}" for line in lines))
    count = sum(map(len, found.values()))
    common = len(old["models"].keys() & new["models"].keys())
    print(
        f"{count} differences in {common} models: {old['versions']['onnxfix']} → {new['versions']['onnxfix']}"
    )
    return count


def main() -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="where the recording is written")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--exports", type=Path, help="a folder of models to record as well")
    parser.add_argument("--only", action="append", choices=GROUPS, help="record this group; may be repeated")
    parser.add_argument("--verify", action="store_true", help="also verify node and backend models")
    parser.add_argument("--every", type=int, default=1, help="record each N-th model of a group")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one call of onnxfix")
    options = parser.parse_args()
    if options.compare:
        return int(compare(*map(read, options.compare)) > 0)
    if options.file is None:
        parser.error("name the file to write")
    groups = options.only or [group for group in GROUPS if group != "exports" or options.exports]
    if "exports" in groups and options.exports is None:
        parser.error("--only exports needs --exports")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="behavior-") as scratch:
        models = cases(groups, Path(scratch), options.exports, options.verify, options.every)
        entries = record(models, options.jobs, options.timeout)
    seconds = time.monotonic() - began
    scope = {"groups": sorted(groups), "verify": options.verify, "every": options.every}
    head = {"format": FORMAT, "versions": versions(), "scope": scope, "seconds": round(seconds)}
    write(options.file, {**head, "models": entries})
    print(f"{len(entries)} models in {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
