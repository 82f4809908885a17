"""Whether the rung trt-network sees a network that was changed a little.

    python benchmarks/network/mutants.py [--models NAME...] [--write-readme]

TensorRT's networks of BERT, GPT-2 and Swin (``fixtures/``) are read back, and one thing is changed in what was read:
one element of a weight, one axis, one type that a Cast makes. The rung then takes the changed network for TensorRT's:
its own inputs, its own judgment, with nothing else replaced. Whether the change shows in an output at all is found by
running both networks in ONNX Runtime on the inputs that the ladder plans: one bit that differs is enough, for the same
file gives the same bits each time. Of what is tried at random, changes that show are taken first. The exit code is 1
where a change shows and the rung does not fail.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from onnxfix.files.walk import copied

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import numpy as np
import onnx
from acceptance.measure import outputs_of
from command import exit_code, parser_of
from diagnose.observing import off
from machine import choice, lines, without_gpu
from pages import cell, markdown, show

from network.mutating import MAKERS, Kind, Mutant
from onnxfix.errors import OnnxfixError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import make_inputs
from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof.compare.compare import identical
from onnxfix.proof.readback import network as read
from onnxfix.proof.verify import verify
from onnxfix.runtime.sandbox import Worker, one_line
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.lift import Lifted
from onnxfix.tensorrt.lift.records import numpy_type

FIXTURES = HERE.parents[1] / "fixtures"
MODELS = ("bert.legacy.op17", "gpt2.legacy.op13", "swin.legacy.op13")
#: Of each model: 10 in all.
WANTED: dict[Kind, int] = {"weight": 4, "axis": 3, "cast": 3}
_STEP = 120.0  # seconds
_MOST = 60  # tries for a kind before it is given up


@dataclass(frozen=True)
class Row:
    """One mutant. ``outputs`` counts the runs, of all ``runs``, in which an output has another bit, ``relative`` is the
    largest difference as a share of the largest output. ``caught``: the rung failed; ``reason`` is what it says.
    ``by_outputs``: it fails too where weights are not compared."""

    model: str
    kind: str
    what: str
    runs: int
    outputs: int
    relative: float
    caught: bool
    reason: str
    by_outputs: bool

    @property
    def missed(self) -> bool:
        """Whether it shows, and the rung passes."""
        return self.outputs > 0 and not self.caught


def fed(lifted: Lifted, feed: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a feed under the names and in the types of the lifted model's inputs.

    TensorRT renames an input that has the name of something in a loop's body: it keeps its place. float64 is rounded
    to float32, the type that TensorRT gives such an input.
    """
    places = dict(zip([one.name for one in lifted.inputs], feed.values(), strict=False))
    found = {}
    for one in lifted.inputs:
        value = feed[one.name] if one.name in feed else places[one.name]
        found[lifted.names.get(one.name, one.name)] = np.asarray(value).astype(numpy_type(one.dtype))
    return found


class _Subject:
    """A model whose network was read back, with what the network computes on the ladder's inputs."""

    def __init__(self, path: Path, package: str, folder: Path, runner: Worker) -> None:
        self.path, self.folder, self.runner = path, folder, runner
        with Worker() as trt:
            self.lifted = lift.attempt(trt, path, folder / "seen.onnx", package=package, timeout=_STEP)
        if not self.lifted.lifted:
            raise OnnxfixError(f"{path.name}: {self.lifted.reason}")
        self.network = onnx.load(self.lifted.path)
        known = signature(path)
        feeds = plan.feeds(known, plan.assignments(known, {}), 0, False)
        made = (make_inputs(known, one.assignment, one.seed, kind=one.kind) for one in feeds)
        given = [fed(self.lifted, feed) for feed in made]
        ran = [self.outputs(Path(self.lifted.path), [feed]) for feed in given]
        self.feeds = [feed for feed, one in zip(given, ran, strict=True) if isinstance(one, list)]
        self.expected = [one[0] for one in ran if isinstance(one, list)]
        again = self.outputs(Path(self.lifted.path), self.feeds)
        if not identical(self.expected, again):
            raise OnnxfixError(f"{path.name}: the same network gives other bits in a second run")

    def outputs(self, path: Path, feeds: Sequence[Mapping[str, Any]]) -> list[list[Any]] | str:
        """What ONNX Runtime computes, or why it does not."""
        ran = outputs_of(self.runner, "ort-cpu", path, feeds, _STEP)
        return ran.value if ran.ok else ran.message

    def mutants(self, kind: Kind, count: int, seed: int) -> list[tuple[Mutant, list[list[Any]]]]:
        """Valid mutants that run, with what they compute; first those that compute something else."""
        showing, silent = [], []
        tries = zip(range(_MOST), MAKERS[kind](self.network, random.Random(seed)), strict=False)
        for _, mutant in tries:
            self.write(mutant)
            try:
                onnx.checker.check_model(str(self.mutated))
            except onnx.checker.ValidationError:
                continue
            values = self.outputs(self.mutated, self.feeds)
            if isinstance(values, list):
                (silent if identical(self.expected, values) else showing).append((mutant, values))
            if len(showing) == count:
                break
        return [*showing, *silent][:count]

    @property
    def mutated(self) -> Path:
        """Where mutants are written."""
        return self.folder / "mutant.onnx"

    def write(self, mutant: Mutant) -> None:
        """With large weights in a file beside it, as what was read back has them."""
        data = self.mutated.with_name("mutant.onnx.data")
        data.unlink(missing_ok=True)
        copy = copied(mutant.model)
        onnx.save(copy, self.mutated, save_as_external_data=True, location=data.name, size_threshold=1024)

    def caught(self, seed: int, *, weights: bool) -> tuple[bool, str]:
        """Whether the rung fails with the mutant for TensorRT's network, and what it says. ``weights``: as it is; else
        by outputs alone. ``seed`` is one that was not used: the rung remembers what it has read."""
        changed = replace(self.lifted, path=str(self.mutated))

        def attempt(*_: Any, **__: Any) -> Lifted:
            return changed

        def none(*_: Any, **__: Any) -> tuple[list[Any], str]:
            return [], ""

        compared = read.weights if weights else none
        with mock.patch.object(read.lift, "attempt", attempt), mock.patch.object(read, "weights", compared):
            [rung] = verify(self.path, self.path, exact=False, rungs=("trt-network",), seed=seed).rungs
        return rung.status == "failed", f"{rung.status}: {rung.reason}"


def measure(path: Path, package: str, seed: int) -> Iterator[Row]:
    """The mutants of one model."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder, Worker() as runner:
        subject = _Subject(path, package, Path(folder), runner)
        number = 0
        for kind, count in WANTED.items():
            for mutant, values in subject.mutants(kind, count, seed):
                number += 1
                subject.write(mutant)
                pairs = list(zip(subject.expected, values, strict=True))
                differing = sum(not identical(a, b) for a, b in pairs)
                caught, reason = subject.caught(number, weights=True)
                by_outputs, _ = subject.caught(1000 + number, weights=False)
                yield Row(
                    path.stem,
                    kind,
                    mutant.what,
                    len(pairs),
                    differing,
                    max(off(a, b) for pair in pairs for a, b in zip(*pair, strict=True)),
                    caught,
                    one_line(reason),
                    by_outputs,
                )


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: how many show and are caught, then one line for each mutant."""
    showing = [row for row in rows if row.outputs]
    caught = sum(row.caught for row in showing)
    alone = sum(row.by_outputs for row in showing)
    yield f"**{len(rows)} mutants, {len(showing)} of which change an output: {caught} are caught.**"
    yield f"By outputs alone, without comparing weights: {alone}."
    yield ""
    heads = ("model", "changed", "from what to what", "runs with another bit", "largest difference, relative")
    yield from markdown((*heads, "by outputs alone", "the rung"), map(_cells, rows))


def _cells(row: Row) -> list[object]:
    said = row.reason if row.outputs or row.caught else "changes no output"
    runs = f"{row.outputs}/{row.runs}"
    by_outputs = "yes" if row.by_outputs else "no"
    return [f"`{row.model}`", row.kind, cell(row.what), runs, f"{row.relative:.1e}", by_outputs, cell(said)]


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, help="names in fixtures/")
    parser.add_argument("--seed", type=int, default=0, help="of what is changed")
    parser.add_argument("--write-readme", action="store_true", help="put the table into the README")
    return parser.parse_args()


def run(given: argparse.Namespace) -> int:
    """Measure, print, write. Raises OnnxfixError where something needed is not there."""
    chosen = choice("auto")
    rows: list[Row] = []
    for name in given.models:
        for row in measure(FIXTURES / f"{name}.onnx", chosen.package, given.seed):
            rows.append(row)
            print(
                f"{row.model} {row.kind} {row.what}: {row.outputs}/{row.runs} {row.reason}", file=sys.stderr
            )
    told = [*lines(without_gpu(chosen)), "", *table(rows)]
    show(told, HERE, "mutants", write=given.write_readme)
    return int(any(row.missed for row in rows) or len(rows) < len(given.models) * sum(WANTED.values()))


def main() -> int:
    """Run as the module's docstring says."""
    return exit_code(lambda: run(_arguments()))


if __name__ == "__main__":
    sys.exit(main())
