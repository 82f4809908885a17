"""onnxfix repairs ONNX models before they go to NVIDIA TensorRT, and proves that they still are the same models.

``check``, ``apply`` and ``verify`` return a ``Report``, as does ``export``, which starts from a module of PyTorch;
``diagnose`` finds where two models differ, ``reduce`` the part that fails, ``precision`` converts to half precision,
``layers`` and ``lift`` show what TensorRT makes of a model; ``rules``, ``explain`` and ``doctor`` show what onnxfix
knows. All results print as on the command line, show a table in a notebook, and have ``ok``, ``exit_code``, ``to_dict``
and ``to_html``. Expected failures are an ``OnnxfixError``.

    >>> import onnxfix
    >>> report = onnxfix.apply("model.onnx", "fixed.onnx")
    >>> report.ok, report.by_rule()

Everything is imported on first use, so that ``import onnxfix`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxfix._version import __version__
from onnxfix.shown import Shown

if TYPE_CHECKING:
    from onnxfix.api.inquiry import diagnose, doctor, explain, layers, lift, precision, reduce, rules
    from onnxfix.api.repair import apply, check, export, verify
    from onnxfix.diagnosis.records import Diagnosis
    from onnxfix.errors import ModelError, OnnxfixError, UsageError
    from onnxfix.lowering.records import Lowering
    from onnxfix.place import Place
    from onnxfix.reduction.case import Reduction
    from onnxfix.report.report import AppliedFix, Finding, Report
    from onnxfix.rule import Example, Fix, Match, Rule, Safety, Severity
    from onnxfix.tensorrt.lift.records import Lifted
    from onnxfix.tensorrt.records import TrtOptions
    from onnxfix.verbs.examination.records import Examination
    from onnxfix.verbs.layering import LayerReport
    from onnxfix.verbs.reducing import reproduce

__all__ = [
    "AppliedFix", "Diagnosis", "Examination", "Example", "Finding", "Fix", "LayerReport", "Lifted", "Lowering",
    "Match", "ModelError", "OnnxfixError", "Place", "Reduction", "Report", "Rule", "Safety", "Severity", "TrtOptions",
    "UsageError", "__version__", "apply", "check", "diagnose", "doctor", "explain", "export", "layers", "lift",
    "precision", "reduce", "reproduce", "rules", "verify",
]  # fmt: skip

Shown.renderer = "onnxfix.report.render.documents"

_HOME = {
    **dict.fromkeys(("apply", "check", "export", "verify"), "onnxfix.api.repair"),
    **dict.fromkeys(("diagnose", "doctor", "explain", "layers", "lift"), "onnxfix.api.inquiry"),
    **dict.fromkeys(("precision", "reduce", "rules"), "onnxfix.api.inquiry"),
    **dict.fromkeys(("ModelError", "OnnxfixError", "UsageError"), "onnxfix.errors"),
    **dict.fromkeys(("AppliedFix", "Finding", "Report"), "onnxfix.report.report"),
    "Diagnosis": "onnxfix.diagnosis.records",
    "Examination": "onnxfix.verbs.examination.records",
    "LayerReport": "onnxfix.verbs.layering",
    "Lifted": "onnxfix.tensorrt.lift.records",
    "Lowering": "onnxfix.lowering.records",
    "Place": "onnxfix.place",
    "Reduction": "onnxfix.reduction.case",
    "reproduce": "onnxfix.verbs.reducing",
    "TrtOptions": "onnxfix.tensorrt.records",
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


def __dir__() -> list[str]:
    return sorted(__all__)
