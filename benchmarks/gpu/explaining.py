"""Why an engine's outputs are not ONNX's: known causes, each confirmed on the model and on the values at hand."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from acceptance.cases import NodeCase, half_type, random_operators
from acceptance.running import BACKENDS, outputs_of
from acceptance.values import unpack
from network import causes
from network.reading import Reading, compared, due
from onnx import ModelProto, TensorProto

from gpu.outcomes import Result
from onnxfix import walk
from onnxfix.sandbox import Worker
from onnxfix.trt.lift import Lifted, NetTensor
from onnxfix.verification.compare.tolerance import wide
from onnxfix.verification.compare.twin import raised, widened

#: How many times further from the values of higher precision an engine may be than ONNX's own expected values are.
_NO_FURTHER = 2.0


@dataclass(frozen=True)
class Subject:
    """A wrong result. ``predicted`` is a row of network/node_models.py about the same model, where there is one;
    ``runner`` and ``folder`` are to run models with."""

    case: NodeCase
    result: Result
    predicted: dict[str, Any] | None
    runner: Worker
    folder: Path

    @property
    def model(self) -> ModelProto:
        """The original, in a copy."""
        return onnx.load_model_from_string(self.case.data)

    @property
    def outputs(self) -> list[list[Any]]:
        """What the engine gave; empty where it was not kept."""
        return unpack(self.result.outputs)

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Every output that ONNX expects, in the engine's type, with what the engine gave."""
        for wanted, have in zip(self.case.expected, self.outputs, strict=False):
            yield from zip(due(wanted, have), have, strict=True)


def folder(stack: ExitStack) -> Path:
    """A place for models."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))


def explain(subject: Subject) -> list[str]:
    """Everything that is confirmed; empty where nobody knows why."""
    found = (cause(subject) for cause in CAUSES)
    return [text for text in found if text is not None]


def drawn(subject: Subject) -> str | None:
    """An operator draws, and only values differ."""
    names = random_operators(subject.model)
    return f"random: {', '.join(names)} draws" if names and not subject.result.structure else None


def foreseen(subject: Subject) -> str | None:
    """TensorRT's network, read back and run elsewhere, gives the engine's wrong values."""
    predicted = subject.predicted
    if predicted is None or not predicted.get("outputs") or not subject.result.outputs:
        return None
    case = subject.case
    if compared(unpack(predicted["outputs"]), subject.outputs, case.rtol, case.atol):
        return None
    return f"trt-network predicts these values ({predicted['backend']})"


def misread(subject: Subject) -> str | None:
    """An ONNX model that says something else gives the engine's wrong values."""
    if not subject.result.outputs:
        return None
    outputs = subject.outputs
    first = zip(subject.model.graph.output, outputs[0], strict=False)
    seen = tuple(NetTensor(info.name, value.dtype.name, value.shape) for info, value in first)
    reading = Reading(
        "differs", Lifted("lifted", outputs=seen), "engine", reason="the engine", outputs=tuple(outputs)
    )
    model = subject.model
    known = [one for one in causes.CAUSES if one.key != causes.ROUNDING]
    key, shown = causes.cause_of(
        causes.Seen(subject.case, model, model, reading, subject.runner, subject.folder), known
    )
    return f"{key}: {shown}" if key else None


def not_finite(subject: Subject) -> str | None:
    """Every wrong element has an operand that is not finite."""
    if not subject.result.outputs or subject.result.structure:
        return None
    for feed, wanted, have in zip(subject.case.feeds, subject.case.expected, subject.outputs, strict=True):
        for a, b in zip(due(wanted, have), have, strict=True):
            wrong = _wrong(a, b, subject.case)
            try:
                strange = [np.broadcast_to(~np.isfinite(wide(value)), b.shape) for value in feed.values()]
            except (ValueError, TypeError):  # of another shape, or no numbers
                return None
            if (wrong & ~np.logical_or.reduce(strange)).any():
                return None
    return "every element that differs has an operand that is not finite"


def _wrong(expected: Any, found: Any, case: NodeCase) -> Any:
    """Which elements are not the expected ones."""
    a, b = wide(expected), wide(found)
    with np.errstate(all="ignore"):
        close = np.abs(a - b) <= case.atol + case.rtol * np.abs(a)
    return ~(close | (a == b) | (np.isnan(a) & np.isnan(b)))


def one_step(subject: Subject) -> str | None:
    """Integers are off by one, in a model that quantizes, and nothing else is off."""
    operators = {node.op_type for node in walk.model_nodes(subject.model)}
    if not any("Quantize" in one or one.startswith("QLinear") for one in operators):
        return None
    steps = 0
    for a, b in subject.pairs():
        if a.shape != b.shape or a.dtype != b.dtype:
            return None
        if a.dtype.kind in "iu":
            off = np.abs(a.astype(np.int64) - b.astype(np.int64))
            if off.max(initial=0) > 1:
                return None
            steps += int(off.sum())
        elif _wrong(a, b, subject.case).any():
            return None
    return f"quantized: {steps} element{'s are' if steps > 1 else ' is'} off by one step" if steps else None


def half_rounding(subject: Subject) -> str | None:
    """The engine is no further from what the model computes in float32 than ONNX's own expected values are."""
    model, case = subject.model, subject.case
    half = half_type(model)
    if not half or subject.result.structure or not subject.result.outputs:
        return None
    path = subject.folder / "twin.onnx"
    onnx.save(widened(model, TensorProto.FLOAT), path)
    feeds = [raised(dict(feed), TensorProto.FLOAT) for feed in case.feeds]
    ran = next((r for b in BACKENDS if (r := outputs_of(subject.runner, b, path, feeds)).ok), None)
    if ran is None:
        return None
    own = engine = 0.0
    for twin, wanted, have in zip(ran.value, case.expected, subject.outputs, strict=True):
        for exact, a, b in zip(twin, wanted, have, strict=True):
            if not (exact.shape == a.shape == b.shape) or not np.isfinite(wide(b)).all():
                return None
            own = max(own, float(np.max(np.abs(wide(exact) - wide(a)), initial=0.0)))
            engine = max(engine, float(np.max(np.abs(wide(exact) - wide(b)), initial=0.0)))
    if not engine <= _NO_FURTHER * own:
        return None
    return f"{half} rounding: {engine:.2g} from the values in float32, ONNX's expected ones are {own:.2g} from them"


CAUSES: tuple[Callable[[Subject], str | None], ...] = (
    drawn,
    foreseen,
    misread,
    not_finite,
    one_step,
    half_rounding,
)
