"""Loaded models in a sandbox: engines on a GPU, and the ONNX model in ONNX Runtime that they are compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, helper

from onnxfix.errors import Fault
from onnxfix.files import walk
from onnxfix.proof import cuda, outputs
from onnxfix.proof.request import REMOTE, Request
from onnxfix.runtime import backends
from onnxfix.runtime.allowance import cores
from onnxfix.runtime.backends import ort, ort_weights, reference
from onnxfix.runtime.causes import ENDED, NO_MEMORY, Cause, cause_of
from onnxfix.runtime.sandbox import Outcome, Worker, one_line
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.timing import Latency

_DROPPING = 30.0  # seconds
_THREADS = max(min(2, cores()), cores() // 2)
"""Of ONNX Runtime: one for each of many cores takes far longer than half of them as soon as anything else runs."""


class Sessions(AbstractContextManager["Sessions"]):
    """Models in a sandbox, reloaded where it lost them. However a run ends is a result.

    ``module`` has the functions to call there, as ``trt.engine`` and this module have them; ``options`` are passed to
    each call. ``loading`` and ``running`` are seconds. With ``close``, the sandbox is ended on leaving.
    """

    def __init__(
        self,
        worker: Worker,
        module: str,
        options: Mapping[str, Any],
        *,
        loading: float,
        running: float,
        close: bool = False,
    ) -> None:
        self._worker, self._module, self._options = worker, module, dict(options)
        self._loading, self._running, self._close = loading, running, close
        self._how: dict[str, dict[str, Any]] = {}  # what each was loaded with
        self._loaded: set[str] = set()
        self._generation = -1
        self.last = Ran()  # what the last load, trial or run came to

    def __exit__(self, *_: object) -> None:
        if self._close or (self._alive() and not self._drop().ok):
            self._worker.close()

    def _alive(self) -> bool:
        return self._worker.pid is not None and self._worker.generation == self._generation

    def _call(self, function: str, timeout: float, **arguments: Any) -> Outcome:
        return self._worker.call(f"{self._module}:{function}", timeout=timeout, **arguments, **self._options)

    def _drop(self, **name: str) -> Outcome:
        return self._worker.call(f"{self._module}:drop", timeout=_DROPPING, **name)

    def load(self, name: str, path: str, **more: Any) -> str:
        """Load a file as ``name``; returns the reason where that fails, else "". ``more`` goes to the function that
        loads it."""
        if not self._alive():
            self._loaded.clear()
        outcome = self._call("load", self._loading, name=name, path=path, **more)
        self._generation = self._worker.generation
        self.last = _ran(outcome)
        if not self.last.error:
            self._how[name] = {"path": path, **more}
            self._loaded.add(name)
        return self.last.error

    def renew(self) -> None:
        """Have the next load start in another process, which has compiled no kernel yet."""
        self._loaded.clear()
        self._worker.close()

    def forget(self, name: str) -> None:
        """Release what the sandbox holds as ``name``, whoever loaded it."""
        self._loaded.discard(name)
        if self._alive():
            self._drop(name=name)

    def trial(self, path: str) -> tuple[str, str]:
        """``trt.engine.trial`` of an engine file; whatever happens is a result."""
        outcome = self._call("trial", self._loading, path=path)
        self._generation = self._worker.generation
        result: tuple[str, str] = outcome.value if outcome.ok else (outcome.message, "")
        self.last = Ran(error=result[0], cause=cause_of(result[0]) if outcome.ok else ENDED[outcome.status])
        return result

    def latency(self, paths: Mapping[str, str], feed: Mapping[str, Any]) -> Latency:
        """``trt.engine.latency``, after which nothing is loaded; whatever happens is a result."""
        self._loaded.clear()
        timeout = len(paths) * self._loading + self._running
        outcome = self._call("latency", timeout, paths=dict(paths), feed=dict(feed))
        self._generation = self._worker.generation
        result: Latency = outcome.value if outcome.ok else Latency(reason=outcome.message)
        if result.reason:
            self._worker.close()  # what failed on the device may have left it in any state
        return result

    def run(self, name: str, feed: Mapping[str, Any], **more: Any) -> Ran:
        """Run what was loaded as ``name`` on a feed; ``more`` goes to the function that runs it. Whatever happens is a
        result."""
        if not self._alive():
            self._loaded.clear()
        if name not in self._loaded:
            error = self.load(name, **self._how[name])
            if error:
                return replace(self.last, error=f"it does not load a second time: {error}", late=False)
        outcome = self._call("run", self._running, name=name, feed=dict(feed), **more)
        if self._worker.generation != self._generation:
            return Ran(error="its process ended between two runs")
        self.last = _ran(outcome)
        if self.last.broken:
            self._worker.close()
        return self.last


def _ran(outcome: Outcome) -> Ran:
    """What a call of ``load`` or ``run`` came to, with the cause of a failure."""
    if outcome.status == "error":  # errors of models and engines come back as values
        raise Fault(outcome.message)
    if not outcome.ok:
        late = outcome.status == "timeout"
        return Ran(error=outcome.message, cause=ENDED[outcome.status], late=late, died=True)
    ran = outcome.value if isinstance(outcome.value, Ran) else Ran(error=str(outcome.value))
    return replace(ran, cause=cause_of(ran.error))


_WIDEST = 1500  # characters of an error: ONNX Runtime names the node at the end of some
_ONLY = "read back"  # the name of the model that is loaded


class Bench(Sessions):
    """Holds one model at a time. ``deaths`` counts how often one ended the child, and variants of models are written to
    the folder ``scratch``."""

    def __init__(self, worker: Worker, scratch: str) -> None:
        super().__init__(worker, __name__, {}, loading=0.0, running=0.0)
        self._scratch, self.deaths = scratch, 0
        if worker.pid is not None:  # what other checks have loaded
            worker.call(f"{REMOTE}:unload", timeout=_DROPPING)

    def limit(self, seconds: float) -> None:
        """Let a load, and a run, take so long from now on."""
        self._loading = self._running = seconds

    def put(
        self,
        backend: str,
        path: str,
        names: Sequence[str] = (),
        *,
        guarded: bool = False,
        recall: bool = False,
    ) -> Ran:
        """Load a model file in place of the last; see ``sessions.load``. With ``names`` on the CPU instead of CUDA.
        ``guarded``: the CPU must accept the inputs that CUDA gets, whose kernels check no index."""
        options: dict[str, Any] = {"guarded": True} if guarded and backend == "ort-cuda" else {}
        if backend == "ort-cpu":
            options = {"threads": _THREADS}  # identical bits are not required
        if names:
            backend = "ort-cpu" if backend == "ort-cuda" else backend
            options = {"names": tuple(names), "scratch": self._scratch}
        self._on_gpu = backend == "ort-cuda"
        self.load(_ONLY, path, backend=backend, recall=recall, widest=_WIDEST, **options)
        return self._checked(self.last)

    def compute(self, feed: Mapping[str, Any]) -> Ran:
        """Run the model."""
        return self._checked(self.run(_ONLY, feed))

    def _checked(self, ran: Ran) -> Ran:
        self.deaths += ran.died
        lacks_memory = ran.cause == "memory" and not ran.died and not self._on_gpu
        return replace(ran, error=self._worker.starved(ran.error)) if lacks_memory else ran


class Oracle(AbstractContextManager["Oracle"]):
    """Executes the original, whose outputs are the reference result for engines.

    ``backend`` is "ort-cuda" where that works, else "ort-cpu". Where ONNX Runtime has no kernel for an operator, or
    rejects a form of it that ONNX defines, it is "reference", unless the model is too large for that. ``silent`` is why
    none works ("" where one does). CUDA never runs what the CPU rejects, since its kernels check no index.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        no_gpu = backends.missing("ort-cuda") or cuda.unavailable(request.worker, request.step)
        self.cause: Cause = ""  # of ``silent``
        self._sides: dict[str, Sessions] = {}
        reasons = [self._load(name) for name in (("ort-cpu",) if no_gpu else ("ort-cpu", "ort-cuda"))]
        self.backend = next(reversed(self._sides), "ort-cpu")
        self.silent = "" if self._sides else f"ONNX Runtime: {reasons[0]}"
        if self.silent and not self._load_reference():
            self.backend, self.silent, self.cause = "reference", "", ""

    def _load(self, backend: str) -> str:
        """Load the original in a backend; returns the reason where that fails, else ""."""
        step = self._request.step
        side = Sessions(self._request.worker, __name__, {"backend": backend}, loading=step, running=step)
        reason = backends.missing(backend) or side.load(backend, str(self._request.original))
        self.cause = self.cause or side.last.cause
        if not reason:
            self._sides[backend] = side
        return reason

    def _load_reference(self, elements: int = 0) -> str:
        """Load the original in the reference evaluator, for inputs of so many elements; returns the reason where that
        fails, else ""."""
        too_large = reference.infeasible(self._request.known.model, elements)
        return too_large or ("" if "reference" in self._sides else self._load("reference"))

    def __exit__(self, *_: object) -> None:
        for side in self._sides.values():
            side.__exit__()

    def run(self, values: dict[str, Any]) -> Ran | None:
        """The original's outputs for these inputs; None where no backend works. Where ONNX Runtime fails, the reference
        evaluator runs too: a missing kernel may show only in a run."""
        if self.silent:
            return None
        if self.backend == "reference":
            return self._sides["reference"].run("reference", values)
        ran = Ran()
        for backend in [name for name in self._sides if name != "reference"]:
            ran = self._sides[backend].run(backend, values)
            if ran.error:
                break
        elements = sum(int(np.size(value)) for value in values.values())
        if ran.error and not self._load_reference(elements):
            other = self._sides["reference"].run("reference", values)
            if not other.error:
                self.backend = "reference"
                return other
        return ran


# ------------------------------------------------------------- ONNX Runtime's side of the pipe, called in the sandbox

_LARGE = 1024  # bytes of a tensor that a variant of the model maps from a file
_COPY = "/onnxfix-copy"  # suffix of the output that copies a tensor which no node computes


@dataclass
class _Model:
    """A model: what loads it, its session once it is loaded, its file where outputs of it were left, and how many
    characters of an error are told."""

    load: Callable[[], backends.Session]
    path: str
    widest: int
    session: backends.Session | None = None


_MODELS: dict[str, _Model] = {}
#: path -> the model with its weights in files, and where these are: those of a small model in one file
_SLIM: dict[str, tuple[ModelProto, ort_weights.Stored]] = {}


def load(
    name: str,
    path: str,
    *,
    backend: str,
    names: Sequence[str] = (),
    recall: bool = False,
    widest: int = 300,
    **options: Any,
) -> Ran:
    """Load the model file with a backend and keep it as ``name``, in place of what was loaded as that.

    Args:
        names: tensors of the main graph that are its outputs, instead of its own, if there are any; then ``options``
            has the folder ``scratch`` to write to.
        recall: a model of which the check ort-cpu left outputs is loaded only where it runs on other inputs.
        widest: characters of an error.
        **options: those of the backend's ``load``.
    """
    _MODELS.pop(name, None)
    make = partial(_load_variant, names=names) if names else backends.load
    left = recall and outputs.knows(path)
    model = _Model(lambda: make(backend, path, **options), path if left else "", widest)
    try:
        model.session = None if left else model.load()
    except Exception as error:
        return _failed(error, widest)
    _MODELS[name] = model
    return Ran(kept=left)


def _load_variant(backend: str, path: str, *, names: Sequence[str], scratch: str) -> backends.Session:
    """The model with these tensors as outputs, on ONNX Runtime's CPU provider or the reference evaluator."""
    if backend == "reference":
        variant = Path(scratch) / "variant.onnx"
        onnx.save(_with_outputs(onnx.load(path), names), variant)
        return backends.load(backend, str(variant))
    if path not in _SLIM:
        _SLIM[path] = ort_weights.shared(path, Path(scratch) / f"weights{len(_SLIM)}.bin", _LARGE + 1)
    model, where = _SLIM[path]
    return ort.load_mapped(
        _with_outputs(model, names), where, ort.session_options(_THREADS, lean=where.large)
    )


def _with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """A copy of the model with only these tensors as outputs, and an order where it leaves that open."""
    found = walk.copied(model)
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


def has_open_order(model: ModelProto) -> bool:
    """Whether ONNX leaves the order of some elements open: TopK with sorted=0."""
    return any(map(_open_order, walk.model_nodes(model)))


def _open_order(node: NodeProto) -> list[AttributeProto]:
    """The attribute that leaves the order open, if it does."""
    if node.op_type != "TopK" or node.domain not in ("", "ai.onnx"):
        return []
    return [one for one in node.attribute if one.name == "sorted" and not one.i]


def run(name: str, feed: Mapping[str, Any], *, backend: str = "") -> Ran:
    """Run the model that was loaded as ``name``, or take what the check ort-cpu computed with it on these inputs."""
    model = _MODELS[name]
    if model.path and (left := outputs.find(model.path, feed)) is not None:
        return Ran(left[0], seconds=left[1], kept=True)
    try:
        model.session = model.session or model.load()
        began = time.process_time()
        values = dict(zip(model.session.outputs, model.session.run(dict(feed)), strict=True))
    except Exception as error:
        return _failed(error, model.widest)
    seconds = time.process_time() - began
    return Ran({output.removesuffix(_COPY): value for output, value in values.items()}, seconds=seconds)


def _failed(error: Exception, widest: int) -> Ran:
    ours = isinstance(error, (backends.Unsupported, backends.Broken))
    words = str(error) if ours else one_line(error, widest)
    lacking = ours or isinstance(error, MemoryError) or bool(NO_MEMORY.search(str(error)))
    return Ran(error=words, lacking=lacking, broken=isinstance(error, backends.Broken))


def drop(name: str = "") -> None:
    """Release a model, or all of them."""
    if name:
        _MODELS.pop(name, None)
    else:
        _MODELS.clear()
        _SLIM.clear()
