"""Whether a tool's result computes what the original computes, by ONNX Runtime on the CPU; run by onnxfix's Python.

    python judge.py SOURCE TARGET FEEDS

Both run without optimization (``ORT_DISABLE_ALL``) on the same random inputs at FEEDS sizes of the symbols. Printed is
JSON: ``right``, ``why`` where it is not, ``data`` ("identical" where the files of the weights beside both are, byte for
byte; "" where the original has none).
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
from onnxfix.runtime.backends.ort import session_options

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


def outputs(path: Path, feeds: list[dict[str, Any]]) -> list[list[Any]]:
    """What ONNX Runtime computes, for each feed.

    Raises:
        Exception: whatever ONNX Runtime raises.
    """
    session = ort.InferenceSession(str(path), session_options(threads=2), providers=["CPUExecutionProvider"])
    taken = {one.name for one in session.get_inputs()}
    return [session.run(None, {key: value for key, value in feed.items() if key in taken}) for feed in feeds]


def wrong(wanted: Any, found: Any) -> str:
    """What is wrong with an output; "" for nothing."""
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return f"{found.dtype}{list(found.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.name not in TOLERANCE:
        return "" if np.array_equal(wanted, found) else f"other {wanted.dtype}"
    a, b = wanted.astype(np.float64), found.astype(np.float64)
    scale = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    same = np.isclose(b, a, rtol=0.0, atol=TOLERANCE[wanted.dtype.name] * scale, equal_nan=True)
    if same.all():
        return ""
    share = np.abs(a[~same] - b[~same]).max() / scale
    return f"differs by {share:.1e} of the largest magnitude"


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


def judge(source: Path, target: Path, count: int) -> dict[str, Any]:
    """As the module's docstring says."""
    row: dict[str, Any] = {"right": False, "why": "", "data": ""}
    try:
        original = onnx.load(str(source), load_external_data=False)
        result = onnx.load(str(target), load_external_data=False)
        row["data"] = same_data(data_files(original, source.parent), data_files(result, target.parent))
        del original, result
        feeds = feeds_of(source, count)
        wanted, found = outputs(source, feeds), outputs(target, feeds)
    except (
        Exception
    ) as error:  # whatever onnx and ONNX Runtime raise about a tool's result is what is asked for
        why = f"{type(error).__name__}: {error}".replace(f"{target.parent}/", "")
        row["why"] = " ".join(why.replace(f"{source.parent}/", "").split())[:300]
        return row
    pairs = [pair for a, b in zip(wanted, found, strict=True) for pair in zip(a, b, strict=False)]
    if any(len(a) != len(b) for a, b in zip(wanted, found, strict=True)):
        row["why"] = f"{len(found[0])} outputs instead of {len(wanted[0])}"
    else:
        row["why"] = next((why for a, b in pairs if (why := wrong(a, b))), "")
    row["right"] = not row["why"]
    return row


if __name__ == "__main__":
    print(json.dumps(judge(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
