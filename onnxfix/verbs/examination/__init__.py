"""Which checks of the proof this machine can run, why it cannot run the others, and how to fix that.

The diagnosis must work on a machine where anything may be broken. So this package imports neither onnx nor numpy.
Whatever loads native code is probed in children that may die, one for each question (``probes.py``). The rest is read
from files (``facts.py``). ``judge.py`` and ``problems.py`` are functions of the facts.
"""

from __future__ import annotations

from onnxfix.runtime.sandbox import Worker
from onnxfix.verbs.examination.facts import TIMEOUT, gather
from onnxfix.verbs.examination.judge import judged
from onnxfix.verbs.examination.records import Examination, Package, Problem, Rung

__all__ = ["Examination", "Package", "Problem", "Rung", "examine"]


def examine(worker: Worker | None = None) -> Examination:
    """Examine this machine and this Python environment. Faults that it finds are results, never exceptions.

    Each question that loads native code runs in a child of its own: ``worker``, by default a new one, is closed after
    each.
    """
    with worker or Worker() as own:
        return judged(gather(own, TIMEOUT))
