"""Check trt-network: the network that TensorRT imported computes the same as the ONNX model.

Each model is compared with TensorRT's import of that same model: the network is read back as an ONNX model
(``trt.lift``), and ONNX Runtime executes both on the same inputs. That proves the import for these inputs. It proves
nothing about kernels and fusions, since no engine is executed (the check trt-gpu does that), nor that the original and
the fixed model are the same, which earlier checks prove.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfix.errors import ModelError, UsageError, fault_of
from onnxfix.files import loading
from onnxfix.inputs.feeds.signature import Signature, signature
from onnxfix.proof import cuda, validity
from onnxfix.proof.checks.build import NOT_EXECUTED
from onnxfix.proof.checks.builder import WIDEST, Builder, builder
from onnxfix.proof.checks.sessions import Bench
from onnxfix.proof.checks.trials import key_of, shapes
from onnxfix.proof.compare.twin import half_type
from onnxfix.proof.readback.execute import Comparison
from onnxfix.proof.readback.locate import Pair, output_pairs
from onnxfix.proof.readback.values import inputs_of, interface, partners
from onnxfix.proof.readback.weights import weights
from onnxfix.proof.remote import less
from onnxfix.proof.request import Request, Trial
from onnxfix.proof.verdict import FeedResult, LeftOut, RungResult, Status, unjudged
from onnxfix.runtime import backends
from onnxfix.runtime.causes import ENDED, Cause
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.lift.records import ONNX_TYPES, Lifted
from onnxfix.tensorrt.reading import Misread, Reading
from onnxfix.tensorrt.reading import Status as ReadingStatus

NAME = "trt-network"
#: Status of a reading of the fixed model -> that of the check. With any other, the check is skipped.
_STATUS: dict[str, Status] = {"agrees": "passed", "differs": "failed", "broke": "broke"}
#: Status of a reading that learnt nothing -> that, as text.
_UNREAD = {
    "refused": "{product} does not import {which}",
    "gap": "the network of {which} cannot be read back",
    "broke": "reading back {product}'s network of {which} failed",
    "unknown": "it is unknown how {product} reads {which}",
}
_BACKEND_TITLES = {
    "ort-cpu": "ONNX Runtime on the CPU",
    "ort-cuda": "ONNX Runtime on CUDA",
    "reference": "onnx.reference",
}
#: Why the network could not be read back -> status of the reading, and the cause.
_STATUS_IF_UNREAD: dict[str, tuple[ReadingStatus, Cause]] = {
    "refused": ("refused", "refused"),
    "unlifted": ("gap", "gap"),
    "unstarted": ("unknown", "not-loadable"),
    "error": ("broke", "fault"),
    **{ended: ("unknown", cause) for ended, cause in ENDED.items() if ended != "error"},
}


@dataclass(frozen=True)
class Read:
    """A reading, and data for the next one: the inputs that the model accepts, and the tensors that differ
    because of a misread (``off``). ``left_out`` are inputs that exceeded the budget. ``names`` maps the
    model's tensors to the operators that produce them."""

    reading: Reading
    trials: tuple[Trial, ...] = ()
    feeds: tuple[FeedResult, ...] = ()
    off: frozenset[str] = frozenset()
    left_out: tuple[LeftOut, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def run(request: Request) -> RungResult:
    """Read both models back and compare each with what was read.

    Raises:
        UsageError: an option of TensorRT's does not exist.
    """
    found = builder(request.trt)
    if isinstance(found, Missing):
        return unjudged(NAME, found.reason, found.cause)
    with closing(found):
        before = read_original(request, found)
        if request.fixed == request.original:
            return judge((before,), found, inherit=request.inherit)
        after = _read(found, request, request.fixed, before)
    return judge((before, after), found, inherit=request.inherit)


#: The last original, with a key: a run that withdraws fixes needs it again for every candidate.
_LAST: list[tuple[object, Read]] = []


def read_original(request: Request, found: Builder) -> Read:
    """TensorRT's reading of the original alone."""
    key = key_of(request, found)
    if not _LAST or _LAST[0][0] != key:
        _LAST[:] = [(key, _read(found, request, request.original, None))]
    return _LAST[0][1]


def _read(found: Builder, request: Request, path: Path, before: Read | None) -> Read:
    """The reading of a model, or that onnxfix itself failed there: the other model may still be read."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        try:
            return _compare(found, request, path, Path(folder), before)
        except Exception as error:
            fault = fault_of(error)
            if not fault:
                raise
    package, version = found.choice.package, found.choice.version
    return Read(Reading("broke", fault, package=package, version=version, cause="fault"))


def judge(reads: Sequence[Read], found: Builder, *, inherit: bool) -> RungResult:
    """The check's result for the readings of the original and of the fixed model (or of the one model).

    With ``inherit``, the fixes are not to blame for what TensorRT reads differently in both.
    """
    before, after, single = reads[0], reads[-1], len(reads) == 1
    named = [*zip(("",) if single else ("original: ", "fixed: "), reads, strict=True)]
    notes = [f"{name}{note}" for name, one in named for note in one.reading.notes]
    if not single and not before.reading.judged:
        notes.append(f"original: {one_line(before.reading.reason, WIDEST)}")
    return RungResult(
        NAME,
        _STATUS.get(after.reading.status, "skipped"),
        _outcome(reads, found),
        tuple(replace(feed, label=f"{name}{feed.label}") for name, one in named for feed in one.feeds),
        after.reading.excluded,
        (*found.notes(), *notes),
        networks=tuple(one.reading for one in reads),
        cause=after.reading.cause,
        left_out=before.left_out or after.left_out,
        inherited=inherit and after.reading.status == "differs" and (single or _is_inherited(before, after)),
    )


def _outcome(reads: Sequence[Read], found: Builder) -> str:
    """The check in one line."""
    before, after = reads[0].reading, reads[-1].reading
    single = len(reads) == 1
    which = "the model" if single else "the new model"
    if not after.judged:
        why = one_line(after.reason, WIDEST)
        return f"{_UNREAD[after.status].format(which=which, product=found.product)}: {why}"
    if after.status == "agrees":
        same = f"the network that {found.product} imported computes the same as {which}"
        how = "identical" if "within" not in {feed.status for feed in reads[-1].feeds} else "within tolerance"
        parts = [f"{same}: {how} on {after.reason} ({NOT_EXECUTED})"]
        if before.grave and not single:
            parts.append(f"TensorRT reads the original differently: {_words(before)}")
        if harmless := sum(one.harmless for one in after.misreads):
            parts.append(f"{harmless} harmless difference{'s' * (harmless > 1)}")
        return "; ".join(parts)
    if single or before.status == "agrees":
        also = "" if single else ", and the original correctly"
        return f"{found.product} reads {which} differently: {_words(after)}{also}"
    if before.grave:
        return f"{found.product} reads the new model differently, and the original too: {_words(after)}"
    return (
        f"{found.product} reads the new model differently: {_words(after)} (the original is unknown: "
        f"{one_line(before.reason, WIDEST)})"
    )


def _words(reading: Reading) -> str:
    """The first difference that matters, and how many there are."""
    grave = reading.grave
    more = f" (and {len(grave) - 1} more)" if len(grave) > 1 else ""
    return f"{one_line(str(grave[0]), WIDEST)}{more}"


def _is_inherited(before: Read, after: Read) -> bool:
    """Whether every difference of the fixed model is one of the original too.

    Where TensorRT reads the original correctly, none is. A difference is the original's where the original differs at
    the same tensor, even for a cause further up that a fix removed. Of an original that could not be read, only its
    tensors are known: what a fix added is new.
    """
    known = (_is_known(one, before) for one in after.reading.grave)
    return before.reading.status != "agrees" and all(known)


def _is_known(one: Misread, before: Read) -> bool:
    name, subject = one.place.output, (one.kind, one.subject, one.name)
    if before.reading.status == "differs":
        alike = any(subject == (other.kind, other.subject, other.name) for other in before.reading.grave)
        there = one.kind in ("value", "shape") and name in before.off
        return alike or there or any(name and name == other.place.output for other in before.reading.grave)
    return before.names.get(name, "") == one.place.op_type if one.place.op_type else name in before.names


# -- one model


def _compare(found: Builder, request: Request, path: Path, folder: Path, before: Read | None) -> Read:
    """Read back the network that TensorRT imports from the model file, into an empty folder, and compare. ``before`` is
    the reading of the original, whose inputs this model gets too where it accepts them.

    Raises:
        Fault: verification itself failed.
    """
    began = time.monotonic()
    out = folder / "seen-by-tensorrt.onnx"
    package, timeout = found.choice.package, found.options.timeout
    cached = request.networks.lifted.get(path) if request.networks is not None else None
    lifted = cached or lift.attempt(found.worker, path, out, package=package, timeout=timeout)
    status, cause = _STATUS_IF_UNREAD.get(lifted.status, ("unknown", ""))
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
    pair, excluded, unsure = _pair(request, path, model, lifted, network, before)
    base = replace(base, notes=(*base.notes, unsure)) if unsure else base
    bench = Bench(request.worker, str(folder))
    with bench:
        result = _compare_values(request, bench, pair, before, base, excluded)
    spent = (*lifted.seconds, max(0.0, time.monotonic() - began - sum(lifted.seconds)))
    return replace(result, reading=replace(result.reading, seconds=spent), names=names)


def _pair(
    request: Request, path: Path, model: ModelProto, lifted: Lifted, network: ModelProto, before: Read | None
) -> tuple[Pair, tuple[str, ...], str]:
    """The model and the network, with the network's names and types of the model's inputs; the outputs that are random
    in either; and what kept their weights from being compared."""
    inputs = [info.name for info in inputs_of(model.graph)]
    positions = partners(inputs, [tensor.name for tensor in lifted.inputs])
    files = [info.name for info in network.graph.input]
    wires = {name: (files[n], ONNX_TYPES[lifted.inputs[n].dtype]) for name, n in positions.items()}
    known = request.known if before is None else signature(model)
    pair = Pair(str(path), model, lifted, network, wires, known)
    outputs, drawn = output_pairs(pair), set(known.drawn or ())
    tensors = zip(network.graph.output, lifted.outputs, strict=False)
    random = {info.name for info, tensor in tensors if tensor.name in lifted.drawn}
    excluded = tuple(name for name, other in outputs if name in drawn or other in random)
    changed, unsure = weights(request.worker, pair, request.step)
    static = [*interface(model, lifted), *changed]
    compared = [names for names in outputs if names[0] not in excluded]
    return replace(pair, outputs=compared, static=static), excluded, unsure


def _compare_values(
    request: Request, bench: Bench, pair: Pair, before: Read | None, base: Reading, excluded: tuple[str, ...]
) -> Read:
    """Compare values, computed by the first backend that can run both."""
    trials = _adapt_trials(before.trials, request, pair.known) if before is not None else ()
    if before is not None and request.given is not None:
        request = replace(request, given=[less(feed, request.without) for feed in request.given])
    request = replace(request, known=pair.known, coarse=half_type(pair.model))
    tried: list[Comparison] = []
    for backend in _backends(request):
        tried.append(Comparison(request, bench, pair, backend, trials).run())
        if not tried[-1].lacking:
            break
    comparison = tried[-1]
    if comparison.lacking:
        comparison.unknown = "; ".join(f"{one.backend}: {one.lacking}" for one in tried)
        comparison.cause = "memory" if any(one.cause == "memory" for one in tried) else comparison.cause
    elif not comparison.unknown:
        comparison.cause = ""
    if any(misread.kind == "refused" for misread in comparison.misreads):
        # An invalid model has no defined meaning, so TensorRT cannot misread it.
        broken = validity.violated(Path(pair.path), timeout=request.step)
        if broken:
            return Read(replace(base, reason=f"it is not valid ONNX: {broken}"))
    if comparison.disputed:
        other = Comparison(request, bench, pair, "reference", trials).run()
        if other.compared and not other.stuck:
            # Invalid, but with an obvious meaning: the reference evaluator shows whether TensorRT imported that.
            other.misreads += [replace(misread, harmless=True) for misread in comparison.misreads]
            comparison = other
    undefined = comparison.undefined or ()
    comparison.undefined = frozenset(name for name, other in pair.outputs if other in undefined)
    if pair.outputs and len(comparison.undefined) == len(pair.outputs) and not comparison.misreads:
        comparison.unknown = comparison.unknown or _describe_undefined(comparison.undefined)
        comparison.undefined = None
    return _conclude(base, comparison, excluded)


def _adapt_trials(trials: Sequence[Trial], request: Request, own_signature: Signature) -> tuple[Trial, ...]:
    """The original's inputs, generated again if the fixed model declares others (specialized sizes aside)."""
    old = _declarations(request.known, request.without, sizes=request.special is None)
    if old == _declarations(own_signature, sizes=request.special is None):
        return tuple(replace(trial, values=less(trial.values, request.without)) for trial in trials)
    regenerated = []
    for trial in trials:
        if trial.feed is not None:
            with contextlib.suppress(UsageError, MemoryError):
                values = trial.feed.values(own_signature)
                regenerated.append(replace(trial, values=values))
    return tuple(regenerated)


def _declarations(
    declared: Signature, without: Sequence[str] = (), *, sizes: bool = True
) -> list[tuple[Any, ...]]:
    return [
        (info.name, info.kind, info.elem, info.dims if sizes else None, info.default is None)
        for info in declared.inputs
        if info.name not in without
    ]


def _backends(request: Request) -> Iterator[str]:
    """The available backends, best first."""
    if backends.missing("ort-cuda") is None and cuda.unavailable(request.worker, request.step) is None:
        yield "ort-cuda"
    if backends.missing("ort-cpu") is None:
        yield "ort-cpu"
    yield "reference"


def _conclude(base: Reading, comparison: Comparison, excluded: tuple[str, ...]) -> Read:
    # A wrong declared shape adds nothing where the tensor itself differs.
    plain = (
        misread
        for misread in comparison.pair.static
        if not (misread.harmless and misread.kind == "shape" and misread.name in comparison.off)
    )
    misreads = (*comparison.misreads, *plain)
    status, reason = _status_of(misreads, comparison)
    notes = [*base.notes, *comparison.notes]
    if comparison.undefined:
        notes.append(_describe_undefined(comparison.undefined))
    if excluded:
        notes.append(f"not compared, since they are random: {', '.join(excluded)}")
    ran = bool(comparison.compared)
    reading = replace(
        base,
        status=status,
        reason=reason,
        misreads=misreads,
        backend=comparison.backend if ran else "",
        feeds=len(comparison.compared),
        shapes=max(1, len(shapes(comparison.compared))) if ran else 0,
        excluded=excluded,
        noise=tuple(sorted(comparison.noise.items())),
        cause=comparison.cause if status == "unknown" else "",
        notes=tuple(dict.fromkeys(notes)),
    )
    off = comparison.off | {misread.name for misread in reading.grave}
    return Read(reading, comparison.trials, tuple(comparison.results), off, comparison.left_out)


def _describe_undefined(names: Iterable[str]) -> str:
    words = ", ".join(sorted(names))
    return f"only NaN and infinity on all inputs, which would hide a difference: output {words}"


def _status_of(misreads: Sequence[Misread], comparison: Comparison) -> tuple[ReadingStatus, str]:
    grave = any(not misread.harmless for misread in misreads)
    if comparison.unknown or not comparison.compared:
        return ("differs" if grave else "unknown"), comparison.unknown
    elements = any(part.elements for result in comparison.results for part in result.metrics)
    if not grave and not elements:
        return "unknown", "no output has a value that could be compared"
    feeds, sizes = len(comparison.compared), len(shapes(comparison.compared))
    over = f" over {sizes} shapes" if sizes > 1 else ""
    reason = f"{feeds} feed{'s' * (feeds > 1)}{over}, {_BACKEND_TITLES[comparison.backend]}"
    return ("differs" if grave else "agrees"), reason
