"""TensorRT's network, read back as an ONNX model.

Building an engine proves nothing about values, but the network that TensorRT's parser imported can be inspected layer
by layer, without a GPU: kinds, parameters, weights, tensors. ``lift`` writes them down as an ONNX model, which any
runtime executes: what TensorRT understood. It runs where the model is parsed, in the sandbox: ``attempt``.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from onnx import ModelProto, helper

from onnxfix import walk
from onnxfix.sandbox import Worker, note
from onnxfix.trt.lift.control import DOMAIN, Writer
from onnxfix.trt.lift.emit import Emit, info
from onnxfix.trt.lift.network import Layer, Network, Tensor
from onnxfix.trt.lift.records import Gap, Lifted, NetTensor, Status
from onnxfix.trt.lift.scopes import Scopes
from onnxfix.trt.log import logger_of, text_of
from onnxfix.trt.messages import means, memory_errors
from onnxfix.trt.package import load
from onnxfix.trt.parse import empty_network, ended_in_memory, epitaph, parse

__all__ = ["Gap", "Lifted", "NetTensor", "attempt", "lift"]

DATA = ".data"
"""Suffix of the file beside a lifted model, which holds large weights."""
_LITTLE_MB = 256
"""MiB with which TensorRT's libraries and a network just fit: what crashes with less lacked memory, most likely."""


def attempt(
    worker: Worker, path: Path | str, out: Path | str, *, package: str, timeout: float = 300.0
) -> Lifted:
    """``lift`` in a sandbox, whose crash, hang or lack of memory is a result too.

    ``timeout`` is in seconds, for parsing and for reading back each; ``worker`` bounds the memory.
    """
    here, there = (
        os.path.abspath(one) for one in (path, out)
    )  # the child keeps the folder that it started in
    outcome = worker.call(f"{__name__}:lift", timeout=timeout, path=here, out=there, package=package)
    if outcome.ok:
        found: Lifted = outcome.value
        if found.status == "memory":
            found = replace(found, reason=worker.starved(found.reason))
        return replace(found, path=str(out)) if found.path else found
    ended = ended_in_memory(outcome).status
    ended = "error" if ended == "ok" else ended
    doing = {"parse": "TensorRT's parser", "lift": "reading the network back"}.get(outcome.note, "TensorRT")
    reason = epitaph(outcome, doing)
    # Before the parser runs, TensorRT is only loaded and started.
    status: Status = "unstarted" if ended == "error" and not outcome.note else ended
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
    with memory_errors():
        return _lift(load(package), path, Path(out), package)


def _lift(trt: Any, path: str, out: Path, package: str) -> Lifted:
    log, received = logger_of(trt)
    received.clear()
    builder = trt.Builder(log)
    raw = empty_network(trt, builder)
    if raw is None:
        raise RuntimeError(next((one.text for one in received.messages), "TensorRT made no network"))
    base = Lifted("refused", package=package, version=str(trt.__version__))
    parser, parsed, parsing = parse(trt, raw, log, received, path)
    if not parsed:
        said = [text_of(parser.get_error(number).desc) for number in range(parser.num_errors)]
        status, reason = _refusal([*said, *(one.text for one in received.messages if not said)])
        return replace(base, status=status, reason=reason, seconds=(parsing, 0.0))
    note("lift")
    found = read_network(trt, raw, out, package)
    return replace(found, seconds=(parsing, *found.seconds[1:]))


def read_network(trt: Any, raw: Any, out: Path, package: str) -> Lifted:
    """``write`` for a network that the parser of ``package`` made, with the seconds that it took."""
    began = time.perf_counter()
    found = write(trt, raw, out, Lifted("refused", package=package, version=str(trt.__version__)))
    return replace(found, seconds=(0.0, time.perf_counter() - began))


def _refusal(said: list[str]) -> tuple[Status, str]:
    """Why the parser took no network. It catches a lack of memory and calls it an error of the model."""
    memory = next((text for text in said if means("memory", [text])), "")
    reason = (
        f"TensorRT's parser ran out of memory: {memory}"
        if memory
        else (said or ["TensorRT gave no reason"])[0]
    )
    return "memory" if memory else "refused", " ".join(reason.split())


def write(trt: Any, raw: Any, out: Path, base: Lifted) -> Lifted:
    """Write an INetworkDefinition of the module ``trt`` to ``out``; ``base`` says where it came from."""
    network = Network(trt, raw)
    scopes = Scopes(network)
    with _emit(out) as emit:
        emit.reserve(tensor.name for tensor in (*network.inputs, *network.outputs))
        emit.copied.update(network.outputs)
        emit.reserve(tensor.name for layer in network.layers for tensor in layer.outputs)
        for tensor in network.inputs:
            emit.uses(tensor.dtype)
            emit.declare(tensor)
        for layer in network.layers:  # it has no output, so that nothing depends on it
            if layer.kind == "ASSERTION":
                emit.note(_left_out(layer))
        writer = Writer(scopes, emit)
        writer.write()
        base = replace(
            base,
            layers=network.kinds,
            inputs=tuple(map(_described, network.inputs)),
            outputs=tuple(map(_described, network.outputs)),
            gaps=tuple(writer.gaps),
            notes=tuple(emit.notes),
        )
        model = _model(network, emit)
    out.write_bytes(model.SerializeToString())
    made = emit.names()
    return replace(
        base,
        status="unlifted" if base.gaps else "lifted",
        reason=str(base.gaps[0]) if base.gaps else "",
        path=str(out),
        names={tensor.name: value for tensor, value in made.items()},
        types={tensor.name: tensor.dtype for tensor in made},
        drawn=_drawn(network, emit.random),
    )


def _left_out(layer: Layer) -> str:
    where = f" of ONNX node {layer.label}" if layer.label else ""
    said = " ".join(text_of(lambda: layer.native.message).split())
    return f"an assertion{where} is omitted: {said or '(no message)'}"


@contextmanager
def _emit(out: Path) -> Iterator[Emit]:
    emit = Emit(out.with_name(out.name + DATA))
    try:
        yield emit
    finally:
        emit.close()


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
