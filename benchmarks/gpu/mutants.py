"""Whether the check trt-gpu sees a model that was changed a little, and what the checks without a GPU say.

    python benchmarks/gpu/mutants.py measure FILE                  where the GPU is
    python benchmarks/gpu/mutants.py table FILE [--write-readme]   anywhere

``measure`` changes one thing in each model of ``fixtures/``, once for every kind of change that the model can bear; a
copy with no change is the control. Whether a mutant computes something else at all is found by running it in float64 on
the inputs that the proof plans: what does not is excluded. Each is handed to ``onnxfix verify ORIGINAL MUTANT`` in a
process of its own. FILE is written every few seconds, and what it holds is not measured again. The exit code of
``table`` is 1 where a mutant that changes an output by more than the tolerance of ``onnxfix verify`` is passed by
trt-gpu, or a control is refuted. ort-cpu compares the two models; trt-network compares TensorRT's network of the mutant
with the mutant itself, so that it refutes only what TensorRT reads otherwise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
import ledger
from command import TIMED_OUT, exit_code, parser_of, reported, rungs_of
from machine import lines
from pages import blame, cell, markdown, show, spaced

from gpu import engines
from gpu.changed import CONTROL, KINDS, Change, Recipe, Subject
from onnxfix.runtime.sandbox import one_line

FIXTURES = ROOT / "fixtures"
GPU = ("trt-gpu",)
CPU = ("ort-cpu", "trt-network")
_LONGEST = 160


@dataclass(frozen=True)
class Row:
    """One mutant. ``said`` has what each rung came to, by its name: a status and a reason. ``spoilt``: the engine of
    the original is itself wrong, as that of its copy showed, so that it says nothing of mutants."""

    recipe: Recipe
    change: Change
    said: Mapping[str, Mapping[str, Any]]
    spoilt: bool = False

    def caught(self, *rungs: str) -> bool:
        """Whether one of these rungs refuted it."""
        return any(self.said.get(rung, {}).get("status") == "failed" for rung in rungs)

    @property
    def control(self) -> bool:
        """Whether nothing was changed."""
        return self.recipe.kind == CONTROL

    @property
    def counts(self) -> bool:
        """Whether there is something to catch, and an engine that could have shown it."""
        return not self.control and not self.change.equivalent and self.executed and not self.spoilt

    @property
    def executed(self) -> bool:
        """Whether trt-gpu came to a verdict."""
        return self.said.get(GPU[0], {}).get("status") in ("passed", "failed")


# --------------------------------------------------------------------------------------------------- measuring


def verify_mutant(original: Path, mutant: Path, rungs: Sequence[str], timeout: float) -> dict[str, Any]:
    """What ``onnxfix verify`` says of a mutant: status, reason and outcome of each check."""
    code, report, _ = reported("verify", original, mutant, "--rungs", ",".join(rungs), limit=timeout)
    if code == TIMED_OUT:
        stopped = {"status": "timeout", "reason": f"took more than {timeout:g} s"}
        return dict.fromkeys(rungs, stopped)
    said = {
        name: {
            "status": rung["status"],
            "reason": rung["reason"],
            "outcome": (rung.get("executed") or {}).get("outcome", ""),
        }
        for name, rung in rungs_of(report).items()
    }
    words = report.get("stderr") or "no report"
    return said or {rung: {"status": "error", "reason": one_line(words)} for rung in rungs}


def measure(given: argparse.Namespace) -> int:
    """Make the mutants, see what they change, and run all checks, several models at a time."""
    began = time.monotonic()
    _, facts = engines.ready(given.package)
    print(*lines(facts), sep="\n", flush=True)
    with ledger.Ledger(given.file, {"setting": facts, "seed": given.seed}) as book:

        def measure_model(_: None, task: tuple[int, str]) -> None:
            turn, name = task
            with ExitStack() as stack:
                subject = Subject(FIXTURES / f"{name}.onnx", stack)
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
                for kind in (CONTROL, *KINDS):
                    if f"{name}/{kind}" not in book:
                        book.record(f"{name}/{kind}", _measure_kind(subject, kind, given, turn, folder))
            print(f"{name}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

        tasks = [(turn, path.stem) for turn, path in enumerate(sorted(FIXTURES.glob("*.onnx")))]
        left = engines.spread(tasks, given.jobs, nullcontext, measure_model, budget=given.budget)
    count = sum(one is not None for one in book.results.values())
    print(f"{count} mutants, controls included, {left} models left, {time.monotonic() - began:.0f} s")
    return int(left > 0)


def _measure_kind(
    subject: Subject, kind: str, given: argparse.Namespace, turn: int, folder: Path
) -> dict[str, Any] | None:
    """One mutant; None where the model bears none of that kind."""
    mutant = subject.pick(kind, given.seed, turn)
    if mutant is None:
        return None
    recipe, change, data = mutant
    path = folder / "mutant.onnx"
    path.write_bytes(data)
    said = {
        rung: what
        for rungs in (CPU, GPU)  # apart, since a check that fails may end the others
        for rung, what in verify_mutant(subject.path, path, rungs, given.timeout).items()
    }
    return {"recipe": asdict(recipe), "change": asdict(change), "said": said}


# ------------------------------------------------------------------------------------------------------ tables


def rows_of(results: Mapping[str, Any]) -> list[Row]:
    """The mutants with what all checks said; those that were not executed as well."""
    stored = [one for one in results.values() if one is not None]
    rows = [Row(Recipe(**one["recipe"]), Change(**one["change"]), one["said"]) for one in stored]
    alike = {
        row.recipe.model for row in rows if row.control and row.said.get(GPU[0], {}).get("outcome") == "alike"
    }
    rows = [replace(row, spoilt=row.recipe.model in alike) for row in rows]
    return sorted(rows, key=lambda row: row.recipe.model)


def faults(rows: Sequence[Row]) -> list[str]:
    """Mutants that trt-gpu passed though they change outputs by more than the tolerance, and controls refuted."""
    found = []
    for row in rows:
        if row.control and row.caught(*(CPU if row.spoilt else (*CPU, *GPU))):
            found.append(f"{row.recipe.key}: refuted, and nothing was changed")
        elif row.counts and row.change.beyond and not row.caught(*GPU):
            found.append(f"{row.recipe.key}: passed, and changes outputs by {row.change.relative:.1e}")
    return found


def page(rows: Sequence[Row], setting: Mapping[str, Any]) -> Iterator[str]:
    """Markdown: the numbers, then one line for each mutant."""
    counted = [row for row in rows if row.counts]
    mutants = [row for row in rows if not row.control]
    controls = [row for row in rows if row.control]
    gone = sum(bool(row.change.equivalent) for row in mutants)
    silent = sum(not row.executed and not row.change.equivalent for row in mutants)
    spoilt = sorted({row.recipe.model for row in rows if row.spoilt})
    wide = [row for row in counted if row.change.beyond]
    told = (
        f"**{len(counted)} mutants change an output: trt-gpu refutes {sum(row.caught(*GPU) for row in counted)}, "
        f"{sum(row.caught(*GPU) for row in wide)} of the {len(wide)} that change one by more than the tolerance.** "
        f"Of {len(mutants)} mutants {gone} are excluded, since they change nothing, and of {silent} no engine was "
        f"executed. {sum(row.caught(*CPU, *GPU) for row in controls)} of {len(controls)} copies are refuted."
        + (
            f" The engine of the original is itself wrong, so its mutants do not count: {', '.join(spoilt)}."
            * bool(spoilt)
        )
    )
    groups = (
        [name, len(own), sum(row.change.beyond for row in own)] for name, own in _groups(counted).items()
    )
    head = ("model", "changed", "what", "largest change of an output", *CPU, *GPU, "trt-gpu says")
    return spaced(
        lines(setting),
        told,
        markdown(("caught by", "mutants", "of these beyond the tolerance"), groups),
        markdown(head, map(_line, mutants)),
    )


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    titles = {
        (True, False): "trt-gpu alone",
        (False, True): "ort-cpu or trt-network alone",
        (True, True): "both",
        (False, False): "neither",
    }
    found: dict[str, list[Row]] = {title: [] for title in titles.values()}
    for row in rows:
        found[titles[row.caught(*GPU), row.caught(*CPU)]].append(row)
    return found


def _line(row: Row) -> list[object]:
    words = {"failed": "refuted", "passed": "passed"}
    statuses = [row.said.get(rung, {}).get("status", "–") for rung in (*CPU, *GPU)]
    reason = row.change.equivalent or row.said.get(GPU[0], {}).get("reason", "–")
    change = f"{row.change.relative:.1e} ({row.change.precision})"
    return [
        f"`{row.recipe.model}`",
        row.recipe.kind,
        cell(row.recipe.what),
        "none" if row.change.equivalent else change,
        *(words.get(one, one) for one in statuses),
        cell(reason)[:_LONGEST],
    ]


def table(given: argparse.Namespace) -> int:
    """Print, write."""
    measured = ledger.load(given.file)
    rows = rows_of(measured["results"])
    show(page(rows, measured["setting"]), HERE, "mutants", write=given.write_readme)
    return blame(faults(rows))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    first = steps.add_parser("measure")
    first.add_argument("--seed", type=int, default=0, help="of what is changed")
    first.add_argument("--jobs", type=int, default=4)
    first.add_argument("--budget", type=float, default=500.0, help="begin no model after so many seconds")
    first.add_argument("--package", default="tensorrt-rtx")
    first.add_argument("--timeout", type=float, default=120.0, help="seconds for the checks of a mutant")
    second = steps.add_parser("table")
    second.add_argument("--write-readme", action="store_true")
    for step in (first, second):
        step.add_argument("file", type=Path)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    given = _arguments(words)
    return exit_code(lambda: measure(given) if given.step == "measure" else table(given))


if __name__ == "__main__":
    sys.exit(main())
