"""One model with its data: have TensorRT build it, read its network back, run that, compare with what is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from acceptance.judging import Miss, misses
from acceptance.running import BACKENDS, outputs_of

from onnxfix.sandbox import Worker
from onnxfix.trt import lift
from onnxfix.trt.lift import Lifted
from onnxfix.trt.lift.types import numpy_type

#: equal: meets the expected outputs. differs: runs, and does not. random: only values differ, and the network draws
#: them. unlifted: a layer cannot be read back. not run: no backend runs the lifted model. failed: reading back ended
#: in a crash, a hang or an error.
Status = Literal["equal", "differs", "random", "unlifted", "not run", "failed"]


@dataclass(frozen=True)
class Reading:
    """What became of one model.

    ``backend`` ran the lifted model, ``without`` says why it was not the first one ("" where it was). ``reason`` is
    the first miss, the gap or the error. ``outputs`` are those of each data set; ``lifted`` says what was read.
    """

    status: Status
    lifted: Lifted
    backend: str = ""
    without: str = ""
    reason: str = ""
    outputs: tuple[list[Any], ...] = ()
    misses: tuple[tuple[int, Miss], ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)


def fed(lifted: Lifted, feed: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a feed under the names and in the types of the lifted model's inputs.

    TensorRT renames an input that has the name of something in a loop's body: it keeps its place. float64 is rounded
    to float32, the type that TensorRT gives such an input.
    """
    places = dict(zip([one.name for one in lifted.inputs], feed.values(), strict=False))
    found = {}
    for one in lifted.inputs:
        value = feed[one.name] if one.name in feed else places[one.name]
        found[lifted.names.get(one.name, one.name)] = np.asarray(value).astype(numpy_type(one.dtype))
    return found


def due(expected: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """What ONNX expects, with float64 rounded to float32 where TensorRT computed that: it has no wider type."""
    pairs = zip(expected, found, strict=True)
    return [
        a.astype(np.float32)
        if isinstance(a, np.ndarray) and a.dtype == np.float64 and getattr(b, "dtype", None) == np.float32
        else a
        for a, b in pairs
    ]


def compared(
    expected: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]], rtol: float, atol: float
) -> tuple[tuple[int, Miss], ...]:
    """Every output of every data set that is not the expected one, with its number; -1: there are more, or fewer."""
    missed: list[tuple[int, Miss]] = []
    for wanted, have in zip(expected, found, strict=True):
        if len(wanted) != len(have):
            missed += [(-1, one) for one in misses(wanted, have, rtol, atol)]
            continue
        for number, (a, b) in enumerate(zip(due(wanted, have), have, strict=True)):
            missed += [(number, one) for one in misses([a], [b], rtol, atol)]
    return tuple(missed)


def _drawn(lifted: Lifted, missed: Sequence[tuple[int, Miss]]) -> bool:
    """Whether only values differ, and only of outputs that hang on random numbers."""
    names = [one.name for one in lifted.outputs]
    return all(one.kind == "values" and n >= 0 and names[n] in lifted.drawn for n, one in missed)


@dataclass
class Reader:
    """Reads networks back and runs them; ``trt`` and ``runner`` are sandboxes, ``package`` is TensorRT's."""

    trt: Worker
    runner: Worker
    package: str
    timeout: float = 60.0

    def read(
        self,
        path: Path,
        out: Path,
        feeds: Sequence[Mapping[str, Any]],
        expected: Sequence[Sequence[Any]],
        rtol: float,
        atol: float,
        half: str = "",
    ) -> Reading:
        """Read the model file at ``path`` back into ``out`` and hold it to the expected outputs of each feed.
        ``half`` names the half-precision type of the model, if any."""
        lifted = lift.attempt(self.trt, path, out, package=self.package, timeout=self.timeout)
        if lifted.status == "unlifted":
            return Reading("unlifted", lifted, reason=lifted.reason)
        if not lifted.lifted:
            return Reading("failed", lifted, reason=f"{lifted.status}: {lifted.reason}")
        try:
            given = [fed(lifted, feed) for feed in feeds]
        except (KeyError, ValueError, TypeError) as error:
            return Reading("failed", lifted, reason=f"the network's inputs are not the model's: {error!r}")
        return self._run(lifted, out, given, expected, rtol, atol, half)

    def _run(
        self,
        lifted: Lifted,
        out: Path,
        feeds: Sequence[Mapping[str, Any]],
        expected: Sequence[Sequence[Any]],
        rtol: float,
        atol: float,
        half: str,
    ) -> Reading:
        errors: dict[str, str] = {}
        first: Reading | None = None
        for backend in BACKENDS:
            ran = outputs_of(self.runner, backend, out, feeds)
            if not ran.ok:
                errors[backend] = ran.message
                continue
            missed = compared(expected, ran.value, rtol, atol)
            status: Status = "equal"
            if missed:
                status = "random" if _drawn(lifted, missed) else "differs"
            reason = missed[0][1].text.replace("output 0", f"output {missed[0][0]}") if missed else ""
            without = errors.get(BACKENDS[0], "") or (first.reason if first is not None else "")
            found = Reading(status, lifted, backend, without, reason, tuple(ran.value), missed, errors)
            if status != "differs" or not half or any(one.kind != "values" for _, one in missed):
                return found
            # ONNX Runtime computes half precision in float32 on the CPU: who rounds after every node is asked too.
            first = first or found
        if first is not None:
            return first
        reason = "; ".join(f"{backend}: {text}" for backend, text in errors.items())
        return Reading("not run", lifted, reason=reason, errors=errors)
