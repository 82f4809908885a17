"""Whether TensorRT's network of each of ONNX's node models computes what ONNX expects, read back and run.

    python benchmarks/network/node_models.py                    all that TensorRT builds as they are
    python benchmarks/network/node_models.py --only 'lstm|gru'  those whose name matches

Every node model goes through TensorRT's parser and builder with the profile of its own data; the network of those that
build is read back as an ONNX model, which ONNX Runtime executes on the CPU without optimization, else onnx.reference;
its outputs are held against ONNX's expected ones within the case's own tolerance (float64 after rounding to float32).
No engine is executed. The exit code is 1 where a model is not equal and nobody knows why: ``causes.py`` holds what is
known, and confirms it on each model.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the children of the sandbox import what they run from there

import onnx  # noqa: E402
from acceptance import values  # noqa: E402
from acceptance.cases import NodeCase, half_type, node_cases  # noqa: E402
from acceptance.measure import Settings  # noqa: E402
from acceptance.node_models import choice, setting, write_between  # noqa: E402

from network import causes, tables  # noqa: E402
from network.reading import Reader, Reading  # noqa: E402
from onnxfix.errors import OnnxfixError  # noqa: E402
from onnxfix.sandbox import Worker  # noqa: E402
from onnxfix.trt.build import attempt  # noqa: E402


@dataclass(frozen=True)
class Row:
    """One node model that TensorRT builds. The fields of ``reading.Reading``, as text; status "rounding" where nothing
    but the place of a rounding differs.

    ``cause`` is the key of what is known of it where it is not equal, "" for nothing; ``shown`` what was seen that
    confirms it. ``seconds`` are those of parsing and of reading back. ``outputs`` are what the network gave where that
    is not what ONNX expects, as ``values.pack`` leaves it.
    """

    name: str
    status: str
    backend: str = ""
    without: str = ""
    reason: str = ""
    cause: str = ""
    shown: str = ""
    gaps: tuple[str, ...] = ()
    layers: int = 0
    kinds: tuple[str, ...] = ()
    seconds: tuple[float, float] = (0.0, 0.0)
    outputs: Sequence[Sequence[dict[str, Any]]] = ()

    @property
    def unknown(self) -> bool:
        """Whether it is not equal and nobody knows why."""
        return self.status in ("differs", "not run", "failed") and not self.cause


def row_of(stored: dict[str, object]) -> Row:
    """A row as ``asdict`` and JSON left it."""
    lists = {key: tuple(value) for key, value in stored.items() if isinstance(value, list)}
    return Row(**{**stored, **lists})  # type: ignore[arg-type]


class _Job:
    """A sandbox for TensorRT, one for what runs models, and a folder."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.settings = settings
        trt, runner = (stack.enter_context(Worker(memory_mb=settings.memory_mb)) for _ in range(2))
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.reader = Reader(trt, runner, settings.choice.package, settings.timeout)

    def measure(self, case: NodeCase) -> Row | None:
        """One model; None where TensorRT does not build it."""
        path, out = self.folder / "original.onnx", self.folder / "seen.onnx"
        path.write_bytes(case.data)
        chosen = self.settings.choice
        build = attempt(
            self.reader.trt,
            path,
            package=chosen.package,
            compute_capability=chosen.capability,
            profiles=[case.profile] if case.profile is not None else None,
            timeout=self.settings.timeout,
        )
        if not build.accepted:
            return None
        half = half_type(onnx.load_model_from_string(case.data))
        reading = self.reader.read(path, out, case.feeds, case.expected, case.rtol, case.atol, half)
        cause, shown = self._cause(case, reading, out)
        lifted = reading.lifted
        return Row(
            case.name,
            "rounding" if cause == causes.ROUNDING else reading.status,
            reading.backend,
            reading.without,
            reading.reason,
            cause,
            shown,
            tuple(map(str, lifted.gaps)),
            sum(count for _, count in lifted.layers),
            tuple(kind for kind, _ in lifted.layers),
            lifted.seconds,
            values.pack(reading.outputs) if reading.status == "differs" else (),
        )

    def _cause(self, case: NodeCase, reading: Reading, out: Path) -> tuple[str, str]:
        if reading.status not in ("differs", "not run"):
            return "", ""
        model, lifted = onnx.load_model_from_string(case.data), onnx.load(str(out))
        seen = causes.Seen(case, model, lifted, reading, self.reader.runner, self.folder)
        return causes.cause_of(seen)


def measure_all(
    cases: Sequence[NodeCase], jobs: int, settings: Settings, progress: Callable[[NodeCase], None]
) -> list[Row]:
    """All models that TensorRT builds, ``jobs`` at a time, in the order of the cases."""

    def share(number: int) -> list[Row | None]:
        rows: list[Row | None] = []
        with ExitStack() as stack:
            job = _Job(settings, stack)
            for case in cases[number::jobs]:
                rows.append(job.measure(case))
                progress(case)
        return rows

    with ThreadPoolExecutor(jobs) as pool:
        shares = list(pool.map(share, range(jobs)))
    found = [shares[number % jobs][number // jobs] for number in range(len(cases))]
    return [row for row in found if row is not None]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="PATTERN", default="", help="models whose name matches")
    parser.add_argument("--package", default="auto", help="auto, tensorrt or tensorrt-rtx")
    parser.add_argument("--compute-capability", help="such as 8.9")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for each step of TensorRT")
    parser.add_argument("--memory-mb", type=int, default=4096, help="for each child")
    parser.add_argument("--json", type=Path, help="write all that was found to this file")
    parser.add_argument("--write-readme", action="store_true", help="put the tables into the README")
    parser.add_argument("--from-json", type=Path, help="tables of an earlier run's --json")
    return parser.parse_args()


def measured(given: argparse.Namespace) -> tuple[list[str], list[Row]]:
    """The surroundings and the rows of a new run."""
    settings = Settings(
        choice(given.package, given.compute_capability), (), None, False, given.timeout, given.memory_mb
    )
    cases = [case for case in node_cases() if re.search(given.only, case.name)]
    began, done = time.monotonic(), [0]

    def say(_: NodeCase) -> None:
        done[0] += 1
        if done[0] % 200 == 0:
            print(f"{done[0]} of {len(cases)}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    rows = measure_all(cases, given.jobs, settings, say)
    seconds = time.monotonic() - began
    versions = [line for line in setting(settings) if "peers" not in line]
    return [
        *versions,
        f"- {len(cases):,} models, {given.jobs} jobs, {seconds:,.0f} s in all, builds included",
    ], rows


def run(given: argparse.Namespace) -> int:
    """Measure, or read what was measured; print, write. Raises OnnxfixError where something needed is not there."""
    if given.from_json is not None:
        stored = json.loads(given.from_json.read_text(encoding="utf-8"))
        surroundings, rows = stored["setting"], [row_of(one) for one in stored["models"]]
    else:
        surroundings, rows = measured(given)
    text = "\n".join([*surroundings, "", *tables.node_models(rows)])
    print(text)
    if given.json is not None:
        kept = {"setting": surroundings, "models": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    if given.write_readme:
        write_between(HERE / "README.md", "node models", text)
    unknown = [row for row in rows if row.unknown]
    print(f"\n{len(unknown)} without a known cause", file=sys.stderr)
    for row in unknown:
        print(f"{row.name}: {row.status}: {row.reason[:300]}", file=sys.stderr)
    return int(bool(unknown))


def main() -> int:
    """Run as the module's docstring says."""
    try:
        return run(_arguments())
    except OnnxfixError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
