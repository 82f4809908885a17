"""The latency of the engines that the rung trt-gpu has compared, for ``--benchmark``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix.trt.records import Profile, TrtBuild
from onnxfix.trt.timing import Latency, Timing
from onnxfix.verification.rungs.builder import Builder
from onnxfix.verification.rungs.sessions import Sessions
from onnxfix.verification.rungs.trials import Trial, outside
from onnxfix.verification.verdict import RungResult


def with_latency(result: RungResult) -> RungResult:
    """The result; where it has no latency, with the reason."""
    if result.latency is not None:
        return result
    if result.executed is None:
        why = f"no engine was executed: {result.reason}"
    elif result.executed.outcome == "wrong":
        why = "the new model's engine is wrong"
    else:
        why = f"no result: {result.reason}"
    return replace(result, latency=Latency(reason=why))


def latency(
    engines: Sessions,
    found: Builder,
    original: Path,
    files: Mapping[str, Path],
    builds: Mapping[str, TrtBuild],
    trials: Sequence[Trial],
) -> Latency:
    """Time the engines of ``files`` ("fixed", and "original" where there is one) on the trial of the usual shape.

    The original's engine is rebuilt where an earlier climb built it: only its outputs are kept for each candidate.
    Whatever happens is a result.
    """
    builds = dict(builds)
    if "original" in files and not files["original"].exists():
        known = builds["original"]
        again = found.build(original, known.profiles or None, save_engine=str(files["original"]))
        if not again.accepted:
            return Latency(reason=f"the engine of the original could not be rebuilt: {again.reason}")
        builds["original"] = again
    trial = usual(trials, builds["fixed"].profiles)
    measured = engines.latency({name: str(path) for name, path in files.items()}, trial.values)
    return replace(
        measured,
        original=_built(measured.original, builds.get("original"), files.get("original")),
        fixed=_built(measured.fixed, builds["fixed"], files["fixed"]),
    )


def _built(timing: Timing | None, build: TrtBuild | None, file: Path | None) -> Timing | None:
    if timing is None or build is None or file is None:
        return timing
    size = build.engine_bytes or file.stat().st_size
    return replace(timing, build_seconds=build.build_seconds, engine_bytes=size)


def usual(trials: Sequence[Trial], profiles: Sequence[Profile]) -> Trial:
    """The trial at the opt shapes and values of the first profile, for which engines are tuned; else the last trial
    that fits it."""
    fitting = [one for one in trials if not outside(profiles, one.values)] or [*trials]
    exact = [one for one in fitting if _is_usual(one.values, profiles)]
    return (exact or fitting)[-1]


def _is_usual(values: Mapping[str, Any], profiles: Sequence[Profile]) -> bool:
    for profile in profiles[:1]:
        for name, (_, opt, _) in profile.shapes.items():
            if name in values and tuple(np.shape(values[name])) != tuple(opt):
                return False
        for name, (_, opt, _) in profile.values.items():
            if name in values and tuple(np.asarray(values[name]).reshape(-1).tolist()) != tuple(opt):
                return False
    return True
