"""What ``onnxfix check`` says of models for a target, against what that version of TensorRT did with them.

    python benchmarks/gpu/agreement.py    writes docs/agreement.md and fixtures/disagreements.tsv, 4 minutes on 2 cores

The models are ONNX's node models (fixtures/node_truth.tsv), the examples of all rules (fixtures/example_truth.tsv) and
the exports in fixtures/ (fixtures/export_truth.tsv); ``node_truth.py`` says how the tables are made. An example that
has changed since is left out.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "ONNX's node models": "node_truth.tsv",
    "The examples of rules": "example_truth.tsv",
    "Exports": "export_truth.tsv",
}
DISAGREEMENTS = ROOT / "fixtures" / "disagreements.tsv"
KINDS = {
    "missed": "refused, not built, or the process died, and `check` reports no error",
    "barred": "right, and `check` reports an error",
    "silent": "wrong, and `check` reports nothing",
    "doubted": "imported or built, and `check` reports an error: no disagreement, for it may be wrong",
}
_HEAD = """\
# What `check` says, against what TensorRT did

Each model was given to TensorRT as it is, and to `onnxfix check --target` for that version. Written by
`python benchmarks/gpu/agreement.py`, not by hand.
"""


@dataclass(frozen=True)
class Package:
    """A column of a table: a version of TensorRT, and what it did: executed, built or imported."""

    name: str
    did: str
    place: int

    @property
    def target(self) -> str:
        """The target that stands for it."""
        product, version = self.name.split()
        return "rtx" if product == "tensorrt-rtx" else f"trt{'.'.join(version.split('.')[:2])}"


@dataclass
class Tally:
    """What was seen of a package: states of models, findings' worst severities, and disagreements, by their kind."""

    states: Counter[str] = field(default_factory=Counter)
    severities: Counter[str] = field(default_factory=Counter)
    apart: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def read(path: Path) -> tuple[list[Package], dict[str, tuple[str, str]]]:
    """The columns of a table, and its rows: model -> letters, operators."""
    packages: list[Package] = []
    rows = {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("# tensorrt"):
            name, did = line.removeprefix("# ").split(":")[0].split(", ")
            packages.append(Package(name, did, len(packages)))
        elif not line.startswith("#"):
            name, letters, operators = line.split("\t")
            rows[name] = letters, operators
    return packages, rows


def kind_of(state: str, severities: Set[str]) -> str:
    """The kind of a disagreement with findings of these severities; "" where there is none."""
    if state in "xbc":
        return "" if "error" in severities else "missed"
    if state in "riy" and "error" in severities:
        return "barred" if state == "r" else "doubted"
    return "silent" if state == "w" and not severities else ""


def judge(packages: list[Package], model: tuple[str, str, bytes]) -> list[tuple[str, str, str]]:
    """For each package: its letter, the worst severity of what check finds, and the kind of disagreement."""
    import onnx

    import onnxfix

    _, letters, data = model
    told: dict[str, Any] = {}
    found = []
    for package in packages:
        state = letters[package.place]
        if state != "-" and package.target not in told:
            try:
                told[package.target] = onnxfix.check(
                    onnx.load_from_string(data), target=package.target
                ).findings
            except onnxfix.OnnxfixError:  # not a valid model, which check says with its exit code
                told[package.target] = None
        findings = told.get(package.target)
        if state == "-" or findings is None:
            found.append(("-", "", ""))
            continue
        severities = {finding.severity for finding in findings}
        worst = next((one for one in ("error", "warning", "info") if one in severities), "none")
        found.append((state, worst, kind_of(state, severities)))
    return found


def compare(
    packages: list[Package], rows: Mapping[str, tuple[str, str]], models: Mapping[str, bytes], jobs: int
) -> list[Tally]:
    """Judge every model that has a row."""
    given = [(name, rows[name][0], models[name]) for name in rows if name in models]
    tallies = [Tally() for _ in packages]
    with ProcessPoolExecutor(jobs) as pool:
        for (name, _, _), found in zip(
            given, pool.map(partial(judge, packages), given, chunksize=20), strict=True
        ):
            for tally, (state, worst, kind) in zip(tallies, found, strict=True):
                if state == "-":
                    continue
                tally.states[state] += 1
                tally.severities[worst] += 1
                if kind:
                    tally.apart[kind].append(name)
    return tallies


def show(
    title: str, packages: list[Package], rows: Mapping[str, tuple[str, str]], tallies: list[Tally]
) -> Iterator[str]:
    """The section of a table."""
    yield f"\n## {title}\n"
    columns = "models; right, built or imported; wrong; refused; not built; died or hung; error; warning; note; nothing"
    yield f"| package | target | {' | '.join([*columns.split('; '), *KINDS])} |"
    yield "|---|---|" + "---:|" * 14
    for package, tally in zip(packages, tallies, strict=True):
        states, apart = tally.states, tally.apart
        taken = sum(states[letter] for letter in "riy")
        cells = [
            sum(states.values()),
            taken,
            states["w"],
            states["x"],
            states["b"],
            states["c"] + states["h"],
        ]
        cells += [tally.severities[one] for one in ("error", "warning", "info", "none")]
        cells += [len(apart[kind]) for kind in KINDS]
        yield f"| {package.name}, {package.did} | {package.target} | {' | '.join(map(str, cells))} |"
    yield ""
    yield "\n".join(f"- {kind}: {meaning}" for kind, meaning in KINDS.items())
    yield "\n| operators | kind | " + " | ".join(package.name for package in packages) + " | models |"
    yield "|---|---|" + "---:|" * len(packages) + "---|"
    by: dict[tuple[str, str], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for package, tally in zip(packages, tallies, strict=True):
        for kind, names in tally.apart.items():
            for name in names if kind != "doubted" else ():
                operators = rows[name][1] if len(rows[name][1]) < 40 else f"{rows[name][1][:40]}…"
                by[operators, kind][package.place].append(name)
    for (operators, kind), places in sorted(by.items()):
        counts = " | ".join(str(len(places.get(package.place, ())) or "") for package in packages)
        names = sorted({name for each in places.values() for name in each})
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield f"| {operators} | {kind} | {counts} | {', '.join(names[:4])}{more} |"


def models_of(title: str) -> dict[str, bytes]:
    """The models of a table, by name."""
    if title == "Exports":
        folders = (ROOT / "fixtures" / "kinds", ROOT / "fixtures")
        return {path.stem: path.read_bytes() for folder in folders for path in folder.glob("*.onnx")}
    if title == next(iter(FILES)):
        from onnx_cases import onnx_cases

        return {
            name.removeprefix("test_"): one.model.SerializeToString() for name, one in onnx_cases().items()
        }
    from gpu.node_truth import list_examples

    return dict(list_examples([]))


def main() -> None:
    """Write the page and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    jobs = parser.parse_args().jobs
    sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
    page, table = [_HEAD], ["# Where check and TensorRT disagree: written by benchmarks/gpu/agreement.py."]
    for title, file in FILES.items():
        packages, rows = read(ROOT / "fixtures" / file)
        tallies = compare(packages, rows, models_of(title), jobs)
        page += show(title, packages, rows, tallies)
        for package, tally in zip(packages, tallies, strict=True):
            for kind, names in tally.apart.items():
                table += [f"{name}\t{package.name}\t{kind}" for name in names if kind != "doubted"]
    (ROOT / "docs" / "agreement.md").write_text("\n".join(page) + "\n", "utf-8")
    DISAGREEMENTS.write_text("\n".join(table) + "\n", "utf-8")


if __name__ == "__main__":
    main()
