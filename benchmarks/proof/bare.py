"""The sum of the parts of a proof: a bare script that does the same work once, with nothing around it.

    python bare.py ORIGINAL FIXED FOLDER

Loads the original and the fixed model in ONNX Runtime, runs both on one feed, and builds both in TensorRT ahead of
time, one after the other: no child, no check, nothing compared. FOLDER holds ``feed.npz``, ``profile.json`` and
``package.json``, which run.py writes. Prints JSON: the seconds of each part, and ``failed``: what was not built.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort


def main() -> None:
    """Run as the module's docstring says."""
    original, fixed, folder = sys.argv[1:4]
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    began = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal began
        now = time.perf_counter()
        seconds[name] = seconds.get(name, 0.0) + now - began
        began = now

    feed = dict(np.load(Path(folder, "feed.npz")))
    for path in (original, fixed):
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        lap("load")
        session.run(None, {one.name: feed[one.name] for one in session.get_inputs()})
        lap("run")
        del session
    trt: Any = __import__(json.loads(Path(folder, "package.json").read_text(encoding="utf-8")))
    logger = trt.Logger(trt.Logger.ERROR)
    lap("import")
    shapes = json.loads(Path(folder, "profile.json").read_text(encoding="utf-8"))
    for path in (original, fixed):
        if not _built(trt, logger, path, shapes):
            failed[path] = "TensorRT does not build it"
        lap("build")
    print(json.dumps({"seconds": seconds, "failed": failed}))


def _built(trt: Any, logger: Any, path: str, shapes: dict[str, Any]) -> bool:
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(path):
        return False
    config = builder.create_builder_config()
    if hasattr(config, "num_compute_capabilities"):
        config.num_compute_capabilities = 1
        config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    if shapes:
        profile = builder.create_optimization_profile()
        for name, (least, usual, most) in shapes.items():
            profile.set_shape(name, least, usual, most)
        config.add_optimization_profile(profile)
    return builder.build_serialized_network(network, config) is not None


if __name__ == "__main__":
    main()
