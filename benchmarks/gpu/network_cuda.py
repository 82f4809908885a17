"""The comparison of the rung trt-network on CUDA, for a GPU on a machine without TensorRT.

    python benchmarks/gpu/network_cuda.py lift FOLDER MODEL...       # where TensorRT is: reads the networks back
    python benchmarks/gpu/network_cuda.py compare FOLDER [--json F]  # where the GPU is: the rung, from there on

The second step is the rung's own code; only the lifted models come from FOLDER instead of from TensorRT. It fails where
ONNX Runtime's CUDA provider was not what ran the models, or where a model reads differently there than on the CPU.
"""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from onnxfix.sandbox import Worker
from onnxfix.trt import lift
from onnxfix.trt.lift import Lifted
from onnxfix.trt.reading import Reading
from onnxfix.trt.records import TrtOptions
from onnxfix.verification.compare.twin import half_type
from onnxfix.verification.feeds.signature import signature
from onnxfix.verification.readback import read
from onnxfix.verification.request import Request


def lift_all(folder: Path, models: list[Path]) -> None:
    """Write each model, its lifted model and the record of it."""
    with Worker() as worker:
        for path in models:
            place = folder / path.stem
            place.mkdir(parents=True)
            shutil.copy(path, place / "model.onnx")
            found = lift.attempt(worker, place / "model.onnx", place / "lifted.onnx", package="tensorrt-rtx")
            if not found.lifted:
                sys.exit(f"{path}: {found.reason}")
            (place / "lifted.pickle").write_bytes(pickle.dumps(found))
            print(path.stem)


def compare_all(folder: Path) -> list[dict[str, Any]]:
    """The rung's reading of each model, first on CUDA and then on the CPU."""
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    rows = []
    for place in sorted(one for one in folder.iterdir() if one.is_dir()):
        cuda, cpu = (reading(place, cuda=wanted) for wanted in (True, False))
        rows.append(
            {
                "model": place.name,
                "cuda": _row(cuda),
                "cpu": _row(cpu),
                "good": cuda.backend == "ort-cuda" and cuda.status == cpu.status,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _row(found: Reading) -> dict[str, Any]:
    return {
        "status": found.status,
        "reason": found.reason,
        "backend": found.backend,
        "feeds": found.feeds,
        "noise": [list(one) for one in found.noise],
        "misreads": [str(one) for one in found.misreads],
        "seconds": round(found.seconds[2], 2),
    }


def reading(place: Path, *, cuda: bool) -> Reading:
    """The rung on one model, from the lifted model on."""
    known = signature(place / "model.onnx")
    told: Lifted = pickle.loads((place / "lifted.pickle").read_bytes())
    told = replace(told, path=str(place / "lifted.onnx"))
    module: Any = read
    before = module._backends
    module.lift = SimpleNamespace(attempt=lambda *_, **__: told)
    if not cuda:
        module._backends = lambda _: iter(("ort-cpu", "reference"))
    found: Any = SimpleNamespace(
        choice=SimpleNamespace(package="tensorrt-rtx", version=told.version),
        options=TrtOptions(),
        worker=None,
    )
    with Worker() as worker, tempfile.TemporaryDirectory() as scratch:
        request = Request(
            original=place / "model.onnx",
            fixed=place / "model.onnx",
            known=known,
            worker=worker,
            exact=False,
            seed=0,
            shapes={},
            given=None,
            coarse=half_type(known.model),
        )
        try:
            return module.read(request, found, place / "model.onnx", Path(scratch)).reading
        finally:
            module._backends = before


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["lift", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.step == "lift":
        lift_all(asked.folder, asked.models)
        return 0
    rows = compare_all(asked.folder)
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if rows and all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
