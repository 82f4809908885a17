"""Build a model and read its network back: parsed once."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxfix import system
from onnxfix.sandbox import Outcome, Posted, Worker, note
from onnxfix.trt import messages
from onnxfix.trt.build import Run, failed
from onnxfix.trt.lift import DATA, read_network
from onnxfix.trt.lift.records import Lifted
from onnxfix.trt.package import DEFAULT_CAPABILITY, load
from onnxfix.trt.records import Profile, TrtBuild

Built = tuple[TrtBuild, Lifted | None]
"""A build, and the network: None where there is none to compare, or where it has to be read alone."""

_LIFTING = "lift"
#: In the child: the profiles that the last build there ended with, or was given.
_LAST: list[tuple[Profile, ...] | None] = [None]


def post(
    worker: Worker,
    path: Path,
    out: Path,
    *,
    profiles: Sequence[Profile] | None,
    timeout: float,
    **how: Any,
) -> Posted:
    """Start ``build`` in a sandbox, without waiting; ``result`` is for its outcome. ``timeout`` is in seconds, for each
    step."""
    return worker.post(
        f"{__name__}:build",
        timeout=timeout,
        path=str(path),
        out=os.path.abspath(out),
        profiles=tuple(profiles) if profiles is not None else None,
        **how,
    )


def result(outcome: Outcome, package: str, compute_capability: str) -> Built | None:
    """What a call of ``build`` in a sandbox showed, whose crash, hang or lack of memory is a result too. None where it
    ended while it read the network back, so that nothing is known of the build.

    Raises:
        UsageError: the options do not fit the model or this TensorRT.
        OnnxfixError: a file cannot be written.
    """
    if outcome.ok:
        found: Built = outcome.value
        return found
    if outcome.note == _LIFTING:
        return None
    return failed(outcome, package, compute_capability), None


def build(
    path: str,
    out: str,
    *,
    package: str,
    compute_capability: str = DEFAULT_CAPABILITY,
    profiles: Sequence[Profile] | None = None,
    follow: bool = False,
    tf32: bool = False,
    save_engine: str = "",
    timing_cache: str = "",
) -> Built:
    """``trt.build.build``, and meanwhile ``trt.lift.lift`` to ``out``. Call it in a sandbox.

    ``follow``: with the profiles of the last build in this process, if it was accepted and has some. There is no
    network where the parser takes no model, or where reading it back failed.

    Raises:
        Exception: as for ``trt.build.build``.
    """
    given = tuple(profiles) if profiles is not None else None
    given = _LAST[0] if follow and _LAST[0] is not None else given
    _LAST[0] = None
    lifted: list[Lifted] = []
    with messages.memory_errors():
        run = Run(load(package), path, package, compute_capability, tf32)

        def read(run: Run) -> None:  # not its own: a circle would keep the network in memory
            note(_LIFTING)
            try:
                lifted.append(read_network(run.trt, run.network, Path(out), package))
            except Exception:  # whoever wants the network reads it alone, and learns why it fails
                for file in (out, out + DATA):
                    with contextlib.suppress(OSError):
                        os.unlink(file)
            gc.collect()  # layers and tensors refer to each other, and to the network

        run.parsed = read
        done = run.run(given, save_engine, timing_cache)
    _LAST[0] = done.profiles if done.accepted and done.profiles else None
    if follow:  # the last of a pair
        del run
        system.give_freed_memory_back()
    return done, next(iter(lifted), None)
