"""Engines of the variants that precision.py left: how far from float32, and how long they take beside its engine.

    python benchmarks/diagnose/precision_engines.py run FOLDER OUT [--jobs N] [--batch N]     where a GPU is
    python benchmarks/diagnose/precision_engines.py table OUT

``run`` builds strongly typed engines without TF32, N at a time, executes them on inputs of their own, and then times
those of a model in turn, alone. The truth is ONNX Runtime's in float32 on the CPU. OUT gets a line for each engine;
engines that are there are not built again.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1]), str(HERE.parents[1] / "gpu")]
from pages import markdown
from precision import feeds_of

BUILT = ("original", "autocast", "float16", "onnxfix-all", "onnxfix-0.7x", "onnxfix-0.5x")
SIZES = {"electra": 128, "t5enc": 128, "wav2vec2": 16000}
"""Sizes of open dimensions but the batch."""


def prepare(folder: Path, batch: int) -> str:
    """Have ONNX Runtime say what float32 gives on inputs of this batch."""
    import onnxruntime

    if not (folder / "truth.npz").exists():
        feed = feeds_of(folder / "original.onnx", SIZES.get(folder.name.split(".")[0], 64), batch)[-1]
        session = onnxruntime.InferenceSession(folder / "original.onnx", providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_outputs()]
        truth = dict(zip(names, session.run(names, feed), strict=True))
        np.savez(folder / "feed.npz", **feed)
        np.savez(folder / "truth.npz", **truth)
    return folder.name


def run(given: argparse.Namespace) -> None:
    """Build the engines of each model, several at a time, and then run and time them in a process of its own."""
    folders = sorted(path for path in given.folder.iterdir() if (path / "original.onnx").exists())
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:.0f} s: {text}", flush=True)

    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:  # CUDA does not live through a fork
        for name in pool.map(prepare, folders, [given.batch] * len(folders)):
            tell(f"{name} prepared")
        for folder in folders:  # one after the other: what is timed is there if the machine's time ends
            paths = [folder / f"{name}.onnx" for name in BUILT]
            paths = [path for path in paths if path.exists() and not path.with_suffix(".engine").exists()]
            for engine in as_completed([pool.submit(build, path) for path in paths]):
                tell(str(engine.exception() or engine.result()))
            command = [sys.executable, str(HERE), "time", str(folder), str(given.out)]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, check=False, timeout=120)
            tell(f"{folder.name} timed")


def tensorrt() -> Any:
    """The bindings; on a machine without a GPU, those that build without one."""
    return importlib.import_module(os.environ.get("TRT", "tensorrt"))


_KEPT: list[Any] = []
"""While there is a builder, TensorRT does not load its kernels anew for the next."""


def build(path: Path) -> str:
    """Build the engine of a model for the shapes of its inputs; says how long it took, or why there is none."""
    trt, began = tensorrt(), time.monotonic()
    log = trt.Logger(trt.Logger.ERROR)
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(log, "")
    builder = trt.Builder(log)
    _KEPT[:] = [builder, log]
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser, name = trt.OnnxParser(network, log), f"{path.parent.name} {path.stem}"
    if not parser.parse(path.read_bytes()):
        return f"{name}: refused: {parser.get_error(0).desc() if parser.num_errors else ''}"
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.clear_flag(trt.BuilderFlag.TF32)
    for key, value in np.load(path.parent / "feed.npz").items():
        profile.set_shape(key, *[value.shape] * 3)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        return f"{name}: not built"
    path.with_suffix(".engine").write_bytes(plan)
    return f"{name}: {network.num_layers} layers, {time.monotonic() - began:.0f} s"


def time_all(given: argparse.Namespace) -> None:
    """Run the engines of a folder once, compare their outputs, and time them in turn."""
    from node_truth import TYPES, cudart

    from onnxfix.tensorrt.cudart import Cuda
    from onnxfix.tensorrt.latency import Placed, Tools, make_timer
    from onnxfix.tensorrt.timing import Limits, interleave, timing

    class Engine(Placed):
        def read(self) -> Iterator[tuple[str, Any]]:
            """The outputs as float64."""
            for name, size in self._outputs.items():
                array = np.zeros(size, np.uint8)
                self._cuda.download(array.ctypes.data, self._addresses[name], size, self._stream)
                self.wait()
                kind, shape = self._engine.get_tensor_dtype(name).name, self._context.get_tensor_shape(name)
                values = array.view(TYPES[kind])[: int(np.prod(shape))]
                yield name, values.reshape(tuple(shape)).astype(np.float64)

    trt, folder = tensorrt(), given.folder
    log = trt.Logger(trt.Logger.ERROR)
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(log, "")
    runtime = trt.Runtime(log)
    feed = {key: np.ascontiguousarray(value) for key, value in np.load(folder / "feed.npz").items()}
    truth = dict(np.load(folder / "truth.npz"))
    rows: dict[str, dict[str, Any]] = {}
    runs: dict[str, Callable[[], float]] = {}
    with closing(Cuda(cudart())) as cuda:
        stream = cuda.stream()
        tools = Tools(cuda, trt, lambda path: path, lambda engine: feed)
        engines = {}
        for name in BUILT:
            path = folder / f"{name}.engine"
            if not path.exists():
                continue
            engine = engines[name] = Engine(runtime.deserialize_cuda_engine(path.read_bytes()), tools, stream)
            engine.open(True)
            engine.place()
            engine.enqueue()
            engine.wait()
            rows[name] = {"model": folder.name, "variant": name, **errors(dict(engine.read()), truth)}
            try:
                launch, rows[name]["launch"] = engine.launcher("cuda"), "cuda-graph"
            except Exception as error:  # what cannot be captured is launched kernel by kernel
                launch, rows[name]["launch"] = engine.launcher(""), f"stream: {error}"
            runs[name] = make_timer(cuda, stream, launch)
        blocks = interleave(runs, limits=Limits(runs=400, rounds=8, seconds=4.0))
        with given.out.open("a") as out:
            for name, row in rows.items():
                found = timing(blocks[name])
                row |= {"ms": found.median_ms, "noise": found.noise, "runs": found.runs}
                row |= {"TensorRT": trt.__version__, "batch": next(iter(feed.values())).shape[0]}
                out.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
        for engine in engines.values():
            engine.close()


def errors(outputs: dict[str, Any], truth: dict[str, Any]) -> dict[str, float]:
    """The largest error of an output as a share of its largest magnitude, and the largest root mean square."""
    found = {"error": 0.0, "rms": 0.0}
    for name, wanted in truth.items():
        gap = np.abs(outputs[name] - wanted.astype(np.float64))
        gap[~np.isfinite(gap)] = np.inf
        found["error"] = max(found["error"], float(gap.max() / np.abs(wanted).max()))
        power = np.square(wanted.astype(np.float64)).sum()
        found["rms"] = max(found["rms"], float(np.sqrt(np.square(gap).sum() / power)))
    return found


def table(given: argparse.Namespace) -> None:
    """Print the table of OUT: the last line of each engine counts."""
    lines = [json.loads(line) for line in given.out.read_text().splitlines()]
    last = {(line["model"], line["variant"]): line for line in lines}
    rows = []
    for (model, variant), line in last.items():
        base = last[model, "original"]["ms"]
        numbers = (
            f"{line['error']:.1e}",
            f"{line['rms']:.1e}",
            f"{line['ms']:.3f}",
            f"{line['ms'] / base:.2f}",
        )
        rows.append([model, variant, *numbers, f"{line['noise']:.1%}"])
    print("\n".join(markdown(("model", "variant", "error", "rms", "ms", "of float32", "noise"), rows)))


def main() -> None:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(required=True)
    places = {"run": ("folder", "out"), "time": ("folder", "out"), "table": ("out",)}
    for name, step in {"run": run, "time": time_all, "table": table}.items():
        options = steps.add_parser(name)
        options.set_defaults(step=step)
        for place in places[name]:
            options.add_argument(place, type=Path)
        if name == "run":
            options.add_argument("--jobs", type=int, default=8)
            options.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    given.step(given)


if __name__ == "__main__":
    main()
