"""ONNX's node models, fixed for a target with exact fixes only: how many of the pairs are proven?

    PYTHONPATH=.:rules:benchmarks python -m benchmarks.symbolic.node_models trt11 FOLDER --match bitshift

FOLDER gets the pairs whose bytes changed, ``TARGET/NAME.original.onnx`` and ``.fixed.onnx`` as planted.py reads them,
and the inputs that came with them; a rerun only proves.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx_cases import onnx_cases

import onnxfix
from benchmarks.symbolic.pairs import load_pair
from onnxfix.proof.symbolic.prove import Outcome, prove
from onnxfix.proof.symbolic.tensor import numpy_type

_FEW = 4096
"""Elements up to which an input may decide a shape, as in the check ``symbolic``."""


def save_pair(task: tuple[str, str, Path]) -> None:
    """Fix a model without proving it, and save both if its bytes changed."""
    name, target, folder = task
    case = onnx_cases()[name]
    data = case.model.SerializeToString(deterministic=True)
    fixed = onnxfix.apply(case.model, target=target, verify=False).model
    assert fixed is not None
    if fixed.SerializeToString(deterministic=True) == data:
        return
    names = [one.name for one in case.model.graph.input]
    feed: dict[str, Any] = dict(zip(names, case.data_sets[0][0], strict=False))
    for key, value in feed.items():
        feed[key] = numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
    np.savez(
        folder / f"{name}.npz",
        **{key: one for key, one in feed.items() if isinstance(one, (np.ndarray, np.generic))},
    )
    sequences = {
        key: [np.shape(one) for one in value or ()]
        for key, value in feed.items()
        if isinstance(value, (list, type(None)))
    }
    (folder / f"{name}.json").write_text(json.dumps(sequences), encoding="utf-8")
    onnx.save(case.model, folder / f"{name}.original.onnx")
    onnx.save(fixed, folder / f"{name}.fixed.onnx")


def prove_pair(path: Path) -> tuple[str, Outcome, float]:
    """The proof of a pair at the sizes of the inputs that came with it, and its seconds of the processor."""
    original, fixed = load_pair(path)
    with np.load(path.with_name(path.name.replace(".original.onnx", ".npz"))) as stored:
        # NumPy loses the names of the types that are not its own.
        types = {one.name: one.type.tensor_type.elem_type for one in original.graph.input}
        values = {
            name: one.view(numpy_type(types[name]))
            for name, one in stored.items()
            if one.dtype.kind not in "US"
        }
    shapes: dict[str, Any] = {name: one.shape for name, one in values.items()}
    shapes |= json.loads(
        path.with_name(path.name.replace(".original.onnx", ".json")).read_text(encoding="utf-8")
    )
    few = {name: one for name, one in values.items() if one.size <= _FEW}
    began = time.process_time()
    outcome = prove(original, fixed, shapes, few)
    return path.name.partition(".")[0], outcome, time.process_time() - began


def main() -> None:
    """Fix, prove, and print what is not proven."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="", help="only models whose name holds this")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    arguments = parser.parse_args()
    folder, done = arguments.folder / arguments.target, arguments.folder / arguments.target / "done"
    with ProcessPoolExecutor(arguments.jobs) as pool:
        if not done.exists():
            folder.mkdir(parents=True, exist_ok=True)
            list(
                pool.map(save_pair, [(name, arguments.target, folder) for name in onnx_cases()], chunksize=20)
            )
            done.touch()
        paths = [path for path in sorted(folder.glob("*.original.onnx")) if arguments.match in path.name]
        results = list(pool.map(prove_pair, paths, chunksize=5))
    for name, outcome, _ in results:
        if not outcome.proven:
            print(f"{name}: {outcome.reason}")
    counts = collections.Counter((one.proven, bool(one.given)) for _, one, _ in results)
    seconds = [one for _, _, one in results]
    print(
        f"proven {counts[True, False] + counts[True, True]} of {len(results)}, {counts[True, True]} of them for given"
        f" values of inputs that decide shapes; median {statistics.median(seconds):.3f} s, at most {max(seconds):.2f} s"
    )


if __name__ == "__main__":
    main()
