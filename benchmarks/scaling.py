"""How the time that onnxfix takes grows with a model, and how much memory a million nodes take.

    python benchmarks/scaling.py [--runs 5] [--million]

Synthetic models of 1k, 10k and 100k nodes are made in memory, indexed and checked or fixed (CPU seconds, medians);
then `onnxfix apply --no-verify` is run on chains, as a whole process. Exit code 1 where ten times the nodes take more
than 12 times as long, or where `apply` takes more than 15 s of 100k nodes. With ``--million`` there is a chain of a
million nodes as well, once, whose peak of memory must stay below 8 GB.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from command import launched, parser_of
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

from onnxfix.model import Model
from onnxfix.rewrite import engine
from onnxfix.rewrite.registry import registry
from onnxfix.targets import target_named

SIZES = (1_000, 10_000, 100_000)
MILLION = 1_000_000
GROWTH = 12.0
"""Times as long that ten times as many nodes may take."""
SECONDS, GIGABYTES = 15.0, 8.0
NO_LIMITS = {"timeout": 3600, "memory_mb": 1 << 20, "watch": False}
LEVELS = 200
"""Of nested Ifs: more than a file can hold (protobuf parses about 33), so these models exist in memory alone."""
WIDTH = 50


def _started(output: str) -> ModelProto:
    """A model of opset 18 with a dynamic batch, whose nodes are to be made."""
    shape = ["N", 4]
    model = ModelProto(ir_version=9)
    model.opset_import.add(version=18)
    graph = model.graph
    graph.name = "synthetic"
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
    graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, shape))
    graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    return model


def _add(graph: GraphProto, op: str, inputs: list[str], output: str, to: int | None = None) -> str:
    node = graph.node.add(op_type=op, input=inputs, output=[output])
    if to is not None:
        node.attribute.add(name="to", type=AttributeProto.INT, i=to)
    return output


def _casts(graph: GraphProto, last: str, name: str) -> str:
    """Two Casts that change nothing: something to find and to fix."""
    _add(graph, "Cast", [last], f"{name}d", TensorProto.DOUBLE)
    return _add(graph, "Cast", [f"{name}d"], f"{name}f", TensorProto.FLOAT)


def _steps(graph: GraphProto, count: int, last: str, name: str, every: int = 10) -> str:
    """Add, Mul and Relu in turn, with two needless Casts in ``every`` nodes; the last output."""
    number = 0
    while number < count:
        if number % every == every - 2 and number + 2 <= count:
            last = _casts(graph, last, f"{name}{number}")
            number += 2
        else:
            op = ("Add", "Mul", "Relu")[number % 3]
            last = _add(graph, op, [last] if op == "Relu" else [last, "w"], f"{name}{number}")
            number += 1
    return last


def chain(count: int) -> ModelProto:
    """One node after the other, and something to fix in every tenth."""
    model = _started("y")
    _add(model.graph, "Neg", [_steps(model.graph, count - 1, "x", "v")], "y")
    return model


def findings(count: int) -> ModelProto:
    """Casts alone: every node takes part in a finding, and fixing them takes as many rounds as halving them does."""
    model = _started("y")
    _add(model.graph, "Neg", [_steps(model.graph, count - 1, "x", "v", every=2)], "y")
    return model


def dag(count: int) -> ModelProto:
    """Blocks of nodes that read one value, nodes that read two of those, and one that reads all of these."""
    model = _started("y")
    graph, last = model.graph, "x"
    for block in range(max(1, count // (2 * WIDTH + 3))):
        first = [_add(graph, "Mul", [last, "w"], f"m{block}_{i}") for i in range(WIDTH)]
        pairs = [(first[i], first[(7 * i + 1) % WIDTH]) for i in range(WIDTH)]
        second = [_add(graph, "Add", list(pair), f"a{block}_{i}") for i, pair in enumerate(pairs)]
        last = _casts(graph, _add(graph, "Sum", second, f"s{block}"), f"h{block}")
    _add(graph, "Neg", [last], "y")
    return model


def nested(count: int) -> ModelProto:
    """Ifs within Ifs, 200 levels deep; each level goes on with what the one around it computed."""
    model = _started("r0")
    graph, last = model.graph, "x"
    for level in range(LEVELS):
        last = _steps(graph, max(1, count // LEVELS - 2), last, f"l{level}_")
        if level == LEVELS - 1:
            _add(graph, "Neg", [last], f"r{level}")
            return model
        node = graph.node.add(op_type="If", name=f"if{level}", input=["c"], output=[f"r{level}"])
        node.attribute.add(name="else_branch", type=AttributeProto.GRAPH)
        node.attribute.add(name="then_branch", type=AttributeProto.GRAPH)
        other, graph = node.attribute[0].g, node.attribute[1].g
        other.name, graph.name = f"else{level}", f"then{level}"
        other.output.add().name = _add(other, "Abs", [last], f"e{level}")
        graph.output.add().name = f"r{level + 1}"
    return model


KINDS: dict[str, Callable[[int], ModelProto]] = {
    "chain": chain, "dag": dag, "nested": nested, "findings": findings
}  # fmt: skip


def seconds(proto: ModelProto, fix: bool) -> float:
    """CPU seconds to index and check (or fix) a model, which fixing changes."""
    gc.collect()
    start = time.process_time()
    model = Model(proto)
    model.target = target_named(None)
    (engine.fix if fix else engine.check)(model, registry().choose())
    return time.process_time() - start


def applied(count: int) -> tuple[float, float]:
    """CPU seconds and peak memory in GB of ``onnxfix apply --no-verify`` on a chain, as a whole process."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "chain.onnx"), Path(folder, "fixed.onnx")
        source.write_bytes(chain(count).SerializeToString())
        command = [sys.executable, "-m", "onnxfix", "apply", str(source), "--no-verify", "-o", str(output)]
        found = launched([*command, "--quiet"], Path(folder, "words"), NO_LIMITS)
        if found["code"] not in (0, 1) or not output.exists():
            raise SystemExit(f"{' '.join(command)} ended with exit code {found['code']}")
    return found["cpu"], found["rss"] / 2**10


def _row(label: str, times: list[float]) -> bool:
    """Print a line of the table; whether the growth of each step stays within bounds."""
    growth = [after / before for before, after in itertools.pairwise(times)]
    cells = [f"{one:.3f} s" for one in times] + [", ".join(f"{one:.1f}x" for one in growth)]
    print(f"| {label} | " + " | ".join(cells) + " |", flush=True)
    return all(one <= GROWTH for one in growth)


def main() -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--million", action="store_true", help="a chain of a million nodes as well")
    options = parser.parse_args()
    print("| work (CPU) | " + " | ".join(f"{size:,}" for size in SIZES) + " | growth |")
    print("|---|" + "---|" * (len(SIZES) + 1))
    good = True
    seconds(chain(100), fix=True)  # what is loaded on first use
    for kind, make in KINDS.items():
        for fix in (False, True):
            times = [
                statistics.median(seconds(make(size), fix) for _ in range(options.runs)) for size in SIZES
            ]
            good &= _row(f"{'fix' if fix else 'check'}, {kind}", times)
    runs = {size: [applied(size) for _ in range(options.runs)] for size in SIZES}
    spent = [statistics.median(time for time, _ in of) for of in runs.values()]
    good &= _row("onnxfix apply --no-verify, chain", spent) and spent[-1] <= SECONDS
    print(
        f"\n{SIZES[-1]:,} nodes: {spent[-1]:.1f} s, {max(peak for _, peak in runs[SIZES[-1]]):.2f} GB at most"
    )
    if options.million:
        took, peak = applied(MILLION)
        print(f"{MILLION:,} nodes: {took:.0f} s, {peak:.2f} GB at most")
        good &= peak < GIGABYTES
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
