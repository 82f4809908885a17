"""How far TensorRT's builder is, told to whoever watches."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from onnxfix.sandbox import note

_EVERY = 0.5  # seconds


def watch(trt: Any, config: Any) -> Any:
    """Have a build report how far it is; returns what must be kept until it ends, None where TensorRT cannot do this.
    TensorRT calls from threads of its own, which no exception may reach."""
    if not hasattr(config, "progress_monitor"):
        return None
    phases: dict[str, tuple[str | None, int, int]] = {}  # active ones: the parent, steps done, steps
    told = [time.monotonic()]

    def under(parent: str | None) -> float:
        own = [(name, *of) for name, of in list(phases.items()) if of[0] == parent]
        return sum(min(1.0, (done + under(name)) / max(count, 1)) for name, _, done, count in own)

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]  # the base class is only known at run time
        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            phases[phase_name] = parent_phase, 0, num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            with contextlib.suppress(Exception):
                parent, _, count = phases[phase_name]
                phases[phase_name] = parent, step + 1, count
                if time.monotonic() - told[0] >= _EVERY:
                    told[0] = time.monotonic()
                    note(f"TensorRT: {100 * min(1.0, under(None)):.0f} %, {phase_name[:60]}", share=True)
            return True

        def phase_finish(self, phase_name: str) -> None:
            phases.pop(phase_name, None)

    config.progress_monitor = monitor = Monitor()
    return monitor
