"""What TensorRT says of an engine's layers on a GPU: in the build's log, and in the inspector of the engine and of an
execution context.

``python -m benchmarks.gpu.layers OUT MODEL...`` writes OUT/layers.json: for each model, how many layers each has,
on which names, types, tactics and nodes they agree, and the seconds. OUT/NAME.{engine,context}.json are the inspector's
documents as they are.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from onnxfix.sandbox import Worker
from onnxfix.trt import inspector, package
from onnxfix.trt.layer_records import EngineLayer
from onnxfix.trt.layers import attempt

PATIENCE = 300.0


def documents(path: str, package_name: str) -> dict[str, Any]:
    """In the sandbox: the inspector's document of an engine file, and with an execution context."""
    trt = package.load(package_name)
    from onnxfix.trt.log import logger_of  # lazy: only in the sandbox

    log, _ = logger_of(trt)
    began = time.perf_counter()
    engine = trt.Runtime(log).deserialize_cuda_engine(Path(path).read_bytes())
    if engine is None:
        return {"error": "the engine does not load"}
    loaded = time.perf_counter()
    look = engine.create_engine_inspector()
    found = {"engine": look.get_engine_information(trt.LayerInformationFormat.JSON)}
    looked = time.perf_counter()
    context = engine.create_execution_context()
    look.execution_context = context
    found["context"] = look.get_engine_information(trt.LayerInformationFormat.JSON)
    ended = time.perf_counter()
    return {
        **found,
        "seconds": {"load": loaded - began, "inspect": looked - loaded, "context": ended - looked},
    }


def agreement(log: tuple[EngineLayer, ...], other: tuple[EngineLayer, ...]) -> dict[str, Any]:
    """How the layers of two sources compare, by name."""
    known = {one.name: one for one in other}
    both = [(one, known[one.name]) for one in log if one.name in known]
    return {
        "layers": len(other),
        "common": len(both),
        "same_nodes": sum(set(a.stamps) == set(b.stamps) for a, b in both),
        "same_types": sum([t.dtype for t in a.inputs] == [t.dtype for t in b.inputs] for a, b in both),
        "same_tactic": sum(a.tactic == b.tactic for a, b in both),
        "more_tactics": sum(bool(b.tactic or b.tactic_id) and not (a.tactic or a.tactic_id) for a, b in both),
        "sample": [[a.name, a.tactic, b.tactic, b.tactic_id] for a, b in both if a.tactic != b.tactic][:5],
    }


def main() -> None:
    """Build, inspect and compare each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--package", default="tensorrt-rtx")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = {}
    for path in options.models:
        with Worker() as worker:
            chosen = worker.call(
                "onnxfix.trt.package:choose",
                timeout=PATIENCE,
                package=options.package,
                compute_capability=None,
            ).value
            engine = options.out / "model.engine"
            began = time.perf_counter()
            table, _ = attempt(
                worker,
                path,
                package=options.package,
                compute_capability=chosen.capability,
                timeout=PATIENCE,
                save_engine=str(engine.absolute()),
            )
            result: dict[str, Any] = {
                "status": table.build.status,
                "layers": len(table.layers),
                "seconds": time.perf_counter() - began,
            }
            if table.build.accepted:
                said = worker.call(
                    "benchmarks.gpu.layers:documents",
                    timeout=PATIENCE,
                    path=str(engine.absolute()),
                    package_name=options.package,
                )
                result["inspector"] = said.message or said.value.get("error") or said.value["seconds"]
                for kind in ("engine", "context"):
                    if said.ok and kind in said.value:
                        (options.out / f"{path.stem}.{kind}.json").write_text(
                            said.value[kind], encoding="utf-8"
                        )
                        try:
                            result[kind] = agreement(table.layers, inspector.layers_of(said.value[kind]))
                        except ValueError as error:
                            result[kind] = str(error)
                engine.unlink()
            results[path.name] = result
            print(path.name, json.dumps(result)[:1500], flush=True)
    (options.out / "layers.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
