"""Choose the faults that are planted, and write them down: no model is kept, only how to make each again.

    python benchmarks/diagnose/choosing.py planted.json [--exports DIR] [--seed N] [--fixtures N] [--each N]

Of the models in fixtures/ every kind of fault is planted ``--fixtures`` times where the model bears it, of those in
``--exports`` ``--each`` kinds once, other kinds of the next model. A fault counts if both models run in ONNX Runtime,
everything that the changed node reads is bit-identical, its output is off by more than rounding, and an output of the
model has another bit. What is tried and does not count is counted: it does not run, it is silent (the node computes the
same), it is within rounding, hidden (no output changes), or unfit (a lost Cast whose truth is 0 or not finite).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from command import parser_of

from diagnose import observing, places, planting
from diagnose.copies import Graph
from diagnose.places import KINDS, Kind, Planted, Site
from onnxfix.errors import OnnxfixError
from onnxfix.files import loading, saving
from onnxfix.runtime.sandbox import Worker

FIXTURES = ROOT / "fixtures"
#: Kinds that take turns in the exports; those that fixtures bear less often come first.
TURNS: tuple[Kind, ...] = (
    "lost bias", "half precision", "weight element", "epsilon", "weight scaled", "axis", "perm", "lost Cast",
    "mask value", "pads", "operands", "operator", "shape constant",
)  # fmt: skip
_MOST = 24  # places that are tried for one fault

Trial = Literal["planted", "does not run", "silent", "rounding", "hidden", "unfit"]


@dataclass(frozen=True)
class Fault:
    """A planted fault, by how to plant it again.

    ``own`` is how far the node's output is off, as a share of its largest magnitude (infinite for another shape or
    where only one is finite), ``effect`` the same of the model's output that is off most.
    """

    model: str
    group: str
    kind: Kind
    site: Site
    node: str
    op_type: str
    output: str
    nodes: tuple[str, ...]
    outputs: tuple[str, ...]
    what: str
    own: float
    effect: float

    @property
    def key(self) -> str:
        """Its name: the model, the kind, the number of the node and how it was changed there."""
        return f"{self.model}/{self.kind}/{self.site.node}.{self.site.operand}.{self.site.choice}"


def fault_of(entry: Mapping[str, Any]) -> Fault:
    """A fault from its JSON."""
    return Fault(
        **{**entry, "site": Site(**entry["site"]), **{k: tuple(entry[k]) for k in ("nodes", "outputs")}}
    )


class Subject:
    """A model that faults are planted into: its inputs, and what it computes."""

    def __init__(self, path: Path, seed: int, observer: observing.Observer, folder: Path) -> None:
        self.path, self.seed, self.observer, self.folder = path, seed, observer, folder
        self.loaded = loading.load(path)
        self.graph = Graph(self.loaded.proto, path.parent)
        self.feed = observing.inputs_of(path, seed)
        _, self.seen = observer.see(path, self.feed, shapes=places.looked_at(self.graph))

    def tries(self, kind: Kind) -> list[Site]:
        """The places for a kind, in the order in which they are tried."""
        rng = random.Random(f"{self.seed}/{self.path.stem}/{kind}")
        return places.sites(self.graph, kind, self.seen, rng)

    def attempt(self, site: Site) -> tuple[Trial, Planted | None, float, float]:
        """Plant a fault and see what it does: own difference and effect, see ``Fault``."""
        planted = planting.plant(self.loaded.proto, site, self.path.parent)
        if planted is None:
            return "silent", None, 0.0, 0.0
        read = [name for name in self._read(planted) if name]
        try:
            before = self._run(planted.truth, "truth.onnx", [planted.output, *read])
            after = self._run(planted.other, "other.onnx", [planted.output, *read])
        except OnnxfixError:
            return "does not run", planted, 0.0, 0.0
        for name in read:
            assert observing.off(before[name], after[name]) == 0.0, (
                f"{self.path.name}: {site}: {name} differs"
            )
        own = observing.off(before[planted.output], after[planted.output])
        inner = {planted.output, *read} - {one.name for one in self.loaded.proto.graph.output}
        effect = max(observing.off(before[name], after[name]) for name in before if name not in inner)
        trial: Trial = "planted"
        if not own:
            trial = "silent"
        elif not observing.shows(before[planted.output], after[planted.output]):
            trial = "rounding"
        elif not effect:
            trial = "hidden"
        elif site.kind == "lost Cast" and not (math.isfinite(own) and math.isfinite(effect)):
            trial = "unfit"
        return trial, planted, own, effect

    def _read(self, planted: Planted) -> list[str]:
        """The tensors that the changed node reads in both models."""
        found = {
            name for node in planted.truth.graph.node if planted.output in node.output for name in node.input
        }
        makers = set(self.graph.makers) - set(self.graph.stored)
        return sorted(found & makers - {planted.output, *planted.outputs})

    def _run(self, model: Any, name: str, inner: Sequence[str]) -> dict[str, Any]:
        path = self.path
        if model is not self.loaded.proto:
            path = self.folder / name
            saving.save(model, path)
        try:
            return self.observer.see(path, self.feed, inner)[0]
        finally:
            if path is not self.path:
                path.unlink()

    def faults(self, kind: Kind, count: int, group: str, trials: Counter[str]) -> Iterator[Fault]:
        """Up to ``count`` faults of a kind; ``trials`` counts what became of each try."""
        found = 0
        for site in self.tries(kind)[: _MOST * count]:
            if found == count:
                break
            trial, planted, own, effect = self.attempt(site)
            trials[f"{kind}: {trial}"] += 1
            if trial == "planted" and planted is not None:
                found += 1
                name = planted.nodes[0]
                fault = Fault(
                    self.path.stem, group, kind, site, name, planted.op_type, planted.output, planted.nodes,
                    planted.outputs, planted.what, own, effect,
                )  # fmt: skip
                yield fault


def kinds_of(place: int, each: int) -> Iterator[Kind]:
    """The kinds for the export of that number, those whose turn it is first."""
    start = place * each % len(TURNS)
    yield from TURNS[start:]
    yield from TURNS[:start]


def chosen(
    subject: Subject, group: str, place: int, given: argparse.Namespace, trials: Counter[str]
) -> Iterator[Fault]:
    """The faults of one model."""
    if group == "fixtures":
        for kind in KINDS:
            yield from subject.faults(kind, given.fixtures, group, trials)
        return
    left = given.each
    for kind in kinds_of(place, given.each):
        for fault in subject.faults(kind, 1, group, trials):
            left -= 1
            yield fault
        if not left:
            return


def models(given: argparse.Namespace) -> list[tuple[str, Path]]:
    """Group and path of each model."""
    folders = [("fixtures", FIXTURES), *([("exports", given.exports)] if given.exports else [])]
    return [(group, path) for group, folder in folders for path in sorted(folder.glob("*.onnx"))]


def choose(given: argparse.Namespace) -> int:
    """Choose and write."""
    found: list[Fault] = []
    trials: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder, Worker() as worker:
        for place, (group, path) in enumerate(models(given)):
            began, before = time.monotonic(), len(found)
            try:
                subject = Subject(path, given.seed, observing.Observer(worker), Path(folder))
                found += chosen(subject, group, place, given, trials)
            except OnnxfixError as error:
                print(f"{group}/{path.name}: left out: {error}", file=sys.stderr, flush=True)
            seconds = time.monotonic() - began
            print(
                f"{group}/{path.name}: {len(found) - before} faults, {seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    write(given.json, given.seed, found, trials)
    print(f"{len(found)} faults; of {sum(trials.values())} tries: {dict(sorted(trials.items()))}")
    return 0


def write(path: Path, seed: int, faults: Sequence[Fault], trials: Mapping[str, int]) -> None:
    """One line for each fault."""
    lines = ",\n".join(f"  {json.dumps(jsonable(fault))}" for fault in faults)
    head = json.dumps({"seed": seed, "trials": dict(sorted(trials.items()))})
    path.write_text(f'{head[:-1]},\n "faults": [\n{lines}\n ]}}\n', encoding="utf-8")


def jsonable(fault: Fault) -> dict[str, Any]:
    """With three digits, and the largest number for infinity, which JSON has not."""
    own, effect = (float(f"{min(one, sys.float_info.max):.3g}") for one in (fault.own, fault.effect))
    return asdict(replace(fault, own=min(own, 1e300), effect=min(effect, 1e300)))


def read(path: Path) -> tuple[int, list[Fault], dict[str, int]]:
    """The seed, the faults, and what became of all tries."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    return stored["seed"], [fault_of(one) for one in stored["faults"]], stored["trials"]


def main(words: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("--exports", type=Path, help="a folder of full-size exports")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fixtures", type=int, default=1, help="faults of each kind in a fixture")
    parser.add_argument("--each", type=int, default=3, help="kinds of faults in an export")
    return choose(parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())
