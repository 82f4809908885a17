"""The verification ladder: rung by rung, does the fixed model do what the original does?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from onnxfix import walk
from onnxfix.causes import Cause
from onnxfix.errors import ModelError, UsageError, fault_of
from onnxfix.sandbox import Worker, one_line, shared
from onnxfix.trt.records import TrtOptions
from onnxfix.verification import validity
from onnxfix.verification.feeds import plan
from onnxfix.verification.feeds.signature import Signature, signature
from onnxfix.verification.request import REMOTE, Request
from onnxfix.verification.specialize.special import Special
from onnxfix.verification.verdict import ALONE, CPU_RUNGS, RUNGS, FeedResult, RungResult, Verdict, unjudged

__all__ = ["DEFAULT_RUNGS", "RUNGS", "FeedResult", "Limits", "RungResult", "Verdict", "verify"]

#: ``contract(original, fixed)`` returns the violations, one line each.
Contract = Callable[[onnx.ModelProto, onnx.ModelProto], list[str]]

#: What runs when nothing else is asked for.
DEFAULT_RUNGS = ("contract", "reference", "ort-cpu", "ort-cuda", "trt-build", "trt-network", "trt-gpu")


@dataclass(frozen=True)
class Limits:
    """Seconds that a rung may take.

    ``step`` for loading a model or running it once with ONNX Runtime, ``reference_step`` for the same in the
    reference evaluator, ``total`` and ``reference_total`` for all feeds of a rung: the feed that runs when time is
    up is the last. ``memory_mb`` limits the child, by default to three quarters of what is available.
    """

    step: float = 120.0
    reference_step: float = 10.0
    total: float = 300.0
    reference_total: float = 10.0
    memory_mb: int | None = None


def verify(
    original: Path | str,
    fixed: Path | str,
    *,
    exact: bool,
    contract: Contract | None = None,
    inputs: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None,
    input_shapes: Sequence[str] | Mapping[str, Sequence[int]] = (),
    seed: int = 0,
    require: Sequence[str] = (),
    rungs: Sequence[str] | None = None,
    noise: Mapping[str, float] | None = None,
    limits: Limits | None = None,
    worker: Worker | None = None,
    trt: TrtOptions | None = None,
    inherit: bool = False,
    models: tuple[onnx.ModelProto, onnx.ModelProto] | None = None,
    ready: Callable[[], None] = lambda: None,
    special: Special | None = None,
) -> Verdict:
    """Compare a fixed model with its original, both given by path (external data lies beside each).

    ``exact`` demands identical bits, else outputs may differ within ``compare.tolerance_for`` plus four times
    ``noise`` (output name -> absolute error of the original, measured by the caller), and where the original leaves
    half precision's range, the original in higher precision judges (``compare.Twin``); in float32 they may differ as
    much as the original does from itself in float64 (``noise.excused``). ``inputs`` is a path for
    ``load_inputs`` or the feeds themselves; without it inputs are made from ``seed`` over a sweep of shapes, of
    which ``input_shapes`` fixes a part. ``rungs`` are the rungs to climb (None: DEFAULT_RUNGS and the required
    ones), ``require`` those that must pass. ``worker`` is a sandbox to use and leave
    running; without it ``sandbox.shared`` is used, or one of its own where ``limits`` bound the memory. ``trt`` is
    what is asked of TensorRT. With ``inherit``, what the original fails as well is no fault of the fixed model: such
    a rung says "failed" and does not count against it. ``models`` are what the two files hold, where the caller has it.
    ``ready`` is called, often, before the fixed model's external data is looked at: it returns once that is in place.
    ``special`` says how the fixed model is specialized: both are fed its sizes and values, the fixed model without the
    inputs that it no longer has.

    Crashes, hangs and memory bombs of a model are results. Raises UsageError for rungs, shapes and inputs that do
    not fit, and ModelError when a model cannot be read.
    """
    unknown = [name for name in (*require, *(rungs or ())) if name not in RUNGS]
    if unknown:
        raise UsageError(f"there is no rung {unknown[0]}; the rungs are {', '.join(RUNGS)}")
    wanted = {*(DEFAULT_RUNGS if rungs is None else rungs), *require}
    limits = limits or Limits()
    known = signature(_existing(original) if models is None else models[0])
    if special is not None:
        known = replace(known, pinned=special.values)
    if wanted.intersection(("trt-build", "trt-network", "trt-gpu")):
        from onnxfix.verification.rungs import build, probe

        build.check(trt or TrtOptions(), known)
        probe.warm(trt or TrtOptions())
    with ExitStack() as stack:
        if worker is None and limits.memory_mb is not None:
            worker = stack.enter_context(Worker(memory_mb=limits.memory_mb))
        worker = worker or shared()
        stack.callback(_drop, worker)
        base = Request(
            original=Path(original).absolute(),
            fixed=_existing(fixed).absolute(),
            known=known,
            worker=worker,
            exact=exact,
            seed=seed,
            noise=dict(noise or {}),
            shapes={**_bound(known, input_shapes), **(special.sizes if special is not None else {})},
            given=_given(known, inputs),
            trt=trt or TrtOptions(),
            inherit=inherit,
            half="" if exact else half_type(known.model),
            precise=not exact,
            special=special,
        )
        results: list[RungResult] = []
        for name in RUNGS:
            if name in wanted:
                began = time.monotonic()
                asked = base if name in require else replace(base, shown=_shown(results))
                request = _forgiving(asked, results) if name == "ort-cpu" else asked
                if name == "contract":
                    held = models[1] if models is not None else None
                    result = _contract(request, contract, limits, held, ready)
                else:
                    ready()
                    result = _guarded(name, request, limits)
                if special is not None and name not in ALONE and result.status in ("passed", "failed"):
                    result = replace(result, reason=f"{result.reason}, with {special.words}")
                if request.forgiven:
                    result = replace(result, notes=(*result.notes, _HALF))
                # A GPU's kernels are chosen by shape: there, agreement within tolerance is all that is judged.
                judged_exactly = request.exact and name in CPU_RUNGS
                results.append(
                    replace(result, seed=seed, exact=judged_exactly, seconds=time.monotonic() - began)
                )
    return Verdict(tuple(results), tuple(require))


def _drop(worker: Worker) -> None:
    """Have the child let go of the models, which may be large."""
    if worker.pid is not None:
        worker.call(f"{REMOTE}:drop", timeout=30.0)


_HALF = (
    "half precision: bit-identical on the reference rung, which rounds as ONNX says; here within the tolerance of "
    "that type, since ONNX Runtime computes it in float32 on the CPU and drops Casts even with optimizations off"
)


def _forgiving(request: Request, results: Sequence[RungResult]) -> Request:
    """How ONNX Runtime's CPU provider is asked about a model that computes in half precision.

    It has few kernels for these types: it puts Casts of its own around nodes and removes Casts in pairs, its own or
    not (onnxruntime issues 8787 and 17565), so where it rounds depends on which nodes are neighbors, and an exact
    rewrite changes bits. Where the reference evaluator, which rounds after every node, found identical bits, the
    tolerance of the half type is enough here; where it did not run, nothing is forgiven.
    """
    half = half_type(request.known.model)
    proven = any(rung.name == "reference" and rung.status == "passed" and rung.exact for rung in results)
    if not (request.exact and half and proven):
        return request
    return replace(request, exact=False, coarse=half, forgiven=True)


def _shown(results: Sequence[RungResult]) -> str:
    """The first rung that compared the two models and passed; "" where there is none."""
    return next((rung.name for rung in results if rung.status == "passed" and rung.name not in ALONE), "")


def half_type(model: onnx.ModelProto) -> str:
    """The coarser of the half-precision types that nodes, inputs or weights of the model name; "" for none."""
    types = {tensor.data_type for tensor in walk.model_tensors(model)}
    types.update(info.type.tensor_type.elem_type for info in model.graph.input)
    for node in walk.model_nodes(model):
        types.update(a.i for a in node.attribute if a.name in ("to", "dtype", "output_dtype"))
    if onnx.TensorProto.BFLOAT16 in types:
        return "bfloat16"
    return "float16" if onnx.TensorProto.FLOAT16 in types else ""


def _existing(path: Path | str) -> Path:
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"{path} is no file")
    return path


def _bound(known: Signature, shapes: Sequence[str] | Mapping[str, Sequence[int]]) -> dict[str, int]:
    given = shapes if isinstance(shapes, Mapping) else plan.parse_shapes(shapes, known.names)
    return plan.bind_shapes(known, given)


def _given(known: Signature, inputs: Any) -> list[dict[str, Any]] | None:
    if inputs is None:
        return None
    from onnxfix.verification.feeds.files import check_inputs, load_inputs

    feeds = load_inputs(Path(inputs)) if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    if not feeds:
        raise UsageError("the inputs given hold no feed")
    return check_inputs(known, feeds)


def _guarded(name: str, request: Request, limits: Limits) -> RungResult:
    """``_rung``, whose own failure is a result too. It says nothing about the models, and the other rungs still do.

    What the machine lacks (a full disk, memory) and what the user can mend is raised.
    """
    try:
        return _rung(name, request, limits)
    except Exception as error:
        words = fault_of(error)
        if not words:
            raise
        return unjudged(name, words, "fault")


def _rung(name: str, request: Request, limits: Limits) -> RungResult:
    """Any rung but the contract, which alone needs nothing of what is imported here."""
    from onnxfix.verification.readback import network
    from onnxfix.verification.rungs import build, gpu
    from onnxfix.verification.runner import climb

    if name == "reference":
        return climb(replace(request, step=limits.reference_step, total=limits.reference_total), name)
    request = replace(request, step=limits.step, total=limits.total)
    if name == "ort-cpu":
        return climb(request, name)
    if name == "trt-build":
        return build.climb(request)
    # On a GPU nothing is asked for bit by bit, so half precision need not be proven elsewhere first.
    request = replace(request, coarse=half_type(request.known.model))
    if name == "ort-cuda":
        return climb(request, name)
    return network.climb(request) if name == "trt-network" else gpu.climb(request)


def _contract(
    request: Request,
    contract: Contract | None,
    limits: Limits,
    fixed: onnx.ModelProto | None,
    ready: Callable[[], None],
) -> RungResult:
    """The caller's interface contract, and onnx's checker: the fixed model must pass if the original does."""
    name = "contract"
    if contract is not None:
        other = request.known if request.fixed == request.original or fixed else signature(request.fixed)
        violations = contract(request.known.model, fixed or other.model)
        if violations:
            more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
            return RungResult(
                name, "failed", one_line(violations[0]) + more, notes=tuple(map(one_line, violations))
            )
    ready()
    same = request.fixed == request.original
    files = (request.original,) if same else (request.original, request.fixed)
    checks = validity.ask(files, timeout=limits.step, memory_mb=limits.memory_mb)
    judged = validity.judge(checks)
    if contract is None or judged.status == "failed":
        starved = judged.status == "skipped" and any(one.starved for one in checks)
        cause: Cause = "memory" if starved else ""
        return RungResult(name, judged.status, judged.words, notes=judged.notes, checks=checks, cause=cause)
    apart = request.special is not None or any(one.complaint or one.starved for one in checks)
    also = "; " if apart else " and "
    kept = "the interface is unchanged"
    if request.special is not None:
        kept = f"the interface changed as asked ({request.special.words}) and nowhere else"
    words = f"{kept}{also}{judged.words}"
    return RungResult(name, "passed", words, notes=judged.notes, checks=checks)
