"""The proof: does the fixed model compute what the original computes? One check after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import onnx

from onnxfix.errors import ModelError, UsageError, fault_of
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.signature import signature
from onnxfix.inputs.specialize import ResolvedSpecialization
from onnxfix.names import RUNGS
from onnxfix.proof import validity
from onnxfix.proof.compare.tolerance import Allowed
from onnxfix.proof.compare.twin import half_type
from onnxfix.proof.request import REMOTE, Fed, Request, is_redundant, networks, read_feeds
from onnxfix.proof.verdict import ALONE, CPU_RUNGS, FeedResult, RungResult, Verdict, unjudged
from onnxfix.runtime import deadline
from onnxfix.runtime.allowance import DEFAULT, QUICK, THOROUGH, Effort
from onnxfix.runtime.backends import ON_GPU
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.sandbox import Worker, one_line, shared
from onnxfix.tensorrt.records import TrtOptions

if TYPE_CHECKING:
    from onnxfix.proof.checks.rest import Rest

__all__ = ["DEFAULT_RUNGS", "RUNGS", "FeedResult", "Limits", "RungResult", "Verdict", "verify"]

#: ``contract(original, fixed)`` returns the violations, one line each.
Contract = Callable[[onnx.ModelProto, onnx.ModelProto], list[str]]

#: What runs by default: ort-trt builds engines once more.
DEFAULT_RUNGS = RUNGS[:-1]
#: Checks that need TensorRT.
_TENSORRT = ("trt-build", "trt-network", "trt-gpu")
#: What each of RUNGS costs: shares of a proof, as measured on full-size exports (benchmarks/proof).
_COSTS = dict(zip(RUNGS, (3, 10, 3, 25, 3, 45, 15, 10, 30), strict=True))
#: Checks that load models in the child but for TensorRT's.
_EXECUTING = ("symbolic", "reference", "ort-cpu")


@dataclass(frozen=True)
class Limits:
    """Time limits of a check, in seconds, and its memory limit.

    ``step`` bounds loading a model and running it once with ONNX Runtime, ``reference_step`` the same in the reference
    evaluator. ``total`` and ``reference_total`` bound all feeds of a check: the feed that runs when time is up is the
    last. ``symbolic_total`` bounds the check symbolic, in seconds of the processor. ``rung`` bounds all that a check
    does; what it has judged until then counts. ``memory_mb`` limits the child process, by default to three quarters of
    the memory that is available.
    """

    step: float = 120.0
    reference_step: float = 10.0
    total: float = 300.0
    reference_total: float = 10.0
    symbolic_total: float = 10.0
    rung: float | None = None
    memory_mb: int | None = None


# Long because: all that a comparison may be told is declared and described here.
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
    limits: Limits | None = None,
    worker: Worker | None = None,
    trt: TrtOptions | None = None,
    inherit: bool = False,
    models: tuple[onnx.ModelProto, onnx.ModelProto] | None = None,
    special: ResolvedSpecialization | None = None,
    allowed: Allowed | None = None,
    effort: Effort = THOROUGH,
    only: Sequence[Fed] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """Compare a fixed model with its original, both given by path; external data lies beside each.

    A crash, a hang or a lack of memory of a model is a result. For the arguments see ``Request``, and:

    Args:
        inputs: a path for ``load_inputs``, or the feeds. By default inputs are made from ``seed``, over a sweep of
            shapes of which ``input_shapes`` fixes a part.
        require: checks that must pass. ``rungs`` are those to run (default: DEFAULT_RUNGS), and the required ones.
        worker: the sandbox to use, which stays open (default: ``sandbox.shared``, or one with the memory limit).
        models: the contents of the two files, where the caller has them.
        say: is told which check runs, and how far the proof is.

    Raises:
        UsageError: checks, shapes or inputs that do not exist or do not fit the model.
        ModelError: a model cannot be read.
    """
    for name in (*require, *(rungs or ())):
        if name not in RUNGS:
            raise UsageError(f"unknown check {name!r}; choose from {', '.join(RUNGS)}")
    wanted = {*(DEFAULT_RUNGS if rungs is None else rungs), *require}
    limits, trt = limits or Limits(), trt or TrtOptions()
    known = signature(_existing(original) if models is None else models[0])
    known = known if special is None else replace(known, pinned=special.values)
    if wanted.intersection(_TENSORRT):
        from onnxfix.proof.checks import builder  # lazy: start-up

        builder.check(trt, known)  # mistakes in the options show before any work is done
    with ExitStack() as stack:
        if worker is None and limits.memory_mb is not None:
            worker = stack.enter_context(Worker(memory_mb=limits.memory_mb))
        worker = worker or shared()
        stack.callback(release, worker)
        both = wanted.issuperset(("trt-build", "trt-network"))
        request = Request(
            original=Path(original).absolute(),
            fixed=_existing(fixed).absolute(),
            known=known,
            worker=worker,
            exact=exact,
            seed=seed,
            shapes={**plan.bind_sizes(known, input_shapes), **(special.sizes if special is not None else {})},
            given=read_feeds(known, inputs),
            step=limits.step,
            total=limits.total,
            trt=trt,
            inherit=inherit,
            half="" if exact else half_type(known.model),
            precise=not exact,
            special=special,
            allowed=None if exact else allowed,
            networks=stack.enter_context(networks()) if both else None,
            effort=effort,
            only=tuple(only),
        )
        spare = rungs is None and "reference" not in require and not effort.whole
        proof = _Proof(request, limits, contract, models[1] if models is not None else None, stack, say)
        results = proof.run(wanted, require, spare=spare)
        return Verdict(results, tuple(require), allowed=request.allowed)


@dataclass
class _Proof:
    """Runs check after check: ``fixed`` is the fixed model where the caller has it; ``stack`` unwinds at the end."""

    request: Request
    limits: Limits
    contract: Contract | None
    fixed: onnx.ModelProto | None
    stack: ExitStack
    say: Callable[[str], None]
    worker: Worker | None = None  # the child, where it runs models
    wanted: tuple[str, ...] = ()  # checks to run
    _parts: dict[bool, Rest | str] = field(default_factory=dict)

    def run(
        self, wanted: Collection[str], require: Collection[str], *, spare: bool
    ) -> tuple[RungResult, ...]:
        """The results of the ``wanted`` checks, in order. Where engines must run and cannot, nothing else does.

        Where the reference evaluator would add nothing and may be ``spare``d, ONNX Runtime has the first turn, and the
        evaluator runs only if that has not passed. Then ONNX Runtime has another turn, as if the evaluator had been
        first.
        """
        if "trt-gpu" in require:
            from onnxfix.proof.checks import probe  # lazy: start-up

            absent = probe.unavailable(self.request.trt)
            if absent is not None:
                return (unjudged("trt-gpu", absent.reason, absent.cause),)
        results: dict[str, RungResult] = {}
        if any(name in wanted for name in _EXECUTING):
            self.worker = self.request.worker
        redundant, self.wanted = "", tuple(name for name in RUNGS if name in wanted)
        for name in self.wanted:
            if name == "reference" and spare and "ort-cpu" in wanted:
                redundant = self._is_redundant(results)
                if redundant:
                    continue
            results[name] = self._check(name, results, name in require)
            if name != "ort-cpu" or not redundant:
                continue
            if results[name].status == "passed":
                results["reference"] = unjudged("reference", redundant, "redundant")
                continue
            results["reference"] = self._check("reference", results, False)
            if results["reference"].status == "passed":
                before = {one: result for one, result in results.items() if one in ("symbolic", "reference")}
                again = self._check(name, before, name in require)
                results[name] = again if again.cause != "timeout" else results[name]
        return tuple(results[name] for name in RUNGS if name in results)

    def _is_redundant(self, results: Mapping[str, RungResult]) -> str:
        """Why the reference evaluator adds nothing to the other checks; "" where it may."""
        if _is_proven(results.values()):
            return "adds nothing to symbolic"
        costly = is_redundant(self.request, half_type(self.request.known.model))
        return "adds nothing to ort-cpu" if costly else ""

    def _check(self, name: str, before: Mapping[str, RungResult], required: bool) -> RungResult:
        """The result of a check after those ``before``."""
        began, results = time.monotonic(), tuple(before.values())
        request = replace(self.request, tell=partial(self._tell, name))
        limit = {"symbolic": self.limits.symbolic_total, "reference": self.limits.reference_total}.get(name)
        self._tell(name, 0.0, f"at most {limit:g} s" if limit is not None else "")
        proven = len(results) == 1 and results[0].name == "contract" and not results[0].refutes
        if proven and request.networks is not None and name in CPU_RUNGS:
            from onnxfix.proof.checks import build  # lazy: start-up

            with suppress(deadline.Expired):  # TensorRT builds meanwhile; the checks themselves say so
                build.begin(request)
        if not required:
            compared = (one.name for one in results if one.status == "passed" and one.name not in ALONE)
            request = replace(request, shown=next(compared, ""))
        if name == "ort-cpu":
            request = _forgive(request, results)
            if _is_proven(results) and request.effort == DEFAULT:
                request = replace(request, effort=QUICK)
        result = self._noted(self._result(name, request), request)
        if name == "ort-cpu" and request.networks is not None:
            feeds = [(one.feed, one.status) for one in result.feeds if one.feed is not None]
            request.networks.ran = tuple(feed for feed, status in feeds if status != "not counted")
            if all(one.stopped == "original" and one.cause == "refused" for one in result.feeds):
                request.networks.refused = tuple(feed for feed, _ in feeds)
        return replace(result, seed=request.seed, seconds=time.monotonic() - began)

    def _tell(self, name: str, part: float, words: str) -> None:
        """Say that a check runs, of which this part is done, and what it does."""
        done = sum(_COSTS[one] for one in self.wanted[: self.wanted.index(name)]) + part * _COSTS[name]
        percent = 100 * done / sum(_COSTS[one] for one in self.wanted)
        self.say(f"verifying, {percent:.0f} %: {', '.join(filter(None, (name, words)))}")

    def _result(self, name: str, request: Request) -> RungResult:
        """The result of a check. Its own failure is one too: that proves nothing about the models, and the other checks
        still run. Errors that the machine causes (a full disk, no memory) or that the user can fix are raised."""
        if deadline.over():
            return unjudged(name, "not run: the time limit was over", "timeout")
        try:
            if name == "contract":
                return self._contract(request)
            # The contract always runs to its end: no other check may pass without it.
            with deadline.within(self.limits.rung), deadline.watched():
                return self._judge(name, request)
        except deadline.Expired:
            return unjudged(name, "stopped at the time limit", "timeout")
        except Exception as error:
            fault = fault_of(error) if name != "contract" else ""
            if not fault:
                raise
            return unjudged(name, fault, "fault")

    def _judge(self, name: str, request: Request) -> RungResult:
        """The result of a check; on a part of the models where TensorRT lacks what the target has, and where rounding
        decides which elements are chosen."""
        result = _rung(name, request, self.limits)
        if name in _TENSORRT and result.status == "skipped" and result.cause in ("target-only", "refused"):
            result = self._judge_part(result, request, choices=False)
        if name in _TENSORRT and result.cause == "choice":
            result = self._judge_part(result, request, choices=True)
        return result

    def _judge_part(self, result: RungResult, request: Request, *, choices: bool) -> RungResult:
        """The result of a check on the part of the models that TensorRT can judge, or on the part around the nodes that
        choose elements; ``result`` with the reason where there is none."""
        if choices not in self._parts:
            from onnxfix.proof.checks import rest  # lazy: start-up, seldom used

            folder = TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True)
            place = Path(self.stack.enter_context(folder))
            self._parts[choices] = rest.make(self.request, place, choices=choices)
        part = self._parts[choices]
        if isinstance(part, str):
            said = bool(part) and not result.judged
            return replace(result, reason=f"{result.reason}; {part}") if said else result
        found = _rung(result.name, part.of(request), self.limits)
        cause = found.cause if found.cause == "choice" else result.cause
        reason = f"{result.reason}; of the rest: {found.reason}"
        return part.marked(found) or replace(result, reason=reason, cause=cause)

    def _contract(self, request: Request) -> RungResult:
        """The caller's interface contract, and onnx's checker, which the fixed model must pass if the original does."""
        name, limits, fixed, same = "contract", self.limits, self.fixed, request.fixed == request.original
        if self.contract is not None:
            other = request.known.model if same else fixed or signature(request.fixed).model
            violations = tuple(map(one_line, self.contract(request.known.model, other)))
            if violations:
                more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
                return RungResult(name, "failed", violations[0] + more, notes=violations)
        checks = validity.ask(
            (request.original,) if same else (request.original, request.fixed),
            timeout=limits.step,
            memory_mb=limits.memory_mb,
            worker=self.worker,
        )
        status, words, notes = validity.judge(checks)
        starved = any(one.starved for one in checks)
        if self.contract is None or status == "failed":
            cause: Cause = "memory" if status == "skipped" and starved else ""
            return RungResult(name, status, words, notes=notes, checks=checks, cause=cause)
        kept, also = "the interface is unchanged", " and "
        if request.special is not None:
            kept = f"the interface changed only as requested ({request.special.words})"
        if request.special is not None or starved or any(one.complaint for one in checks):
            also = "; "
        return RungResult(name, "passed", f"{kept}{also}{words}", notes=notes, checks=checks)

    def _noted(self, result: RungResult, request: Request) -> RungResult:
        """The result with what it holds for: the specialization, the tolerance, and whether it was exact."""
        special = request.special
        if special is not None and result.name not in ALONE and result.judged:
            result = replace(result, reason=f"{result.reason}, with {special.words}")
        if request.forgiven:
            result = replace(result, notes=(*result.notes, _HALF))
        # A GPU's kernels are chosen by shape: there, only agreement within tolerance is judged.
        return replace(result, exact=request.exact and result.name in CPU_RUNGS)


def release(worker: Worker) -> None:
    """Have the child release the models, which may be large."""
    if deadline.over():
        worker.close()
    elif worker.pid is not None:
        worker.call(f"{REMOTE}:drop", timeout=30.0)


def _is_proven(results: Iterable[RungResult]) -> bool:
    """Whether the models are proven the same for all values."""
    return any(one.name == "symbolic" and one.status == "passed" for one in results)


_HALF = (
    "half precision: bit-identical where each node rounds as ONNX specifies (reference or symbolic); here within the "
    "tolerance of that type, since ONNX Runtime computes it in float32 on the CPU and drops Casts even with "
    "optimizations off"
)


def _forgive(request: Request, results: Sequence[RungResult]) -> Request:
    """The request for ONNX Runtime's CPU provider, with a tolerance where the model computes in half precision.

    The provider has few kernels for these types. It puts Casts of its own around nodes and removes Casts in pairs, its
    own or not (onnxruntime issues 8787 and 17565). Where it rounds depends on which nodes are neighbors, so that an
    exact rewrite changes bits. Where the reference evaluator, which rounds after every node, found identical bits, or
    the models are proven the same for all values, the tolerance of the half type is enough. Without either there is
    none.
    """
    half = half_type(request.known.model)
    proven = any(one.name == "reference" and one.status == "passed" and one.exact for one in results)
    if not (request.exact and half and (proven or _is_proven(results))):
        return request
    return replace(request, exact=False, coarse=half, forgiven=True)


def _existing(path: Path | str) -> Path:
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"{path} is not a file")
    return path


def _rung(name: str, request: Request, limits: Limits) -> RungResult:
    """The result of any check but ``contract``, which needs none of these imports."""
    from onnxfix.proof.checks import build, gpu  # lazy: start-up
    from onnxfix.proof.execution import run_check  # lazy: start-up
    from onnxfix.proof.readback import network  # lazy: start-up

    if name == "symbolic":
        from onnxfix.proof.checks import symbolic  # lazy: start-up

        return symbolic.run(replace(request, total=limits.symbolic_total))
    if name == "reference":
        return run_check(replace(request, step=limits.reference_step, total=limits.reference_total), name)
    if name == "ort-cpu":
        return run_check(request, name)
    # TensorRT is never held to identical bits, nor a GPU, so half precision need not be proven elsewhere first.
    exact, request = request, replace(request, coarse=half_type(request.known.model))
    if name == "trt-build":  # with a time limit for each check, none spends that of another
        read = partial(network.read_original, request) if limits.rung is None else None
        return build.run(exact, meanwhile=read)
    if name in ON_GPU:
        return run_check(request, name)
    return network.run(request) if name == "trt-network" else gpu.run(request)
