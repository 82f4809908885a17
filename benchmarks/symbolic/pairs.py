"""Models and what exact fixes made of them: from a folder, of the rules' examples, of the exports in ``fixtures/``; and
whether ONNX Runtime tells two models apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, helper

import onnxfix
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.runtime.backends.ort import session_options
from onnxfix.testing import fixed, model_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
ENDS = (".original.onnx", ".fixed.onnx")


class Pair(NamedTuple):
    """A model, the fixed one, and inputs of the model where some came with it."""

    name: str
    original: ModelProto
    fixed: ModelProto
    feed: dict[str, Any]


def load_pair(path: Path) -> Pair:
    """A model in ``NAME.original.onnx``, what was made of it, ``NAME.fixed.onnx``, and inputs in ``NAME.npz``."""
    name = path.name.removesuffix(ENDS[0])
    original, feed = onnx.load(path), {}
    stored = path.with_name(f"{name}.npz")
    if stored.exists():
        kinds = dtypes(original)
        with np.load(stored) as arrays:
            for key, array in arrays.items():  # NumPy loses the names of the types that are not its own
                feed[key] = array if array.dtype.kind in "US" else array.view(kinds[key])
    return Pair(f"{path.parent.name}/{name}", original, onnx.load(path.with_name(name + ENDS[1])), feed)


def save_pair(folder: Path, name: str, original: ModelProto, changed: ModelProto) -> None:
    """Write both models as ``load_pair`` reads them."""
    for end, model in zip(ENDS, (original, changed), strict=True):
        onnx.save(model, folder / f"{name}{end}")


def list_pairs(folder: Path) -> list[Path]:
    """The first files of the pairs in a folder and below."""
    return sorted(folder.rglob(f"*{ENDS[0]}"))


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


def dtypes(model: ModelProto) -> dict[str, np.dtype[Any]]:
    """NumPy's types of the inputs that are tensors."""
    kinds = {one.name: one.type.tensor_type.elem_type for one in model.graph.input}
    return {name: np.dtype(helper.tensor_dtype_to_np_dtype(kind)) for name, kind in kinds.items() if kind}


def shapes_of(model: ModelProto, size: int) -> dict[str, tuple[int, ...]]:
    """The inputs' shapes, with ``size`` for each free dimension."""
    defaults = {one.name for one in model.graph.initializer}
    return {
        one.name: tuple(
            dim.dim_value if dim.HasField("dim_value") else size for dim in one.type.tensor_type.shape.dim
        )
        for one in model.graph.input
        if one.name not in defaults
    }


def decide_shapes(feed: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of so few elements that they may decide a shape, as in the check ``symbolic``."""
    return {name: value for name, value in feed.items() if np.size(value) <= 4096}


def open_session(model: ModelProto) -> Any:
    """The model in ONNX Runtime without optimizations, which would hide what it does."""
    import onnxruntime

    data, options = model.SerializeToString(), session_options()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def tell_apart(
    first: ModelProto, second: ModelProto, feeds: Iterable[dict[str, Any]], differ: Callable[[Any, Any], str]
) -> str | None:
    """What differs in ONNX Runtime; "" if nothing does, None if it does not run both. ``differ`` describes how two
    outputs do."""
    try:
        sessions = open_session(first), open_session(second)
    except Exception:  # it raises what it likes
        return None
    ran = None
    for feed in feeds:
        try:
            expected = sessions[0].run(None, feed)
        except Exception:  # noqa: S112  # it does not take these inputs
            continue
        try:
            results = sessions[1].run(None, feed)
        except Exception as error:
            return f"the other model fails: {str(error)[:100]}"
        ran = ""
        for output, *values in zip(first.graph.output, expected, results, strict=True):
            if words := differ(*values):
                return f"{output.name}: {words}"
    return ran
