"""ONNX's node models, fixed for a target with exact fixes only: how many of the pairs are proven?

    python -m benchmarks.symbolic.node_models trt11 FOLDER --match bitshift

FOLDER gets the pairs whose bytes changed, ``TARGET/NAME.original.onnx`` and ``.fixed.onnx`` as planted.py reads them,
and the inputs that came with them; a rerun only proves.
"""

from __future__ import annotations

import collections
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

import onnxfix
from benchmarks.command import parser_of
from benchmarks.onnx_cases import onnx_cases
from benchmarks.symbolic.pairs import decide_shapes, list_pairs, load_pair, save_pair
from onnxfix.proof.symbolic.prove import Outcome, prove


def fix_case(task: tuple[str, str, Path]) -> None:
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
    arrays = {key: one for key, one in feed.items() if isinstance(one, (np.ndarray, np.generic))}
    np.savez(folder / f"{name}.npz", **arrays)
    lists = {key: one or () for key, one in feed.items() if isinstance(one, (list, type(None)))}
    sequences = {key: [np.shape(one) for one in value] for key, value in lists.items()}
    (folder / f"{name}.json").write_text(json.dumps(sequences), encoding="utf-8")
    save_pair(folder, name, case.model, fixed)


def prove_pair(path: Path) -> tuple[str, Outcome, float]:
    """The proof of a pair at the sizes of the inputs that came with it, and its seconds."""
    name, original, fixed, feed = load_pair(path)
    values = {key: one for key, one in feed.items() if one.dtype.kind not in "US"}
    shapes: dict[str, Any] = {key: one.shape for key, one in values.items()}
    stored = path.with_name(path.name.replace(".original.onnx", ".json"))
    shapes |= json.loads(stored.read_text(encoding="utf-8"))
    began = time.monotonic()
    outcome = prove(original, fixed, shapes, decide_shapes(values))
    return name, outcome, time.monotonic() - began


def main() -> None:
    """Fix, prove, and print what is not proven."""
    parser = parser_of(__doc__)
    parser.add_argument("target")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="", help="only models whose name holds this")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    arguments = parser.parse_args()
    folder, done = arguments.folder / arguments.target, arguments.folder / arguments.target / "done"
    with ProcessPoolExecutor(arguments.jobs) as pool:
        if not done.exists():
            folder.mkdir(parents=True, exist_ok=True)
            tasks = [(name, arguments.target, folder) for name in onnx_cases()]
            list(pool.map(fix_case, tasks, chunksize=20))
            done.touch()
        paths = [path for path in list_pairs(folder) if arguments.match in path.name]
        results = list(pool.map(prove_pair, paths, chunksize=5))
    for name, outcome, _ in results:
        if not outcome.proven:
            print(f"{name}: {outcome.reason}")
    counts = collections.Counter((one.proven, bool(one.given)) for _, one, _ in results)
    seconds = [one for *_, one in results]
    print(
        f"proven {counts[True, False] + counts[True, True]} of {len(results)}, {counts[True, True]} of them for given"
        f" values of inputs that decide shapes; median {statistics.median(seconds):.3f} s, at most {max(seconds):.2f} s"
    )


if __name__ == "__main__":
    main()
