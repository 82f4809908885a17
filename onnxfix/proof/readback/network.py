"""Check trt-network: the network that TensorRT imported computes the same as the ONNX model.

Each model is compared with TensorRT's import of that same model: the network is read back as an ONNX model
(``trt.lift``), and ONNX Runtime executes both on the same inputs. That proves the import for these inputs. It proves
nothing about kernels and fusions, since no engine is executed (the check trt-gpu does that), nor that the original and
the fixed model are the same, which earlier checks prove.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from onnxfix.errors import fault_of
from onnxfix.proof.checks.build import NOT_EXECUTED
from onnxfix.proof.checks.builder import Builder, builder
from onnxfix.proof.checks.trials import key_of
from onnxfix.proof.readback.read import Read, read
from onnxfix.proof.request import Request
from onnxfix.proof.verdict import RungResult, Status, unjudged
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt.reading import Misread, Reading

NAME = "trt-network"
#: Status of a reading of the fixed model -> that of the check. With any other, the check is skipped.
_STATUS: dict[str, Status] = {"agrees": "passed", "differs": "failed", "broke": "broke"}
_WIDEST = 300  # characters of one difference in the check's one line


def run(request: Request) -> RungResult:
    """Read both models back and compare each with what was read.

    Raises:
        UsageError: an option of TensorRT's does not exist.
    """
    found = builder(request.trt)
    if isinstance(found, Missing):
        return unjudged(NAME, found.reason, found.cause)
    with closing(found):
        before = _original(found, request)
        if request.fixed == request.original:
            return judge((before,), found, inherit=request.inherit)
        after = _read(found, request, request.fixed, before)
    return judge((before, after), found, inherit=request.inherit)


def reading(request: Request, found: Builder) -> Reading:
    """TensorRT's reading of the original alone."""
    return _original(found, request).reading


#: The last original, with a key: a run that withdraws fixes needs it again for every candidate.
_LAST: list[tuple[object, Read]] = []


def _original(found: Builder, request: Request) -> Read:
    key = key_of(request, found)
    if not _LAST or _LAST[0][0] != key:
        _LAST[:] = [(key, _read(found, request, request.original, None))]
    return _LAST[0][1]


def _read(found: Builder, request: Request, path: Path, before: Read | None) -> Read:
    """The result of ``read``, or that onnxfix itself failed there: the other model may still be read."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        try:
            return read(request, found, path, Path(folder), before)
        except Exception as error:
            fault = fault_of(error)
            if not fault:
                raise
    choice = found.choice
    broke = Reading("broke", fault, package=choice.package, version=choice.version, cause="fault")
    return Read(broke)


def judge(reads: Sequence[Read], found: Builder, *, inherit: bool) -> RungResult:
    """The check's result for the readings of the original and of the fixed model (or of the one model).

    With ``inherit``, the fixes are not to blame for what TensorRT reads differently in both.
    """
    before, after, single = reads[0], reads[-1], len(reads) == 1
    named = [*zip(("",) if single else ("original: ", "fixed: "), reads, strict=True)]
    notes = [f"{name}{note}" for name, one in named for note in one.reading.notes]
    if not single and not before.reading.judged:
        notes.append(f"original: {one_line(before.reading.reason, _WIDEST)}")
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
        inherited=inherit
        and after.reading.status == "differs"
        and _is_inherited(before, after, single=single),
    )


def _outcome(reads: Sequence[Read], found: Builder) -> str:
    """The check in one line."""
    before, after = reads[0].reading, reads[-1].reading
    single = len(reads) == 1
    which = "the model" if single else "the new model"
    if not after.judged:
        return _unread(after, which, found)
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
        f"{one_line(before.reason, _WIDEST)})"
    )


def _unread(reading: Reading, which: str, found: Builder) -> str:
    why = one_line(reading.reason, _WIDEST)
    if reading.status == "refused":
        return f"{found.product} does not import {which}: {why}"
    if reading.status == "gap":
        return f"the network of {which} cannot be read back: {why}"
    if reading.status == "broke":
        return f"reading back {found.product}'s network of {which} failed: {why}"
    return f"it is unknown how {found.product} reads {which}: {why}"


def _words(reading: Reading) -> str:
    """The first difference that matters, and how many there are."""
    grave = reading.grave
    more = f" (and {len(grave) - 1} more)" if len(grave) > 1 else ""
    return f"{one_line(str(grave[0]), _WIDEST)}{more}"


def _is_inherited(before: Read, after: Read, *, single: bool) -> bool:
    """Whether every difference of the fixed model is one of the original too.

    Where TensorRT reads the original correctly, none is. A difference is the original's where the original differs at
    the same tensor, even for a cause further up that a fix removed. Of an original that could not be read, only its
    tensors are known: what a fix added is new.
    """
    if single:
        return True
    if before.reading.status == "agrees":
        return False
    return all(_is_known(one, before) for one in after.reading.grave)


def _is_known(one: Misread, before: Read) -> bool:
    name, subject = one.place.output, (one.kind, one.subject, one.name)
    if before.reading.status == "differs":
        alike = any(subject == (other.kind, other.subject, other.name) for other in before.reading.grave)
        there = one.kind in ("value", "shape") and name in before.off
        return alike or there or any(name and name == other.place.output for other in before.reading.grave)
    return before.names.get(name, "") == one.place.op_type if one.place.op_type else name in before.names
