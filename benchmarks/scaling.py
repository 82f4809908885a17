"""How long onnxfix takes on synthetic models of 1k, 10k and 100k nodes, and how that grows.

    python benchmarks/scaling.py [--runs 3]

Shapes of model: a chain with something to fix in every tenth node, and the same without anything to fix. Prints a
table of medians with the growth from step to step; whole-process times are for ``check`` on a real model.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix import engine
from onnxfix.graph.overlay import Model
from onnxfix.registry import registry
from onnxfix.targets import target_named

SIZES = (1_000, 10_000, 100_000)


def chain(count: int, hazards: bool) -> ModelProto:
    """Add, Mul and Relu in turn on a dynamic batch; with ``hazards``, every tenth node is a pair of no-op Casts."""
    nodes = []
    last = "x"
    while len(nodes) < count:
        number = len(nodes)
        if hazards and number % 10 == 9:
            nodes.append(helper.make_node("Cast", [last], [f"v{number}"], to=TensorProto.DOUBLE))
            nodes.append(helper.make_node("Cast", [f"v{number}"], [f"v{number + 1}"], to=TensorProto.FLOAT))
        else:
            op = ("Add", "Mul", "Relu")[number % 3]
            inputs = [last] if op == "Relu" else [last, "w"]
            nodes.append(helper.make_node(op, inputs, [f"v{number}"]))
        last = nodes[-1].output[0]
    shape = ["N", 4]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(np.ones(4, np.float32), "w")],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )


def seconds(data: bytes, fix: bool) -> float:
    """Time to parse, index and check (or fix) the model once."""
    start = time.perf_counter()
    proto = ModelProto()
    proto.ParseFromString(data)
    model = Model(proto)
    model.target = target_named(None)
    if fix:
        engine.fix(model, registry().choose())
    else:
        engine.check(model, registry().choose())
    return time.perf_counter() - start


def main() -> None:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    print("| work | " + " | ".join(f"{size:,}" for size in SIZES) + " | growth |")
    print("|---|" + "---|" * (len(SIZES) + 1))
    for label, hazards, fix in (
        ("check", False, False),
        ("check, hazards", True, False),
        ("fix", True, True),
    ):
        times = []
        for size in SIZES:
            data = chain(size, hazards).SerializeToString()
            times.append(statistics.median(seconds(data, fix) for _ in range(runs)))
        growth = ", ".join(f"{b / a:.1f}×" for a, b in itertools.pairwise(times))
        print(f"| {label} | " + " | ".join(f"{t:.3f} s" for t in times) + f" | {growth} |", flush=True)
    model = Path(__file__).parent.parent / "fixtures" / "swin.legacy.op13.onnx"
    for name, command in {
        "python -c 'import typer'": [sys.executable, "-c", "import typer"],
        "onnxfix --help": [sys.executable, "-m", "onnxfix", "--help"],
        "python -c 'import onnx'": [sys.executable, "-c", "import onnx"],
        f"onnxfix check {model.name}": [sys.executable, "-m", "onnxfix", "check", str(model)],
    }.items():
        spent = []
        for _ in range(max(runs, 5)):
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            spent.append(time.perf_counter() - start)
        print(f"{name}: {statistics.median(spent):.2f} s ({min(spent):.2f} to {max(spent):.2f})")


if __name__ == "__main__":
    main()
