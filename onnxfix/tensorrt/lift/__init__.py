"""TensorRT's network, read back as an ONNX model.

Building an engine proves nothing about values, but the network that TensorRT's parser imported can be inspected layer
by layer, without a GPU: kinds, parameters, weights, tensors. ``lift`` writes them down as an ONNX model, which any
runtime executes: what TensorRT understood. It runs where the model is parsed, in the sandbox: ``attempt``.
"""

from __future__ import annotations

import gc
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from onnx import ModelProto, helper

from onnxfix.files import walk
from onnxfix.runtime.sandbox import Worker, note
from onnxfix.tensorrt.build import Run, describe_end, ended_in_memory
from onnxfix.tensorrt.lift.control import DOMAIN, Writer
from onnxfix.tensorrt.lift.emit import Emit, info
from onnxfix.tensorrt.lift.network import Layer, Network, Tensor
from onnxfix.tensorrt.lift.records import Gap, Lifted, LiftStatus, NetTensor
from onnxfix.tensorrt.lift.scopes import Scopes
from onnxfix.tensorrt.log import text_of
from onnxfix.tensorrt.messages import means, memory_errors
from onnxfix.tensorrt.package import DEFAULT_CAPABILITY, load
from onnxfix.tensorrt.records import Profile, TrtBuild

__all__ = ["Gap", "Lifted", "NetTensor", "attempt", "lift"]

DATA = ".data"
"""Suffix of the file beside a lifted model, which holds large weights."""
LIFTING = "lift"
"""What the child reports while it reads a network back."""
_LITTLE_MB = 256
"""MiB with which TensorRT's libraries and a network just fit: what crashes with less lacked memory, most likely."""


def attempt(
    worker: Worker, path: Path | str, out: Path | str, *, package: str, timeout: float = 300.0
) -> Lifted:
    """``lift`` in a sandbox, whose crash, hang or lack of memory is a result too.

    ``timeout`` is in seconds, for parsing and for reading back each; ``worker`` bounds the memory.
    """
    # The child keeps the folder that it started in.
    here, there = (os.path.abspath(one) for one in (path, out))
    outcome = worker.call(f"{__name__}:lift", timeout=timeout, path=here, out=there, package=package)
    if outcome.ok:
        found: Lifted = outcome.value
        if found.status == "memory":
            found = replace(found, reason=worker.starved(found.reason))
        return replace(found, path=str(out)) if found.path else found
    ended = ended_in_memory(outcome).status
    ended = "error" if ended == "ok" else ended
    doing = {"parse": "TensorRT's parser", LIFTING: "reading the network back"}.get(outcome.note, "TensorRT")
    reason = describe_end(outcome, doing)
    # Before the parser runs, TensorRT is only loaded and started.
    status: LiftStatus = "unstarted" if ended == "error" and not outcome.note else ended
    if status == "crash" and worker.limit_mb is not None and worker.limit_mb < _LITTLE_MB:
        status, reason = "memory", worker.starved(f"{reason}, probably out of memory")
    return Lifted(status, reason, package=package)


def lift(path: str, out: str, *, package: str) -> Lifted:
    """Parse the model file and write the network to ``out``, with large weights in ``out`` + ".data" beside it.

    Call it in a sandbox, one that has run TensorRT with ``trt.log``'s logger only.

    Raises:
        ImportError: the package does not load.
        MemoryError: memory ran out.
        OSError: a file cannot be written.
        RuntimeError: TensorRT refuses to start here, or another logger was there first.
    """
    networks: list[Lifted] = []
    with memory_errors():
        trt = load(package)
        run = Run(trt, path, package)
        run.parsed = lambda run: networks.append(_read_network(run, Path(out)))
        build = run.run(parse_only=True)
    if networks:
        return replace(networks[0], seconds=(build.parse_seconds, networks[0].seconds[1]))
    starved = build.status == "memory"  # the parser calls a lack of memory an error of the model
    texts = [text for text in build.error_texts if not starved or means("memory", [text])]
    reason = " ".join(texts[0].split())
    return Lifted(
        "memory" if starved else "refused",
        f"TensorRT's parser ran out of memory: {reason}" if starved else reason,
        package=package,
        version=build.version,
        seconds=(build.parse_seconds, 0.0),
    )


def _read_network(run: Run, out: Path) -> Lifted:
    """``write`` for a network that was parsed, with the seconds that it took."""
    note(LIFTING)
    began = time.perf_counter()
    base = Lifted("refused", package=run.base.package, version=run.base.version)
    network = write(run.trt, run.network, out, base)
    return replace(network, seconds=(0.0, time.perf_counter() - began))


#: In the child: the profiles that the last build there ended with, or was given.
_LAST: list[tuple[Profile, ...] | None] = [None]


def build_and_lift(
    path: str,
    out: str,
    *,
    package: str,
    compute_capability: str = DEFAULT_CAPABILITY,
    profiles: Sequence[Profile] | None = None,
    follow: bool = False,
    tf32: bool = False,
    save_engine: str = "",
    timing_cache: str = "",
) -> tuple[TrtBuild, Lifted | None]:
    """``trt.build.build``, and meanwhile ``lift`` to ``out``, of a model that is parsed once. Call it in a sandbox.

    ``follow``: with the profiles of the last build in this process, if it was accepted and has some. There is no
    network where the parser takes no model, or where reading it back failed.

    Raises:
        Exception: as for ``trt.build.build``.
    """
    given = tuple(profiles) if profiles is not None else None
    given = _LAST[0] if follow and _LAST[0] is not None else given
    _LAST[0] = None
    networks: list[Lifted] = []

    def read(run: Run) -> None:  # not its own: a circle would keep the network in memory
        try:
            networks.append(_read_network(run, Path(out)))
        except Exception:  # whoever wants the network reads it alone, and learns why it fails
            for file in (out, out + DATA):
                with suppress(OSError):
                    os.unlink(file)
        gc.collect()  # layers and tensors refer to each other, and to the network

    with memory_errors():
        run = Run(load(package), path, package, compute_capability, tf32)
        run.parsed, run.discards = read, not save_engine
        build = run.run(given, save_engine, timing_cache)
    _LAST[0] = build.profiles if build.accepted and build.profiles else None
    return build, next(iter(networks), None)


def write(trt: Any, raw: Any, out: Path, base: Lifted) -> Lifted:
    """Write an INetworkDefinition of the module ``trt`` to ``out``; ``base`` says where it came from."""
    network = Network(trt, raw)
    scopes = Scopes(network)
    with closing(Emit(out.with_name(out.name + DATA))) as emit:
        emit.reserve(tensor.name for tensor in (*network.inputs, *network.outputs))
        emit.copied.update(network.outputs)
        emit.reserve(tensor.name for layer in network.layers for tensor in layer.outputs)
        for tensor in network.inputs:
            emit.uses(tensor.dtype)
            emit.declare(tensor)
        for layer in network.layers:  # it has no output, so that nothing depends on it
            if layer.kind == "ASSERTION":
                where = f" of ONNX node {layer.label}" if layer.label else ""
                said = " ".join(text_of(partial(getattr, layer.native, "message")).split())
                emit.note(f"an assertion{where} is omitted: {said or '(no message)'}")
        writer = Writer(scopes, emit)
        writer.write()
        model = _model(network, emit)
    out.write_bytes(model.SerializeToString())
    made, gaps = emit.names(), tuple(writer.gaps)
    return replace(
        base,
        status="unlifted" if gaps else "lifted",
        reason=str(gaps[0]) if gaps else "",
        path=str(out),
        inputs=tuple(map(_described, network.inputs)),
        outputs=tuple(map(_described, network.outputs)),
        names={tensor.name: value for tensor, value in made.items()},
        types={tensor.name: tensor.dtype for tensor in made},
        layers=network.kinds,
        gaps=gaps,
        notes=tuple(emit.notes),
        drawn=_drawn(network, emit.random),
    )


def _model(network: Network, emit: Emit) -> ModelProto:
    names = emit.names()
    outputs = []
    for tensor in network.outputs:
        value = names[tensor]
        if value != tensor.name or tensor.is_input or emit.is_weight(value):
            value = emit.output(value, tensor)
        outputs.append(info(value, tensor.dtype, _dims(tensor)))
    graph = emit.graph("seen by TensorRT")
    graph.input.extend(info(names[tensor], tensor.dtype, _dims(tensor)) for tensor in network.inputs)
    graph.output.extend(outputs)
    imports = [helper.make_opsetid("", emit.opset)]
    if any(node.domain == DOMAIN for node in graph.node):
        imports.append(helper.make_opsetid(DOMAIN, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=10, producer_name="onnxfix")


def _dims(tensor: Tensor) -> tuple[int | str, ...] | None:
    """The dimensions of an input or output; a dynamic one by its name, where it has one."""
    if tensor.shape is None:
        return None
    named = (text_of(partial(tensor.native.get_dimension_name, axis)) for axis in range(len(tensor.shape)))
    pairs = zip(tensor.shape, named, strict=True)
    if not tensor.is_input:
        return tuple(size if size >= 0 else -1 for size in tensor.shape)
    return tuple(
        size if size >= 0 else name or f"{tensor.name}.{axis}" for axis, (size, name) in enumerate(pairs)
    )


def _described(tensor: Tensor) -> NetTensor:
    return NetTensor(tensor.name, tensor.dtype, _dims(tensor) or ())


def _drawn(network: Network, random: set[Tensor]) -> tuple[str, ...]:
    """Outputs that depend on random numbers, even through a loop or a conditional."""
    groups: dict[str, list[Layer]] = defaultdict(list)
    for layer in network.layers:
        groups[layer.group].append(layer)

    def after(tensor: Tensor) -> Iterator[Tensor]:
        for user in network.users.get(tensor, ()):
            for layer in groups[user.group] if user.group else [user]:
                yield from layer.outputs

    reached = walk.reached(random, after)
    return tuple(tensor.name for tensor in network.outputs if tensor in reached)
