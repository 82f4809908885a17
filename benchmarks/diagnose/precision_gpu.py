"""Engines of a model and its variants: how far they are from float32, and how long they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix.backends import ort
from onnxfix.nvidia import Missing
from onnxfix.trt.records import TrtOptions
from onnxfix.verification.feeds.profiles import chosen_profiles
from onnxfix.verification.feeds.signature import signature
from onnxfix.verification.rungs import probe
from onnxfix.verification.rungs.builder import Builder, builder


def measured(
    folder: Path, variants: Mapping[str, Path], feeds: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """By variant: ``error`` (largest distance from ONNX Runtime in float32, as a share of the output's scale) and
    ``ms``, the median of an engine's run, measured in turns with the original's; or ``reason``."""
    found = builder(TrtOptions())
    if isinstance(found, Missing):
        return {name: {"reason": found.reason} for name in variants}
    session = ort.load(str(variants["original"]), 8)
    truth = [dict(zip(session.outputs, session.run(dict(feed)), strict=True)) for feed in feeds]
    with closing(found):
        here = probe.probe(found)
        if here.reason:
            return {name: {"reason": here.reason} for name in variants}
        result = {}
        original: Path | None = None
        for name in ["original", *(one for one in variants if one != "original")]:
            engine = folder / f"{name}.engine"
            result[name] = _built(found, variants[name], engine, feeds)
            if "reason" not in result[name]:
                original = engine if name == "original" else original
                result[name].update(_run(found, engine, original, feeds, truth))
            result[name].update(gpu=here.where, product=found.product)
        return result


def _built(found: Builder, model: Path, engine: Path, feeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    known = signature(model)
    profiles, _ = chosen_profiles(found.options, known, {}, [dict(feed) for feed in feeds])
    done = found.build(model, profiles, save_engine=str(engine))
    if not done.accepted:
        return {"reason": done.reason[:300]}
    return {"layers": done.layer_count, "bytes": engine.stat().st_size}


def _run(
    found: Builder,
    engine: Path,
    original: Path | None,
    feeds: Sequence[Mapping[str, Any]],
    truth: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    with probe.engines(found.choice, found.options, 120.0) as side:
        why = side.load("fixed", str(engine))
        if why:
            return {"reason": why[:300]}
        errors = []
        for feed, wanted in zip(feeds, truth, strict=True):
            ran = side.run("fixed", dict(feed))
            if ran.error:
                return {"reason": ran.error[:300]}
            errors += [_error(wanted[name], value) for name, value in ran.outputs.items()]
        paths = {"fixed": str(engine)} | (
            {"original": str(original)} if original not in (None, engine) else {}
        )
        latency = side.latency(paths, dict(feeds[0]))
    figures: dict[str, Any] = {"error": max(errors)}
    if latency.fixed is None:
        return {**figures, "latency": latency.reason}
    figures.update(ms=latency.fixed.median_ms, noise=latency.fixed.noise, launch=latency.launch)
    if latency.original is not None:
        figures.update(original_ms=latency.original.median_ms, ratio=latency.ratio)
    return figures


def _error(wanted: Any, value: Any) -> float:
    """The largest distance as a share of the scale; infinite where one side is not finite."""
    truth, other = np.asarray(wanted, np.float64), np.asarray(value).astype(np.float64)
    finite = np.isfinite(truth)
    if truth.shape != other.shape or not np.array_equal(finite, np.isfinite(other)):
        return float("inf")
    scale = float(np.abs(truth[finite]).max(initial=0.0)) or 1.0
    return float(np.abs(truth[finite] - other[finite]).max(initial=0.0)) / scale
