"""``inspect``: what a model consists of, and what onnxfix finds in it, on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onnxfix.errors import decoded
from onnxfix.files import loading, tensors, walk
from onnxfix.model import Model
from onnxfix.options import Rules, RunOptions
from onnxfix.report.report import NodeCounts
from onnxfix.rewrite import engine
from onnxfix.rule import Severity
from onnxfix.verbs.job import make_plan
from onnxfix.verbs.picturing import type_text
from onnxfix.verbs.summing import bytes_read, node_counts


@dataclass(frozen=True)
class Inspection:
    """What a model consists of. ``producer`` is the program that wrote it, ``opsets`` are domain -> version ("": ONNX).
    ``inputs`` and ``outputs`` are name -> type with sizes, ``weights`` element type -> bytes, in ``tensors`` tensors of
    ``elements`` numbers. ``subgraphs`` and ``functions`` are counts, and ``findings`` are severity -> count, for
    ``target``."""

    path: str
    bytes: int
    producer: str
    ir_version: int
    opsets: Mapping[str, int]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    weights: Mapping[str, int]
    tensors: int
    elements: int
    operators: NodeCounts
    subgraphs: int
    functions: int
    target: str
    findings: Mapping[str, int]


def inspect(source: Path, *, target: str | None = None) -> Inspection:
    """What a model consists of.

    Raises:
        ModelError: the model cannot be read.
        UsageError: the target does not exist.
    """
    plan = make_plan(RunOptions(rules=Rules(target=target)))
    loaded = loading.load(source)
    proto = loaded.proto
    model = Model(proto, loaded.base_dir)
    model.target = plan.target
    stored = [*walk.model_tensors(proto)]
    nodes = node_counts(proto)
    found = Counter(one.severity for one in engine.check(model, plan.rules, []))
    given = [value for value in model.main.inputs if value.initializer is None]
    return Inspection(
        path=str(source),
        bytes=bytes_read(loaded),
        producer=f"{decoded(proto.producer_name)} {decoded(proto.producer_version)}".strip(),
        ir_version=model.ir_version,
        opsets=model.main.imports(),
        inputs={value.name: type_text(model, value) for value in given},
        outputs={value.name: type_text(model, value) for value in model.main.outputs},
        weights=nodes.weights,
        tensors=len(stored),
        elements=sum(tensors.element_count(tensor.dims) for tensor in stored),
        operators=nodes,
        subgraphs=len(model.scopes) - 1 - len(model.functions),
        functions=len(model.functions),
        target=plan.target.name,
        findings={one.name.lower(): found[one] for one in sorted(Severity, reverse=True)},
    )
