"""All variants of all node models, in several processes, each with a sandbox of its own."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import onnx
from acceptance.cases import NodeCase, node_cases, random_operators

from misimports.alter import PRECISIONS
from misimports.changes import Change, Variant
from misimports.child import Found
from misimports.judge import Judgment
from misimports.variants import fitted, new_nodes, variants
from onnxfix.files import walk
from onnxfix.proof.compare.twin import half_type
from onnxfix.runtime.sandbox import Worker

#: What a sandbox is at when it dies -> what to leave out when the variant is looked at again.
_STEPS = {"parse": "lift", "lift": "lift", "onnxruntime": "onnxruntime", "evaluator": "evaluator"}
_MEMORY_MB = 4096


@dataclass(frozen=True)
class Row:
    """One variant and what became of it. ``origin`` names the change that the difference goes back to: that of a base,
    where that one differs already. ``operator`` is the one that was changed, or the only one, or the first whose
    output differs."""

    case: str
    base: str
    change: Change
    operator: str
    origin: str
    nodes: int
    found: Found
    trouble: str = ""

    @property
    def differs(self) -> bool:
        """Whether TensorRT reads another model than ONNX, as far as anybody can say."""
        return self.found.judgment.verdict in ("different", "disputed")


@dataclass(frozen=True)
class _Task:
    case: NodeCase
    chosen: tuple[int, ...] | None
    seconds: float


def measured(pattern: str, jobs: int, seconds: float) -> Iterator[Row]:
    """Every variant of the node models whose name ``pattern`` (a regular expression) finds."""
    tasks = [task for task in _tasks(seconds) if re.search(pattern, task.case.name)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for rows in pool.map(_case, tasks):
            yield from rows


def _tasks(seconds: float) -> list[_Task]:
    """The models. Of those that are written out as other operators only what is new is changed."""
    cases = node_cases()
    seen: set[tuple[str, ...]] = set()
    for case in cases:
        if "_expanded" not in case.name:
            new_nodes(onnx.load_model_from_string(case.data), seen)
    return [
        _Task(
            case,
            tuple(new_nodes(onnx.load_model_from_string(case.data), seen))
            if "_expanded" in case.name
            else None,
            seconds,
        )
        for case in cases
        if case.feeds
    ]


def _case(task: _Task) -> list[Row]:
    """All variants of one model; a model that another change made already is not looked at again."""
    model = onnx.load_model_from_string(task.case.data)
    before = list(walk.nodes(model.graph.node))
    rows: list[Row] = []
    known: set[tuple[bytes, str]] = set()
    for variant in variants(task.case.name, model, task.case.feeds[0], task.chosen):
        number = variant.change.node
        made = fitted(variant, before[number]) if number >= 0 else variant
        data = made.model.SerializeToString(deterministic=True)
        key = (data, made.change.value if made.change.name.startswith("value of") else "")
        if key not in known:
            known.add(key)
            rows.append(_row(made, data, task.seconds, rows))
    return rows


def _row(variant: Variant, data: bytes, seconds: float, earlier: Sequence[Row]) -> Row:
    model = onnx.load_model_from_string(data)
    skip: list[str] = []
    trouble: list[str] = []
    worker = _worker()
    while True:
        outcome = worker.call(
            "misimports.child:look",
            timeout=seconds,
            data=data,
            feed=dict(variant.feed),
            skip=tuple(skip),
            half=_half(model),
            random=bool(random_operators(model)),
        )
        if outcome.ok:
            found: Found = outcome.value
            break
        trouble.append(f"{outcome.note}: {outcome.message}")
        step = _STEPS.get(outcome.note, "")
        if not step or step in skip:
            found = Found(outcome.status, judgment=Judgment("not run", words=outcome.message))
            break
        # What one of them does not finish is endless: the other one would not finish it either.
        skip += ("onnxruntime", "evaluator") if outcome.status == "timeout" and step != "lift" else (step,)
    root = _root(variant, found, earlier)
    names = [node.op_type for node in model.graph.node]
    whole = names[0] if len(names) == 1 else found.operator or "+".join(names[:3])
    return Row(
        variant.case,
        variant.base,
        variant.change,
        root.operator if root is not None else variant.change.operator or whole,
        str(root.change if root is not None else variant.change),
        len(names),
        found,
        "; ".join(trouble),
    )


def _half(model: onnx.ModelProto) -> str:
    """The coarsest half-precision type of the tensors, or that an attribute asks to compute in; "" for none."""
    asked = {
        one.i for node in walk.nodes(model.graph.node) for one in node.attribute if one.name in PRECISIONS
    }
    return "bfloat16" if onnx.TensorProto.BFLOAT16 in asked else half_type(model) or "float16" * (10 in asked)


@functools.cache
def _worker() -> Worker:
    """This process's sandbox; it ends with the process."""
    return Worker(memory_mb=_MEMORY_MB)


def _root(variant: Variant, found: Found, earlier: Sequence[Row]) -> Row | None:
    """The plainest form of the model that differs in the same way, which is where the difference comes from."""
    bases = ["as it is"] + (["constants"] if "constants" in variant.base else []) + [variant.base]
    difference = found.judgment.difference
    for row in earlier:
        known = row.found.judgment.difference
        plain = row.differs and not row.base and row.change.node < 0 and str(row.change) in bases
        if plain and difference is not None and known is not None and known.what == difference.what:
            return row
    return None
