"""One of ONNX's node tests, by onnx's own ``BackendTest`` on the classes of ``onnxfix.backend``. Runs in a
sandbox."""

from __future__ import annotations

import functools
import hashlib
import re
import time
import unittest
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests

from onnxfix.backend import AsIs, BackendError, NumericallyRepaired, Repaired, TensorrtBackend
from onnxfix.errors import OnnxfixError
from onnxfix.proof.compare.compare import compare
from onnxfix.proof.compare.twin import half_type
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt.records import TrtOptions

LEVELS: dict[str, type[TensorrtBackend]] = {"as-is": AsIs, "exact": Repaired, "numeric": NumericallyRepaired}
_WIDEST = 240  # characters of a reason


class _Same(Exception):
    """A repair gave a model that was measured already; the argument is the level of that one."""


class _Tests(BackendTest):  # type: ignore[misc]
    """onnx's tests, which keep what they compared."""

    compared: ClassVar[list[tuple[Any, Any]]] = []

    @classmethod
    def assert_similar_outputs(cls, ref_outputs: Any, outputs: Any, *rest: Any, **more: Any) -> None:
        cls.compared.append((ref_outputs, outputs))
        super().assert_similar_outputs(ref_outputs, outputs, *rest, **more)


class _Outcome(unittest.TestResult):
    """The exception that a test ended with, rather than its text."""

    raised: BaseException | None = None
    skipped_for = ""

    def addError(self, test: Any, err: Any) -> None:  # unittest's name
        self.raised = err[1]

    def addFailure(self, test: Any, err: Any) -> None:
        self.raised = err[1]

    def addSkip(self, test: Any, reason: str) -> None:
        self.skipped_for = reason


_MADE: dict[str, str] = {}
_FIXES: Counter[str] = Counter()


def _recording(level: str) -> type[TensorrtBackend]:
    """The backend of a level, which stops where the model is one that was measured."""
    base = LEVELS[level]

    class Recording(base):  # type: ignore[misc, valid-type]
        @classmethod
        def repaired(cls, model: Any, folder: Path, options: Any, target: str) -> Any:
            path, report = super().repaired(model, folder, options, target)
            _FIXES.clear()
            _FIXES.update(fix.code for fix in report.applied if report.output) if report is not None else None
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest in _MADE:
                raise _Same(_MADE[digest])
            _MADE[digest] = level
            return path, report

    return Recording


@functools.cache
def _tests(level: str, timeout: float) -> type[unittest.TestCase]:
    """The class with a method for every test and device."""
    given = {"trt": TrtOptions(timeout=timeout), "timeout": timeout}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        names = [one.name for one in load_model_tests(kind="node")]
        tests = _Tests(_recording(level), __name__, dict.fromkeys(names, given))
    found: type[unittest.TestCase] = tests.test_cases["OnnxBackendNodeModelTest"]
    return found


@functools.cache
def models() -> dict[str, ModelProto]:
    """The models of the node tests, by name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {one.name: one.model for one in load_model_tests(kind="node")}


def operator_of(name: str) -> str:
    """The operator that a test is about. The test of a function's body ("expanded") is about the function, and that of
    several operators about the one in its name, else the first."""
    base = re.sub(r"_expanded(_ver\d+)?$", "", name)
    model = models().get(base) or models()[name]
    found = list(dict.fromkeys(node.op_type for node in model.graph.node))
    stem = base.removeprefix("test_").replace("_", "")
    named = [one for one in found if stem.startswith(one.lower())] or [
        one for one in found if one.lower() in stem
    ]
    return (named or found or ["(none)"])[0]


def measure(name: str, device: str, timeout_s: float) -> dict[str, Any]:
    """What becomes of one test at every level; by level: ``status`` and why.

    right: the test passes. near: only within the tolerances of ``onnxfix verify``. wrong: neither. refused: TensorRT's
    parser or builder does. stopped: TensorRT crashes, hangs or runs out of memory. unread: the network has a layer that
    is not read back (device CPU). failed: anything else. skipped: there is no such device.
    """
    _MADE.clear()
    model = models()[name]
    found: dict[str, Any] = {"operator": operator_of(name)}
    for level in LEVELS:
        began = time.monotonic()
        found[level] = _one(name, device, level, model, timeout_s)
        found[level]["seconds"] = round(time.monotonic() - began, 2)
    return found


def _one(name: str, device: str, level: str, model: ModelProto, timeout: float) -> dict[str, Any]:
    outcome = _Outcome()
    _Tests.compared.clear()
    _FIXES.clear()
    _tests(level, timeout)(f"{name}_{device.lower()}").run(outcome)
    fixes = {"fixes": dict(sorted(_FIXES.items()))} if _FIXES else {}
    raised = outcome.raised
    if outcome.skipped_for:
        return {"status": "skipped", "reason": outcome.skipped_for}
    if isinstance(raised, _Same):
        return {"status": "same", "as": str(raised), **fixes}
    if raised is None:
        return {"status": "right", **fixes}
    reason = one_line(raised, _WIDEST)
    if isinstance(raised, AssertionError):
        return {"status": "near" if _near(half_type(model)) else "wrong", "reason": reason, **fixes}
    if isinstance(raised, BackendError):
        return {"status": _status(raised), "stage": raised.stage, "reason": reason, **fixes}
    ours = isinstance(raised, OnnxfixError)
    return {"status": "failed", "reason": reason if ours else f"{type(raised).__name__}: {reason}", **fixes}


def _status(error: BackendError) -> str:
    if error.cause == "refused" and error.stage in ("parse", "build", "inputs"):
        return "refused"
    if error.cause in ("timeout", "crash", "memory"):
        return "stopped"
    return "unread" if error.cause == "gap" else "failed"


def _near(half: str) -> bool:
    """Whether all that was compared is within the tolerances of ``onnxfix verify``."""
    with np.errstate(all="ignore"):
        return all(
            metric.agreement != "different"
            for wanted, have in _Tests.compared
            if len(wanted) == len(have)
            for a, b in zip(wanted, have, strict=True)
            for metric in compare("", *_narrow(a, b), exact=False, coarse=half)
        ) and all(len(wanted) == len(have) for wanted, have in _Tests.compared)


def _narrow(a: Any, b: Any) -> tuple[Any, Any]:
    """float64 as float32, which TensorRT computed."""
    double = all(isinstance(one, np.ndarray) and one.dtype == np.float64 for one in (a, b))
    return (a.astype(np.float32), b.astype(np.float32)) if double else (a, b)
