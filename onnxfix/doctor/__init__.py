"""Which rungs of the verification ladder this machine can run, why not the others, and what mends that.

It must say so on a machine where anything is broken. So this package imports neither onnx nor numpy; what loads native
code is asked in children that may die (``probes.py``), each for one answer; the rest is read from files (``facts.py``)
and judged by functions of what was found (``judge.py``).
"""

from __future__ import annotations

from onnxfix.doctor.facts import TIMEOUT, gather
from onnxfix.doctor.judge import diagnose
from onnxfix.doctor.records import Diagnosis, Package, Problem, Rung
from onnxfix.sandbox import Worker

__all__ = ["Diagnosis", "Package", "Problem", "Rung", "examine"]


def examine(worker: Worker | None = None, *, timeout: float = TIMEOUT) -> Diagnosis:
    """Examine this machine and this Python environment. Never raises for what it finds there.

    Each question that loads native code has ``timeout`` seconds, in a child of its own: ``worker``'s is closed after
    each. Without ``worker``, one is made.
    """
    if worker is not None:
        return diagnose(gather(worker, timeout))
    with Worker() as own:
        return diagnose(gather(own, timeout))
