"""Whether a tool's result computes what the original computes, by ONNX Runtime on the CPU; run by onnxfix's Python.

    python judge.py '{"source": FILE, "target": FILE, "known": FILE.npz, "feeds": 2, "threads": 2}'

Both run without optimization (``ORT_DISABLE_ALL``) on the same random inputs at ``feeds`` sizes of the symbols. What
the original computes is kept in ``known``. Prints JSON: ``right``, ``why`` where it is not, ``difference`` (the
largest, as a share of the output's largest magnitude), ``data`` ("identical" where the files of the weights beside
both are, byte for byte; "" where the original has none), ``bytes`` of all files.
"""

from __future__ import annotations

import filecmp
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from onnxfix.inputs.feeds.inputs import make_inputs
from onnxfix.inputs.feeds.signature import signature

#: Differences as a share of the output's largest magnitude: a fused or folded graph adds in another order.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_SIZES = (2, 3, 5, 4, 6)


def feeds_of(path: Path, count: int) -> list[dict[str, Any]]:
    """Inputs at ``count`` sizes of the symbols; of a static model, with as many seeds."""
    known = signature(path)
    feeds = []
    for seed in range(count):
        sizes = {name: _SIZES[i % len(_SIZES)] if seed == 0 else 1 for i, name in enumerate(known.symbols)}
        feeds.append(dict(make_inputs(known, sizes, seed)))
    return feeds


def outputs(path: Path, feeds: list[dict[str, Any]], threads: int) -> list[list[Any]]:
    """What ONNX Runtime computes, for each feed.

    Raises:
        Exception: whatever ONNX Runtime raises.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    taken = {one.name for one in session.get_inputs()}
    return [session.run(None, {key: value for key, value in feed.items() if key in taken}) for feed in feeds]


def expected(asked: dict[str, Any]) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """Feeds and what the original computes, from ``known`` or made and kept there."""
    known, source, count = Path(asked["known"]), Path(asked["source"]), int(asked["feeds"])
    if not known.exists():
        feeds = feeds_of(source, count)
        results = outputs(source, feeds, asked["threads"])
        arrays = {f"i{n}/{name}": value for n, feed in enumerate(feeds) for name, value in feed.items()}
        arrays |= {f"o{n}/{k:04}": value for n, row in enumerate(results) for k, value in enumerate(row)}
        unfinished = known.with_suffix(".part.npz")
        np.savez(unfinished, **arrays)
        unfinished.replace(known)
    with np.load(known) as kept:
        feeds = [
            {key.partition("/")[2]: kept[key] for key in kept if key.startswith(f"i{n}/")}
            for n in range(count)
        ]
        results = [[kept[key] for key in sorted(kept) if key.startswith(f"o{n}/")] for n in range(count)]
    return feeds, results


def difference(wanted: Any, found: Any) -> tuple[float, str]:
    """The largest difference as a share of the largest magnitude, and what is wrong with it ("": nothing)."""
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return np.inf, f"{found.dtype}{list(found.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.name not in TOLERANCE:
        same = np.array_equal(wanted, found)
        return (0.0, "") if same else (np.inf, f"other {wanted.dtype}")
    a, b = wanted.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(a)
    if (finite != np.isfinite(b)).any() or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return np.inf, "NaN or infinity in other places"
    if not finite.any():
        return 0.0, ""
    scale = np.abs(a[finite]).max()
    off = np.abs(a[finite] - b[finite]).max()
    share = float(off / scale) if scale else float(off > 0) and np.inf
    over = share > TOLERANCE[wanted.dtype.name]
    return share, f"differs by {share:.1e} of the largest magnitude" if over else ""


def data_files(model: onnx.ModelProto, folder: Path) -> list[Path]:
    """The files that initializers lie in, beside the model."""
    found = {
        entry.value: folder / entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [found[name] for name in sorted(found)]


def same_data(first: list[Path], second: list[Path]) -> str:
    """Whether the files of the weights are the same, byte for byte."""
    if not first:
        return ""
    if len(first) != len(second):
        return f"{len(second)} files instead of {len(first)}"
    same = all(filecmp.cmp(a, b, shallow=False) for a, b in zip(first, second, strict=True))
    return "identical" if same else "differs"


def judge(asked: dict[str, Any]) -> dict[str, Any]:
    """As the module's docstring says."""
    source, target = Path(asked["source"]), Path(asked["target"])
    row: dict[str, Any] = {"right": False, "why": "", "difference": 0.0, "data": "", "bytes": 0}
    row["bytes"] = sum(file.stat().st_size for file in target.parent.iterdir())
    try:
        original = onnx.load(str(source), load_external_data=False)
        result = onnx.load(str(target), load_external_data=False)
        row["data"] = same_data(data_files(original, source.parent), data_files(result, target.parent))
        del original, result
        feeds, wanted = expected(asked)
        found = outputs(target, feeds, asked["threads"])
    except (
        Exception
    ) as error:  # whatever onnx and ONNX Runtime raise about a tool's result is what is asked for
        why = f"{type(error).__name__}: {error}".replace(f"{target.parent}/", "")
        row["why"] = " ".join(why.replace(f"{source.parent}/", "").split())[:300]
        return row
    pairs = [pair for a, b in zip(wanted, found, strict=True) for pair in zip(a, b, strict=False)]
    if any(len(a) != len(b) for a, b in zip(wanted, found, strict=True)):
        row["why"] = f"{len(found[0])} outputs instead of {len(wanted[0])}"
        return row
    shares = [difference(a, b) for a, b in pairs]
    row["difference"] = min(1e9, max(share for share, _ in shares))
    row["why"] = next((why for _, why in shares if why), "")
    row["right"] = not row["why"]
    return row


if __name__ == "__main__":
    print(json.dumps(judge(json.loads(sys.argv[1]))))
