"""Which models TensorRT accepts before and after onnxfix: its real parser and builder, and no GPU is needed.

    python benchmarks/trt_accept.py FOLDER...      every .onnx below the folders
    python benchmarks/trt_accept.py --node-tests   ONNX's node models; profiles are their own data's shapes and values

Every model goes through the parser and builder as it is and, where onnxfix changes it, after ``onnxfix apply`` without
verification (``benchmarks/corpus.py`` verifies). Nothing is executed. Builds run in sandboxes, side by side; a crash,
a hang or a lack of memory is a row of the table. The exit code is 1 where a model built before and not after.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from corpus import Case, folder_cases, node_cases

import onnxfix
from onnxfix.errors import OnnxfixError
from onnxfix.files import saving, tensors
from onnxfix.nvidia import Missing
from onnxfix.sandbox import Worker, one_line
from onnxfix.trt.build import attempt
from onnxfix.trt.package import Choice
from onnxfix.trt.records import Profile, TrtBuild


@dataclass
class Row:
    """One model: ``after`` is None where onnxfix changes nothing or refuses the model (``refused``)."""

    name: str
    before: TrtBuild
    after: TrtBuild | None = None
    fixed: dict[str, int] = field(default_factory=dict)
    refused: str = ""

    @property
    def last(self) -> TrtBuild:
        return self.after or self.before


@dataclass(frozen=True)
class Settings:
    choice: Choice
    timeout: float
    memory_mb: int | None
    unsafe: bool
    numeric: bool = False
    target: str | None = None


def measure(case: Case, worker: Worker, folder: Path, settings: Settings) -> Row:
    """Build a model as it is and as onnxfix leaves it."""
    profiles = [Profile.of_feeds(case.feeds[:1])] if case.feeds else None
    path = case.path
    if path is None:
        path = folder / "before.onnx"
        path.write_bytes(case.data)
    row = Row(case.name, _build(worker, path, profiles, settings))
    try:
        report = onnxfix.apply(
            case.path or case.data,
            verify=False,
            target=settings.target,
            numeric_fixes=settings.numeric,
            unsafe_fixes=settings.unsafe,
        )
    except OnnxfixError as error:
        row.refused = one_line(error)
        return row
    row.fixed = dict(Counter(fix.code for fix in report.applied))
    if report.changed:
        assert report.model is not None
        home = case.path.parent if case.path is not None and tensors.external_files(report.model) else folder
        with tempfile.NamedTemporaryFile(suffix=".onnx", dir=home) as file:
            file.write(saving.serialize(report.model))
            file.flush()
            row.after = _build(worker, Path(file.name), profiles, settings)
    return row


def _build(worker: Worker, path: Path, profiles: list[Profile] | None, settings: Settings) -> TrtBuild:
    return attempt(
        worker,
        path,
        package=settings.choice.package,
        compute_capability=settings.choice.capability,
        profiles=profiles,
        timeout=settings.timeout,
    )


def measure_all(cases: list[Case], jobs: int, settings: Settings) -> list[Row]:
    """All models, ``jobs`` at a time, each job with a sandbox of its own. Rows in the order of the cases."""

    def share(number: int) -> list[Row]:
        with Worker(memory_mb=settings.memory_mb) as worker, tempfile.TemporaryDirectory() as folder:
            return [measure(case, worker, Path(folder), settings) for case in cases[number::jobs]]

    with ThreadPoolExecutor(jobs) as pool:
        shares = list(pool.map(share, range(jobs)))
    return [shares[number % jobs][number // jobs] for number in range(len(cases))]


def table(rows: list[Row]) -> Iterator[str]:
    """Markdown: layers, warnings, seconds and engine bytes, before and after."""
    yield "| model | accepted | layers | warnings | parse, s | build, s | engine, kB | fixed | reason |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        both = [row.before, *([row.after] if row.after is not None else [])]
        fixed = " ".join(f"{code}×{count}" for code, count in sorted(row.fixed.items())) or "–"
        cells = [
            row.name,
            _steps(_verdict(one) for one in both),
            _steps(f"{one.layer_count}" for one in both),
            _steps(f"{len(one.warnings)}" for one in both),
            _steps(f"{one.parse_seconds:.2f}" for one in both),
            _steps(f"{one.build_seconds:.2f}" for one in both),
            _steps(f"{one.engine_bytes / 1000:.0f}" for one in both),
            fixed,
            (row.last.reason or row.before.reason)[:160].replace("|", "\\|") or "–",
        ]
        yield "| " + " | ".join(cells) + " |"


def _verdict(one: TrtBuild) -> str:
    return "yes" if one.accepted else f"{one.status} ({one.stage})"


def _steps(texts: Iterator[str]) -> str:
    return " → ".join(texts)


def summary(rows: list[Row], seconds: float) -> Iterator[str]:
    """Counts, and the names of models that were won and lost."""
    before = Counter(_verdict(row.before) for row in rows)
    after = Counter(_verdict(row.last) for row in rows)
    won = [row.name for row in rows if row.last.accepted and not row.before.accepted]
    lost = [row for row in rows if row.before.accepted and not row.last.accepted]
    changed = sum(row.after is not None for row in rows)
    yield f"{len(rows)} models, {changed} changed by onnxfix, {seconds:.0f} s"
    yield "before: " + ", ".join(f"{name} {count}" for name, count in before.most_common())
    yield "after:  " + ", ".join(f"{name} {count}" for name, count in after.most_common())
    yield f"won ({len(won)}): {' '.join(won) or '–'}"
    yield f"lost ({len(lost)}): " + ("; ".join(f"{row.name}: {row.last.reason}" for row in lost) or "–")
    refused = [f"{row.name}: {row.refused}" for row in rows if row.refused]
    yield f"not read by onnxfix ({len(refused)}): " + ("; ".join(refused) or "–")


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--node-tests", action="store_true")
    parser.add_argument("--package", default="auto", help="auto, tensorrt or tensorrt-rtx")
    parser.add_argument("--compute-capability", help="such as 8.9")
    parser.add_argument("--target", help="what onnxfix fixes the models for, such as rtx; trt11 without it")
    parser.add_argument("--numeric-fixes", action="store_true")
    parser.add_argument("--unsafe-fixes", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for parsing, and for building")
    parser.add_argument("--memory-mb", type=int)
    parser.add_argument("--rows", choices=("all", "changed", "none"), default="changed")
    parser.add_argument("--json", type=Path, help="write all that was found to this file")
    arguments = parser.parse_args()
    with Worker() as worker:
        chosen = worker.call(
            "onnxfix.trt.package:choose",
            timeout=120.0,
            package=arguments.package,
            compute_capability=arguments.compute_capability,
        )
    if not chosen.ok or isinstance(chosen.value, Missing):
        print(chosen.value.reason if chosen.ok else chosen.message, file=sys.stderr)
        return 2
    settings = Settings(
        chosen.value,
        arguments.timeout,
        arguments.memory_mb,
        arguments.unsafe_fixes,
        arguments.numeric_fixes,
        arguments.target,
    )
    print(
        f"{settings.choice.package} {settings.choice.version}, compute capability {settings.choice.capability}\n"
    )
    cases = [*folder_cases(arguments.folders), *(node_cases() if arguments.node_tests else ())]
    start = time.monotonic()
    rows = measure_all(cases, arguments.jobs, settings)
    seconds = time.monotonic() - start
    if arguments.rows != "none":
        shown = [row for row in rows if arguments.rows == "all" or row.after is not None]
        print("\n".join(table(shown)) + "\n")
    print("\n".join(summary(rows, seconds)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(any(row.before.accepted and not row.last.accepted for row in rows))


if __name__ == "__main__":
    sys.exit(main())
