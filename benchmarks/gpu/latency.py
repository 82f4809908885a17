"""Latency of engines on a GPU: each export as it is, after onnxfix, and after other tools.

    python benchmarks/exports/make.py FOLDER              (the exports; see there)
    python benchmarks/gpu/latency.py FOLDER [--peers DIR...] [--size 128] [--json FILE] [-- OPTION...]

Each model of FOLDER is fixed by ``onnxfix apply --no-verify``, with exact fixes and with ``--numeric-fixes`` besides.
Each result, and each file of the same name in a DIR (what onnxsim or onnxslim made of that model, for one), is held
against the original by ``onnxfix verify ORIGINAL RESULT --rungs trt-gpu --benchmark``, with OPTION... besides, such as
``--inputs``. ``--size`` times batch 1 and sizes near to that number for all other symbols. In each of these runs both
engines take turns on the same inputs, so a ratio is of two medians of one process; the column "original" has the range
of the original's medians over these runs.

A cell is the median in milliseconds, and the ratio to the original with its noise. "slower" and "faster" are said where
the difference is larger than the noise. An engine that is not timed has its reason below the table. The exit code is 1
where a result of onnxfix was not timed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command import divided
from exports.static import sizes_of

from onnxfix.verification.feeds.inputs import shape_of
from onnxfix.verification.feeds.signature import signature

OWN = {"exact fixes": [], "numeric fixes": ["--numeric-fixes"]}


def onnxfix(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command, in a process of its own."""
    return subprocess.run([sys.executable, "-m", "onnxfix", *arguments], capture_output=True, text=True)


def fixed(model: Path, folder: Path, options: list[str]) -> tuple[Path | None, str]:
    """What ``apply`` writes for the model, or None and why there is nothing."""
    target = folder / f"{'numeric' if options else 'exact'}.onnx"
    done = onnxfix("apply", str(model), "-o", str(target), "--no-verify", "--quiet", *options)
    return (target, "") if target.exists() else (None, f"apply: {last(done.stderr or done.stdout)}")


def timed(original: Path, result: Path, options: list[str]) -> dict[str, Any]:
    """The rung's latency of a result, with its status; ``reason`` says why there is none."""
    given = ["--rungs", "trt-gpu", "--benchmark", "--format", "json", *options]
    done = onnxfix("verify", str(original), str(result), *given)
    try:
        rungs = json.loads(done.stdout)["reports"][0]["verdict"]["rungs"]
        rung = next(one for one in rungs if one["name"] == "trt-gpu")
    except (ValueError, LookupError, StopIteration, TypeError):
        return {"reason": f"verify: {last(done.stderr or done.stdout)}"}
    found = dict(rung["latency"] or {"reason": rung["reason"]})
    found["status"] = rung["status"]
    if found.get("fixed") is None and rung["status"] == "failed":
        found["reason"] = f"{found['reason']}: {rung['reason']}"
    return found


def last(text: str) -> str:
    """The last line of what a command said."""
    return next(iter(text.strip().splitlines()[-1:]), "no reason given")


def shapes_of(model: Path, size: int) -> list[str]:
    """The option that makes every feed one of batch 1 and of sizes near to ``size``; none where no sizes are open."""
    known = signature(model)
    sizes = sizes_of(known, size)
    if not known.symbols or sizes is None:
        return []
    shapes = [(one.name, shape_of(known, one, sizes)) for one in known.inputs if one.default is None]
    given = (f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes if shape)
    return [part for one in given for part in ("--input-shapes", one)]


def measure(model: Path, peers: list[Path], options: list[str]) -> dict[str, Any]:
    """All results of one model."""
    found: dict[str, Any] = {"name": model.stem, "results": {}}
    with tempfile.TemporaryDirectory() as folder:
        made: dict[str, tuple[Path | None, str]] = {
            name: fixed(model, Path(folder), more) for name, more in OWN.items()
        }
        for peer in peers:
            path = peer / model.name
            made[peer.name] = (path, "") if path.exists() else (None, "no such file")
        for name, (path, reason) in made.items():
            found["results"][name] = timed(model, path, options) if path is not None else {"reason": reason}
    return found


def header(names: list[str]) -> str:
    """The first two lines of the table of medians."""
    cells = ["model", "launch", "original", *names]
    return f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}"


def row(one: dict[str, Any]) -> str:
    """A line of the table of medians."""
    results = one["results"].values()
    medians = [found["original"]["median_ms"] for found in results if found.get("original")]
    launches = sorted({found["launch"] for found in results if found.get("launch")})
    cells = [one["name"], ", ".join(launches), span(medians), *(cell(found) for found in results)]
    return f"| {' | '.join(cells)} |"


def span(medians: list[float]) -> str:
    """The least and the greatest of several medians."""
    ends = [f"{value:.3f}" for value in (min(medians), max(medians))] if medians else ["–"]
    return " to ".join(dict.fromkeys(ends))


def cell(found: dict[str, Any]) -> str:
    """What one result shows."""
    side = found.get("fixed")
    if side is None:
        return "–"
    if found["ratio"] is None:
        return f"{side['median_ms']:.3f}"
    told = f", {found['comparison']}" if found["comparison"] in ("slower", "faster") else ""
    return f"{side['median_ms']:.3f} ({found['ratio']:.2f}x ± {100 * found['noise']:.1f} %{told})"


def costs(one: dict[str, Any]) -> str:
    """A line of the table of loading: seconds to load and for the first run more, and MiB of the engine."""
    cells = [one["name"]]
    for found in one["results"].values():
        sides = [side for side in (found.get("original"), found.get("fixed")) if side]
        seconds = [f"{side['load_seconds'] + side['jit_seconds']:.2f}" for side in sides]
        sizes = [f"{side['engine_bytes'] / (1 << 20):.1f}" for side in sides]
        cells.append(f"{' → '.join(seconds)} s, {' → '.join(sizes)} MiB" if sides else "–")
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--peers", type=Path, nargs="+", default=[], help="folders of other tools' results, named like them"
    )
    parser.add_argument("--size", type=int, help="batch 1, and sizes near to this for all other symbols")
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    own, options = divided(sys.argv[1:])  # options of onnxfix verify
    arguments = parser.parse_args(own)
    peers = [peer.resolve() for peer in arguments.peers]
    models = sorted(arguments.folder.resolve().glob("*.onnx"))
    if not models:
        parser.error(f"{arguments.folder} has no .onnx files")
    found = []
    print(header([*OWN, *(peer.name for peer in peers)]))
    for model in models:
        sized = shapes_of(model, arguments.size) if arguments.size is not None else []
        found.append(measure(model, peers, [*sized, *options]))
        print(row(found[-1]), flush=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(found, indent=1))
    print(f"\nLoading and the first run, original → result:\n\n| model | {' | '.join(found[0]['results'])} |")
    print(f"|{'---|' * (len(found[0]['results']) + 1)}")
    print("\n".join(map(costs, found)))
    for one in found:
        for name, result in one["results"].items():
            why = result.get("reason") or result.get("fallback")
            if why:
                print(f"\n{one['name']}, {name}: {why}")
    return int(any(not one["results"][name].get("fixed") for one in found for name in OWN))


if __name__ == "__main__":
    sys.exit(main())
