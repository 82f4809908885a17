"""Models and what exact fixes made of them: from a folder, of the rules' examples, of the exports in ``fixtures/``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, helper

import onnxfix
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.testing import fixed, model_of

FIXTURES = Path(__file__).parents[2] / "fixtures"


class Pair(NamedTuple):
    """A model, the fixed one, and inputs of the model where some came with it."""

    name: str
    original: ModelProto
    fixed: ModelProto
    feed: dict[str, Any]


def load_pair(path: Path) -> tuple[ModelProto, ModelProto]:
    """A model in ``NAME.original.onnx`` and what was made of it, ``NAME.fixed.onnx``."""
    return onnx.load(path), onnx.load(path.with_name(path.name.replace(".original.", ".fixed.")))


def folder_pairs(folder: Path) -> Iterator[Pair]:
    """The pairs in a folder, with the inputs in ``NAME.npz``."""
    for path in sorted(folder.rglob("*.original.onnx")):
        original, changed = load_pair(path)
        kinds = {one.name: one.type.tensor_type.elem_type for one in original.graph.input}
        stored = path.with_name(path.name.replace(".original.onnx", ".npz"))
        feed = {}
        if stored.exists():
            with np.load(stored) as arrays:
                for name, array in arrays.items():  # NumPy loses the names of the types that are not its own
                    kind = np.dtype(helper.tensor_dtype_to_np_dtype(kinds[name]))
                    feed[name] = array if array.dtype.kind in "US" else array.view(kind)
        yield Pair(f"{folder.name}/{path.name.removesuffix('.original.onnx')}", original, changed, feed)


def example_pairs() -> Iterator[Pair]:
    """The rules' examples that exact fixes change."""
    for rule in registry().rules:
        for number, example in enumerate(rule.examples):
            if example.found and example.after is not None and example.safety == Safety.EXACT:
                original = model_of(example)
                changed = fixed([rule], original, target=example.target)[0]
                yield Pair(f"{rule.code}-{number}", original, changed, {})


def fixture_pairs() -> Iterator[Pair]:
    """The real exports of ``fixtures/`` with all exact fixes."""
    for path in sorted(FIXTURES.glob("*.onnx")):
        original = onnx.load(path)
        changed = onnxfix.apply(original, verify=False).model
        if changed is not None and changed.SerializeToString() != original.SerializeToString():
            yield Pair(path.name, original, changed, {})
