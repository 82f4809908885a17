"""What ONNX Runtime's TensorRT provider takes of exports, before and after the fixes, against what was foretold.

    python benchmarks/ort_trt/run.py prepare FOLDER [MODEL...] [--target TARGET]
    python benchmarks/ort_trt/run.py foretell FOLDER [--target TARGET]
    python benchmarks/ort_trt/run.py run FOLDER RESULTS.jsonl [--jobs 4] [--limit 120]
    python benchmarks/ort_trt/run.py table FOLDER RESULTS.jsonl

``prepare`` needs TensorRT and no GPU. It writes each model (in one file; default: those of models.txt, from fixtures/),
the model with all exact and numeric fixes, and predictions.jsonl with the parts of both; ``foretell`` writes the last
for all models of a folder. ``run`` needs a GPU, the provider, and of onnxfix what runs models: each model runs in a
process of its own, for some end it. It compares the outputs with ONNX Runtime's on the CPU without optimizations; what
RESULTS, predictions.jsonl and the folder have already is not repeated. ``table`` compares what the provider took with
predictions.jsonl, so that newer predictions can be judged by older results. The exit code of ``run`` and ``table`` is 1
where a prediction was wrong.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command import ROOT, parser_of
from pages import markdown

RUNS = 20
"""Runs of which the median is the time of a run."""


def prepare(folder: Path, models: list[Path], target: str) -> None:
    """Write models, fixed models and predictions."""
    import onnxfix  # here: a GPU machine may lack what TensorRT's parser needs

    folder.mkdir(parents=True, exist_ok=True)
    for path in (one for one in models if not (folder / f"{one.stem}.onnx").exists()):
        original, fixed = folder / f"{path.stem}.onnx", folder / f"{path.stem}.fixed.onnx"
        original.write_bytes(path.read_bytes())
        onnxfix.apply(original, fixed, numeric_fixes=True, target=target, rungs=["ort-cpu"])
    foretell(folder, target)


def foretell(folder: Path, target: str) -> None:
    """Write the predictions of the models in a folder."""
    import onnx

    import onnxfix
    from onnxfix.files import walk

    done = {one["model"] for one in read(folder / "predictions.jsonl")}
    with (folder / "predictions.jsonl").open("a", encoding="utf-8") as file:
        for model in (one for one in sorted(folder.glob("*.onnx")) if one.name not in done):
            cut = onnxfix.check(model, target=target, partition=True).partition
            assert cut is not None
            outside = sorted(one.place.op_type for one in cut.outside)
            bodies = any(map(walk.subgraphs, onnx.load(model, load_external_data=False).graph.node))
            line = {"model": model.name, "nodes": cut.nodes, "taken": cut.taken, "parts": cut.parts}
            print(model.name, cut.words)
            file.write(
                json.dumps({**line, "provided": cut.provided, "outside": outside, "bodies": bodies}) + "\n"
            )


def run(folder: Path, results: Path, jobs: int, limit: float) -> int:
    """Run each model in a process of its own; returns 1 where a prediction was wrong."""
    if importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx") is not None:
        # It makes links in its folder when it is first imported, which must not happen several times at once.
        subprocess.run([sys.executable, "-c", "import onnxruntime_ep_nv_tensorrt_rtx"], check=True)
    done = {one["model"] for one in read(results)}
    waiting = [one for one in read(folder / "predictions.jsonl") if one["model"] not in done]

    def measured(foretold: dict[str, Any]) -> dict[str, Any]:
        command = [sys.executable, __file__, "one", str(folder / foretold["model"])]
        try:
            child = subprocess.run(command, capture_output=True, text=True, timeout=limit)
            lines = child.stdout.splitlines()
            found = json.loads(lines[-1]) if child.returncode == 0 else {"died": died(child)}
        except subprocess.TimeoutExpired:
            found = {"died": f"no answer in {limit:.0f} s"}
        return {"model": foretold["model"], "found": found}

    with ThreadPoolExecutor(jobs) as pool, results.open("a", encoding="utf-8") as file:
        for line in pool.map(measured, waiting):
            file.write(json.dumps(line) + "\n")
            file.flush()
    return table(folder, results)


def died(child: subprocess.CompletedProcess[str]) -> str:
    """How a child ended, with the last line that it printed."""
    return f"exit {child.returncode}: {''.join(child.stderr.strip().splitlines()[-1:])[:300]}"


def is_right(foretold: dict[str, Any], found: dict[str, Any]) -> bool | None:
    """Whether the provider did what was foretold; None where it did not come so far.

    ONNX Runtime removes and fuses nodes first, so that numbers of nodes agree only of those outside. Operators outside
    are known where the provider takes all that the parser takes. The provider counts bodies as parts of their own.
    """
    if "parts" not in found:
        return None
    outside = Counter(kind for kind, _ in found["outside"] if not kind.startswith("Memcpy"))
    if not foretold["provided"]:
        return not found["taken"]
    if foretold["provided"] < foretold["taken"]:
        return bool(found["taken"]) and outside.total() == foretold["nodes"] - foretold["provided"]
    alike = Counter(foretold["outside"]) == outside
    return alike and (bool(foretold["bodies"]) or foretold["parts"] == found["parts"])


def one(path: Path) -> dict[str, Any]:
    """Run one model, in this process."""
    from onnxfix.inputs.feeds import plan
    from onnxfix.inputs.feeds.signature import signature
    from onnxfix.proof.compare.compare import Terms, compare_outputs, different
    from onnxfix.proof.compare.twin import half_type
    from onnxfix.runtime.backends import ort, ort_trt

    known = signature(path)
    began = time.perf_counter()
    session = ort_trt.load(str(path))
    found: dict[str, Any] = {
        "load": time.perf_counter() - began,
        "parts": session.parts,
        "taken": session.places["TensorRT"],
        "outside": session.outside,
    }
    try:
        truth = ort.load(str(path))
        sweep = plan.assignments(known, {})
        feeds = [feed for feed in plan.feeds(known, sweep, 0, False) if 0 not in feed.assignment.values()][:3]
        wrong, off, counted = [], 0.0, 0
        for feed in feeds:
            values = feed.values(known)
            expected = dict(zip(truth.outputs, truth.run(values), strict=True))
            outputs = dict(zip(session.outputs, session.run(values), strict=True))
            metrics = compare_outputs(expected, expected, outputs, Terms(coarse=half_type(known.model)))
            wrong += [f"{one.name}: {one.reason}"[:200] for one in different(metrics)]
            off = max([off, *(one.max_abs / one.scale for one in metrics if one.scale)])
            counted += 1
        found.update(feeds=counted, wrong=wrong, off=off, ms=median_ms(session, values))
    except Exception as error:
        found["failed"] = f"{type(error).__name__}: {error}"[:300]
    return found


def median_ms(session: Any, values: dict[str, Any]) -> float:
    """The median time of a run in milliseconds, with copies to the GPU and back."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        session.run(values)
        times.append(time.perf_counter() - began)
    return 1000 * sorted(times)[RUNS // 2]


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that may not be there yet."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def table(folder: Path, results: Path) -> int:
    """Print the results in Markdown, and how many predictions came true; returns 1 where one was wrong."""
    foretold = {one["model"]: one for one in read(folder / "predictions.jsonl")}
    lines = [foretold[one["model"]] | one for one in read(results)]
    head = ["model", "foretold", "found", "right", "values", "load s", "run ms"]
    print("\n".join(markdown(head, [row(line) for line in sorted(lines, key=lambda line: line["model"])])))
    known = [right for line in lines if (right := is_right(line, line["found"])) is not None]
    print(
        f"\n{sum(known)} of {len(known)} predictions true; {len(lines) - len(known)} models ended the process"
    )
    return int(not all(known))


def row(line: dict[str, Any]) -> list[str]:
    """The cells of one model."""
    found, foretold = line["found"], f"{line['provided']} of {line['nodes']}"
    if "parts" not in found:
        return [line["model"], foretold, found["died"], "", "", "", ""]
    values = found.get("failed") or (
        f"wrong: {found['wrong'][0]}" if found["wrong"] else f"{found['off']:.0e}"
    )
    done = f"{found['taken']} of {found['taken'] + len(found['outside'])}"
    right, ms = "yes" if is_right(line, found) else "**no**", found.get("ms")
    return [line["model"], foretold, done, right, values, f"{found['load']:.2f}", f"{ms:.2f}" if ms else ""]


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=("prepare", "foretell", "run", "table", "one"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--target", default="rtx", help="rtx for the plugin, trt10.6 for onnxruntime-gpu")
    given = parser.parse_args()
    first, *rest = given.paths
    if given.what == "prepare":
        listed = (Path(__file__).parent / "models.txt").read_text(encoding="utf-8").split()
        prepare(first, rest or [ROOT / "fixtures" / f"{name}.onnx" for name in listed], given.target)
    elif given.what == "foretell":
        foretell(first, given.target)
    elif given.what == "run":
        return run(first, rest[0], given.jobs, given.limit)
    elif given.what == "table":
        return table(first, rest[0])
    else:
        print(json.dumps(one(first)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
