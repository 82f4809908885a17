"""The same planted faults with Polygraphy: its layerwise comparison on ONNX Runtime.

    python benchmarks/diagnose/peers.py measure peers.json [--polygraphy PATH] [--every N] [--exports DIR]
    python benchmarks/diagnose/peers.py table peers.json result.json [--write-readme]

As Polygraphy's guides describe it: both models run with all tensors as outputs (``--onnx-outputs mark all``), those
of the first are saved, and the second is compared with them at Polygraphy's own tolerances. The tensors that fail are
taken as what it names, in the order in which it lists them. Seconds are those of both commands, memory is the peak of
the largest process. ``table`` compares with what run.py wrote of the same faults.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from command import exit_code, parser_of
from ledger import Ledger, load
from pages import markdown, write_between

from diagnose import cases, choosing, observing
from diagnose.cases import Case

PLANTED = HERE / "planted.json"
_FAILED = re.compile(r"FAILED \| Output: '(.*?)' \|")
_SUMMARY = "Accuracy Summary"


@dataclass(frozen=True)
class Layerwise:
    """What the comparison of all tensors gave. ``place`` as for onnxfix; ``failed`` counts tensors that differ;
    ``ended`` is False where a run broke off before it compared. Seconds, and megabytes at the peak."""

    place: int
    failed: int
    ended: bool
    seconds: float
    megabytes: float
    words: str = ""


class Peer:
    """Runs Polygraphy's commands in a folder, on one case, each of up to ``limit`` seconds."""

    def __init__(self, polygraphy: str, folder: Path, limit: float) -> None:
        self.polygraphy, self.folder, self.limit = polygraphy, folder, limit
        self.seconds = self.megabytes = 0.0

    def run(self, *words: str) -> cases.Ended:
        """One command."""
        ended = cases.executed([self.polygraphy, *words], self.limit, self.folder)
        self.seconds += ended.seconds
        self.megabytes = max(self.megabytes, ended.megabytes)
        return ended

    def layerwise(self, first: str, second: str, case: Case) -> Layerwise:
        """Compare all tensors of two models."""
        every = ("--onnxrt", "--onnx-outputs", "mark", "all", "--load-inputs", "inputs.json")
        saved = self.run("run", first, *every, "--save-outputs", "first.json")
        compared = saved
        if not saved.code:
            compared = self.run("run", second, *every, "--load-outputs", "first.json")
        text = compared.stdout + compared.stderr
        names = list(dict.fromkeys(_FAILED.findall(text)))
        assert case.fault is not None
        place = cases.place_of([{"output": name} for name in names], case.fault)
        ended = _SUMMARY in text
        return Layerwise(
            place, len(names), ended, self.seconds, self.megabytes, "" if ended else _last(compared)
        )


def _last(ended: cases.Ended) -> str:
    if ended.code == cases.TIMED_OUT:
        return f"no result in {ended.seconds:.0f} s"
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return lines[-1][-200:] if lines else f"exit code {ended.code}"


def measured(case: Case, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """One fault, in a folder that is gone afterwards."""
    from polygraphy.json import save_json

    with tempfile.TemporaryDirectory(prefix="onnxfix-diagnose-") as name:
        folder = Path(name)
        first, second, *_ = cases.arguments(case, folder, seed)
        save_json([observing.inputs_of(case.path, seed)], str(folder / "inputs.json"))
        peer = Peer(given.polygraphy, folder, given.timeout)
        return {"layerwise": asdict(peer.layerwise(first, second, case))}


def sample(wanted: Sequence[Case], every: int) -> list[Case]:
    """Each N-th case of the fixtures, and of the exports one for each model, so that kinds and models take turns."""
    found = [case for case in wanted if case.group == "fixtures"][::every]
    seen: set[Path] = set()
    for case in wanted:
        if case.group == "exports" and case.path not in seen:
            seen.add(case.path)
            found.append(case)
    return found


def measure(given: argparse.Namespace) -> int:
    """All faults of the sample that the file does not hold."""
    seed, faults, _ = choosing.read(given.planted)
    wanted = sample(cases.planted_cases(faults, given.exports), given.every)
    began = time.monotonic()
    with Ledger(given.json, {"seed": seed, "every": given.every}) as book:
        for case in wanted:
            if case.key in book or time.monotonic() - began > given.budget:
                continue
            found = measured(case, seed, given)
            book.record(case.key, found)
            print(f"{case.key}: {found}", file=sys.stderr, flush=True)
        left = sum(case.key not in book for case in wanted)
    print(f"{len(wanted) - left} measured, {left} left, {time.monotonic() - began:.0f} s")
    return int(left > 0)


# ------------------------------------------------------------------------------------------------------------ tables


def page(peers: Mapping[str, Mapping[str, Any]], ours: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: Polygraphy and onnxfix on the same faults, then the reduced models."""
    both = {key: (found["layerwise"], ours[key]) for key, found in peers.items() if key in ours}
    rows = []
    for group in ("fixtures", "exports"):
        own = [pair for key, pair in both.items() if key.startswith(f"{group}/")]
        if own:
            rows.append([f"Polygraphy, all tensors: {group}", *_figures([one for one, _ in own])])
            rows.append([f"`onnxfix diagnose`: {group}", *_figures([one for _, one in own])])
    head = (
        "tool",
        "faults",
        "named first",
        "among three",
        "not named",
        "seconds, median",
        "MB, median",
        "MB, greatest",
    )
    yield from markdown(head, rows)
    yield ""
    failed = [found["layerwise"]["failed"] for found in peers.values() if found["layerwise"]["ended"]]
    if failed:
        yield (
            f"Polygraphy lists a median of {statistics.median(failed):.0f} tensors that differ (greatest: "
            f"{max(failed)}); it does not tell the node that introduces an error from those that receive it."
        )
    broken = [key for key, found in peers.items() if not found["layerwise"]["ended"]]
    if broken:
        yield f"It ended without a comparison for {len(broken)}: {', '.join(f'`{key}`' for key in broken)}."


def _figures(found: Sequence[Mapping[str, Any]]) -> list[object]:
    places = [one["place"] for one in found]
    return [
        len(found),
        sum(place == 1 for place in places),
        sum(0 < place <= cases.AMONG for place in places),
        sum(place == 0 for place in places),
        f"{statistics.median(one['seconds'] for one in found):.1f}",
        f"{statistics.median(one['megabytes'] for one in found):.0f}",
        f"{max(one['megabytes'] for one in found):.0f}",
    ]


def table(given: argparse.Namespace) -> int:
    """Print, write."""
    text = "\n".join(page(load(given.json)["results"], load(given.ours)["results"]))
    print(text)
    if given.write_readme:
        write_between(HERE / "README.md", "peers", text)
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    first = steps.add_parser("measure")
    beside = Path(sys.executable).with_name("polygraphy")
    first.add_argument(
        "--polygraphy", default=shutil.which("polygraphy", path=str(beside.parent)) or "polygraphy"
    )
    first.add_argument("--planted", type=Path, default=PLANTED)
    first.add_argument("--exports", type=Path)
    first.add_argument("--every", type=int, default=7, help="only each N-th fault of the fixtures")
    first.add_argument("--timeout", type=float, default=600.0, help="seconds for a command")
    first.add_argument(
        "--budget", type=float, default=float("inf"), help="begin no fault after so many seconds"
    )
    second = steps.add_parser("table")
    second.add_argument("--write-readme", action="store_true")
    for step in (first, second):
        step.add_argument("json", type=Path)
    second.add_argument("ours", type=Path, help="what run.py wrote")
    given = parser.parse_args(words)
    return exit_code(lambda: measure(given) if given.step == "measure" else table(given))


if __name__ == "__main__":
    sys.exit(main())
