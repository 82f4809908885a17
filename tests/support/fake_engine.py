"""An engine without a GPU: ONNX Runtime on a copy of the model with a fault in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import ModelProto, NodeProto, ValueInfoProto

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Reply
from onnxfix.diagnosis.graph import OWN, Graph
from onnxfix.files import walk

Fault = Callable[[Sequence[NodeProto]], None]
"""Changes nodes in place, by the names that they have in the model."""


def swapped(name: str, op_type: str) -> Fault:
    """Let the node of that name compute something else."""

    def fault(nodes: Sequence[NodeProto]) -> None:
        for node in nodes:
            if node.name.rpartition(OWN)[2] == name:
                node.op_type = op_type

    return fault


def fused(first: str, second: str, op_type: str) -> Fault:
    """Let the second node compute something else where it reads what the first one computes in the same engine."""

    def fault(nodes: Sequence[NodeProto]) -> None:
        made = {node.name: node.output[0] for node in nodes}
        for node in nodes:
            start, _, name = node.name.rpartition(OWN)
            before = f"{start}{OWN}{first}" if start else first
            if name == second and made.get(before) == node.input[0]:
                node.op_type = op_type

    return fault


@dataclass
class FakeEngines:
    """Like ``engines.Engines``. Marking one of ``shy`` makes the fault vanish from the whole model; ``refused`` are
    marks with which no engine is built."""

    graph: Graph
    bench: Bench
    fault: Fault
    shy: Collection[str] = ()
    refused: Collection[str] = ()
    feed: dict[str, Any] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    builds: list[tuple[str, ...]] = field(default_factory=list)
    parts: int = 0

    def whole(self, marks: Sequence[str]) -> Reply:
        self.builds.append(tuple(marks))
        if not set(marks).isdisjoint(self.refused):
            return Reply(error="no engine", cause="refused")
        model = walk.copied(self.graph.proto)
        assert all(self.types.get(name) for name in marks)
        own = {info.name for info in model.graph.output}
        model.graph.output.extend(ValueInfoProto(name=name) for name in marks if name not in own)
        if set(marks).isdisjoint(self.shy):
            self.fault(model.graph.node)
        return self.bench.run(model, self.feed, of=self.graph)

    def part(self, model: ModelProto, feed: Mapping[str, Any]) -> Reply:
        self.parts += 1
        changed = walk.copied(model)
        self.fault(changed.graph.node)
        names = [info.name.partition(OWN)[2] for info in changed.graph.output]
        assert all(self.types.get(name) for name in names)  # TensorRT takes no output without one
        return self.bench.run(changed, feed, of=self.graph)
