"""The sum of the parts of a proof: a bare script that does the same work once, with nothing around it.

    python bare.py ORIGINAL FIXED FOLDER

Loads the original and the fixed model in ONNX Runtime, runs both on each feed, and builds both in TensorRT, one after
the other: no child, no check, nothing compared. FOLDER holds ``feed*.npz`` and ``plan.json``, which run.py writes.
Engines are built ahead of time, or for this GPU and run too, if ``plan.json`` says ``executed``, or ``engines_alone``.
Prints JSON: the seconds of each part, and ``failed``: what was not built.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


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

    plan = json.loads(Path(folder, "plan.json").read_text(encoding="utf-8"))
    feeds = [dict(np.load(path)) for path in sorted(Path(folder).glob("feed*.npz"))]
    for path in () if plan["engines_alone"] else (original, fixed):
        import onnxruntime as ort

        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        lap("load")
        for feed in feeds:
            session.run(None, {one.name: feed[one.name] for one in session.get_inputs()})
        lap("run")
        del session
    os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = str(int(plan["package"] == "tensorrt_rtx"))
    trt: Any = __import__(plan["package"])
    logger = trt.Logger(trt.Logger.ERROR)
    lap("import")
    for path in (original, fixed):
        engine = _build(trt, logger, path, plan["shapes"], ahead=not plan["executed"])
        lap("build")
        if engine is None:
            failed[path] = "TensorRT does not build it"
        elif plan["executed"]:
            _execute(engine, feeds)
            lap("execute")
    print(json.dumps({"seconds": seconds, "failed": failed}))


def _build(trt: Any, logger: Any, path: str, shapes: dict[str, Any], *, ahead: bool) -> Any:
    """The serialized engine; None where TensorRT makes none."""
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(path):
        return None
    config = builder.create_builder_config()
    if ahead and hasattr(config, "num_compute_capabilities"):
        config.num_compute_capabilities = 1
        config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    if shapes:
        profile = builder.create_optimization_profile()
        for name, (least, usual, most) in shapes.items():
            profile.set_shape(name, least, usual, most)
        config.add_optimization_profile(profile)
    return builder.build_serialized_network(network, config)


def _execute(engine: Any, feeds: list[dict[str, Any]]) -> None:
    """Load the engine and run it on each feed."""
    from polygraphy.backend.trt import TrtRunner, engine_from_bytes

    from onnxfix.tensorrt.engine import activate

    runner = TrtRunner(engine_from_bytes(engine))
    activate(runner)
    for feed in feeds:
        runner.infer(feed, check_inputs=False)
    runner.deactivate()


if __name__ == "__main__":
    main()
