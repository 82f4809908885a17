"""Runs a model and the network that was read back in the sandbox, one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, ModelProto, NodeProto, helper

from onnxfix.errors import Fault
from onnxfix.files import walk
from onnxfix.proof import outputs
from onnxfix.proof.request import REMOTE
from onnxfix.runtime import backends
from onnxfix.runtime.allowance import cores
from onnxfix.runtime.backends import ort, ort_weights
from onnxfix.runtime.causes import ENDED, NO_MEMORY, Cause
from onnxfix.runtime.sandbox import Worker, one_line

_DROPPING = 30.0  # seconds
#: Of ONNX Runtime: one for each of many cores takes far longer than half of them as soon as anything else runs.
_THREADS = max(min(2, cores()), cores() // 2)
_LARGE = 1024  # bytes of a tensor that a variant of the model maps from a file
_WORDS = 1500  # characters of an error: ONNX Runtime names the node at the end of some
_COPY = "/onnxfix-copy"  # suffix of the output that copies a tensor which no node computes


@dataclass(frozen=True)
class Reply:
    """The result of a call: the ``outputs`` of a run, and the ``seconds`` of the processor that it took. ``error`` is
    "" on success, ``cause`` why it failed where the model is not to blame; ``died``: the child crashed or was killed.
    ``lacking``: the backend cannot do this, or memory ran out, which proves nothing about the model. ``kept``: there
    are outputs that the check ort-cpu left."""

    error: str = ""
    lacking: bool = False
    died: bool = False
    cause: Cause = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    kept: bool = False


class Bench:
    """Holds one model at a time, which is loaded again where the child lost it. ``step`` is in seconds, ``deaths``
    counts how often a model ended the child, and variants of models are written to the folder ``scratch``."""

    def __init__(self, worker: Worker, step: float, scratch: str) -> None:
        self._worker, self.step, self._scratch, self.deaths = worker, step, scratch, 0
        self._how: dict[str, Any] = {}
        self._generation = -1
        if worker.pid is not None:  # what other checks have loaded
            worker.call(f"{REMOTE}:unload", timeout=_DROPPING)
        self.drop()

    def drop(self) -> None:
        """Release everything."""
        if self._worker.pid is not None:
            self._worker.call(f"{__name__}:drop", timeout=_DROPPING)

    def load(
        self,
        backend: str,
        path: str,
        names: Sequence[str] = (),
        *,
        guarded: bool = False,
        recall: bool = False,
    ) -> Reply:
        """Load a model file in place of the last, with the tensors ``names`` of the main graph as outputs instead of
        its own, if there are any; then on the CPU instead of CUDA.

        ``guarded``: the CPU must accept the inputs that CUDA gets, whose kernels check no index. ``recall``: a model of
        which the check ort-cpu left outputs is loaded only where it runs on other inputs.
        """
        options: dict[str, Any] = {"guarded": True} if guarded and backend == "ort-cuda" else {}
        if backend == "ort-cpu":
            options = {"threads": _THREADS}  # identical bits are not required
        if names:
            backend, options = "ort-cpu" if backend == "ort-cuda" else backend, {"scratch": self._scratch}
        self._how = {"backend": backend, "path": path, "names": tuple(names), "options": options}
        return self._load(recall=recall)

    def _load(self, **more: Any) -> Reply:
        reply = self._ask("load", **self._how, **more)
        self._generation = self._worker.generation
        return reply

    def run(self, feed: Mapping[str, Any]) -> Reply:
        """Run the model that was loaded last."""
        if self._worker.pid is None or self._worker.generation != self._generation:
            reply = self._load()
            if reply.error:
                return reply
        return self._ask("run", feed=dict(feed))

    def _ask(self, function: str, **arguments: Any) -> Reply:
        outcome = self._worker.call(f"{__name__}:{function}", timeout=self.step, **arguments)
        if outcome.status == "error":  # errors of models come back as values
            raise Fault(outcome.message)
        if not outcome.ok:
            self.deaths += 1
            return Reply(outcome.message, died=True, cause=ENDED[outcome.status])
        reply: Reply = outcome.value
        return replace(reply, error=self._worker.starved(reply.error)) if reply.cause == "memory" else reply


def has_open_order(model: ModelProto) -> bool:
    """Whether ONNX leaves the order of some elements open: TopK with sorted=0."""
    return any(map(_open_order, walk.model_nodes(model)))


def _open_order(node: NodeProto) -> list[AttributeProto]:
    """The attribute that leaves the order open, if it does."""
    if node.op_type != "TopK" or node.domain not in ("", "ai.onnx"):
        return []
    return [one for one in node.attribute if one.name == "sorted" and not one.i]


# ------------------------------------------------------------------------------------------- in the sandbox's child


@dataclass
class _State:
    """The model: what loads it, its session once it is loaded, and its file where outputs of it were left."""

    load: Callable[[], backends.Session] | None = None
    session: backends.Session | None = None
    path: str = ""
    #: path -> the model with its weights in files, and where these are: those of a small model in one file
    slim: dict[str, tuple[ModelProto, ort_weights.Stored]] = field(default_factory=dict)


_STATE = _State()


def drop() -> None:
    """Release everything."""
    _STATE.load = _STATE.session = None
    _STATE.slim.clear()


def load(
    backend: str, path: str, names: Sequence[str], options: Mapping[str, Any], *, recall: bool = False
) -> Reply:
    """See ``Bench.load``; ``options`` are those of the backend, or for ``names`` the folder to write to."""
    make = partial(_load_variant, names=names) if names else backends.load
    _STATE.session, _STATE.path = None, path if recall and outputs.knows(path) else ""
    _STATE.load = lambda: make(backend, path, **options)
    if _STATE.path:
        return Reply(kept=True)
    try:
        _STATE.session = _STATE.load()
    except Exception as error:
        return _failed(error)
    return Reply()


def _load_variant(backend: str, path: str, *, names: Sequence[str], scratch: str) -> backends.Session:
    """The model with these tensors as outputs, on ONNX Runtime's CPU provider or the reference evaluator."""
    if backend == "reference":
        variant = Path(scratch) / "variant.onnx"
        onnx.save(_with_outputs(onnx.load(path), names), variant)
        return backends.load(backend, str(variant))
    if path not in _STATE.slim:
        file = Path(scratch) / f"weights{len(_STATE.slim)}.bin"
        _STATE.slim[path] = ort_weights.shared(path, file, _LARGE + 1)
    model, where = _STATE.slim[path]
    return ort.load_mapped(
        _with_outputs(model, names), where, ort.session_options(_THREADS, lean=where.large)
    )


def _with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """A copy of the model with only these tensors as outputs, and an order where it leaves that open."""
    found = ModelProto()
    found.CopyFrom(model)
    for node in walk.model_nodes(found):
        for attribute in _open_order(node):
            attribute.i = 1
    graph = found.graph
    made = {name for node in graph.node for name in node.output}
    declared = {info.name: info for info in model.graph.output}
    del graph.output[:]
    for name in names:
        if name in made:
            graph.output.append(declared.get(name, onnx.ValueInfoProto(name=name)))
        else:  # an input or a weight
            graph.node.append(helper.make_node("Identity", [name], [f"{name}{_COPY}"]))
            graph.output.append(onnx.ValueInfoProto(name=f"{name}{_COPY}"))
    return found


def run(feed: Mapping[str, Any]) -> Reply:
    """Run the model, or take what the check ort-cpu computed with it on these inputs."""
    if _STATE.path and (left := outputs.find(_STATE.path, feed)) is not None:
        return Reply(outputs=left[0], seconds=left[1], kept=True)
    assert _STATE.load is not None
    try:
        _STATE.session = _STATE.session or _STATE.load()
        began = time.process_time()
        values = dict(zip(_STATE.session.outputs, _STATE.session.run(dict(feed)), strict=True))
    except Exception as error:
        return _failed(error)
    seconds = time.process_time() - began
    return Reply(outputs={name.removesuffix(_COPY): value for name, value in values.items()}, seconds=seconds)


def _failed(error: Exception) -> Reply:
    lacking = isinstance(error, (backends.Unsupported, backends.Broken))
    starved = isinstance(error, MemoryError) or (not lacking and bool(NO_MEMORY.search(str(error))))
    words = str(error) if lacking else one_line(error, _WORDS)
    return Reply(words, lacking or starved, cause="memory" if starved else "")
