"""What the rung trt-gpu costs, beside a bare script that does the same with nothing around it.

    python benchmarks/gpu/cost.py MODEL... [--package tensorrt] [--json FILE] [-- OPTION...]

Each model is handed to ``onnxfix apply --require trt-gpu``, with OPTION... besides. The bare script is a process of its
own that loads the original in ONNX Runtime and runs the rung's feeds, builds both engines with the rung's profile, one
after the other and with one timing cache, loads them and runs the same feeds: no check, no sandbox, nothing compared.
It goes first, so that what the driver keeps of compiled kernels helps the other one. The table has the seconds of both
and their ratio; the second ratio is that of the whole command, with all its other rungs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from command import divided, parser_of, reported, rungs_of

from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.signature import signature
from onnxfix.tensorrt.engine import activate
from onnxfix.tensorrt.package import TF32_OFF


def measure(model: Path, package: str, options: list[str]) -> dict[str, Any]:
    """One model. ``reason`` says why there is no ratio."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as name:
        folder = Path(name)
        fixed = folder / "fixed.onnx"
        given = ("apply", model, "-o", fixed, "--require", "trt-gpu", "--trt-package", package, *options)
        _, first, _ = reported(*given)  # says which feeds and which profile
        rung = rungs_of(first).get("trt-gpu", {})
        if not rung.get("feeds") or not fixed.exists():
            return {"name": model.stem, "reason": rung.get("reason") or first.get("stderr", "no report")}
        _write(model, rung, folder)
        words = [sys.executable, str(Path(__file__).resolve()), "--bare", str(model), str(fixed), str(folder)]
        began = time.perf_counter()
        variables = {"POLYGRAPHY_USE_TENSORRT_RTX": str(int(package == "tensorrt-rtx")), **TF32_OFF}
        done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True)
        bare = time.perf_counter() - began
        if done.returncode:
            return {"name": model.stem, "reason": f"the bare script: {done.stderr[-300:]}"}
        code, report, whole = reported(*given)
        rungs = rungs_of(report)
        return {
            "name": model.stem,
            "exit": code,
            "feeds": len([*folder.glob("feed*.npz")]),
            "bare": bare,
            "parts": json.loads(done.stdout.splitlines()[-1]),
            "rungs": {name: one["seconds"] for name, one in rungs.items()},
            "whole": whole,
        }


def _write(model: Path, rung: dict[str, Any], folder: Path) -> None:
    """The rung's feeds and its profile, as files of the folder."""
    known = signature(model)
    ran = [one["feed"] for one in rung["feeds"] if one["feed"] and one["status"] != "not counted"]
    feeds = {json.dumps(one, sort_keys=True): one for one in ran}
    for number, feed in enumerate(feeds.values()):
        np.savez(folder / f"feed{number}.npz", **Feed(**feed).values(known))
    profiles = rung["builds"][0]["profiles"]
    (folder / "profile.json").write_text(json.dumps(profiles[0]["shapes"] if profiles else {}))


def bare(original: str, fixed: str, folder: Path) -> dict[str, float]:
    """The bare script: seconds of its parts."""
    began = time.perf_counter()
    sys.modules["torch"] = None  # type: ignore[assignment]  # which Polygraphy would import for nothing
    import onnxruntime as ort
    from polygraphy.backend import trt

    parts: dict[str, float] = {}

    def lap(name: str) -> None:
        nonlocal began
        now = time.perf_counter()
        parts[name] = parts.get(name, 0.0) + now - began
        began = now

    lap("imports")
    feeds = [dict(np.load(path)) for path in sorted(folder.glob("feed*.npz"))]
    session = ort.InferenceSession(original, providers=["CPUExecutionProvider"])
    for feed in feeds:
        session.run(None, feed)
    lap("onnxruntime")
    shapes = json.loads((folder / "profile.json").read_text())
    profile = trt.Profile()
    for name, (least, usual, most) in shapes.items():
        profile.add(name, min=least, opt=usual, max=most)
    rtx = os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] == "1"  # which has no timing cache
    cache = None if rtx else str(folder / "timings")
    config = trt.CreateConfig(profiles=[profile] if shapes else None, load_timing_cache=cache)
    engines = []
    for path in (original, fixed):
        network = trt.network_from_onnx_path(path)
        engines.append(trt.engine_from_network(network, config, save_timing_cache=cache))
        lap("builds")
    for engine in engines:
        runner = trt.TrtRunner(engine)
        activate(runner)
        lap("loads")
        for feed in feeds:
            runner.infer(feed, check_inputs=False)
        lap("feeds")
        runner.deactivate()
    return parts


def row(one: dict[str, Any]) -> str:
    """A line of the table."""
    if one.get("reason"):
        return f"| {one['name']} | {one['reason']} | | | | | |"
    rung = one["rungs"]["trt-gpu"]
    ratios = (f"{rung / one['bare']:.2f}", f"{one['whole'] / one['bare']:.2f}")
    cells = [one["name"], one["feeds"], f"{one['bare']:.1f}", f"{rung:.1f}", f"{one['whole']:.1f}", *ratios]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Run as the module's docstring says."""
    words = sys.argv[1:]
    if words[:1] == ["--bare"]:
        print(json.dumps(bare(words[1], words[2], Path(words[3]))))
        return 0
    parser = parser_of(__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--package", default="tensorrt-rtx", choices=("tensorrt", "tensorrt-rtx"))
    own, options = divided(words)  # options of onnxfix apply
    arguments = parser.parse_args(own)
    print("| model | feeds | bare s | trt-gpu s | apply s | trt-gpu to bare | apply to bare |")
    print("|---|---|---|---|---|---|---|")
    found = []
    for model in arguments.models:
        found.append(measure(model.resolve(), arguments.package, options))
        print(row(found[-1]), flush=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(found, indent=1))
    return int(any(one.get("reason") for one in found))


if __name__ == "__main__":
    sys.exit(main())
