"""What loading two models, or running them on one feed, came to: what the sandbox's child hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfix.errors import Fault
from onnxfix.proof.compare.compare import Metrics
from onnxfix.runtime import backends
from onnxfix.runtime.backends import ort_messages
from onnxfix.runtime.causes import ENDED, NO_MEMORY, Cause
from onnxfix.runtime.sandbox import Outcome, one_line

_WIDEST = 4000  # characters of an error of which a line is made
_SAID = 600  # characters of ONNX Runtime's words that are kept


@dataclass(frozen=True)
class Ran:
    """The result of loading, or of one feed. ``stage`` and ``error``: which model failed and why; else both are empty.

    ``unsupported``: the backend cannot do this. ``no_kernel``: it lacks an operator of the model. ``broken``: the
    process cannot be used any more. ``places``: for the original and the fixed model, how many nodes each execution
    provider runs, where the backend reports that. ``starved``: memory ran out. ``mapped``: a model's weights were
    mapped from its file, not loaded as usual. ``cause``: why it failed, where that is known.
    """

    stage: str = ""
    error: str = ""
    metrics: tuple[Metrics, ...] = ()
    unstable: tuple[str, ...] = ()  # outputs in which the original differs from itself
    seconds: float = 0.0  # what it cost: of the processor, or where a GPU computes, of the clock
    unsupported: bool = False
    no_kernel: bool = False
    broken: bool = False
    starved: bool = False
    mapped: bool = False
    places: tuple[Mapping[str, int] | None, ...] = ()
    wobble: tuple[Metrics, ...] = ()  # where it differs from itself within tolerance
    precision: str = ""  # of the twin
    cause: Cause = ""
    said: str = ""  # the text of the exception of who ran it, and nothing else
    beyond: str = ""  # the first value of the original that is finite in its twin and not in half precision


def ran_of(outcome: Outcome) -> Ran:
    """The result of a call of ``load`` or ``run``; a crash is attributed to the model that ran.

    Raises:
        Fault: verification itself failed.
    """
    if outcome.ok:
        return outcome.value  # type: ignore[no-any-return]
    if outcome.status == "error":  # errors of models come back as a Ran
        raise Fault(outcome.message)
    stage = outcome.note if outcome.note in ("original", "fixed") else "original"
    return Ran(stage, outcome.message, starved=outcome.status == "memory", cause=ENDED[outcome.status])


def failed(stage: str, error: Exception) -> Ran:
    """The result where running the model ``stage`` raised an error."""
    unsupported, broken = isinstance(error, backends.Unsupported), isinstance(error, backends.Broken)
    said = "" if unsupported else one_line(ort_messages.plain(one_line(str(error), _WIDEST)), _SAID)
    text = str(error) if unsupported or broken else one_line(ort_messages.plain(one_line(error, _WIDEST)))
    starved = isinstance(error, MemoryError) or (not unsupported and bool(NO_MEMORY.search(str(error))))
    return Ran(
        stage,
        text,
        said=said,
        unsupported=unsupported,
        no_kernel=isinstance(error, backends.NoKernel),
        broken=broken,
        starved=starved,
        cause="memory" if starved else getattr(error, "cause", ""),
    )
