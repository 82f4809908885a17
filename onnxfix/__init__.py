"""onnxfix repairs ONNX models before they go to NVIDIA TensorRT, and proves that they still are the same models.

``check``, ``apply``, ``verify``, ``diagnose``, ``reduce``, ``precision`` and ``lift`` are the command line's verbs as
functions.
Everything is imported on first use, so that ``import onnxfix`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxfix._version import __version__

if TYPE_CHECKING:
    from onnxfix.api import apply, check, diagnose, precision, reduce, verify
    from onnxfix.diagnosis.records import Diagnosis
    from onnxfix.errors import ModelError, OnnxfixError, UsageError
    from onnxfix.lowering.records import Lowering
    from onnxfix.pipeline.lifting import lift
    from onnxfix.pipeline.reducing import reproduce
    from onnxfix.report.report import Report
    from onnxfix.rule import Example, Fix, Match, Rule, Safety, Severity
    from onnxfix.trt.records import TrtOptions

__all__ = [
    "Diagnosis", "Example", "Fix", "Lowering", "Match", "ModelError", "OnnxfixError", "Report", "Rule", "Safety",
    "Severity", "TrtOptions", "UsageError", "__version__", "apply", "check", "diagnose", "lift", "precision", "reduce",
    "reproduce", "verify",
]  # fmt: skip

_HOME = {
    **dict.fromkeys(("apply", "check", "diagnose", "precision", "reduce", "verify"), "onnxfix.api"),
    **dict.fromkeys(("ModelError", "OnnxfixError", "UsageError"), "onnxfix.errors"),
    "Diagnosis": "onnxfix.diagnosis.records",
    "lift": "onnxfix.pipeline.lifting",
    "Lowering": "onnxfix.lowering.records",
    "reproduce": "onnxfix.pipeline.reducing",
    "Report": "onnxfix.report.report",
    "TrtOptions": "onnxfix.trt.records",
    **dict.fromkeys(("Example", "Fix", "Match", "Rule", "Safety", "Severity"), "onnxfix.rule"),
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'onnxfix' has no attribute {name!r}")
    import importlib  # lazy: start-up

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
