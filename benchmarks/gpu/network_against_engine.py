"""What TensorRT's network says of ONNX's node models, against what the engine does.

    python benchmarks/gpu/network_against_engine.py predict CARRY --json PREDICTED     no GPU is needed
    python benchmarks/gpu/network_against_engine.py table PREDICTED MEASURED [--write-readme]

``predict`` reads TensorRT's network back for every model that builds (of CARRY, which ``node_models.py prepare`` wrote)
and runs it by ONNX Runtime on the CPU, else by onnx.reference, as benchmarks/network/node_models.py does and the rung
trt-network; PREDICTED is written after every few models, and what it holds is not predicted again. Use the version of
TensorRT that executes the engines. ``table`` holds that against MEASURED, which ``node_models.py execute`` wrote: how
often both are right, both wrong, and every model on which they disagree, with values. The exit code is 1 where they do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import onnx  # noqa: E402
from acceptance.cases import NodeCase, half_type, node_cases  # noqa: E402
from acceptance.measure import Settings  # noqa: E402
from acceptance.node_models import choice, write_between  # noqa: E402
from acceptance.tables import markdown, such_as  # noqa: E402
from acceptance.values import unpack  # noqa: E402
from network.node_models import measure_all  # noqa: E402
from network.reading import compared  # noqa: E402
from network.tables import cell  # noqa: E402

from gpu import ledger  # noqa: E402
from gpu.carrying import Carried  # noqa: E402
from gpu.outcomes import TOOLS, Result, Row, measured, rows_of  # noqa: E402
from onnxfix.errors import OnnxfixError  # noqa: E402

Said = Literal["right", "wrong", "nothing"]

#: What a status of network/node_models.py predicts. "rounding" is the place of a rounding, which is not TensorRT's.
PREDICTS: dict[str, Said] = {"equal": "right", "rounding": "right", "differs": "wrong"}
_CHUNK = 50
_LONGEST = 200


@dataclass(frozen=True)
class Pair:
    """A model that was measured. ``tools`` wrote it; ``predicted`` is what the network said, ``did`` what the engine
    did. ``same``: both wrong, with the same values within the case's tolerance; None where that is not known."""

    name: str
    tools: tuple[str, ...]
    predicted: Said
    did: Said
    prediction: str
    measurement: str
    same: bool | None = None

    @property
    def disagree(self) -> bool:
        """Whether one is right and the other wrong."""
        return "nothing" not in (self.predicted, self.did) and self.predicted != self.did


# ------------------------------------------------------------------------------------------------------ predict


def predict(given: argparse.Namespace) -> int:
    """Predict, and write what was predicted."""
    chosen = choice(given.package, given.compute_capability)
    settings = Settings(chosen, (), None, False, given.timeout, 4096)
    began = time.monotonic()
    with Carried(given.carry) as carried:
        document = {
            "TensorRT": f"{chosen.package} {chosen.version}",
            "versions": carried.manifest["versions"],
        }
        cases = [case for case in node_cases(1, given.match) if case in carried]
        with ledger.Ledger(given.json, document) as book:
            waiting = variants(carried, cases, given.tools, book)
            print(f"{len(waiting):,} models to predict", file=sys.stderr, flush=True)
            for start in range(0, len(waiting), _CHUNK):
                chunk = waiting[start : start + _CHUNK]
                built = {row.name: asdict(row) for row in measure_all(chunk, given.jobs, settings, _silent)}
                for one in chunk:
                    book.record(one.name, built.get(one.name, {"status": "not built"}))
                print(
                    f"{start + len(chunk):,}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True
                )
    return 0


def variants(carried: Carried, cases: Sequence[NodeCase], tools: Sequence[str], done: Any) -> list[NodeCase]:
    """Every different model of a case that is not ``done``, as a case of its own, named by the key of its result."""
    found = []
    for case in cases:
        for digest, data in carried.models(case, tools).items():
            if (key := f"{case.name}/{digest}") not in done:
                found.append(replace(case, name=key, data=data))
    return found


def _silent(_: NodeCase) -> None:
    """Nobody waits for single models."""


# ------------------------------------------------------------------------------------------------------ compare


def pairs_of(predicted: Mapping[str, Any], rows: Sequence[Row], cases: Mapping[str, NodeCase]) -> list[Pair]:
    """Every different model that both were asked about, those that TensorRT builds nowhere left out."""
    found = []
    for row in rows:
        by_digest: dict[str, list[str]] = {}
        for tool, digest in row.digests.items():
            if digest:
                by_digest.setdefault(digest, []).append(tool)
        for digest, tools in by_digest.items():
            stored, result = predicted.get(f"{row.name}/{digest}"), row.results[tools[0]]
            if stored is None or result.status == "not measured":
                continue
            if stored["status"] == "not built" and result.status in ("parser", "builder"):
                continue
            found.append(_pair(row.name, tuple(tools), stored, result, cases.get(row.name)))
    return found


def _predicted(stored: Mapping[str, Any], case: NodeCase | None) -> Said:
    """What a row predicts, by the judgment that engines get: the tolerance of the type is right as well."""
    said = PREDICTS.get(stored["status"], "nothing")
    if said == "wrong" and case is not None and stored.get("outputs"):
        half = half_type(onnx.load_model_from_string(case.data))
        metrics = measured(case, unpack(stored["outputs"]), half)
        return "wrong" if any(one.agreement == "different" for one in metrics) else "right"
    return said


def _pair(
    name: str, tools: tuple[str, ...], stored: dict[str, Any], result: Result, case: NodeCase | None
) -> Pair:
    said = _predicted(stored, case)
    did: Said = result.status if result.status in ("right", "wrong") else "nothing"  # type: ignore[assignment]
    same = None
    if said == did == "wrong" and case is not None and stored.get("outputs") and result.outputs:
        one, other = unpack(stored["outputs"]), unpack(result.outputs)
        same = not compared(one, other, case.rtol, case.atol)
    prediction = stored["status"] if said == "nothing" else stored.get("reason", "")
    measurement = result.status if did == "nothing" else result.reason
    return Pair(name, tools, said, did, prediction, measurement, same)


def page(pairs: Sequence[Pair], setting: Mapping[str, str]) -> Iterator[str]:
    """Markdown: the setting, the matrix for each tool, and the models of every kind of disagreement."""
    for key, value in setting.items():
        yield f"- {key}: {value}"
    tools = [tool for tool in TOOLS if any(tool.name in pair.tools for pair in pairs)]
    head = ("", "trt-network says", "engine right", "engine wrong", "of these the same values", "no values")
    table: list[list[object]] = []
    for tool in tools:
        own = [pair for pair in pairs if tool.name in pair.tools]
        counts = Counter((pair.predicted, pair.did) for pair in own)
        for said in ("right", "wrong", "nothing"):
            alike = sum(pair.same is True for pair in own if pair.predicted == said)
            cells = [counts[said, did] for did in ("right", "wrong", "nothing")]
            first = tool.title if said == "right" else ""
            table.append([first, said, *cells[:2], alike if said == "wrong" else "–", cells[2]])
    yield from ("", *markdown(head, table))
    yield from _disagreements(pairs)
    yield from _without(pairs)


def _disagreements(pairs: Sequence[Pair]) -> Iterator[str]:
    """Every model on which they disagree, and where both are wrong in other ways."""
    for title, found in (
        (
            "trt-network says wrong, the engine is right",
            [p for p in pairs if p.disagree and p.did == "right"],
        ),
        (
            "trt-network says right, the engine is wrong",
            [p for p in pairs if p.disagree and p.did == "wrong"],
        ),
        ("Both wrong, with other values", [p for p in pairs if p.same is False]),
    ):
        yield from ("", f"### {title}: {len(found)}", "")
        if found:
            yield from markdown(
                ("model", "of", "trt-network", "engine"),
                (
                    [f"`{p.name}`", ", ".join(p.tools), _short(p.prediction), _short(p.measurement)]
                    for p in found
                ),
            )


def _short(text: str) -> str:
    return cell(text)[:_LONGEST] or "as expected"


def _without(pairs: Sequence[Pair]) -> Iterator[str]:
    """Models on which one of them says nothing, by what came instead."""
    groups: dict[tuple[str, str], list[str]] = {}
    for pair in pairs:
        if "nothing" in (pair.predicted, pair.did):
            key = tuple(
                what if said == "nothing" else said
                for said, what in ((pair.predicted, pair.prediction), (pair.did, pair.measurement))
            )
            groups.setdefault(key, []).append(pair.name)  # type: ignore[arg-type]
    if groups:
        yield from ("", "### One of them says nothing", "")
        ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
        yield from markdown(
            ("trt-network", "engine", "models", "such as"),
            ([*key, len(names), such_as(names, 4)] for key, names in ranked),
        )


def table(given: argparse.Namespace) -> int:
    """Print, write."""
    predicted, executed = ledger.load(given.predicted), ledger.load(given.measured)
    cases = {case.name: case for case in node_cases()}
    pairs = pairs_of(predicted["results"], rows_of(executed), cases)
    if not pairs:
        raise OnnxfixError(f"{given.predicted} and {given.measured} have no model in common")
    setting = {
        "networks read by": predicted["TensorRT"],
        "engines executed by": executed["setting"]["TensorRT"],
    }
    if len(set(setting.values())) > 1:
        setting["mind"] = "two versions: what only one of them builds, or reads otherwise, is in the numbers"
    text = "\n".join(page(pairs, setting))
    print(text)
    if given.write_readme:
        write_between(HERE / "README.md", "network against engine", text)
    return int(any(pair.disagree for pair in pairs))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    first = steps.add_parser("predict")
    first.add_argument("carry", type=Path)
    first.add_argument("--json", type=Path, required=True)
    first.add_argument("--jobs", type=int, default=2)
    first.add_argument("--timeout", type=float, default=60.0, help="seconds for each step of TensorRT")
    first.add_argument("--package", default="auto", help="auto, tensorrt or tensorrt-rtx")
    first.add_argument("--compute-capability", help="such as 8.9")
    first.add_argument("--match", default="", help="only models whose name holds this")
    names = [tool.name for tool in TOOLS]
    first.add_argument("--tools", nargs="+", choices=names, default=names[:3], help="models of these tools")
    second = steps.add_parser("table")
    second.add_argument("predicted", type=Path)
    second.add_argument("measured", type=Path)
    second.add_argument("--write-readme", action="store_true")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    given = _arguments(words)
    try:
        return {"predict": predict, "table": table}[given.step](given)
    except OnnxfixError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
