"""An ``onnxruntime`` for machines without a GPU: the real one, with a CUDA provider that computes on the CPU.

``install`` puts it in front of the real package for the sandbox's children. ``mode`` says what goes wrong:

- "falls back": the provider is listed and a session goes on without it.
- "fails to load": a session with the provider raises.
- "breaks": the first run of each process fails as a GPU does that is lost to it.
- "is small": a file in a folder named ``fixed`` does not fit beside another model. "is small at run time": the same.
- "wobbles": float outputs differ from run to run in their last bits, one of the name ``wild`` altogether.
- "computes nothing": it has no kernel, so every node stays on the CPU.
- "reads beyond": where the CPU refuses a feed, it computes something, and something else each time.

With TF32 on, float outputs are off by about 2**-11.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from onnxfix.runtime.backends import ort_cuda

SOURCE = """
import importlib.machinery, importlib.util, json, os, sys
import numpy as np

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
spec = importlib.machinery.PathFinder.find_spec(
    "onnxruntime", [entry for entry in sys.path if os.path.abspath(entry) != HERE]
)
real = importlib.util.module_from_spec(spec)
sys.modules["onnxruntime"] = real
spec.loader.exec_module(real)
CUDA, MODE = "CUDAExecutionProvider", os.environ["FAKE_CUDA"]
Real = real.InferenceSession


def log(**what):
    with open(os.path.join(HERE, "log"), "a") as file:
        file.write(json.dumps({"pid": os.getpid(), **what}) + "\\n")


class Part:
    def __init__(self, name, nodes):
        self.ep_name, self.nodes = name, nodes

    def get_nodes(self):
        return self.nodes


class Session(Real):
    runs = 0

    def __init__(self, path, options, providers, **more):
        named = dict(one if isinstance(one, tuple) else (one, {}) for one in providers)
        self.cuda, self.path = named.get(CUDA), path if isinstance(path, str) else "probe"
        if self.cuda is not None:
            log(path=self.path, providers=list(named), options=self.cuda, more=more,
                deterministic=options.use_deterministic_compute, tf32=os.environ.get("NVIDIA_TF32_OVERRIDE"))
            if MODE == "fails to load":
                raise RuntimeError("CUDA failure 35: CUDA driver version is insufficient ; GPU=0 ; hostname=secret ;")
            if MODE == "is small" and "/fixed/" in self.path:
                raise RuntimeError("Failed to allocate memory for requested buffer of size 123")
        Real.__init__(self, path, options, providers=["CPUExecutionProvider"], **more)

    def get_providers(self):
        there = self.cuda is not None and MODE != "falls back"
        return [CUDA, "CPUExecutionProvider"] if there else ["CPUExecutionProvider"]

    def get_provider_graph_assignment_info(self):
        nodes = [node for part in Real.get_provider_graph_assignment_info(self) for node in part.get_nodes()]
        on_cuda = [node for node in nodes if node.op_type != "Shape" and MODE != "computes nothing"]
        return [Part(CUDA, on_cuda), Part("CPUExecutionProvider", [n for n in nodes if n not in on_cuda])]

    def run(self, names, feed, options=None):
        try:
            found = Real.run(self, names, feed, options)
        except Exception:
            if self.cuda is None or MODE != "reads beyond":
                raise
            return [np.random.default_rng().standard_normal(2).astype(np.float32) for _ in names]
        if self.cuda is None or self.path == "probe":
            return found
        Session.runs += 1
        if MODE == "breaks" and Session.runs == 1:
            raise RuntimeError("CUDA failure 700: an illegal memory access ; GPU=0 ; hostname=secret ; file=/x.cc")
        if MODE == "is small at run time" and "/fixed/" in self.path:
            raise RuntimeError("Available memory of 1 is smaller than requested bytes of 2, in BFCArena")
        off = 2.0**-11 if self.cuda["use_tf32"] == "1" else 0.0
        off += 2.0**-21 * (Session.runs % 3) if MODE == "wobbles" else 0.0
        wild = 2.0**Session.runs if MODE == "wobbles" else 1.0
        scales = [(1 + off) * (wild if name == "wild" else 1.0) for name in names]
        pairs = zip(found, scales, strict=True)
        return [value * np.float32(by) if value.dtype == np.float32 and by != 1 else value for value, by in pairs]

    def __del__(self):
        if self.cuda is not None and self.path != "probe":
            log(gone=self.path)


real.InferenceSession = Session
real.get_available_providers = lambda: [CUDA, "CPUExecutionProvider"]
real.preload_dlls = lambda directory=None: log(preload=directory)
"""


class FakeCuda:
    """What the fake was asked: a record for each session, for its end (``gone``) and for each preload, in order."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"

    def records(self, key: str = "pid") -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [record for record in map(json.loads, lines) if key in record]


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, mode: str = "works") -> FakeCuda:
    """Use the fake in every sandbox that is started from now on; this process keeps the real package."""
    package = folder / "site" / "onnxruntime"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), *([before] if before else [])]))
    monkeypatch.setenv("FAKE_CUDA", mode)
    monkeypatch.delenv(ort_cuda.TF32_VARIABLE, raising=False)
    # What it looks for, a driver and the provider's file, is not here; the tests of it are in test_ort_cuda.py.
    monkeypatch.setattr(ort_cuda, "missing", lambda: None)
    return FakeCuda(package.parent)
