"""How much of a small run is onnxfix's own: whole processes, beside what no such tool can do without.

    python benchmarks/startup.py [--runs 9] [--python PYTHON]

Prints a table. Each row is a command against another one. The commands run in turn, one round after another, after a
round that does not count; ratios are made within a round. Exit code 1 where the median of a ratio is above its limit.
PYTHON (this one, without it) is best one of an environment that holds ``onnxfix[cpu]`` and nothing else: what else is
installed may be imported, too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from command import parser_of
from onnx import ModelProto, TensorProto, helper, numpy_helper

OPERATORS = ("Add", "Relu", "Mul", "Transpose", "Cast", "Cast", "Reshape", "MatMul", "Softmax", "Sub")
NODES = 100


@dataclass(frozen=True)
class Row:
    """``command`` is to take at most ``limit`` times what ``base`` takes."""

    title: str
    command: list[str]
    base: list[str]
    limit: float


def small() -> ModelProto:
    """A model of 100 nodes of nine operators, of which some have something to be found."""
    last, nodes = "x", []
    for number in range(NODES):
        op, out = OPERATORS[number % len(OPERATORS)], f"v{number}"
        more = {"Add": ["w"], "Mul": ["w"], "Sub": ["w"], "MatMul": ["m"], "Reshape": ["s"]}.get(op, [])
        types = (TensorProto.DOUBLE, TensorProto.FLOAT)
        given = {"to": types[number % 2]} if op == "Cast" else {"perm": [1, 0]} if op == "Transpose" else {}
        nodes.append(helper.make_node(op, [last, *more], [out], **given))
        last = out
    constants = {"w": np.ones(8, np.float32), "m": np.eye(8, dtype=np.float32), "s": np.array([8, 8])}
    made = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 8])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [8, 8])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def rows(python: str, folder: Path) -> list[Row]:
    """What is measured."""
    run, typer, imported = (
        [python, "-m", "onnxfix"],
        [python, "-c", "import typer"],
        [python, "-c", "import onnx"],
    )
    path = folder / "small.onnx"
    onnx.save(small(), path)
    return [
        Row("--help / import typer", [*run, "--help"], typer, 1.5),
        Row("--version / import typer", [*run, "--version"], typer, 1.5),
        Row(f"check, {NODES} nodes / import onnx", [*run, "check", str(path)], imported, 2.5),
    ]


def seconds(command: list[str]) -> float:
    """What a whole process takes, from outside.

    Raises:
        SystemExit: it fails; findings (exit code 1) are no failure.
    """
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    spent = time.perf_counter() - began
    if done.returncode > 1 or (done.returncode and "onnxfix" not in command):
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return spent


def measured(wanted: list[Row], runs: int) -> list[list[tuple[float, float]]]:
    """For each row and round, the seconds of the command and of what it is held against."""
    found: list[list[tuple[float, float]]] = [[] for _ in wanted]
    for number in range(runs + 1):
        for row, times in zip(wanted, found, strict=True):
            base, spent = seconds(row.base), seconds(row.command)
            if number:
                times.append((spent, base))
    return found


def spread(values: list[float], digits: int) -> str:
    """``median (least to greatest)``."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--python", default=sys.executable)
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles every source
    with tempfile.TemporaryDirectory() as folder:
        wanted = rows(arguments.python, Path(folder))
        found = measured(wanted, arguments.runs)
    print(f"{arguments.runs} rounds; median (least to greatest)\n")
    print("| what | onnxfix, s | beside it, s | ratio | limit |\n|---|---|---|---|---|")
    missed = 0
    for row, times in zip(wanted, found, strict=True):
        ratios = [spent / base for spent, base in times]
        missed += statistics.median(ratios) > row.limit
        cells = (spread([a for a, _ in times], 3), spread([b for _, b in times], 3), spread(ratios, 2))
        print(f"| {row.title} | {' | '.join(cells)} | {row.limit} |")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
