"""Original against fixed model on ONNX Runtime's CUDA provider, and what TF32 would cost: needs a GPU.

    python benchmarks/gpu/ort_cuda.py FOLDER_OR_MODEL... [--json FILE]

Every .onnx file directly in the folders is fixed by ``onnxfix apply`` without verification, and the result climbs the
rung ort-cuda alone, with TF32 off; then three of its feeds are run again with TF32 on. Prints a Markdown report that
names the machine. The exit code is 1 where a model fails or is skipped.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnxfix
from onnxfix.backends import ort_cuda
from onnxfix.sandbox import Worker, one_line
from onnxfix.verification import cuda, remote
from onnxfix.verification.compare.compare import Metrics, largest
from onnxfix.verification.ladder import Limits, RungResult, verify
from onnxfix.verification.verdict import FeedResult

RUNG = "ort-cuda"
UNLIMITED_MB = 1 << 20


@dataclass
class Row:
    """One model. ``on_cpu`` are nodes that do not run on CUDA, of all nodes, before and after; None if unknown."""

    name: str
    result: RungResult
    fixed: dict[str, int] = field(default_factory=dict)
    on_cpu: str = "unknown"
    seconds: float = 0.0


def say(*words: object, sep: str = " ") -> None:
    """Print at once: who watches must see where it stands."""
    print(*words, sep=sep, flush=True)


# ------------------------------------------------------------------------------------------------ the machine


def machine() -> dict[str, Any]:
    """GPUs, driver and versions, as far as they can be found out."""
    with Worker() as worker:
        found = worker.call("onnxfix.nvidia:gpus", timeout=120.0)
    cards = [f"{card.name}, compute capability {card.capability}" for card in found.value or ()]
    return {
        "GPU": "; ".join(cards) or f"none ({found.message or 'no NVIDIA GPU found'})",
        "driver": _driver(),
        "driver's CUDA": _driver_cuda(),
        **_versions(),
        "onnxfix": onnxfix.__version__,
        "Python": sys.version.split()[0],
    }


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({one_line(error, 80)})"
    return one_line(run.stdout or run.stderr, 160)


def _driver_cuda() -> str:
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError) as error:
        return f"unknown ({one_line(error, 80)})"
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _versions() -> dict[str, str]:
    try:
        import onnx
        import onnxruntime
    except Exception as error:  # a broken installation is what the table is to show
        return {"onnxruntime": one_line(error)}
    built = getattr(onnxruntime, "cuda_version", "") or "none"
    return {"onnxruntime": f"{onnxruntime.__version__}, built for CUDA {built}", "onnx": onnx.__version__}


def doctor() -> str:
    """What ``onnxfix doctor`` says of this machine."""
    command = [sys.executable, "-m", "onnxfix", "doctor"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=180)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"onnxfix doctor did not answer: {one_line(error)}"
    return (run.stdout + run.stderr).rstrip()


# ------------------------------------------------------------------------------------------------ the models


def models(paths: Iterable[Path]) -> list[Path]:
    """The files named, and the .onnx files directly in the folders named."""
    return [found for path in paths for found in (sorted(path.glob("*.onnx")) if path.is_dir() else [path])]


def measure(path: Path, folder: Path, worker: Worker, limits: Limits) -> Row:
    """Fix one model and climb the rung with it. Never raises: what goes wrong is a failed row."""
    began = time.perf_counter()
    row = Row(path.name, RungResult(RUNG, "failed", "nothing was tried"))
    try:
        output = folder / path.name
        report = onnxfix.apply(path, output, verify=False)
        row.fixed = dict(Counter(fix.code for fix in report.applied))
        exact = all(fix.safety == "exact" for fix in report.applied)
        row.on_cpu = _on_cpu(path, output, worker, limits)
        verdict = verify(
            path, output, exact=exact, rungs=(RUNG,), require=(RUNG,), limits=limits, worker=worker
        )
        row.result = next(rung for rung in verdict.rungs if rung.name == RUNG)
    except Exception as error:  # one model must not stop the others
        row.result = RungResult(RUNG, "failed", f"the benchmark itself stumbled: {one_line(error)}")
    row.seconds = time.perf_counter() - began
    return row


def _on_cpu(path: Path, output: Path, worker: Worker, limits: Limits) -> str:
    """Nodes that do not run on CUDA, before and after; "unknown" where the models do not load."""
    where = {"backend": RUNG, "original": str(path.absolute()), "fixed": str(output.absolute())}
    outcome = worker.call(f"{remote.__name__}:load", timeout=limits.step, **where)
    places = outcome.value.places if outcome.ok else ()
    if not places or None in places:
        return "unknown"
    return " → ".join(f"{cuda.on_cpu(one)} of {sum(one.values())}" for one in places)


# ------------------------------------------------------------------------------------------------ the report


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown. Errors are over feeds of plausible values; "identical" is over all feeds."""
    yield (
        "| model | ort-cuda | feeds | outputs | identical | largest error | relative | with TF32 on | relative |"
        " nodes on the CPU | fixed | s |"
    )
    yield "|" + "---|" * 12
    for row in rows:
        counted = [feed for feed in row.result.feeds if feed.status != "not counted"]
        identical = sum(feed.status == "identical" for feed in counted)
        types = sorted({part.dtype for feed in counted for part in feed.metrics})
        cells = [
            row.name,
            row.result.status,
            f"{len(counted)} of {len(row.result.feeds)}",
            ", ".join(types) or "–",
            f"{identical} of {len(counted)}",
            *_errors(counted),
            *_errors(row.result.informative),
            row.on_cpu,
            " ".join(f"{code}×{count}" for code, count in sorted(row.fixed.items())) or "–",
            f"{row.seconds:.1f}",
        ]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _errors(feeds: Sequence[FeedResult]) -> tuple[str, str]:
    parts = list(_plausible(feeds))
    absolute, relative = largest(parts), largest(parts, relative=True)
    if absolute is None or relative is None:
        return "–", "–"
    return f"{absolute.max_abs:.1e}", f"{relative.relative:.1e}"


def _plausible(feeds: Sequence[FeedResult]) -> Iterator[Metrics]:
    """At the limits of a type, 1e31 is an error in the last bit."""
    for feed in feeds:
        if feed.feed is None or feed.feed.kind != "extreme":
            yield from feed.metrics


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """What the rung said of each model."""
    for row in rows:
        yield f"- `{row.name}`: {row.result.status}, {row.result.reason}"
        for note in row.result.notes:
            yield f"  - {note}"
        if row.result.excluded:
            yield f"  - not compared: {', '.join(row.result.excluded)}"


def _working_limit(limit: int | None) -> tuple[int | None, str]:
    """The memory limit (MiB) under which CUDA works in the sandbox, and what there is to say about CUDA."""
    reason = ort_cuda.missing()
    if reason is not None:
        return limit, f"CUDA cannot be used: {reason}"
    for tried in (limit, UNLIMITED_MB):
        with Worker(memory_mb=tried) as worker:
            lack = cuda.unavailable(worker, 300.0)
        if lack is None:
            how = "" if tried == limit else ", but only without the sandbox's usual memory limit"
            return tried, f"CUDA computes in the sandbox{how}"
    return limit, f"CUDA cannot be used: {lack.reason}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="models, or folders of them")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--budget", type=float, default=450.0, help="start no model after so many seconds")
    parser.add_argument(
        "--memory-mb", type=int, help="of the sandbox, by default three quarters of what is free"
    )
    options = parser.parse_args(arguments)
    began = time.monotonic()
    facts = machine()
    for key, value in facts.items():
        say(f"- {key}: {value}")
    say(f"\n```\n$ onnxfix doctor\n{doctor()}\n```\n")
    memory_mb, told = _working_limit(options.memory_mb)
    say(told, "\n")
    rows: list[Row] = []
    try:
        _write(options.json, facts, told, rows)
    except OSError as error:
        parser.error(f"cannot write {options.json}: {error.strerror}")
    limits = Limits(step=120.0, total=60.0)
    with tempfile.TemporaryDirectory() as folder, Worker(memory_mb=memory_mb) as worker:
        for path in models(options.paths):
            if time.monotonic() - began > options.budget:
                rows.append(Row(path.name, RungResult(RUNG, "skipped", "the benchmark's time was up")))
                continue
            say(f"{time.monotonic() - began:6.1f} s  {path.name}")
            rows.append(measure(path, Path(folder), worker, limits))
            say(f"{'':10}{rows[-1].result.status}: {rows[-1].result.reason}")
            _write(options.json, facts, told, rows)
    say("", *table(rows), "", *notes(rows), sep="\n")
    passed = sum(row.result.status == "passed" for row in rows)
    say(f"\n{passed} of {len(rows)} models passed {RUNG}, {time.monotonic() - began:.0f} s")
    return int(passed < len(rows) or not rows)


def _write(path: Path | None, facts: dict[str, Any], told: str, rows: Sequence[Row]) -> None:
    """Again after every model: what is there when the time runs out is kept."""
    if path is not None:
        document = {"machine": facts, "cuda": told, "models": [asdict(row) for row in rows]}
        path.write_text(json.dumps(document, indent=1, default=str) + "\n")


if __name__ == "__main__":
    sys.exit(main())
