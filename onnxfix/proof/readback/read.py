"""Compare one model with TensorRT's import of it: read the network back, run both, and find where they differ."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfix.errors import ModelError, UsageError
from onnxfix.files import loading
from onnxfix.inputs.feeds.signature import Signature, signature
from onnxfix.proof import cuda, validity
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.checks.trials import shapes
from onnxfix.proof.compare.twin import half_type
from onnxfix.proof.readback.bench import Bench, Comparison
from onnxfix.proof.readback.execute import REFERENCE_STEP, Terms, execute
from onnxfix.proof.readback.interface import inputs_of, interface, partners
from onnxfix.proof.readback.locate import Pair, output_pairs
from onnxfix.proof.readback.weights import weights
from onnxfix.proof.remote import less
from onnxfix.proof.request import Request, Trial
from onnxfix.proof.verdict import FeedResult, LeftOut
from onnxfix.runtime import backends
from onnxfix.runtime.causes import ENDED, Cause
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.lift.records import Lifted
from onnxfix.tensorrt.lift.types import ONNX_TYPES
from onnxfix.tensorrt.reading import Misread, Reading, Status

_ON = {
    "ort-cpu": "ONNX Runtime on the CPU",
    "ort-cuda": "ONNX Runtime on CUDA",
    "reference": "onnx.reference",
}
#: Result of reading the network back -> status of the reading that it prevents, and the cause.
_UNREAD: dict[str, tuple[Status, Cause]] = {
    "refused": ("refused", "refused"),
    "unlifted": ("gap", "gap"),
    "unstarted": ("unknown", "not-loadable"),
    "error": ("broke", "fault"),
    **{ended: ("unknown", cause) for ended, cause in ENDED.items() if ended != "error"},
}


@dataclass(frozen=True)
class Read:
    """A reading, and what the next one can use: the inputs that the model accepts, and the tensors that differ because
    of a misread (``off``). ``left_out`` are inputs that the budget did not allow for. ``names`` are the model's
    tensors, with the operators that make them."""

    reading: Reading
    trials: tuple[Trial, ...] = ()
    feeds: tuple[FeedResult, ...] = ()
    off: frozenset[str] = frozenset()
    left_out: tuple[LeftOut, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def read(request: Request, found: Builder, path: Path, folder: Path, before: Read | None = None) -> Read:
    """Read back the network that TensorRT imports from the model file, and compare.

    Args:
        request: the request of the check.
        found: the TensorRT to use.
        path: the ONNX file.
        folder: an empty folder to write to.
        before: the reading of the original, whose inputs this model gets too where it accepts them.

    Raises:
        Fault: verification itself failed.
    """
    began = time.monotonic()
    out = folder / "seen-by-tensorrt.onnx"
    package, timeout = found.choice.package, found.options.timeout
    known = request.networks.lifted.get(path) if request.networks is not None else None
    lifted = known or lift.attempt(found.worker, path, out, package=package, timeout=timeout)
    status, cause = _UNREAD.get(lifted.status, ("unknown", ""))
    base = Reading(
        status,
        lifted.reason,
        layers=lifted.layers,
        notes=lifted.notes,
        package=package,
        version=lifted.version or found.choice.version,
        seconds=(*lifted.seconds, 0.0),
        cause=cause,
    )
    try:
        model = loading.open_model(path).proto
        network = loading.open_model(Path(lifted.path)).proto if lifted.lifted else None
    except ModelError as error:  # a failure to read the network back takes precedence
        return Read(base if base.reason else replace(base, status="unknown", reason=one_line(error)))
    names = {name: node.op_type for node in model.graph.node for name in node.output if name}
    if network is None:
        return Read(base, names=names)
    pair = _pair(request, path, model, lifted, network, before)
    bench = Bench(request.worker, request.step)
    try:
        result = _compare(request, bench, pair, folder, before, base)
    finally:
        bench.drop()
    spent = (*lifted.seconds, max(0.0, time.monotonic() - began - sum(lifted.seconds)))
    return replace(result, reading=replace(result.reading, seconds=spent), names=names)


def _pair(
    request: Request, path: Path, model: ModelProto, lifted: Lifted, network: ModelProto, before: Read | None
) -> Pair:
    """The model and the network, with the model's inputs by the names and types that they have in the network."""
    inputs = [info.name for info in inputs_of(model.graph)]
    found = partners(inputs, [tensor.name for tensor in lifted.inputs])
    files = [info.name for info in network.graph.input]
    wires = {name: (files[n], ONNX_TYPES[lifted.inputs[n].dtype]) for name, n in found.items()}
    known = request.known if before is None else signature(model)
    return Pair(str(path), model, lifted, network, wires, known)


def _compare(
    request: Request, bench: Bench, pair: Pair, folder: Path, before: Read | None, base: Reading
) -> Read:
    """Compare what both declare, their weights, and what they compute, with the first backend that can run them."""
    known = pair.known
    trials = _fitting(before.trials, request, known) if before is not None else ()
    outputs, excluded = _compared(pair)
    changed, unsure = weights(request.worker, pair, request.step)
    base = replace(base, notes=(*base.notes, unsure)) if unsure else base
    terms = Terms(outputs, trials, [*interface(pair.model, pair.lifted), *changed], str(folder))
    if before is not None and request.given is not None:
        request = replace(request, given=[less(feed, request.without) for feed in request.given])
    request = replace(request, known=known, coarse=half_type(pair.model))
    seen, backend, lacking, causes = Comparison(), "", list[str](), list[Cause]()
    for backend in _backends(request):
        bench.step = min(request.step, REFERENCE_STEP) if backend == "reference" else request.step
        seen = execute(request, bench, pair, backend, terms)
        if not seen.lacking:
            break
        lacking.append(f"{backend}: {seen.lacking}")
        causes.append(seen.cause)
    if seen.lacking:
        seen.unknown = "; ".join(lacking)
        seen.cause = "memory" if "memory" in causes else seen.cause
    elif not seen.unknown:
        seen.cause = ""
    if any(one.kind == "refused" for one in seen.misreads):
        # A model without a defined meaning cannot be read differently.
        broken = validity.violated(Path(pair.path), timeout=request.step)
        if broken:
            return Read(replace(base, reason=f"it is not valid ONNX: {broken}"))
    if seen.disputed:
        bench.step = min(request.step, REFERENCE_STEP)
        other = execute(request, bench, pair, "reference", terms)
        if other.compared and not other.stuck:
            # Invalid, but with an obvious meaning: the reference evaluator shows whether TensorRT imported that.
            other.misreads += [replace(one, harmless=True) for one in seen.misreads]
            seen, backend = other, "reference"
    seen.blank = frozenset(name for name, other in outputs if other in (seen.blank or ()))
    if outputs and len(seen.blank) == len(outputs) and not seen.misreads:
        seen.unknown, seen.blank = seen.unknown or _lost(seen.blank), None
    return _concluded(base, terms.static, seen, backend, excluded)


def _compared(pair: Pair) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """The outputs that are compared, by both names, and those that are random in the model or in the network."""
    outputs, drawn = output_pairs(pair), set(pair.known.drawn or ())
    pairs = zip(pair.network.graph.output, pair.lifted.outputs, strict=False)
    random = {info.name for info, one in pairs if one.name in pair.lifted.drawn}
    excluded = tuple(name for name, other in outputs if name in drawn or other in random)
    return [one for one in outputs if one[0] not in excluded], excluded


def _fitting(trials: Sequence[Trial], request: Request, known: Signature) -> tuple[Trial, ...]:
    """The inputs of the original, generated again where the fixed model declares other ones than a specialization."""
    old = _declared(request.known, request.without, sizes=request.special is None)
    if old == _declared(known, sizes=request.special is None):
        return tuple(replace(one, values=less(one.values, request.without)) for one in trials)
    made = []
    for one in trials:
        if one.feed is not None:
            with contextlib.suppress(UsageError, MemoryError):
                values = one.feed.values(known)
                made.append(replace(one, values=values))
    return tuple(made)


def _declared(known: Signature, without: Sequence[str] = (), *, sizes: bool = True) -> list[tuple[Any, ...]]:
    return [
        (one.name, one.kind, one.elem, one.dims if sizes else None, one.default is None)
        for one in known.inputs
        if one.name not in without
    ]


def _backends(request: Request) -> Iterator[str]:
    """The backends that can run both, the best first."""
    if backends.missing("ort-cuda") is None and cuda.unavailable(request.worker, request.step) is None:
        yield "ort-cuda"
    if backends.missing("ort-cpu") is None:
        yield "ort-cpu"
    yield "reference"


def _concluded(
    base: Reading, static: Sequence[Misread], seen: Comparison, backend: str, excluded: tuple[str, ...]
) -> Read:
    # A wrong declared shape adds nothing where the tensor itself differs.
    plain = (one for one in static if not (one.harmless and one.kind == "shape" and one.name in seen.off))
    misreads = (*seen.misreads, *plain)
    status, reason = _outcome(misreads, seen, backend)
    notes = [*base.notes, *seen.notes, *([_lost(seen.blank)] if seen.blank else [])]
    if excluded:
        notes.append(f"not compared, since they are random: {', '.join(excluded)}")
    ran = bool(seen.compared)
    reading = replace(
        base,
        status=status,
        reason=reason,
        misreads=misreads,
        backend=backend if ran else "",
        feeds=len(seen.compared),
        shapes=max(1, len(shapes(seen.compared))) if ran else 0,
        excluded=excluded,
        noise=tuple(sorted(seen.noise.items())),
        cause=seen.cause if status == "unknown" else "",
        notes=tuple(dict.fromkeys(notes)),
    )
    off = seen.off | {one.name for one in reading.grave}
    return Read(reading, seen.trials, tuple(seen.results), off, seen.left_out)


def _lost(names: Iterable[str]) -> str:
    words = ", ".join(sorted(names))
    return f"only NaN and infinity on all inputs, which would hide a difference: output {words}"


def _outcome(misreads: Sequence[Misread], seen: Comparison, backend: str) -> tuple[Status, str]:
    grave = any(not one.harmless for one in misreads)
    if seen.unknown or not seen.compared:
        return ("differs" if grave else "unknown"), seen.unknown
    elements = any(part.elements for one in seen.results for part in one.metrics)
    if not grave and not elements:
        return "unknown", "no output has a value that could be compared"
    feeds, sizes = len(seen.compared), len(shapes(seen.compared))
    over = f" over {sizes} shapes" if sizes > 1 else ""
    reason = f"{feeds} feed{'s' * (feeds > 1)}{over}, {_ON.get(backend, backend)}"
    return ("differs" if grave else "agrees"), reason
