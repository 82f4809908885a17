"""What TensorRT's parser and builder say of a model before and after, and what the command makes of it."""

from __future__ import annotations

import atexit
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from command import reported
from onnx import ModelProto

from onnxfix.engine import check_build
from onnxfix.registry import registry
from onnxfix.rule import Safety
from onnxfix.sandbox import Worker
from onnxfix.trt.build import attempt
from onnxfix.trt.records import TrtBuild

if TYPE_CHECKING:
    from random_models.generator import Drawn
    from random_models.judge import Judged

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
        return attempt(_worker(), path, package=PACKAGE, timeout=60.0, parse_only=not build)


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
