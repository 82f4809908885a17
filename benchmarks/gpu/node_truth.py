"""What versions of TensorRT do with ONNX's node models: fixtures/node_truth.tsv, made anew. And what they do with the
examples of rules (fixtures/example_truth.tsv) or with other models.

    python benchmarks/gpu/node_truth.py prepare FOLDER [--match TEXT] [--fixes TARGET]            where onnx is
    python benchmarks/gpu/node_truth.py prepare FOLDER --examples [CODE...] | --models FILE...
    python benchmarks/gpu/node_truth.py run FOLDER OUT [--until STEP] [--jobs N] [--seconds S]    where TensorRT is
    python benchmarks/gpu/node_truth.py merge FOLDER OUT... > fixtures/node_truth.tsv             where onnx is

``prepare`` writes models, inputs and expected outputs, the models after numeric fixes with ``--fixes``. ``run`` needs
numpy and the bindings of one TensorRT (8.6 to 11, or RTX); ml_dtypes for outputs of float8. A model has S
seconds, and a new process where it fails. OUT has a line for each that ended, and the same command goes on with the
others.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import hashlib
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Values = tuple[dict[str, Any], Any]

HERE = Path(__file__).resolve()
STATES = """# r right, w wrong, x refused by the parser, b not built or not run, c the process died, h hung,
# u no inputs could be made, i imported, y built, - not tried"""
STEPS = {"parse": "imported", "build": "built", "run": "executed"}
"""The last that is done, and what has been done then. TensorRT-RTX builds where there is no GPU."""
TOLERANCE = 1e-2
ANSWER = "@@"
#: TensorRT's types -> numpy's. bfloat16 and float8 travel as their bits.
TYPES = {"FLOAT": "f4", "HALF": "f2", "INT64": "i8", "INT32": "i4", "INT8": "i1", "UINT8": "u1", "BOOL": "?"}
TYPES |= {"BF16": "u2", "FP8": "u1"}
CUDART = ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")


def prepare(given: argparse.Namespace) -> None:
    """Write NAME.onnx, and NAME.npz where all values are numbers: what is expected as float64."""
    sys.path[:0] = [str(HERE.parents[1])]
    import onnxfix

    given.folder.mkdir(exist_ok=True)
    for name, data, values in sources(given):
        path = given.folder / f"{name}.onnx"
        if given.fixes:
            found = onnxfix.apply(data, target=given.fixes, numeric_fixes=True, verify=False)
            data = found.model.SerializeToString()
        path.write_bytes(data)
        with contextlib.suppress(IndexError, TypeError, ValueError):  # no data, strings, sequences
            feed, expected = values()
            arrays = {f"in:{name}": np.asarray(value) for name, value in feed.items()}
            arrays = {
                key: one.view(f"u{one.itemsize}") if one.dtype.kind == "V" else one
                for key, one in arrays.items()
            }
            for number, value in enumerate(expected):
                arrays[f"out:{number}"] = np.asarray(value).astype(np.float64)
            np.savez(path.with_suffix(".npz"), **arrays)


def sources(given: argparse.Namespace) -> Iterator[tuple[str, bytes, Callable[[], Values]]]:
    """Names and models, each with a function that makes its inputs and the outputs that are expected."""
    if given.examples is None and not given.models:
        from acceptance.cases import node_cases

        for case in node_cases(1, given.match):
            yield case.name[len("test_") :], case.data, lambda case=case: (case.feeds[0], case.expected[0])  # type: ignore[misc]
        return
    from onnxfix.runtime.sandbox import Worker

    models = [(path.stem, path.read_bytes()) for path in given.models or ()]
    with Worker() as worker:
        for name, data in models or list_examples(given.examples):
            yield name, data, partial(compute_apart, worker, data)


def list_examples(codes: list[str]) -> Iterator[tuple[str, bytes]]:
    """The examples of rules, each named by a rule and its digest."""
    from onnxfix.rewrite.registry import registry
    from onnxfix.testing import model_of

    seen: set[str] = set()
    for rule in registry().rules:
        for example in rule.examples if rule.code.startswith(tuple(codes) or "") else ():
            data = model_of(example).SerializeToString(deterministic=True)
            digest = hashlib.blake2b(data, digest_size=4).hexdigest()
            if digest not in seen:
                seen.add(digest)
                yield f"{rule.code}-{digest}", data


def compute_apart(worker: Any, data: bytes) -> Values:
    """``compute`` in a process that may die or hang."""
    outcome = worker.call(f"{HERE.stem}:compute", timeout=20.0, data=data)
    if not outcome.ok:
        raise ValueError(outcome.message)
    values: Values = outcome.value
    return values


def compute(data: bytes) -> Values:
    """Drawn inputs, and what ONNX Runtime computes of them, or where it cannot, ONNX's reference."""
    import onnx
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    from onnxfix.proof.checks.symbolic import make_largest

    model = onnx.load_from_string(data)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    runs = (
        lambda feed: onnxruntime.InferenceSession(data, options).run(None, feed),
        lambda feed: ReferenceEvaluator(model).run(None, feed),
    )
    for run in runs:
        with contextlib.suppress(Exception):  # a model that the other may compute, or nothing can
            feed = make_largest(model)
            return feed, run(feed)
    raise ValueError("nothing computes it")


def run(given: argparse.Namespace) -> None:
    """Try each model that OUT does not have."""
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    done = {json.loads(line).get("name") for line in lines}
    paths = [path for path in sorted(given.folder.glob("*.onnx")) if path.stem not in done]
    idle: queue.SimpleQueue[subprocess.Popen[str] | None] = queue.SimpleQueue()
    for _ in range(given.jobs):
        idle.put(None)
    with given.out.open("a") as out, ThreadPoolExecutor(given.jobs) as pool:
        if not lines:
            gpu = subprocess.getoutput("nvidia-smi --query-gpu=name,driver_version --format=csv,noheader")
            did, day = STEPS[given.until], str(datetime.date.today())
            out.write(
                json.dumps({"did": did, "gpu": gpu.split("\n")[0] if "," in gpu else "no GPU", "date": day})
                + "\n"
            )
        for future in as_completed([pool.submit(attempt, path, given, idle) for path in paths]):
            line = future.result()
            out.write(json.dumps(line) + "\n")
            out.flush()
            print(*line.values(), flush=True)
    while not idle.empty():
        if (child := idle.get()) is not None:
            child.kill()


def attempt(path: Path, given: argparse.Namespace, idle: Any) -> dict[str, str]:
    """What became of a model. A death, or an error of CUDA, which a process keeps, is seen twice: the second time by a
    process without a past."""
    child, is_new = idle.get(), False
    while True:
        if child is None:
            child, is_new = start(given.until), True
        line = ask(child, path, given.seconds)
        if line["state"] in "rwxiyu" or (line["state"] == "b" and "cuda" not in line["why"].lower()):
            break
        child.kill()
        child = None
        if is_new:
            break
    idle.put(child)
    return line


def start(until: str) -> subprocess.Popen[str]:
    """A process that tries models one after another: TensorRT 10.6's builder takes 10 s to load its kernels."""
    command = [sys.executable, str(HERE), "serve", "--until", until]
    streams: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": "0"}
    return subprocess.Popen(command, text=True, errors="replace", env=environment, **streams)


def ask(child: Any, path: Path, seconds: float) -> dict[str, str]:
    """What a process says of a model; it ends after so many seconds."""
    told, text = [], ""
    clock = threading.Timer(seconds, child.kill)
    clock.start()
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(f"{path}\n")
        child.stdin.flush()
    for text in child.stdout:
        if text.startswith(ANSWER):
            break
        told.append(text.strip())
    is_late = not clock.is_alive()
    clock.cancel()
    line = {"name": path.stem, "why": " ".join(told)[-400:]}
    if is_late:
        return {**line, "state": "h"}
    return {**line, **json.loads(text[len(ANSWER) :])} if text.startswith(ANSWER) else {**line, "state": "c"}


def serve(given: argparse.Namespace) -> None:
    """In the child: say of each model named on standard input what TensorRT does with it."""
    names = [name for name in ("tensorrt", "tensorrt_rtx") if importlib.util.find_spec(name)]
    trt = importlib.import_module(names[0])
    log = trt.Logger(trt.Logger.ERROR)
    kept = trt.Builder(log)  # while there is one, TensorRT 10.6 does not load its kernels anew for the next
    for name in sys.stdin:
        state, why = judge(trt, log, Path(name.rstrip("\n")), given.until)
        line = {"state": state, "version": trt.__version__, **({"why": why} if why else {})}
        print(f"\n{ANSWER}{json.dumps(line)}", flush=True)
    del kept


def judge(trt: Any, log: Any, path: Path, until: str) -> tuple[str, str]:
    """The letter of STATES, and why."""
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(log, "")
    builder, flags = trt.Builder(log), trt.NetworkDefinitionCreationFlag
    flag = flags.STRONGLY_TYPED if hasattr(flags, "STRONGLY_TYPED") else flags.EXPLICIT_BATCH
    network, file = builder.create_network(1 << int(flag)), path.with_suffix(".npz")
    parser = trt.OnnxParser(network, log)
    if not parser.parse(path.read_bytes()):
        return "x", parser.get_error(0).desc() if parser.num_errors else ""
    if until == "parse" or not file.exists():
        return "i" if until == "parse" else "u", ""
    data, config = dict(np.load(file)), builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    layers = {network.get_layer(index).type for index in range(network.num_layers)}
    if not hasattr(flags, "STRONGLY_TYPED") and trt.LayerType.QUANTIZE in layers:
        config.set_flag(trt.BuilderFlag.INT8)
    if until == "build" and hasattr(config, "set_compute_capability"):
        config.num_compute_capabilities = 1
        config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    sized = [one for one in inputs if one.is_shape_tensor or -1 in tuple(one.shape)]
    for tensor in sized:
        value = data[f"in:{tensor.name}"]
        if tensor.is_shape_tensor:
            profile.set_shape_input(tensor.name, *[value.reshape(-1).tolist()] * 3)
        else:
            profile.set_shape(tensor.name, *[value.shape] * 3)
    if sized:
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if until == "build":
        return "b" if plan is None else "y", ""
    engine = None if plan is None else trt.Runtime(log).deserialize_cuda_engine(plan)
    names = [network.get_output(index).name for index in range(network.num_outputs)]
    found = "" if engine is None else execute(trt, engine, data, names)
    if isinstance(found, str):
        return "u" if found else "b", found
    for number, array in enumerate(found):
        wanted = data[f"out:{number}"]
        if array.shape != wanted.shape:
            return "w", f"{names[number]}: {array.shape} for {wanted.shape}"
        far = ~np.isclose(array, wanted, TOLERANCE, TOLERANCE, equal_nan=True)
        if far.any():
            return "w", f"{names[number]}: {array[far][0]} for {wanted[far][0]}, {far.sum()} of {far.size}"
    return "r", ""


def execute(trt: Any, engine: Any, data: dict[str, Any], names: list[str]) -> list[Any] | str:
    """The outputs as float64; a type that is not known, or "" where the run fails."""
    cuda, context, outputs = cudart(), engine.create_execution_context(), {}
    kinds = {
        name: str(engine.get_tensor_dtype(name)).split(".")[-1]
        for name in map(engine.get_tensor_name, range(engine.num_io_tensors))
    }
    unknown = [kind for kind in kinds.values() if kind not in TYPES]
    if unknown or context is None:
        return "".join(unknown[:1])

    def allocate(size: int) -> int:  # for both sides
        place = ctypes.c_void_p()
        cuda.cudaMallocManaged(ctypes.byref(place), ctypes.c_size_t(max(size, 1)), 1)
        return place.value or 0

    class Output(trt.IOutputAllocator):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
            self.place = allocate(size)
            return self.place

        def reallocate_output_async(self, name: str, memory: int, size: int, align: int, stream: int) -> int:
            return self.reallocate_output(name, memory, size, align)

        def notify_shape(self, name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    for name, kind in kinds.items():
        if name in names:
            outputs[name] = Output()
            context.set_output_allocator(name, outputs[name])
            continue
        value = data[f"in:{name}"].astype(TYPES[kind])
        place = allocate(value.nbytes)
        ctypes.memmove(place, value.tobytes(), value.nbytes)
        context.set_input_shape(name, value.shape)
        context.set_tensor_address(name, place)
    stream = ctypes.c_void_p()
    cuda.cudaStreamCreate(ctypes.byref(stream))
    if not context.execute_async_v3(stream.value or 0) or cuda.cudaDeviceSynchronize():
        return ""
    return [read(kinds[name], outputs[name]) for name in names]


def read(kind: str, output: Any) -> Any:
    """An output's values as float64."""
    size = int(np.prod(output.shape)) * np.dtype(TYPES[kind]).itemsize
    array = np.frombuffer(ctypes.string_at(output.place, size), TYPES[kind]).reshape(output.shape)
    if kind == "BF16":
        array = (array.astype("u4") << 16).view("f4")
    elif kind == "FP8":
        array = array.view(importlib.import_module("ml_dtypes").float8_e4m3fn)
    return array.astype(np.float64)


def cudart() -> Any:
    """The CUDA runtime, from NVIDIA's wheels or the loader's path."""
    wheels = [str(file) for folder in sys.path for file in Path(folder).glob("nvidia/*/lib/libcudart.so.*")]
    for name in (*wheels, *CUDART):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise OSError("no libcudart")


def merge(given: argparse.Namespace) -> None:
    """Print the table of several OUT."""
    import onnx

    columns: list[dict[str, str]] = []
    print(
        "# What versions of TensorRT did with models: a letter each, in this order, and the models' operators."
    )
    for path in given.out:
        head, *lines = map(json.loads, path.read_text().splitlines())
        columns.append({line["name"]: line["state"] for line in lines})
        (text,) = {line["version"] for line in lines if "version" in line}
        version = ".".join(part for part in text.split(".") if part.isdigit())  # 10.6.0.post1
        package = "tensorrt" if int(version.partition(".")[0]) > 7 else "tensorrt-rtx"
        print(f"# {package} {version}, {head['did']}: {head['gpu']}, {head['date']}")
    print(f"# Made by benchmarks/gpu/node_truth.py; tolerance {TOLERANCE:g}.\n{STATES}")
    for name in sorted({name for column in columns for name in column}):
        graph = onnx.load(given.folder / f"{name}.onnx", load_external_data=False).graph
        operators = " ".join(sorted({node.op_type for node in graph.node}))
        print(f"{name}\t{''.join(column.get(name, '-') for column in columns)}\t{operators}")


def main() -> None:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    for step in (prepare, run, serve, merge):
        options = steps.add_parser(step.__name__)
        options.set_defaults(step=step)
        if step is not serve:
            options.add_argument("folder", type=Path)
        if step is run or step is merge:
            options.add_argument("out", type=Path, nargs=None if step is run else "+")
        if step is run or step is serve:
            options.add_argument("--until", choices=STEPS, default="run", help="the last step")
    steps.choices["prepare"].add_argument("--match", default="")
    steps.choices["prepare"].add_argument("--fixes", help="a target, as for onnxfix apply")
    steps.choices["prepare"].add_argument(
        "--examples", nargs="*", metavar="CODE", help="of rules; all without"
    )
    steps.choices["prepare"].add_argument("--models", nargs="+", type=Path, metavar="FILE")
    steps.choices["run"].add_argument("--jobs", type=int, default=14)
    steps.choices["run"].add_argument("--seconds", type=float, default=60.0, help="for a model")
    given = parser.parse_args()
    given.step(given)


if __name__ == "__main__":
    main()
