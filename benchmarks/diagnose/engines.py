"""Whether `onnxfix diagnose` names the node that TensorRT gets wrong: on engines, or in the network that it imported.

    python benchmarks/diagnose/engines.py result.json --against trt-network [--only WORD]
    python benchmarks/diagnose/engines.py result.json --against trt-gpu --jobs 4 --budget 400

Mis-imports are examples of onnxfix's rules whose engine was wrong (benchmarks/gpu/hazards.json), each inside a chain of
operators that TensorRT computes right. With trt-gpu there are also faults in half precision (planted-half.json; they
move an output by a thousandth of its scale): the engine of the changed model against the original in ONNX Runtime, and
as controls the engines of all fixtures without a fault on the same inputs. A mis-import is named if a culprit is not
one of the chain's nodes, and a fault as in ``run.py``. What result.json holds is not measured again; the last line
counts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from gpu.ledger import Ledger  # noqa: E402

from diagnose import cases, choosing, feeding, judging, tables  # noqa: E402
from onnxfix.registry import registry  # noqa: E402
from onnxfix.testing import model_of  # noqa: E402

HAZARDS = HERE.parent / "gpu" / "hazards.json"
PLANTED = HERE / "planted-half.json"
CHAIN = "chain_"
"""What the names of the chain's tensors begin with."""
FEW = 3  # examples of one rule
CONTROL = "control"


def chained(model: ModelProto) -> ModelProto:
    """The model with three operators before each float32 input and two behind each float32 output."""
    found = ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    before = [node for info in graph.input for node in _before(info, graph)]
    after = [node for info in graph.output for node in _after(info, graph)]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(found)
    return found


def _constant(graph: onnx.GraphProto, value: float) -> str:
    name = f"{CHAIN}{value}"
    if all(one.name != name for one in graph.initializer):
        graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, [], [value]))
    return name


def _before(info: onnx.ValueInfoProto, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    if info.type.tensor_type.elem_type != TensorProto.FLOAT or any(
        one.name == info.name for one in graph.initializer
    ):
        return
    inner, info.name = info.name, f"{CHAIN}in_{info.name}"
    names = [info.name, *(f"{CHAIN}{inner}_{number}" for number in range(2)), inner]
    yield helper.make_node("Tanh", [names[0]], [names[1]])
    yield helper.make_node("Mul", [names[1], _constant(graph, 1.75)], [names[2]])
    yield helper.make_node("Sub", [names[2], _constant(graph, 0.25)], [names[3]])


def _after(info: onnx.ValueInfoProto, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    if info.type.tensor_type.elem_type != TensorProto.FLOAT:
        return
    inner, info.name = info.name, f"{CHAIN}out_{info.name}"
    middle = f"{CHAIN}{inner}_last"
    yield helper.make_node("Sigmoid", [inner], [middle])
    yield helper.make_node("Mul", [middle, _constant(graph, 3.0)], [info.name])


def misimports(limit: int = FEW) -> Iterator[tuple[str, ModelProto]]:
    """The examples of rules about operators whose engine was wrong, by key."""
    recorded = json.loads(HAZARDS.read_text())["rules"]
    rules = {rule.code: rule for rule in registry().rules}
    for code, record in sorted(recorded.items()):
        wrong = [one["number"] for one in record["examples"] if one["before"] == "wrong"]
        for number in wrong[:limit] if code.startswith("OPS") and code in rules else ():
            try:
                yield f"{code}.{number}", chained(model_of(rules[code].examples[number]))
            except (
                Exception
            ) as error:  # an example that is no valid model with the chain is none of these cases
                print(f"{code}.{number}: left out: {error}".splitlines()[0], file=sys.stderr)


def is_named(culprit: dict[str, Any]) -> bool:
    """Whether it is not a node of the chain."""
    return not str(culprit["output"]).startswith(CHAIN)


def diagnosed(words: Sequence[str], limit: float) -> judging.Ended:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "onnxfix", "diagnose", *words, "--format", "json"]
    return judging.executed(command, limit)


def misimport(model: ModelProto, against: str, limit: float) -> dict[str, Any]:
    """What is said of one mis-import."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-diagnose-") as folder:
        path = Path(folder, "model.onnx")
        onnx.save(model, path)
        found = judging.entry(diagnosed([str(path), "--against", against], limit), None)
    found["place"] = next((n for n, one in enumerate(found["culprits"], 1) if is_named(one)), 0)
    return found


def half(case: cases.Case, seed: int, limit: float) -> dict[str, Any]:
    """What is said of an engine with one node in half precision."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-diagnose-") as folder:
        words = [*cases.arguments(case, Path(folder), seed), "--against", "trt-gpu"]
        return judging.entry(diagnosed(words, limit), case.fault)


def control(path: Path, seed: int, limit: float) -> dict[str, Any]:
    """What is said of the engine of a fixture as it is, on the inputs of the faults."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-diagnose-") as folder:
        inputs = Path(folder, "inputs.npz")
        np.savez(inputs, **feeding.inputs_of(path, seed))
        words = [str(path), "--inputs", str(inputs), "--against", "trt-gpu"]
        return judging.entry(diagnosed(words, limit), None)


def main(words: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("json", type=Path)
    parser.add_argument("--against", choices=["trt-network", "trt-gpu"], required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=200.0)
    parser.add_argument("--budget", type=float, default=float("inf"))
    given = parser.parse_args(words)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), str(ROOT / "rules"), os.environ.get("PYTHONPATH", "")])
    )
    seed, faults, _ = choosing.read(PLANTED)
    work: list[tuple[str, Any]] = list(misimports())
    if given.against == "trt-gpu":
        work += [(f"{CONTROL}/{path.stem}", path) for path in sorted(choosing.FIXTURES.glob("*.onnx"))]
        work += [(case.key, case) for case in cases.planted_cases(faults, None)]
    began = time.monotonic()
    with Ledger(given.json, {"against": given.against, "seed": seed}) as book:

        def measure(one: tuple[str, Any]) -> None:
            key, what = one
            if given.only not in key or key in book or time.monotonic() - began > given.budget:
                return
            if isinstance(what, ModelProto):
                found = misimport(what, given.against, given.timeout)
            elif isinstance(what, Path):
                found = control(what, seed, given.timeout)
            else:
                found = half(what, seed, given.timeout)
            book.record(key, found)
            print(tables.line(key, found), file=sys.stderr, flush=True)

        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(measure, work))
        print("\n".join(summary(book.results)))
    return 0


def summary(results: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Lines that count: mis-imports, faults and controls."""
    kinds = {"mis-imports": "OPS", "faults in half precision": "fixtures/", "controls": f"{CONTROL}/"}
    for name, start in kinds.items():
        some = [one for key, one in results.items() if key.startswith(start)]
        differ = [one for one in some if one["status"] in ("differ", "unexplained")]
        places = [one["place"] for one in differ if "place" in one]
        first, three = places.count(1), sum(0 < place <= judging.AMONG for place in places)
        named = f", the right one named first in {first}, among three in {three}" if places else ""
        if some:
            yield f"{len(some)} {name}: {len(differ)} differ{named}"


if __name__ == "__main__":
    sys.exit(main())
