"""What an engine's outputs are worth: against ONNX's expected ones, and before a fix against after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from acceptance import values
from acceptance.cases import NodeCase, half_type
from acceptance.tools import AS_IS, EXACT, NUMERIC_RTX, PEERS
from network.reading import compared, due

from gpu.engines import Executed
from onnxfix.verification.compare.compare import Metrics, compare, largest

TOOLS = (AS_IS, EXACT, NUMERIC_RTX, *PEERS[:2])

#: right: within the case's own tolerance, or within that of ``onnxfix verify`` for the type. wrong: neither. no model:
#: the tool wrote none. not measured: there was no time. The others as in ``engines.How``.
Status = Literal[
    "right", "wrong", "parser", "builder", "timeout", "crash", "failed", "unfed", "no model", "not measured"
]


@dataclass(frozen=True)
class Result:
    """One model on the engine.

    ``reason`` is TensorRT's, or the first element that is not the expected one. ``within`` is the tolerance that the
    outputs meet: "case", "type", or "". ``largest`` and ``relative`` are the largest error, and as a share of the
    output's largest magnitude, over pairs of finite values. ``structure``: type or shape are not the expected ones.
    ``outputs`` are those that are wrong, as ``values.pack`` leaves them.
    """

    status: Status
    reason: str = ""
    stage: str = ""
    operator: str = ""
    within: str = ""
    largest: float = 0.0
    relative: float = 0.0
    structure: bool = False
    outputs: Sequence[Sequence[dict[str, Any]]] = ()
    seconds: Sequence[float] = ()


@dataclass(frozen=True)
class Row:
    """One node model with every tool, by the tool's name. ``digests`` names the model that a tool wrote: tools that
    wrote the same share a result, and the original's means that the tool changed nothing that counts."""

    name: str
    results: Mapping[str, Result]
    digests: Mapping[str, str]


def judge(case: NodeCase, executed: Executed) -> Result:
    """Hold what the engine gave against what ONNX expects."""
    told = (executed.reason, executed.stage, executed.operator)
    if executed.how != "ran":
        return Result(executed.how, *told, seconds=executed.seconds)
    model = onnx.load_model_from_string(case.data)
    names = [one.name for one in model.graph.output]
    lacking = [name for name in names if any(name not in one for one in executed.outputs)]
    if lacking:
        why = executed.unread.get(lacking[0], f"the engine has no output {lacking[0]}")
        return Result("unfed", why, "run", seconds=executed.seconds)
    found = [[one[name] for name in names] for one in executed.outputs]
    missed = compared(case.expected, found, case.rtol, case.atol)
    metrics = measured(case, found, half_type(model))
    close = all(one.agreement != "different" for one in metrics)
    most, share = largest(metrics), largest(metrics, relative=True)
    within = "case" if not missed else "type" if close else ""
    number, first = missed[0] if missed else (0, None)
    return Result(
        "right" if within else "wrong",
        first.text.replace("output 0", f"output {number}") if first is not None else "",
        within=within,
        largest=most.max_abs if most is not None else 0.0,
        relative=share.relative if share is not None else 0.0,
        structure=any(one.kind == "structure" for _, one in missed),
        outputs=() if within else values.pack(found),
        seconds=executed.seconds,
    )


def measured(case: NodeCase, found: Sequence[Sequence[Any]], half: str) -> list[Metrics]:
    """Every output by the tolerances of ``onnxfix verify``; ``half`` is the half-precision type of the model."""
    pairs = [
        (a, b)
        for wanted, have in zip(case.expected, found, strict=True)
        for a, b in zip(due(wanted, have), have, strict=False)
    ]
    with np.errstate(all="ignore"):
        return [one for a, b in pairs for one in compare("", a, b, exact=False, coarse=half)]


def rows_of(stored: Mapping[str, Any]) -> list[Row]:
    """The rows of a run, complete or not, from its JSON."""
    rows = []
    for name, tools in stored["made"].items():
        results: dict[str, Result] = {}
        for tool, made in tools.items():
            known = stored["results"].get(f"{name}/{made['digest']}")
            if made["status"] != "ok":
                results[tool] = Result("no model", f"{made['status']}: {made['message']}")
            else:
                results[tool] = Result("not measured") if known is None else Result(**known)
        rows.append(Row(name, results, {tool: made["digest"] for tool, made in tools.items()}))
    return rows


def lost(row: Row, tool: str) -> bool:
    """Right as it is, and not right after the tool."""
    after = row.results[tool].status
    return row.results[AS_IS.name].status == "right" and after not in ("right", "not measured")


def gained(row: Row, tool: str) -> bool:
    """Not right as it is, and right after the tool."""
    before = row.results[AS_IS.name].status
    return row.results[tool].status == "right" and before not in ("right", "not measured")
