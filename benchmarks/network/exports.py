"""Whether TensorRT's network of real exports computes what they do, and what it costs to find out.

    python benchmarks/network/exports.py FOLDER... [--json FILE] [--write-readme NAME]

Each model's network is read back as an ONNX model and compared with the original in ONNX Runtime on the CPU, at three
sizes of its symbols (a static model: with three inputs); then the rungs trt-build and trt-network are climbed in turn,
with the model as its own fixed model, and once more each in a fresh process while its memory is watched. No engine is
executed. Each step of each model has a process of its own. FILE is written after each model, and models that it holds
are not measured again. The exit code is 1 where a model is not read back, differs by more than 1e-4 of its largest
output (in half precision: leaves that type's tolerance, or differs so in float32), where the rung takes more than three
times as long as trt-build, unless it is known why, or does not pass, or where a process of it takes 2 GB.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from acceptance.measure import Settings  # noqa: E402
from acceptance.node_models import choice, setting, write_between  # noqa: E402

from network import measuring, tables  # noqa: E402
from onnxfix.errors import OnnxfixError  # noqa: E402

RUNGS = ("trt-build", "trt-network")
MOST_DIFFERENCE = 1e-4
MOST_COST = 3.0
MOST_MEGABYTES = 2000
#: What is known to cost more, and why.
DEAR = {
    "whisper_encoder.legacy.op15": "it builds in a second, and ONNX Runtime takes half a second for 30 seconds of "
    "sound, of which both models get six",
}


def faults(row: dict[str, Any]) -> list[str]:
    """Everything that is not as it should be with one model's row, one line each."""
    one = row["agreement"]
    found = [one["fault"]] if one["fault"] else []
    if one["status"] != "lifted":
        found.append(f"not read back: {one['status']}")
    elif one["half"]:
        if not one["within"]:
            found.append(f"{one['relative']:.1e} is not within {one['half']}'s tolerance")
        if one["twin"] is not None and not one["twin"] <= MOST_DIFFERENCE:
            found.append(f"differs by {one['twin']:.1e} in float32")
    elif not one["relative"] <= MOST_DIFFERENCE:
        found.append(f"differs by {one['relative']:.1e}")
    if row["cost"] is not None:
        said = row["cost"]["statuses"]
        if said["trt-network"] != "passed":
            found.append(f"trt-network: {said['trt-network']}: {row['cost']['reasons']['trt-network']}")
        if ratio(row) > MOST_COST and one["name"] not in DEAR:
            found.append(f"costs {ratio(row):.1f} times trt-build")
        if row["peak"]["trt-network"][0] >= MOST_MEGABYTES:
            found.append(f"takes {row['peak']['trt-network'][0]:,} MB")
    return found


def ratio(row: dict[str, Any]) -> float:
    """What the rung costs in seconds, in those that trt-build costs."""
    spent = row["cost"]["seconds"]
    return float(spent["trt-network"] / spent["trt-build"])


def measure(path: Path, package: str, rungs: bool, repeat: int) -> dict[str, Any]:
    """One row."""
    row: dict[str, Any] = {"cost": None, "peak": None}
    row["agreement"] = asdict(_apart(measuring.agreement, path.stem, str(path), package))
    if rungs:
        row["cost"] = asdict(_apart(measuring.cost, str(path), RUNGS, repeat))
        row["peak"] = {rung: _apart(measuring.peak, str(path), rung) for rung in RUNGS}
    return row


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--package", default="auto", help="auto, tensorrt or tensorrt-rtx")
    parser.add_argument("--repeat", type=int, default=3, help="climbs of each rung")
    parser.add_argument(
        "--no-rungs", action="store_true", help="agreement alone, without what the rungs cost"
    )
    parser.add_argument("--json", type=Path, help="rows already there are not measured again")
    parser.add_argument(
        "--write-readme", metavar="NAME", help="put the table between these markers of the README"
    )
    return parser.parse_args()


def run(given: argparse.Namespace) -> int:
    """Measure, print, write. Raises OnnxfixError where something needed is not there."""
    rows: dict[str, Any] = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    chosen = choice(given.package, None)
    names: list[str] = []
    every = (path for folder in given.folders for path in sorted(folder.glob("*.onnx")))
    for path in (path for path in every if given.only in path.stem):
        names.append(path.stem)
        if path.stem in rows:
            continue
        rows[path.stem] = measure(path, chosen.package, not given.no_rungs, given.repeat)
        for fault in faults(rows[path.stem]):
            print(f"FAULT {path.stem}: {fault}", file=sys.stderr, flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))
    shown = [rows[name] for name in names]
    settings = Settings(chosen, (), None)
    versions = [line for line in setting(settings) if "peers" not in line]
    dear = [
        f"`{name}` costs {ratio(rows[name]):.1f} times trt-build: {why}."
        for name, why in DEAR.items()
        if name in names and rows[name]["cost"] is not None and ratio(rows[name]) > MOST_COST
    ]
    text = "\n".join([*versions, "", *tables.exports(shown), "", *dear])
    print(text)
    if given.write_readme:
        write_between(HERE / "README.md", given.write_readme, text)
    wrong = [f"{name}: {fault}" for name in names for fault in faults(rows[name])]
    print("\n".join(["", f"{len(wrong)} faults", *wrong]), file=sys.stderr)
    return int(bool(wrong))


def main() -> int:
    """Run as the module's docstring says."""
    try:
        return run(_arguments())
    except OnnxfixError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
