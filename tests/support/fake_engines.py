"""Engines without a GPU: ONNX models that ONNX Runtime executes. In the sandbox, the functions take the place of
``onnxfix.tensorrt.engine``'s.

An engine file is an ONNX model whose metadata say in JSON under ``fake`` what goes wrong: ``refused`` (to load),
``fails`` (each run, and all later ones of the process), ``dies``, ``hangs``, ``unread``, ``unsteady`` (every second
time that an engine of this name is loaded, its outputs are those times this number).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfix.runtime.backends import ort
from onnxfix.tensorrt import engine as trt_run
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.timing import Latency, compared, timing
from support.models import model, write

_ENGINES: dict[str, tuple[ort.OrtSession, dict[str, Any]]] = {}


def save(path: Path, text: str, **tricks: Any) -> Path:
    """Write an engine: a model from text, with what goes wrong."""
    proto = model(text)
    if tricks:
        proto.metadata_props.add(key="fake", value=json.dumps(tricks))
    return write(path, proto)


_RUINED = ""


def load(name: str, path: str, *, package: str) -> str:
    assert package == "tensorrt"
    metadata = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    tricks = json.loads(metadata.get("fake", "{}"))
    if "refused" not in tricks:
        with open(os.path.join(os.path.dirname(path), f"{name} loads"), "ab") as loads:
            loads.write(b"1")
            loads.flush()
            if os.path.getsize(loads.name) % 2 == 0:
                tricks.pop("unsteady", None)
        _ENGINES[name] = ort.load(path), tricks
    return str(tricks.get("refused", ""))


def run(name: str, feed: dict[str, Any], *, package: str, times: int = 1) -> Ran:
    global _RUINED
    assert package == "tensorrt"
    session, tricks = _ENGINES[name]
    _RUINED = _RUINED or tricks.get("fails", "")
    if _RUINED:
        return Ran(error=_RUINED, broken=True)
    if "dies" in tricks:
        os.abort()
    if "hangs" in tricks:
        time.sleep(600)
    unread = {output: f"{output} is INT4 in the engine" for output in tricks.get("unread", ())}
    runs = [dict(zip(session.outputs, session.run(feed), strict=True)) for _ in range(times)]
    if "unsteady" in tricks:
        factor = np.float32(tricks["unsteady"])
        runs = [{output: value * factor for output, value in values.items()} for values in runs]
    read = [{output: values[output] for output in values if output not in unread} for values in runs]
    return Ran(read[0], unread, trt_run._unsteady(read[0], read[1:]))


def latency(paths: dict[str, str], feed: dict[str, Any], *, package: str) -> Latency:
    """What is timed are numbers: ``ms`` of the engine's tricks, or why there are none (``untimed``)."""
    drop()
    timings = {}
    for name, path in paths.items():
        assert load(name, path, package=package) == ""
        tricks = _ENGINES[name][1]
        if "untimed" in tricks:
            return Latency(reason=tricks["untimed"])
        if "dies_timed" in tricks:
            os.abort()
        timings[name] = timing([[tricks.get("ms", 2.0)] * 5] * 4, load_seconds=0.5, first_seconds=0.25)
    drop()
    shapes = tuple((name, value.shape) for name, value in feed.items())
    both = compared(timings.get("original"), timings["fixed"])
    return replace(both, launch="cuda-graph", captured_by="tensorrt", shapes=shapes)


def drop(name: str = "") -> None:
    for each in [name] if name else [*_ENGINES]:
        _ENGINES.pop(each, None)


def trial(path: str, *, package: str) -> tuple[str, str]:
    return "", "float32"


def held() -> list[str]:
    return list(_ENGINES)
