"""Runs a model and what fixes made of it, and compares outputs as the product promises them."""

from __future__ import annotations

import ctypes
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from onnxfix.errors import UsageError
from onnxfix.files import walk
from onnxfix.files.walk import copied
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.signature import Signature, signature
from onnxfix.proof.compare.compare import compare
from onnxfix.proof.compare.twin import half_type
from onnxfix.proof.verdict import CPU_RUNGS
from onnxfix.proof.verify import verify
from onnxfix.runtime.backends import NoKernel, Unsupported, ort, reference
from random_models.pieces import dims_of, refused

SECONDS = 6.0
"""For a step in Python. What hangs in native code is ended by the process that called this one."""
M_PERTURB = -6
"""Of glibc's mallopt: the number that new and freed memory is filled with."""
FILLS = (0x11, 0x55, 0xA3)
Feeds = list[dict[str, Any]]
Outputs = dict[str, Any]


class TooLong(BaseException):
    """A step took too long. No code that catches exceptions of a model catches this one."""


@contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    """Raise TooLong after some seconds."""

    def late(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def sessions(proto: ModelProto) -> dict[str, Any]:
    """The model in each backend that takes it."""
    found: dict[str, Any] = {}
    try:
        providers = ["CPUExecutionProvider"]
        found["ort-cpu"] = ort.OrtSession(proto.SerializeToString(), ort.session_options(), providers)
    except Exception as error:
        found["ort-cpu"] = error
    try:
        found["reference"] = reference.ReferenceSession(proto)  # type: ignore[arg-type]
    except Exception as error:
        found["reference"] = error
    return found


def loaded_by(sessions: Mapping[str, Any]) -> list[str]:
    """The backends that loaded a model."""
    return [name for name, one in sessions.items() if not isinstance(one, Exception)]


def attempted(session: Any, feed: Mapping[str, Any]) -> Outputs | Exception:
    """The outputs by name, or why there are none."""
    if isinstance(session, Exception):
        return session
    try:
        with limited():
            return dict(zip(session.outputs, session.run(dict(feed)), strict=True))
    except Exception as error:
        return error


class Original:
    """A model with up to two feeds of different sizes that it accepts, and its outputs on them by backend.

    ``why`` it does not run, and what in it is ``wrong``, where that is so. Of a model that onnx.checker refuses
    (``checked`` is false) only ONNX Runtime says what it computes: the reference evaluator knows no types.
    """

    def __init__(
        self, proto: ModelProto, hints: Mapping[str, Any], seed: int, *, checked: bool = True
    ) -> None:
        self.proto, self.known = proto, signature(proto)
        self.drawn = set(self.known.drawn or ())
        self.half = half_type(proto)
        self.feeds: Feeds = []
        self.sizes: list[dict[str, int]] = []
        self.outputs: list[dict[str, Outputs | Exception]] = []
        self.why = self.wrong = ""
        loaded = sessions(proto)
        for sizes, feed in feeds_of(self.known, proto, hints, seed):
            given = {name: np.copy(value) for name, value in feed.items() if isinstance(value, np.ndarray)}
            ran = {name: attempted(session, feed) for name, session in loaded.items()}
            for name, value in given.items():
                if feed[name].tobytes() != value.tobytes():
                    self.wrong = f"ONNX Runtime writes to the input {name}"
            # The reference evaluator takes sizes that do not fit together: what ONNX Runtime loads, it decides.
            deciding = ("ort-cpu",) if "ort-cpu" in loaded_by(loaded) or not checked else tuple(loaded)
            if any(isinstance(ran[name], dict) for name in deciding):
                self.feeds.append(feed)
                self.sizes.append(sizes)
                self.outputs.append(ran if checked else {**ran, "reference": Unsupported("not checked")})
                self.wrong = self.wrong or contradicted(proto, ran)
            else:
                self.why = self.why or str(next(iter(ran.values())))
            if len(self.feeds) == 2:
                return

    @property
    def backends(self) -> list[str]:
        """The backends that run it on at least one feed."""
        return sorted({name for ran in self.outputs for name, one in ran.items() if isinstance(one, dict)})


def contradicted(proto: ModelProto, ran: Mapping[str, Outputs | Exception]) -> str:
    """An output that has other sizes than it declares, where nothing but running shows it; "" where all are right.

    Such a model is not valid, although onnx.checker accepts it as long as shape inference knows no better.
    """
    for outputs in ran.values():
        for info in proto.graph.output if isinstance(outputs, dict) else ():
            value = outputs.get(info.name)
            dims = dims_of(info) if info.type.HasField("tensor_type") else None
            if dims is None or not isinstance(value, np.ndarray):
                continue
            sizes = zip(dims, value.shape, strict=False)
            if len(dims) != value.ndim or any(isinstance(d, int) and d != size for d, size in sizes):
                return f"output {info.name} declares {list(dims)} and has {list(value.shape)}"
    return ""


def feeds_of(
    known: Signature, proto: ModelProto, hints: Mapping[str, Any], seed: int
) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """Values of the inputs at some sizes: those that its pieces came with first."""
    endless = any(
        node.op_type == "Loop" and not (node.input and node.input[0]) for node in walk.model_nodes(proto)
    )
    with limited():
        bound = {}
        for name, value in hints.items():
            one = next((one for one in known.inputs if one.name == name), None)
            if one is not None and one.dims is not None and np.ndim(value) == len(one.dims):
                bound.update(
                    {d: n for d, n in zip(one.dims, np.shape(value), strict=True) if isinstance(d, str)}
                )
        sweep = plan.assignments(known, bound)[:2] + (plan.assignments(known, {}) if bound else [])
        sweep = sweep if bound or len(sweep) < 2 else plan.assignments(known, {})
        # Of nothing ONNX Runtime takes sizes that do not fit: those of a piece whose sizes were made symbolic.
        sweep = [
            sizes for sizes in sweep if not (0 in sizes.values() and any(d.startswith("D_") for d in sizes))
        ] or sweep
    kinds = ("normal", "edge", "normal", "normal", "normal")
    tried = sweep if len(sweep) > 1 else [*sweep, *sweep]
    for number, (sizes, kind) in enumerate(zip(tried, kinds, strict=False)):
        try:
            with limited():
                feed = Feed(sizes, kind, seed % 1000 + number).values(known)  # type: ignore[arg-type]
        except UsageError:  # no values can be made for a type
            return
        for name, value in hints.items():
            if number == 0 and name in feed and np.shape(feed[name]) == np.shape(value):
                feed[name] = value
        if endless:  # a Loop without a trip count that nothing ends
            for one in known.inputs:
                if one.elem == TensorProto.BOOL and one.name in feed and np.size(feed[one.name]) == 1:
                    feed[one.name] = np.zeros(np.shape(feed[one.name]), bool)
        yield sizes, feed


def differences(
    original: Original, fixed: ModelProto, *, exact: bool, without: Collection[str] = ()
) -> list[str]:
    """How outputs of the fixed model differ from what is promised; empty where they do not.

    Exact fixes keep every bit. ONNX Runtime computes half precision in float32 and drops Casts as it sees fit, so that
    bits are those of the reference evaluator there, and ONNX Runtime is held to the type's tolerance. What is out of
    tolerance is put before the ladder, which knows the model in higher precision. ``without``: outputs of ONNX Runtime
    that do not count.
    """
    loaded = sessions(fixed)
    found: list[str] = []
    for feed, sizes, expected in zip(original.feeds, original.sizes, original.outputs, strict=True):
        bits = isinstance(expected.get("reference"), dict)  # the reference has judged the bits
        for name in ("reference", "ort-cpu"):
            before = expected[name]
            if isinstance(before, Exception):
                continue
            after = attempted(loaded[name], feed)
            loose = not exact or (name == "ort-cpu" and bool(original.half) and bits)
            known = {k: v for k, v in before.items() if name != "ort-cpu" or k not in without}
            found += [f"{name} at {sizes}: {text}" for text in _different(original, known, after, loose)]
    return found


def _different(original: Original, before: Outputs, after: Outputs | Exception, loose: bool) -> Iterator[str]:
    if isinstance(after, (NoKernel, Unsupported)):  # a gap of the backend, which proves nothing
        return
    if isinstance(after, Exception):
        yield f"does not run any more: {' '.join(str(after).split())[:300]}"
        return
    for name, value in before.items():
        if name not in after or name in original.drawn:
            continue
        coarse = original.half if loose else ""
        for part in compare(name, value, after[name], exact=not loose, coarse=coarse):
            if part.agreement == "different" or (not loose and part.agreement != "identical"):
                yield f"output {name}: {part.reason or part.agreement}"


def from_unset_memory(original: Original) -> set[str]:
    """The outputs that ONNX Runtime computes from memory that nobody set: they change with what that memory holds.

    Sessions keep no memory of their own here, and the C library fills what it gives out with one number in each of
    three runs. Empty for another library than glibc, which alone does that.
    """
    fill = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    found: set[str] = set()
    for feed, ran in zip(original.feeds, original.outputs, strict=True):
        first = ran["ort-cpu"]
        for number in FILLS if fill is not None and isinstance(first, dict) else ():
            fill(M_PERTURB, number)  # type: ignore[misc]
            try:
                options = ort.session_options(lean=True)
                again = attempted(
                    ort.OrtSession(original.proto.SerializeToString(), options, ["CPUExecutionProvider"]),
                    feed,
                )
            finally:
                fill(M_PERTURB, 0)  # type: ignore[misc]
            if isinstance(again, dict):
                found |= {
                    name
                    for name in first
                    for part in compare(name, first[name], again[name], exact=True)
                    if part.agreement != "identical"
                }
    return found


def contradicts_itself(original: Original) -> str:
    """What onnx.checker says of the model once the sizes are declared that its values have when it runs; "" if nothing.

    Such a model declares, or ONNX's shape inference says, what does not come: onnx.checker accepts it only as long as
    it does not see both. That shows before any fix.
    """
    local = {function.domain for function in original.proto.functions}
    for feed in original.feeds:
        values = _all_values(original.proto, feed)
        declared = copied(original.proto)
        graph = declared.graph
        outside = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
        shown = {name for node in graph.node for name in node.output} - outside
        kept = [info for info in graph.value_info if info.name not in values]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        places = {info.name: info for info in graph.output}
        for node in [node for node in graph.node if node.domain not in local | {"", "ai.onnx"}]:
            if values.keys() >= {*node.output}:  # at an operator that it does not know, onnx.checker gives up
                graph.node.remove(node)
                places.update((name, graph.input.add()) for name in node.output)
        for name in sorted(shown & values.keys()):
            value = values[name]
            info = helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            (places[name] if name in places else graph.value_info.add()).CopyFrom(info)
        if values and (why := refused(declared)):
            return why
    return ""


def _all_values(proto: ModelProto, feed: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of the main graph by name, as ONNX Runtime or else the reference evaluator computes them."""
    shown = copied(proto)
    known = {info.name for info in (*shown.graph.output, *shown.graph.input)}
    computed = [
        node for node in shown.graph.node if node.op_type != "Constant"
    ]  # of sparse ones nothing is left
    for name in dict.fromkeys(name for node in computed for name in node.output if name):
        if name not in known:
            shown.graph.output.add().name = name
    loaded = sessions(shown)
    for name in ("ort-cpu", "reference"):
        ran = attempted(loaded[name], feed)
        if isinstance(ran, dict):
            return {key: value for key, value in ran.items() if isinstance(value, np.ndarray)}
    return {}


def refuted_by_ladder(original: ModelProto, fixed: ModelProto, *, exact: bool) -> str:
    """Why the product's own checks without TensorRT refute the fixed model; "" where they do not."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        first.write_bytes(original.SerializeToString())
        second.write_bytes(fixed.SerializeToString())
        verdict = verify(first, second, exact=exact, rungs=CPU_RUNGS)
    return "; ".join(f"{one.name}: {one.reason}" for one in verdict.rungs if one.status == "failed")
