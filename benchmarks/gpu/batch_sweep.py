"""Static against dynamic on a GPU: engines for batch 1 alone and for batch 1 to N, run on the same inputs.

    python benchmarks/gpu/batch_sweep.py [MODEL...] [--rules PREFIX...] [--jobs 8] [--json FILE]
    python benchmarks/gpu/batch_sweep.py --table FILE

The models are MODEL... (``fixtures/*.onnx``, for one) and the examples of the rules whose codes begin with PREFIX, such
as ``BRC``. Each is fixed by ``onnxfix apply --no-verify --numeric-fixes --target rtx`` and handed, with the result, to
``onnxfix verify --rungs trt-build --batch-sweep``, which builds both ways, executes the engines and compares what they
say of a batch of 1. A model without a symbolic batch is counted and left out. The exit code is 1 where a fixed model
differs between its two builds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from acceptance.tables import markdown
from command import reported, rungs_of
from network.tables import cell

from onnxfix.registry import BUILT_IN, rules_of
from onnxfix.testing import model_of

REWRITE = ("--no-verify", "--numeric-fixes", "--target", "rtx")
SWEEP = ("--rungs", "trt-build", "--batch-sweep")


def examples(prefixes: Sequence[str], folder: Path) -> Iterator[Path]:
    """The examples that these rules find, each written to a file of the folder."""
    for rule in rules_of(BUILT_IN):
        if rule.code.startswith(tuple(prefixes)):
            for number, example in enumerate(rule.examples):
                if example.found:
                    path = folder / f"{rule.code}.{number}.onnx"
                    onnx.save(model_of(example), path)
                    yield path


def swept(path: Path, folder: Path) -> dict[str, Any]:
    """One model: what became of each of its two builds, as it is and fixed."""
    fixed = folder / f"{path.name}.fixed.onnx"
    reported("apply", path, "-o", fixed, *REWRITE)
    pair = (path, fixed) if fixed.exists() else (path,)
    code, report, seconds = reported("verify", *pair, *SWEEP)
    rung = rungs_of(report).get("trt-build", {})
    sweep = rung.get("sweep") or {}
    return {
        "name": path.stem,
        "exit": code,
        "seconds": round(seconds, 1),
        "status": sweep.get("status", ""),
        "reason": sweep.get("reason") or rung.get("reason") or report.get("stderr", "")[-300:],
        "symbols": sweep.get("symbols", []),
        "pairs": [_slim(one) for one in sweep.get("pairs", ())],
    }


def _slim(pair: dict[str, Any]) -> dict[str, Any]:
    """What the table needs of a pair of builds."""
    return {
        "name": pair["name"],
        **{name: _build(pair[name]) for name in ("static", "dynamic")},
        "differing": pair["differing"],
        "unproven": pair["unproven"],
    }


def _build(one: dict[str, Any]) -> dict[str, str]:
    return {"status": one["status"], "reason": one["errors"][0]["text"][:300] if one["errors"] else ""}


def kind(pair: dict[str, Any]) -> str:
    """What a pair of builds shows, in a few words."""
    static, dynamic = (pair[name]["status"] == "accepted" for name in ("static", "dynamic"))
    if not static and not dynamic:
        return "neither builds"
    if static != dynamic:
        return f"only {'batch 1 alone' if static else 'the profile'} builds"
    if pair["differing"]:
        return "outputs differ"
    return "not compared" if pair["unproven"] else "same outputs"


def table(found: Sequence[dict[str, Any]]) -> str:
    """Counts, and a line for every model whose two builds are not the same."""
    swept_ones = [one for one in found if one["pairs"]]
    before = Counter(kind(one["pairs"][0]) for one in swept_ones)
    after = Counter(kind(one["pairs"][-1]) for one in swept_ones)
    counts = [[name, str(before[name]), str(after[name])] for name in sorted({*before, *after})]
    lines = [
        f"{len(swept_ones)} models with a symbolic batch, {len(found) - len(swept_ones)} without.",
        "",
        *markdown(["engines for batch 1 alone and for 1 to 2", "as they are", "fixed"], counts),
    ]
    named = [
        [one["name"], *(f"{kind(pair)}{_why(pair)}" for pair in (one["pairs"][0], one["pairs"][-1]))]
        for one in swept_ones
        if any(kind(pair) != "same outputs" for pair in one["pairs"])
    ]
    if named:
        lines += ["", *markdown(["model", "as it is", "fixed"], named)]
    return "\n".join(lines)


def _why(pair: dict[str, Any]) -> str:
    refused = next((pair[name]["reason"] for name in ("static", "dynamic") if pair[name]["reason"]), "")
    text = pair["differing"] or pair["unproven"] or refused
    return f": {cell(text[:200])}" if text else ""


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--rules", nargs="+", default=[], metavar="PREFIX")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of what was measured")
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    if arguments.table is not None:
        found = json.loads(arguments.table.read_text())
    else:
        with (
            tempfile.TemporaryDirectory(prefix="onnxfix-") as name,
            ThreadPoolExecutor(arguments.jobs) as pool,
        ):
            folder = Path(name)
            models = (
                [*arguments.models, *examples(arguments.rules, folder)]
                if arguments.rules
                else arguments.models
            )
            for one in pool.map(lambda path: swept(path, folder), models):
                found.append(one)
                print(f"{one['name']}: {one['status'] or 'no sweep'}: {one['reason'][:160]}", flush=True)
                if arguments.json is not None:
                    arguments.json.write_text(json.dumps(found, indent=1))
    print(table(found))
    return int(any(one["status"] == "failed" for one in found))


if __name__ == "__main__":
    sys.exit(main())
