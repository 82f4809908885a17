"""How small `onnxfix reduce` makes a model with one planted failure, and whether what it writes reproduces it.

    python benchmarks/diagnose/reduce.py measure reduced.json [--exports DIR] [--only WORD] [--every N] [--budget S]
    python benchmarks/diagnose/reduce.py table reduced.json [--write-readme]

``measure`` plants one fault at a time, reduces the model in a process of its own, and runs the folder's one command in
another. What the file holds is not measured again. There are three groups: the value faults of planted.json, of which
both models are compared in ONNX Runtime (``--check ort-cpu --against``), and, in the fixtures, nodes that TensorRT
refuses (``trt-build``) or misreads (``trt-network``). The exit code of ``table`` is 1 where fewer than 90 % end with at
most three nodes, or a folder does not reproduce.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from acceptance.node_models import write_between  # noqa: E402
from acceptance.tables import markdown  # noqa: E402
from gpu.ledger import Ledger, load  # noqa: E402

from diagnose import cases, choosing, feeding, judging  # noqa: E402
from diagnose.choosing import FIXTURES  # noqa: E402
from onnxfix.errors import OnnxfixError  # noqa: E402
from onnxfix.files import loading, saving  # noqa: E402
from onnxfix.model import Model  # noqa: E402

PLANTED = HERE / "planted.json"
MOST = 3
SHARE = 0.9
"""The share of the faults that should end with at most MOST nodes."""
SITES = 2
"""Places of each kind in each fixture."""
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_MARK = "benchmarks/diagnose/reduce.py"

#: Nodes from a tensor to another of its shape and type, and constants that they read.
Made = tuple[list[NodeProto], list[TensorProto]]


# ---------------------------------------------------------------------------------- what TensorRT refuses or misreads


def _through_uint16(x: str, y: str, elem: int) -> Made:
    wide = helper.make_node("Cast", [x], [f"{y}.u16"], to=TensorProto.UINT16)
    return [wide, helper.make_node("Cast", [f"{y}.u16"], [y], to=elem)], []


def _integer_relu(x: str, y: str, elem: int) -> Made:
    cast = helper.make_node("Cast", [x], [f"{y}.i32"], to=TensorProto.INT32)
    relu = helper.make_node("Relu", [f"{y}.i32"], [f"{y}.relu"])
    return [cast, relu, helper.make_node("Cast", [f"{y}.relu"], [y], to=elem)], []


def _unknown(x: str, y: str, elem: int) -> Made:
    return [helper.make_node("Mystery", [x], [y], domain="planted")], []


def _dead_unique(x: str, y: str, elem: int) -> Made:
    return [helper.make_node("Unique", [x], [f"{y}.unique"]), helper.make_node("Identity", [x], [y])], []


def _trilu(x: str, y: str, elem: int) -> Made:
    return [helper.make_node("Trilu", [x], [y])], []


def _number(name: str, value: float, elem: int) -> TensorProto:
    return numpy_helper.from_array(np.array(value, helper.tensor_dtype_to_np_dtype(elem)), name)


def _mod(x: str, y: str, elem: int) -> Made:
    return [helper.make_node("Mod", [x, f"{y}.by"], [y], fmod=1)], [_number(f"{y}.by", 0.3, elem)]


def _clip(x: str, y: str, elem: int) -> Made:
    bounds = [_number(f"{y}.low", 0.5, elem), _number(f"{y}.high", -0.5, elem)]
    return [helper.make_node("Clip", [x, f"{y}.low", f"{y}.high"], [y])], bounds


#: Name -> the check, the operator that fails, and how its nodes are made.
KINDS: dict[str, tuple[str, str, Callable[[str, str, int], Made]]] = {
    "Cast to uint16": ("trt-build", "Cast", _through_uint16),
    "Relu of int32": ("trt-build", "Relu", _integer_relu),
    "unknown operator": ("trt-build", "Mystery", _unknown),
    "Unique that nothing reads": ("trt-build", "Unique", _dead_unique),
    "Trilu without upper": ("trt-network", "Trilu", _trilu),
    "Mod with fmod": ("trt-network", "Mod", _mod),
    "Clip with low above high": ("trt-network", "Clip", _clip),
}


def planted(model: ModelProto, kind: str, number: int) -> tuple[ModelProto, int]:
    """A copy of the model with nodes of this kind behind one of its float tensors, the same one each time; and the
    number of nodes."""
    found = ModelProto()
    found.CopyFrom(model)
    graph, known = found.graph, Model(model)
    types = {name: known.shapes.elem_type(value) for name, value in known.main.values.items()}
    ranks = {name: known.shapes.rank(value) or 0 for name, value in known.main.values.items()}
    results = {one.name for one in graph.output}
    able = [
        place
        for place, node in enumerate(graph.node)
        if node.op_type != "Constant" and types.get(node.output[0]) in _FLOATS and ranks[node.output[0]] > 1
        and node.output[0] not in results and known.main.values[node.output[0]].uses
    ]  # fmt: skip
    place = random.Random(f"{kind}/{number}/{len(graph.node)}").choice(able)
    name = graph.node[place].output[0]
    elem = types[name]
    assert elem is not None
    before = f"{name}.before"
    for node in graph.node:
        node.output[:] = [before if one == name else one for one in node.output]
    nodes, constants = KINDS[kind][2](before, name, elem)
    for offset, node in enumerate(nodes):
        node.name = f"planted.{offset}"
        graph.node.insert(place + 1 + offset, node)
    graph.initializer.extend(constants)
    if kind == "unknown operator":
        found.opset_import.append(helper.make_opsetid("planted", 1))
    return found, len(graph.node)


# ------------------------------------------------------------------------------------------------------ measuring


@dataclass(frozen=True)
class Case:
    """One reduction: of a fault of planted.json, or of a planted ``kind`` in a fixture."""

    group: str
    path: Path
    kind: str
    number: int = 0
    fault: choosing.Fault | None = None

    @property
    def key(self) -> str:
        """Its name, unique among the cases."""
        name = self.fault.key if self.fault is not None else f"{self.path.stem}/{self.kind}/{self.number}"
        return f"{self.group}/{name}"


def all_cases(exports: Path | None) -> Iterator[Case]:
    """Every case whose model is there."""
    _, faults, _ = choosing.read(PLANTED)
    for one in cases.planted_cases(faults, exports):
        assert one.fault is not None
        yield Case("values", one.path, one.fault.kind, fault=one.fault)
    for path in sorted(FIXTURES.glob("*.onnx")):
        for kind, (check, _, _) in KINDS.items():
            for number in range(SITES):
                if kind != "Trilu without upper" or loading.load(path).proto.opset_import[0].version >= 14:
                    yield Case(check, path, kind, number)


def words_of(case: Case, folder: Path, seed: int) -> list[str]:
    """Write the model of a case, and its inputs: the arguments of the command."""
    if case.fault is not None:
        first, second, *rest = cases.arguments(cases.Case("", case.path, case.fault), folder, seed)
        return [first, "--check", "ort-cpu", "--against", second, *rest]
    model, _ = planted(loading.load_whole(case.path).proto, case.kind, case.number)
    path, inputs = folder / "model.onnx", folder / "inputs.npz"
    saving.save(model, path)
    np.savez(inputs, **feeding.inputs_of(case.path, seed))
    return [str(path), "--check", KINDS[case.kind][0], "--inputs", str(inputs)]


def measured(case: Case, seed: int, limit: float) -> dict[str, Any]:
    """Reduce one case and reproduce it, in processes of their own."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-diagnose-") as name:
        folder = Path(name)
        out = folder / "reduced"
        command = [sys.executable, "-m", "onnxfix", "reduce", *words_of(case, folder, seed), "-o", str(out)]
        ended = judging.executed([*command, "--format", "json"], limit)
        found: dict[str, Any] = {
            "code": ended.code,
            "seconds": round(ended.seconds, 2),
            "mb": ended.megabytes,
        }
        try:
            told = json.loads(ended.stdout)
        except ValueError:
            return {**found, "status": "broke", "reason": (ended.stdout + ended.stderr)[-300:]}
        for field in ("status", "reason", "nodes_before", "nodes_after", "operators", "tries", "bytes_after"):
            found[field] = told.get(field)
        if told["status"] == "reduced":
            again = judging.executed([sys.executable, str(out / "reproduce.py")], limit)
            found["reproduces"] = again.code == 1
        return found


def measure(given: argparse.Namespace) -> int:
    """All cases that the file does not hold."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "rules")])
    seed, _, _ = choosing.read(PLANTED)
    wanted = [case for case in all_cases(given.exports) if given.only in case.key]
    random.Random(seed).shuffle(wanted)  # a run that the budget ends has something of everything
    wanted = wanted[:: given.every]
    began = time.monotonic()
    with Ledger(given.json, {"seed": seed}) as book:
        for case in wanted:
            if case.key in book or time.monotonic() - began > given.budget:
                continue
            try:
                found = measured(case, seed, given.timeout)
            except OnnxfixError as error:
                found = {"status": "broke", "reason": str(error)}
            book.record(case.key, {**found, "group": case.group, "kind": case.kind})
            print(f"{case.key}: {line(found)}", file=sys.stderr, flush=True)
        left = sum(case.key not in book for case in wanted)
    print(f"{len(wanted) - left} measured, {left} left, {time.monotonic() - began:.0f} s")
    return int(left > 0)


def line(found: Mapping[str, Any]) -> str:
    """For people who watch."""
    if found["status"] != "reduced":
        return f"{found['status']}: {found.get('reason')}"
    again = "" if found["reproduces"] else ", DOES NOT REPRODUCE"
    return f"{found['nodes_before']} → {found['nodes_after']} nodes{again}, {found['seconds']:.1f} s"


# --------------------------------------------------------------------------------------------------------- tables


def rows(results: Sequence[Mapping[str, Any]]) -> list[Sequence[object]]:
    """A row for each group and kind, and one for all."""
    kinds = sorted({(one["group"], one["kind"]) for one in results})
    found = [_row(*pair, [one for one in results if (one["group"], one["kind"]) == pair]) for pair in kinds]
    return [*found, _row("all", "", results)]


def failing(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without models in which nothing fails: TensorRT takes the node where it is, or no output differs by more than
    rounding."""
    return [one for one in results if one["status"] != "passes"]


def small(one: Mapping[str, Any]) -> bool:
    """Whether it ended with few nodes."""
    return bool(one["status"] == "reduced" and one["nodes_after"] <= MOST)


def _row(group: str, kind: str, results: Sequence[Mapping[str, Any]]) -> Sequence[object]:
    fails = failing(results)
    done = [one for one in fails if one["status"] == "reduced"]
    few = sum(map(small, done))
    single = sum(one["nodes_after"] == 1 for one in done)
    again = sum(one["reproduces"] for one in done)
    seconds = sorted(one["seconds"] for one in done)
    tries = sorted(one["tries"] for one in done)
    middle = (f"{seconds[len(seconds) // 2]:.1f}", tries[len(tries) // 2]) if done else ("–", "–")
    share = f"{few} ({few / len(fails):.0%})" if fails else "–"
    return [
        group,
        kind,
        len(results) - len(fails),
        len(fails),
        share,
        single,
        f"{again} of {len(done)}",
        *middle,
    ]


def table(given: argparse.Namespace) -> int:
    """Print, write, judge."""
    results: dict[str, dict[str, Any]] = load(given.json)["results"]
    head = (
        "check",
        "planted",
        "nothing fails",
        "fail",
        f"at most {MOST} nodes",
        "one node",
        "reproduce",
        "median s",
        "median parts",
    )
    text = "\n".join(markdown(head, rows(list(results.values()))))
    wanted = failing(results.values())
    missed = {k: o for k, o in results.items() if o["status"] != "passes" and not small(o)}
    text += (
        "\n\n" + "\n".join(f"- `{key}`: {line(one)}" for key, one in sorted(missed.items())) if missed else ""
    )
    print(text)
    if given.write_readme:
        write_between(HERE / "README.md", _MARK, f"{text}\n")
    again = all(one.get("reproduces", True) for one in wanted)
    return int(sum(map(small, wanted)) < SHARE * len(wanted) or not again)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("measure")
    one.add_argument("json", type=Path)
    one.add_argument("--exports", type=Path)
    one.add_argument("--only", default="")
    one.add_argument("--every", type=int, default=1, help="every Nth case alone")
    one.add_argument("--budget", type=float, default=float("inf"), help="seconds after which none is begun")
    one.add_argument("--timeout", type=float, default=600.0)
    one.set_defaults(run=measure)
    two = parts.add_parser("table")
    two.add_argument("json", type=Path)
    two.add_argument("--write-readme", action="store_true")
    two.set_defaults(run=table)
    given = parser.parse_args()
    return int(given.run(given))


if __name__ == "__main__":
    sys.exit(main())
