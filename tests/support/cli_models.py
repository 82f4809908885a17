"""Models for tests of the command line: one with something to fix, one without, one with external data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support import models

FIXABLE = "g (float[N] x) => (int64[N] y) { a = Cast<to=11>(x) b = Cast<to=7>(a) c = Cast<to=7>(b) y = Identity(c) }"
CLEAN = "g (float[N] x) => (float[N] y) { y = Neg(x) }"


def write(path: Path, text: str) -> Path:
    return models.write(path, text, 18)


def external_model(folder: Path) -> Path:
    proto = models.model("g (float[256] x) => (float[256] y) { a = Cast<to=1>(x) y = Mul(a, w) }", 18)
    models.external(proto.graph.initializer.add(name="w", data_type=1, dims=[256]), "weights/w.bin")
    (folder / "weights").mkdir(parents=True)
    (folder / "weights" / "w.bin").write_bytes(np.arange(256, dtype=np.float32).tobytes())
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return folder / "m.onnx"
