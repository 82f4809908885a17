"""Who is right where TensorRT's reading, ONNX Runtime and ONNX's evaluator do not agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from onnx import NodeProto

from onnxfix.proof.compare.tolerance import Tolerance, outside, parts, wide
from onnxfix.runtime.replies import accept

#: What a reading is worth. invalid: neither ONNX Runtime nor the evaluator runs the model. equal: TensorRT's reading
#: agrees with whoever runs it. evaluator, onnxruntime: that one disagrees with the two others. different: TensorRT's
#: reading disagrees with all who run the model, or does not run itself. disputed: all three disagree. not run: there is
#: no reading.
Verdict = Literal["invalid", "equal", "evaluator", "onnxruntime", "different", "disputed", "not run"]


#: What ONNX's evaluator takes and does not heed: attributes, and inputs by place.
_IGNORED: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "LSTM": (("activations", "activation_alpha", "activation_beta", "clip", "input_forget"), (4,)),
    "GRU": (("activations", "activation_alpha", "activation_beta", "clip"), (4,)),
    "RNN": (("clip",), (4,)),
}


def ignored(node: NodeProto) -> str:
    """What of a node the evaluator does not heed, so that its outputs say nothing; "" for nothing."""
    names, places = _IGNORED.get(node.op_type, ((), ()))
    found = [one.name for one in node.attribute if one.name in names]
    found += [node.input[place] for place in places if place < len(node.input) and node.input[place]]
    return f"it does not heed {', '.join(found)}" if found else ""


@accept
@dataclass(frozen=True)
class Ran:
    """What a model computed, by output, or why it did not."""

    values: Mapping[str, Any] | None = None
    words: str = ""

    @property
    def ok(self) -> bool:
        """Whether there are values."""
        return self.values is not None


@accept
@dataclass(frozen=True)
class Difference:
    """``what`` differs first: interface, shape, type, values or fails, of which ``output``; both values as text."""

    what: str
    output: str
    expected: str
    found: str


@accept
@dataclass(frozen=True)
class Judgment:
    """The verdict; ``by`` says who was asked (ort, evaluator, both). ``difference`` is None where there is none."""

    verdict: Verdict
    by: str = ""
    difference: Difference | None = None
    words: str = ""


#: Looser than what a runtime's own noise needs: mis-imports are not a matter of the last digits.
_LOOSE = {
    "float64": Tolerance(1e-3, 1e-4),
    "float32": Tolerance(1e-3, 1e-4),
    "float16": Tolerance(2e-2, 5e-3),
    "bfloat16": Tolerance(1e-1, 2e-2),
    "complex64": Tolerance(1e-3, 1e-4),
    "complex128": Tolerance(1e-3, 1e-4),
}
_COARSE = Tolerance(0.25, 0.1)


def judge(
    ort: Ran, evaluator: Ran, readings: Sequence[Ran], half: str = "", drawn: Sequence[str] = ()
) -> Judgment:
    """Three ways: whoever is alone is wrong.

    ``readings`` are what the lifted model computes by each runtime: one that agrees will do, since the others' faults
    are not TensorRT's. ``half`` names a half-precision type that the model computes in, ``drawn`` the outputs that
    hang on random numbers, of which only shape and type are compared.
    """
    asked = {name: ran for name, ran in (("onnxruntime", ort), ("evaluator", evaluator)) if ran.ok}
    by = "both" if len(asked) == 2 else next(iter(asked), "")
    if not asked:
        return Judgment("invalid", words=f"ONNX Runtime: {ort.words}; evaluator: {evaluator.words}")
    silent = "; ".join(
        f"{name}: {ran.words}" for name, ran in (("onnxruntime", ort), ("evaluator", evaluator)) if not ran.ok
    )
    ran = [one for one in readings if one.ok]
    if not ran:
        words = "; ".join(one.words for one in readings)
        return Judgment("different", by, Difference("fails", "", "runs", "does not run"), words)
    found: dict[str, Difference | None] = {}
    for name, one in asked.items():
        each = [difference(one.values or {}, reading.values or {}, half, drawn) for reading in ran]
        found[name] = None if None in each else each[0]
    right = [name for name, one in found.items() if one is None]
    if len(right) == len(asked):
        return Judgment("equal", by, words=silent)
    if right:  # whoever agrees with TensorRT; the other one is alone
        other = "evaluator" if right == ["onnxruntime"] else "onnxruntime"
        return Judgment("evaluator" if other == "evaluator" else "onnxruntime", by, found[other])
    if by == "both" and difference(ort.values or {}, evaluator.values or {}, half, drawn) is not None:
        return Judgment("disputed", by, found["onnxruntime"])
    return Judgment("different", by, next(iter(found.values())), silent)


def difference(
    expected: Mapping[str, Any], found: Mapping[str, Any], half: str = "", drawn: Sequence[str] = ()
) -> Difference | None:
    """The first output that differs: outputs' names, then shapes, then values, then types."""
    if list(expected) != list(found):
        return Difference("interface", "", str(list(expected)), str(list(found)))
    types = None
    for name, value in expected.items():
        one = _arrays(name, value, found[name], half, name in drawn)
        if one is not None and one.what != "type":
            return one
        types = types or one
    return types


def _arrays(name: str, expected: Any, found: Any, half: str, drawn: bool) -> Difference | None:
    if not isinstance(expected, (np.ndarray, np.generic)) or not isinstance(found, (np.ndarray, np.generic)):
        same = type(expected) is type(found) and repr(expected) == repr(found)
        return None if same else Difference("shape", name, type(expected).__name__, type(found).__name__)
    a, b = np.asarray(expected), np.asarray(found)
    if a.shape != b.shape:
        return Difference("shape", name, str(list(a.shape)), str(list(b.shape)))
    if not drawn:
        where = _wrong(a, b, half)
        if where is not None and where.any():
            at = tuple(int(one) for one in np.unravel_index(int(np.argmax(where)), where.shape))
            index = f"{list(at)} " if at else ""
            return Difference("values", name, f"{index}{_number(a[at])}", _number(b[at]))
    if a.dtype != b.dtype:
        return Difference("type", name, a.dtype.name, b.dtype.name)
    return None


def _number(value: Any) -> str:
    return f"{float(value):.6g}" if "float" in value.dtype.name else str(value)


def _wrong(a: Any, b: Any, half: str) -> Any:
    """Where ``b`` is not ``a``; None where they cannot be compared."""
    if a.dtype.kind in "OUS" or b.dtype.kind in "OUS":
        return np.array([str(x) != str(y) for x, y in zip(a.flat, b.flat, strict=True)], bool).reshape(
            a.shape
        )
    if "float" not in a.dtype.name and a.dtype.kind != "c":
        return (
            np.asarray(wide(a) != wide(b)) if "float" in b.dtype.name else np.asarray(a != b.astype(a.dtype))
        )
    names = {a.dtype.name, b.dtype.name, half} - {""}
    each = [_LOOSE.get(name, _COARSE if name.startswith("float") else Tolerance(0, 0)) for name in names]
    tolerance = Tolerance(max(one.rtol for one in each), max(one.atol for one in each), 1e-6)
    wrong = outside(parts(wide(a)), parts(wide(b)), tolerance)[0]
    return np.asarray(wrong.any(axis=-1)) if a.dtype.kind == "c" else wrong
