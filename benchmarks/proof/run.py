"""What the proof of a model costs, beside the sum of its parts.

    python benchmarks/proof/run.py MODEL... [--runs 3] [--json FILE] [--write-readme] [--engines] [-- OPTION...]

For each model, in turn: ``onnxfix apply`` with its defaults (and OPTION...), and ``bare.py``, which does the same work
once with nothing around it. Both are whole processes, timed from outside; medians of ``--runs``. As many more of
``apply`` are watched: their peak is the greatest sum of the memory of all processes, where a page that several share
counts once. FILE is written after each model, and models that it holds are not measured again. With ``-- --require
trt-gpu`` on a machine with a GPU, ``bare.py`` executes both engines too, on all feeds of that check. With
``--engines``, ``onnxfix verify --rungs trt-gpu`` takes the place of ``apply``, and ``bare.py`` runs engines alone.

The exit code is 1 where a model is not proven, or takes more than ``MOST`` times its parts.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import numpy as np
from command import divided, launched, parser_of, rungs_of
from ledger import Ledger
from pages import show

from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.signature import signature
from onnxfix.tensorrt.package import TF32_OFF
from proof import tables

HERE = Path(__file__).resolve().parent
LIMIT = 900.0  # seconds of one run
MEMORY = 1 << 20  # MB: no limit, the machine's is enough


def measure(model: Path, runs: int, options: list[str], engines: bool = False) -> dict[str, Any]:
    """One model. ``reason`` says why there are no figures."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as name:
        folder = Path(name)
        fixed, written = folder / "fixed.onnx", folder / "report.json"
        apply = _apply(model, fixed, written, options)
        if engines:
            _launch(_apply(model, fixed, written, ["--no-verify"]), folder)
            words = ["verify", str(model), str(fixed), "--rungs", "trt-gpu", "--report", str(written)]
            apply = [*apply[:3], *words, *options]
        first = _launch(apply, folder, watch=True)
        report = _report(written)
        rungs = rungs_of(report)
        names = ("trt-gpu",) if engines else ("ort-cpu", "trt-build")
        if not fixed.exists() or any(rungs.get(name, {}).get("status") != "passed" for name in names):
            return {"name": model.stem, "reason": _reason(first, report, folder)}
        _write(model, rungs, folder)
        bare = [sys.executable, str(HERE / "bare.py"), str(model), str(fixed), str(folder)]
        runs_of: dict[str, list[dict[str, Any]]] = {"apply": [], "bare": []}
        watched = [first, *(_launch(apply, folder, watch=True) for _ in range(runs - 1))]
        for _ in range(runs):
            runs_of["bare"].append(_launch(bare, folder))
            if runs_of["bare"][-1]["code"]:
                return {"name": model.stem, "reason": f"bare.py: {_said(folder)}"}
            parts = json.loads(_said(folder))
            runs_of["apply"].append(_launch(apply, folder))
        return {
            "name": model.stem,
            "bytes": model.stat().st_size,
            "proven": all(one["status"] in ("passed", "skipped") for one in rungs.values()),
            "parts": parts["seconds"],
            "failed": sorted(parts["failed"].values()),
            "rungs": {key: one["seconds"] for key, one in rungs_of(_report(written)).items()},
            "feeds": sum(one["status"] != "not counted" for one in rungs[names[0]]["feeds"]),
            "peak": statistics.median(run["together"] for run in watched),
            **{key: [run["wall"] for run in value] for key, value in runs_of.items()},
        }


def _apply(model: Path, target: Path, report: Path, options: list[str]) -> list[str]:
    words = [sys.executable, "-m", "onnxfix", "apply", str(model), "-o", str(target)]
    return [*words, "--fail-on", "never", "--report", str(report), *options]


def _launch(command: list[str], folder: Path, *, watch: bool = False) -> dict[str, Any]:
    """What one run of a command cost, with the packages of this checkout; see launch.py."""
    limits = {"timeout": LIMIT, "memory_mb": MEMORY, "watch": watch}
    path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "rules"), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, **TF32_OFF, "PYTHONPATH": path}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # users have bytecode, and the index of rules beside it
    return launched(command, folder / "words", limits, env=env, cwd=folder)


def _report(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["reports"][0]
    except (OSError, ValueError, LookupError):
        return {}
    return found


def _reason(run: dict[str, Any], report: dict[str, Any], folder: Path) -> str:
    for rung in rungs_of(report).values():
        if rung["name"] in ("ort-cpu", "trt-build") and rung["status"] != "passed":
            return f"{rung['name']}: {rung['status']}: {rung['reason'][:120]}"
    return f"{run['status']}, exit {run['code']}: {_said(folder)[:120]}"


def _said(folder: Path) -> str:
    """The last line that the last command wrote."""
    lines = (folder / "words").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing was written"


def _write(model: Path, rungs: dict[str, Any], folder: Path) -> None:
    """The first feed that counted, or all feeds of engines, and what is built, as files for bare.py."""
    known = signature(model)
    executed = bool(rungs.get("trt-gpu", {}).get("feeds"))
    feeds = rungs["trt-gpu" if executed else "ort-cpu"]["feeds"]
    counted = [one["feed"] for one in feeds if one["feed"] and one["status"] != "not counted"]
    distinct = list({json.dumps(feed, sort_keys=True): feed for feed in counted}.values())
    for number, feed in enumerate(distinct if executed else distinct[:1]):
        np.savez(folder / f"feed{number}.npz", **Feed(**feed).values(known))
    build = rungs["trt-build" if "trt-build" in rungs else "trt-gpu"]["builds"][0]
    shapes = build["profiles"][0]["shapes"] if build["profiles"] else {}
    plan = {"executed": executed, "package": build["package"].replace("-", "_"), "shapes": shapes}
    (folder / "plan.json").write_text(json.dumps(plan | {"engines_alone": "ort-cpu" not in rungs}))


def _setting(runs: int) -> Iterator[str]:
    names = ("onnx", "onnxruntime", "numpy", "tensorrt-rtx", "tensorrt")
    every = [(one.name.replace("_", "-"), one.version) for one in importlib.metadata.distributions()]
    versions = ", ".join(f"{name} {version}" for name, version in sorted({*every}) if name in names)
    yield f"- Python {platform.python_version()}, {versions}"
    yield f"- {len(os.sched_getaffinity(0))} cores; medians of {runs}"


def faults(row: dict[str, Any]) -> list[str]:
    """Everything that is not as it should be, one line each."""
    if row.get("reason"):
        return [row["reason"]]
    found = [] if row["proven"] else ["not proven"]
    found += [f"bare.py: {text}" for text in row["failed"]]
    ratio = tables.ratio(row)
    if ratio > tables.MOST:
        found.append(f"takes {ratio:.2f} times its parts")
    return found


def main() -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write-readme", action="store_true")
    parser.add_argument("--engines", action="store_true")
    own, options = divided(sys.argv[1:])  # options of onnxfix apply
    arguments = parser.parse_args(own)
    models = [
        path for one in arguments.models for path in (sorted(one.glob("*.onnx")) if one.is_dir() else [one])
    ]
    with Ledger(arguments.json, {}, pause=0.0) as book:
        for number, model in enumerate(models, 1):
            key = f"{model.stem}, {model.stat().st_size:,} bytes"
            if key not in book:
                book.record(key, measure(model.resolve(), arguments.runs, options, arguments.engines))
            row = book.results[key]
            said = "; ".join(faults(row)) or f"{tables.ratio(row):.2f} times its parts"
            print(f"{number}/{len(models)} {key}: {said}", file=sys.stderr, flush=True)
    rows = list(book.results.values())
    text = [*_setting(arguments.runs), "", *tables.table(rows)]
    show(text, HERE, "proof", write=arguments.write_readme)
    return int(any(map(faults, rows)))


if __name__ == "__main__":
    sys.exit(main())
