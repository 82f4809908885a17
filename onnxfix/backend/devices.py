"""The two devices: engines on a GPU, and TensorRT's network read back and executed on the CPU."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from onnx import TensorProto, ValueInfoProto

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import loading
from onnxfix.inputs.feeds.profiles import given_profiles
from onnxfix.inputs.feeds.signature import Signature, signature
from onnxfix.proof.checks import sessions
from onnxfix.proof.checks.builder import Builder, builder
from onnxfix.proof.checks.probe import engines, probe
from onnxfix.proof.checks.sessions import Sessions
from onnxfix.proof.checks.trials import outside
from onnxfix.proof.readback.values import inputs_of, partners
from onnxfix.runtime import backends
from onnxfix.runtime.causes import ENDED, Cause
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import shared
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.lift.records import NetTensor, numpy_type
from onnxfix.tensorrt.records import Profile, TrtBuild, TrtOptions

#: none: the model as it is. exact, numeric: after the fixes of that safety.
Repair = Literal["none", "exact", "numeric"]
REPAIRS: tuple[Repair, ...] = ("none", "exact", "numeric")
#: Where it failed: there is no such device, TensorRT's parser or builder, the reading of its network, loading or
#: running what was built, or what it was run with.
Stage = Literal["device", "parse", "read", "build", "load", "run", "inputs"]


class BackendError(OnnxfixError):
    """A model cannot be prepared or run on a device.

    ``stage`` says where, ``cause`` why: "refused" by TensorRT, "timeout", "crash", "memory", "gap" (a layer that is not
    read back), "no-gpu" and its like for a device, "fault" for a bug; "" for another reason.
    """

    def __init__(self, message: str, stage: Stage, cause: Cause = "") -> None:
        super().__init__(message)
        self.stage: Stage = stage
        self.cause: Cause = cause


@dataclass(frozen=True)
class Options:
    """How a model is prepared.

    ``repair`` as above. ``target`` is the release that the rules judge for ("" for that of the TensorRT that is
    installed), ``verify`` False repairs without a proof. ``trt`` are TensorRT's options, profiles and time limits among
    them; ``timeout`` is in seconds, for a run.

    Raises:
        UsageError: there is no such repair.
    """

    repair: Repair = "exact"
    target: str = ""
    verify: bool = True
    trt: TrtOptions = field(default_factory=TrtOptions)
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.repair not in REPAIRS:
            raise UsageError(f"unknown repair {self.repair!r}; choose one of {', '.join(REPAIRS)}")


CPU, CUDA = "CPU", "CUDA"
_RUNTIMES = ("ort-cpu", "reference")
"""What executes a network on the CPU: the second where the first has no kernel."""
_VALUES = 64  # elements up to which an integer input may be a shape tensor, whose values TensorRT builds for
_COUNTING = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
_NUMBERS = itertools.count()
_UNUSED: list[str] = []
"""Names under which sandboxes hold what nobody can run any more: a finalizer must not talk through a pipe itself."""


def split(device: str) -> tuple[str, int]:
    """``CUDA`` and 0 for "CUDA" and "CUDA:0"."""
    kind, _, number = device.partition(":")
    return kind, int(number) if number.isdecimal() else (-1 if number else 0)


def opened(device: str, options: TrtOptions) -> Builder:
    """The TensorRT that serves a device.

    Raises:
        BackendError: none does, with the reason and what to do.
        UsageError: the options name something that does not exist.
    """
    kind, number = split(device)
    if kind not in (CPU, CUDA) or number != 0:
        raise BackendError(f"unknown device {device!r}; choose {CUDA} (the first GPU) or {CPU}", "device")
    found = builder(options)
    if isinstance(found, Missing):
        raise BackendError(f"{device}: {found.reason}", "device", found.cause)
    if kind == CUDA:
        told = probe(found)
        if told.reason:
            raise BackendError(f"{device}: {told.reason}", "device", told.cause)
    else:
        lacking = [why for name in _RUNTIMES if (why := backends.missing(name))]
        if len(lacking) == len(_RUNTIMES):
            raise BackendError(f"{device}: {'; '.join(lacking)}", "device", "not-installed")
    return found


def _name(owner: object) -> str:
    """A name of its own for what a sandbox holds, which is released some time after its owner is gone."""
    name = f"backend-{next(_NUMBERS)}"
    weakref.finalize(owner, _UNUSED.append, name)
    return name


def _loaded(side: Sessions, name: str, path: Path) -> str:
    """Load a file and release what is not used any more; returns why it does not load, else ""."""
    reason = side.load(name, str(path))
    while _UNUSED and not reason:
        side.forget(_UNUSED.pop())
    return reason


class Engines:
    """Engines on the GPU: one for a static model, otherwise one for each optimization profile that inputs need.

    A model whose inputs leave nothing open is built at once. Any other is only parsed at first, and built when it
    is run, for the sizes of these inputs (and the values of those that are sizes themselves), unless the user's options
    have a profile.
    """

    def __init__(self, found: Builder, path: Path, folder: Path, options: Options) -> None:
        self._builder, self._path, self._folder = found, path, folder
        self._step = options.timeout
        self._known = signature(path)
        self._given = given_profiles(options.trt, self._known)
        self._engines: list[tuple[TrtBuild, Sessions, str]] = []
        if self._given is not None or _settled(self._known):
            self._make(self._given)
        else:
            _accepted(found.build(path, parse_only=True))

    def run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name.

        Raises:
            BackendError: it does not run on these inputs.
        """
        serving = next((one for one in self._engines if not outside(one[0].profiles, feed)), None)
        if serving is None and self._given is not None:
            raise BackendError(outside(self._engines[0][0].profiles, feed), "inputs")
        _, side, name = serving or self._make((Profile.of_feeds([feed]),))
        ran = side.run(name, feed)
        if ran.error:
            stage: Stage = "run" if ran.late or ran.broken or ran.cause else "inputs"
            raise BackendError(ran.error, stage, ran.cause)
        for output, why in ran.unread.items():
            raise BackendError(f"output {output}: {why}", "run")
        return ran.outputs

    def _make(self, profiles: tuple[Profile, ...] | None) -> tuple[TrtBuild, Sessions, str]:
        name = _name(self)
        engine = self._folder / f"{name}.engine"
        build = _accepted(self._builder.build(self._path, profiles, save_engine=str(engine)))
        side = engines(self._builder.choice, self._builder.options, self._step)
        reason = _loaded(side, name, engine)
        if reason:
            cause: Cause = "timeout" if side.last.late else side.last.cause
            raise BackendError(f"the engine does not load: {reason}", "load", cause)
        self._engines.append((build, side, name))
        return self._engines[-1]


def _settled(known: Signature) -> bool:
    """Whether no input's size is open, and none may be a size itself."""
    for one in known.inputs:
        if one.default is not None:
            continue
        sizes = [dim for dim in one.dims or () if isinstance(dim, int)]
        if one.dims is None or len(sizes) < len(one.dims):
            return False
        if one.elem in _COUNTING and math.prod(sizes) <= _VALUES:
            return False
    return True


def _accepted(build: TrtBuild) -> TrtBuild:
    """The build.

    Raises:
        BackendError: it was not accepted.
    """
    if build.accepted:
        return build
    cause: Cause = "refused" if build.status == "refused" else ENDED[build.status]
    raise BackendError(build.reason, "parse" if build.stage == "parse" else "build", cause)


#: How reading a network back ended, if not well -> the stage, and why.
_UNREAD: dict[str, tuple[Stage, Cause]] = {
    "refused": ("parse", "refused"),
    "unlifted": ("read", "gap"),
    "unstarted": ("device", "not-loadable"),
    **{ended: ("parse", cause) for ended, cause in ENDED.items()},
}


class Network:
    """What TensorRT's parser made of a model, executed by ONNX Runtime, or by onnx.reference where that cannot."""

    def __init__(self, found: Builder, path: Path, folder: Path, options: Options) -> None:
        out = folder / "network.onnx"
        package, limit = found.choice.package, found.options.timeout
        self._lifted = lift.attempt(found.worker, path, out, package=package, timeout=limit)
        if self._lifted.status == "refused":
            _accepted(found.build(path, parse_only=True))  # which names the node
        if not self._lifted.lifted:
            raise BackendError(self._lifted.reason, *_UNREAD[self._lifted.status])
        graph, network = signature(path).model.graph, loading.open_model(out).proto.graph
        self._inputs = _paired(inputs_of(graph), self._lifted.inputs, network.input)
        self._outputs = _paired(graph.output, self._lifted.outputs, network.output)
        self._name, self._path, self._step = _name(self), out, options.timeout
        self._sides: dict[str, Sessions] = {}

    def run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name.

        Raises:
            BackendError: it does not run on these inputs.
        """
        given = {
            inner: _as(name, feed[name], one) for name, (inner, one) in self._inputs.items() if name in feed
        }
        first: BackendError | None = None
        for runtime in _RUNTIMES:
            try:
                found = self._ran(runtime, given)
                return {name: found[inner] for name, (inner, _) in self._outputs.items() if inner in found}
            except BackendError as error:
                first = first or error
        assert first is not None
        raise first

    def _ran(self, runtime: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if runtime not in self._sides:
            worker = shared(f"backend on {runtime}")
            side = Sessions(
                worker, sessions.__name__, {"backend": runtime}, loading=self._step, running=self._step
            )
            reason = backends.missing(runtime) or _loaded(side, self._name, self._path)
            if reason:
                raise BackendError(f"{runtime}: {reason}", "load", side.last.cause)
            self._sides[runtime] = side
        ran = self._sides[runtime].run(self._name, given)
        if ran.error:
            raise BackendError(f"{runtime}: {ran.error}", "run", ran.cause)
        return ran.outputs


def _paired(
    declared: Sequence[ValueInfoProto], native: Sequence[NetTensor], written: Sequence[ValueInfoProto]
) -> dict[str, tuple[str, NetTensor]]:
    """The model's name of an input or output -> its name in the file that was read back, and what it is there."""
    pairs = partners([info.name for info in declared], [one.name for one in native])
    return {name: (written[n].name, native[n]) for name, n in pairs.items()}


def _as(name: str, value: Any, tensor: NetTensor) -> Any:
    """An input in the network's type: TensorRT has no float64, which its parser converts to float32.

    Raises:
        BackendError: it is of another type.
    """
    array, wanted = np.asarray(value), numpy_type(tensor.dtype)
    if (array.dtype.name, wanted.name) == ("float64", "float32"):
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    if array.dtype != wanted:
        raise BackendError(
            f"input {name} is {wanted.name} in the network and was given as {array.dtype.name}", "inputs"
        )
    return array
