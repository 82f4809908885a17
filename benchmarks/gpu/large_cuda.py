"""Large models on ONNX Runtime's CUDA provider, their weights mapped from the files that hold them: needs a GPU.

    python benchmarks/gpu/large_cuda.py FOLDER [--scale 1.0] [--json FILE]

Makes three models in FOLDER (about 13 GB of disk with what becomes of them; ``--scale`` takes that many times the
layers): weights within the file, in a file of their own, and within a file that is larger than a protobuf may be. Each
is fixed by ``onnxfix apply`` with ort-cuda required, as a process of its own; then a part of one weight of the
result is zeroed, which ort-cuda has to notice. At the end the models of fixtures/ run with two jobs on the one GPU.
Prints a Markdown table. The exit code is 1 where something is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

import onnxfix

WIDTH = 4096
LAYERS = {"embedded": 18, "external": 40, "oversize": 40}
"""Square float32 weights of 64 MiB each."""
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@dataclass(frozen=True)
class Row:
    """One model. ``parent`` and ``child`` are peaks of resident memory in MiB, the latter of the largest child, which
    holds what CUDA maps besides both models. ``noticed`` says what ort-cuda made of the changed weight."""

    name: str
    bytes: int
    seconds: float
    parent: float
    child: float
    exit_code: int
    fixed: int
    rung: str
    identical: str
    noticed: str

    @property
    def fine(self) -> bool:
        """Whether it was fixed, proven on the GPU, and the change noticed."""
        return self.exit_code == 0 and self.rung == "passed" and self.fixed > 0 and self.noticed == "failed"


# ------------------------------------------------------------------------------------------------ the models


def body(layers: int) -> ModelProto:
    """The model without its weights: matrices between chains of Casts that the rules take out."""
    nodes, last = [], "x"
    for number in range(layers):
        nodes += [
            helper.make_node("Cast", [last], [f"d{number}"], to=TensorProto.DOUBLE),
            helper.make_node("Cast", [f"d{number}"], [f"f{number}"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", [f"f{number}", f"w{number}"], [f"m{number}"]),
            helper.make_node("Tanh", [f"m{number}"], [f"t{number}"]),
        ]
        last = f"t{number}"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", WIDTH]) for name in ("x", last))
    graph = helper.make_graph(nodes, "large", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def weight(number: int) -> np.ndarray[Any, Any]:
    """Weights with which values neither vanish nor saturate."""
    made = np.random.default_rng(number).standard_normal((WIDTH, WIDTH), dtype=np.float32)
    made *= np.float32(1.5 / WIDTH**0.5)
    return made


def write_embedded(path: Path, layers: int) -> None:
    """One protobuf of any size, written field by field: protobuf itself makes none of more than 2 GB."""
    model = body(layers)
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    head = TensorProto(data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
    size = 4 * WIDTH * WIDTH
    heads = []
    for number in range(layers):
        head.name = f"w{number}"
        heads.append(head.SerializeToString() + _tag(9) + _varint(size))
    inner = [_tag(5) + _varint(len(one) + size) + one for one in heads]
    total = len(graph) + sum(len(one) + size for one in inner)
    with path.open("wb") as file:
        file.write(model.SerializeToString() + _tag(7) + _varint(total) + graph)
        for number, one in enumerate(inner):
            file.write(one)
            weight(number).tofile(file)


def write_external(path: Path, layers: int) -> None:
    """A model with a file of weights beside it."""
    model, size = body(layers), 4 * WIDTH * WIDTH
    with path.with_name(f"{path.name}.data").open("wb") as file:
        for number in range(layers):
            tensor = model.graph.initializer.add(
                name=f"w{number}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH]
            )
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", f"{path.name}.data"),
                ("offset", number * size),
                ("length", size),
            ):
                tensor.external_data.add(key=key, value=str(value))
            weight(number).tofile(file)
    path.write_bytes(model.SerializeToString())


def _tag(field: int) -> bytes:
    return _varint(field << 3 | 2)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def change(path: Path) -> None:
    """Zero some rows of a weight in the middle, in whichever file of the model it lies."""
    place = next(iter(sorted(path.parent.glob("*.data"))), path)
    size = 4 * WIDTH * WIDTH
    with place.open("r+b") as file:
        file.seek(place.stat().st_size // 2 - size // 3)  # not where one weight ends and the next begins
        file.write(bytes(size // 64))


# ------------------------------------------------------------------------------------------------ what is done


def measured(command: list[str]) -> tuple[int, float, float, float]:
    """Exit code, seconds, and MiB of the process and of its largest descendant."""
    program = (
        "import json, resource, sys; from onnxfix.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as end: code = end.code or 0\n"
        "from onnxfix.sandbox import close_shared; close_shared()\n"
        "mine, theirs = (resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))\n"
        "print(json.dumps([code, mine, theirs]), file=sys.stderr)"
    )
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True)
    seconds = time.perf_counter() - began
    print(done.stdout[-3000:], done.stderr[-1000:], flush=True)
    code, mine, theirs = json.loads(done.stderr.splitlines()[-1])
    return int(code), seconds, mine / 1024, theirs / 1024


def measure(name: str, folder: Path, layers: int) -> Row:
    """Make, fix and spoil one model."""
    folder.mkdir(parents=True)
    path = folder / "m.onnx"
    (write_external if name == "external" else write_embedded)(path, layers)
    size = sum(file.stat().st_size for file in folder.iterdir())
    out, report = folder / "out", folder / "report.json"
    out.mkdir()
    command = [
        "apply",
        str(path),
        "-o",
        str(out / "m.onnx"),
        "--require",
        "ort-cuda",
        "--report",
        str(report),
    ]
    code, seconds, mine, theirs = measured(command)
    found = json.loads(report.read_text())["reports"][0]
    rung = next(one for one in found["verdict"]["rungs"] if one["name"] == "ort-cuda")
    identical = sum(feed["status"] == "identical" for feed in rung["feeds"])
    noticed = "nothing was written"
    if (out / "m.onnx").exists():
        change(out / "m.onnx")
        verdict = onnxfix.verify(path, out / "m.onnx", rungs=("ort-cuda",)).verdict
        assert verdict is not None
        noticed = verdict.rungs[-1].status
    row = Row(name, size, seconds, mine, theirs, code, len(found["applied"]), rung["status"],
              f"{identical} of {len(rung['feeds'])}", noticed)  # fmt: skip
    shutil.rmtree(folder)
    return row


def together(folder: Path) -> tuple[int, int, float]:
    """Exit code, models proven on CUDA and seconds of the fixtures with two jobs on one GPU."""
    report = folder / "fixtures.json"
    models = [str(path) for path in sorted(FIXTURES.glob("*.onnx"))]
    command = [
        "apply",
        *models,
        "--output-dir",
        str(folder / "fixed"),
        "--jobs",
        "2",
        "--require",
        "ort-cuda",
    ]
    code, seconds, _, _ = measured([*command, "--fail-on", "never", "--report", str(report)])
    found = json.loads(report.read_text())["reports"]
    passed = sum(
        rung["status"] == "passed"
        for one in found
        for rung in one["verdict"]["rungs"]
        if rung["name"] == "ort-cuda"
    )
    print(f"{passed} of {len(models)} models of fixtures/ pass ort-cuda with --jobs 2, {seconds:.1f} s")
    return code, len(models) - passed, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    rows = [
        measure(name, given.folder / name, max(2, round(layers * given.scale)))
        for name, layers in LAYERS.items()
    ]
    print(
        "| weights | MB | s | parent, MiB | largest child, MiB | fixes | ort-cuda | identical | changed weight |"
    )
    print("|" + "---|" * 9)
    for row in rows:
        print(f"| {row.name} | {row.bytes / 1e6:,.0f} | {row.seconds:.1f} | {row.parent:,.0f} | {row.child:,.0f} | "
              f"{row.fixed} | {row.rung} | {row.identical} | {row.noticed} |", flush=True)  # fmt: skip
    code, missed, seconds = together(given.folder)
    if given.json is not None:
        given.json.write_text(
            json.dumps({"large": [asdict(row) for row in rows], "fixtures": [code, missed, seconds]})
        )
    return 0 if all(row.fine for row in rows) and not code and not missed else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    sys.exit(main())
