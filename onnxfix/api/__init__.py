"""The commands as functions: their keywords become one record for the pipeline.

The command line makes the same record from its options, see :mod:`onnxfix.cli`.
"""

from onnxfix.api.inquiry import diagnose, layers, lift, patterns_of, precision, reduce
from onnxfix.api.knowledge import RuleList, RulePage, doctor, explain, rules
from onnxfix.api.repair import apply, check, export, verify

__all__ = [
    "RuleList", "RulePage", "apply", "check", "diagnose", "doctor", "explain", "export", "layers", "lift",
    "patterns_of", "precision", "reduce", "rules", "verify",
]  # fmt: skip
