"""Judges one drawn model: what rules find and fix in it, and whether the result keeps every promise."""

from __future__ import annotations

import atexit
import gc
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from command import reported
from onnx import ModelProto

from onnxfix.files import walk
from onnxfix.files.walk import copied
from onnxfix.model import Model
from onnxfix.rewrite import engine
from onnxfix.rewrite.engine import FixRun, check_build
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule, Safety
from onnxfix.runtime.sandbox import Worker
from onnxfix.targets import target_named
from onnxfix.tensorrt import build as trt_build
from onnxfix.tensorrt.records import TrtBuild
from onnxfix.verbs import contract
from random_models.execution import (
    Original,
    TooLong,
    contradicts_itself,
    differences,
    from_unset_memory,
    limited,
    refuted_by_ladder,
)
from random_models.generator import Drawn, draw
from random_models.pieces import examples, refused

PACKAGE = "tensorrt-rtx"
_TYPE = re.compile(r"\b(u?int|float|bfloat|fp|bf)\d+\b", re.IGNORECASE)


@cache
def _worker() -> Worker:
    worker = Worker(memory_mb=4096)
    atexit.register(worker.close)
    return worker


def _tried(proto: ModelProto, *, build: bool) -> TrtBuild:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(proto.SerializeToString())
        return trt_build.attempt(_worker(), path, package=PACKAGE, timeout=60.0, parse_only=not build)


def compared(original: ModelProto, fixed: ModelProto | None, *, build: bool) -> dict[str, str]:
    """What TensorRT says of both: "before", "after" and, where it took the original alone, why: "lost".

    Only what is fixed is tried unless ``build``: then rules about builds have their say of the original, too.
    """
    if fixed is None and not build:
        return {}
    first = _tried(original, build=build)
    found = {"stage": "build" if build else "parse", "before": _word(first), "codes": " ".join(_codes(first))}
    if fixed is not None:
        second = _tried(fixed, build=build)
        found["after"] = _word(second)
        lost = first.accepted and not second.accepted
        if lost and (build or not _same_refusal(_tried(original, build=True), second)):
            found["lost"] = f"{second.stage}: {second.reason}"[:400]
    return found


def _same_refusal(built: TrtBuild, parsed: TrtBuild) -> bool:
    """Whether the builder refuses the original for what the parser refuses the fixed model for.

    The parser takes some of what the builder refuses: then nothing was lost. Any other end of the build (a timeout, a
    crash, a lack of memory) says nothing of the original, and neither does another refusal of the fix.
    """
    if built.status != "refused" or parsed.status != "refused":
        return False
    return bool(_causes(parsed)) and _causes(parsed) <= _causes(built)


def _causes(one: TrtBuild) -> set[tuple[str, str]]:
    """Operator and words of each error, without names and numbers, which a fix may change, but with types."""
    causes = ((error.place.op_type, " ".join(filter(_says, error.text.split()))) for error in one.errors)
    return {(operator, words) for operator, words in causes if words}


def _says(word: str) -> bool:
    return bool(_TYPE.search(word)) or not re.search(r"[\d_/]", word)


def _word(one: TrtBuild) -> str:
    return "accepted" if one.accepted else f"{one.status} ({one.stage})"


def _codes(one: TrtBuild) -> Iterable[str]:
    return sorted({found.rule.code for found in check_build(one, registry().rules)})


def codes_of(found: dict[str, str]) -> set[str]:
    """The rules about builds that a model reached."""
    return set(found.get("codes", "").split())


def commanded(judged: Judged, drawn: Drawn, result: ModelProto) -> None:
    """Hold ``onnxfix apply``, with all of its checks, to what the engine did here."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "model.onnx"), Path(folder, "fixed.onnx")
        source.write_bytes(drawn.proto.SerializeToString())
        options = [source, "-o", target]
        options += ["--target", drawn.target] if drawn.target else []
        options += {Safety.NUMERIC: ["--numeric-fixes"], Safety.UNSAFE: ["--unsafe-fixes"]}.get(
            drawn.safety, []
        )
        code, report, seconds = reported("apply", *options, limit=300.0)
        written = target.read_bytes() if target.exists() else b""
    rungs = {one["name"]: one["status"] for one in (report.get("verdict") or {}).get("rungs", ())}
    withdrawn = [one["code"] for one in report.get("withdrawn", ())]
    found = Counter(one["code"] for one in report.get("findings", ()))
    judged.command = {"exit": code, "rungs": rungs, "withdrawn": withdrawn, "seconds": seconds}
    judged.flagged = sorted({*judged.flagged, *found})
    if code not in (0, 1) or withdrawn:
        text = f"exit {code}, withdrawn {withdrawn}, rungs {rungs} {report.get('stderr', '')}"
        judged.faults.append(("command", text))
    elif not written:
        judged.faults.append(("command", "nothing was written"))


ATTEMPTS = 14
CRASHES = 2 * ATTEMPTS
"""From this attempt on, nothing is executed."""


@dataclass(frozen=True)
class Settings:
    """How models are judged. ``tensorrt`` is "no", "parse" or "build", the last of every ``built``-th;
    ``folder`` holds notes of what runs; ``command``: every so many models go through the command, 0 for none."""

    seed: int
    nodes: bool = True
    tensorrt: str = "no"
    built: int = 8
    command: int = 0
    folder: str = ""
    keep: str = ""

    def build_of(self, number: int) -> bool:
        """Whether TensorRT builds an engine of the number's model, not only parses it."""
        return self.tensorrt == "build" and number % self.built == 0


@dataclass
class Judged:
    """What became of one number. ``status`` is "run", "static" (no attempt runs anywhere; what needs no execution is
    judged) or "none"; ``faults`` are (kind, text).

    ``excused``: out of tolerance, and the ladder explains why. ``withdrawn``: out of tolerance, and the ladder refutes
    it, so that the command withdraws a numeric fix. ``unset``: only outputs differ that ONNX Runtime computes from
    memory that nobody set. ``contradicted``: the model itself declares, or ONNX's shape inference says of it, what does
    not come, and what is refused is that.
    """

    number: int
    status: str = "none"
    code: str = ""
    attempt: int = 0
    opset: int = 0
    nodes: int = 0
    discarded: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    safety: str = ""
    target: str = ""
    valid: bool = True
    backends: list[str] = field(default_factory=list)
    feeds: int = 0
    flagged: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    changed: bool = False
    excused: str = ""
    withdrawn: str = ""
    unset: str = ""
    contradicted: str = ""
    tensorrt: dict[str, str] = field(default_factory=dict)
    command: dict[str, Any] = field(default_factory=dict)
    faults: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0


FIRST = {"OPS081": "GRA010"}
"""A rule, and another one whose fixes make its own superfluous: it computes the constants first."""


def rules_of(code: str = "") -> list[Rule]:
    """All rules, those that are off by default, too; where a model begins with a rule's example, without the one that
    comes first, as with ``--ignore``."""
    return [rule for rule in registry().rules if rule.code != FIRST.get(code)]


def judge(settings: Settings, number: int, first: int = 0) -> dict[str, Any]:
    """Draw until a model is valid and runs, fix it, and hold the result to what is promised."""
    began = time.perf_counter()
    judged = Judged(number)
    gc.disable()  # models are full of cycles: collected once for each
    drawn: Drawn | None = None
    original: Original | None = None
    for attempt in range(first, first + ATTEMPTS):
        _note(settings, number, f"original {attempt}")
        drawn, original = draw(settings.seed, number, attempt, nodes=settings.nodes), None
        why = refused(drawn.proto)
        judged.valid = not why
        if attempt >= CRASHES:  # what crashes ONNX Runtime every time is judged without it
            break
        if not why or drawn.code in refused_codes():
            try:
                original = Original(drawn.proto, drawn.hints, settings.seed, checked=judged.valid)
                why = original.wrong if original.feeds else f"does not run: {original.why}"
            except TooLong:
                why = "takes too long"
            except Exception as error:
                why = f"no inputs: {type(error).__name__}: {error}"
        if not why:
            break
        judged.discarded.append(" ".join(why.split())[:200])
        judged.attempt = attempt + 1
    assert drawn is not None
    runs = original is not None and bool(original.feeds)
    judged.status = "run" if runs else "static" if judged.valid or drawn.code in refused_codes() else "none"
    if judged.status != "none":
        _note(settings, number, "fix")
        _describe(judged, drawn)
        try:
            with limited(30.0):
                _hold(settings, judged, drawn, original if runs else None)
        except TooLong:
            judged.faults.append(("too long", "30 s"))
        except Exception as error:
            judged.faults.append(("raised", f"{type(error).__name__}: {error}"))
        if settings.keep and judged.faults:
            Path(settings.keep, f"{number}.onnx").write_bytes(drawn.proto.SerializeToString())
    judged.seconds = time.perf_counter() - began
    gc.collect()
    _note(settings, number, "")
    return vars(judged)


@cache
def refused_codes() -> frozenset[str]:
    """Rules about models that onnx.checker refuses: none of their examples passes."""
    return frozenset(code for code, own in examples().items() if all(refused(one.proto) for one in own))


def _note(settings: Settings, number: int, text: str) -> None:
    """Leave word of what runs, for who finds this process dead."""
    if settings.folder:
        path = Path(settings.folder, str(number))
        if text:
            path.write_text(text, encoding="ascii")
        else:
            path.unlink(missing_ok=True)


def _describe(judged: Judged, drawn: Drawn) -> None:
    every = list(walk.model_nodes(drawn.proto))
    judged.code, judged.opset, judged.nodes = drawn.code, drawn.opset, len(every)
    judged.pieces, judged.places = drawn.pieces, drawn.places
    judged.operators = sorted(
        {f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in every}
    )
    judged.safety, judged.target = drawn.safety.name, drawn.target or ""


def fixed_by(proto: ModelProto, drawn: Drawn) -> tuple[ModelProto, FixRun]:
    """A copy of the model after the fixes that the draw allows."""
    model = Model(copied(proto))
    model.target = target_named(drawn.target)
    run = engine.fix(model, rules_of(drawn.code), safety=drawn.safety)
    return model.proto, run


def _hold(settings: Settings, judged: Judged, drawn: Drawn, original: Original | None) -> None:
    """Fix, and collect what does not hold."""
    fault = judged.faults.append
    before = drawn.proto.SerializeToString(deterministic=True)
    model = Model(copied(drawn.proto))
    model.target = target_named(drawn.target)
    found = engine.check(model, rules_of(), [])
    if model.proto.SerializeToString(deterministic=True) != before:
        fault(("check", "check changed the model"))
    result, run = fixed_by(drawn.proto, drawn)
    judged.flagged = sorted({one.rule.code for one in found} | {one.rule.code for one in run.remaining})
    judged.fixed = sorted({one.key.code for one in run.applied})
    after = result.SerializeToString(deterministic=True)
    judged.changed = after != before
    judged.faults += [("problem", str(one)) for one in run.problems]
    if bool(run.applied) != judged.changed:
        fault(
            (
                "bytes",
                f"{len(run.applied)} fixes, and the bytes {'differ' if judged.changed else 'are the same'}",
            )
        )
    if (
        judged.number % 3 == 0
        and fixed_by(drawn.proto, drawn)[0].SerializeToString(deterministic=True) != after
    ):
        fault(("determinism", "another run gives other bytes"))
    again, second = fixed_by(result, drawn)
    if second.applied or again.SerializeToString(deterministic=True) != after:
        codes = sorted({one.key.code for one in second.applied})
        fault(("idempotence", f"a second run applies {', '.join(codes) or 'nothing'}"))
    judged.faults += [
        ("touched", text) for text in contract.untouched_changes(drawn.proto, result, run.touched)
    ]
    if drawn.safety != Safety.UNSAFE:
        judged.faults += [("contract", text) for text in contract.interface_changes(drawn.proto, result)]
    if judged.valid and (why := refused(result)):
        judged.contradicted = contradicts_itself(original) if original is not None else ""
        if not judged.contradicted:
            fault(("checker", why))
    if judged.changed and original is not None and drawn.safety != Safety.UNSAFE:
        _compared(settings, judged, drawn, original, result)
    if settings.tensorrt != "no":
        _note(settings, judged.number, "tensorrt")
        judged.tensorrt = compared(
            drawn.proto, result if judged.changed else None, build=settings.build_of(judged.number)
        )
        if judged.tensorrt.get("lost"):
            fault(("tensorrt", judged.tensorrt["lost"]))
        judged.flagged += sorted(codes_of(judged.tensorrt))
    if settings.command and judged.number % settings.command == 0:
        _note(settings, judged.number, "command")
        commanded(judged, drawn, result)


def _compared(
    settings: Settings, judged: Judged, drawn: Drawn, original: Original, result: ModelProto
) -> None:
    judged.backends, judged.feeds = original.backends, len(original.feeds)
    exact = drawn.safety == Safety.EXACT
    _note(settings, judged.number, "fixed")
    found = differences(original, result, exact=exact)
    if not found:
        return
    if all(_NO_RUN in text for text in found) and (why := contradicts_itself(original)):
        judged.contradicted = why
        return
    unset = from_unset_memory(original)
    if unset and not differences(original, result, exact=exact, without=unset):
        judged.unset = found[0]
        return
    refuted = refuted_by_ladder(drawn.proto, result, exact=exact)
    if not exact and refuted and not any(wrong in text for text in found for wrong in _NO_ROUNDING):
        judged.withdrawn = found[0]
    elif refuted or exact or any(wrong in text for text in found for wrong in _NO_ROUNDING):
        judged.faults.append(("outputs", "; ".join(found[:3]) + (f" (ladder: {refuted})" if refuted else "")))
    else:
        judged.excused = found[0]


_NO_RUN = "does not run"
_NO_ROUNDING = (_NO_RUN, "has shape", "has type")
