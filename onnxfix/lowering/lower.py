"""From a model on disk to a plan: measure, guard, search, and say why each node is kept."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto

from onnxfix.files import walk
from onnxfix.lowering.bench import Bench
from onnxfix.lowering.choice import Graph
from onnxfix.lowering.guards import Facts, Guard, guards, hazards, masks, saturate
from onnxfix.lowering.lowered import HEAVY, Low, first_opset, in_order
from onnxfix.lowering.quantized import obstacle, opset_of
from onnxfix.lowering.records import IoTypes, Kept, Lowering, Range, pattern
from onnxfix.lowering.search import Plan, Search, worst
from onnxfix.model import Model
from onnxfix.place import place_of
from onnxfix.targets import Target

MOST_RANGES = 32
"""Tensors in the report, those with the largest magnitudes."""


_OPERATORS = 4
"""Operators that a note names."""
_NEWEST = 24
"""The newest operator set that a note names: tools have not all of a newer one."""
_NORMS = (
    "decomposed norms stay in float32; as one operator, whose inputs may be half precision, they are faster: "
    "onnxfix apply --select PRC011 --numeric-fixes (opset 17 or later)"
)


@dataclass(frozen=True)
class Wish:
    """What was asked for: the type, the budget (share of each output's scale), the types of the interface, patterns of
    nodes to keep, the target, seconds for the search, the most samples, and the most time (share of float32's)."""

    to: Low
    budget: float
    io_types: IoTypes = "keep"
    keep: tuple[str, ...] = ()
    target: Target | None = None
    seconds: float = 600.0
    samples: int = 16
    max_time: float | None = None


@dataclass(frozen=True)
class Found:
    """A plan for a model, with what it rests on. ``facts.model`` is the model with its masks saturated."""

    plan: Plan
    facts: Facts
    graph: Graph
    guarded: Mapping[int, Guard]
    notes: tuple[str, ...]
    samples: int


def find(
    model: ModelProto,
    path: Path,
    feeds: Iterable[Mapping[str, Any]],
    wish: Wish,
    bench: Bench,
    say: Callable[[str], None],
) -> Found:
    """The plan for the model in the file ``path``; it runs in ``bench`` on ``feeds``.

    Raises:
        Failed: the model does not run.
        ModelError: it is no valid graph.
    """
    say("running in float32")
    bench.open(path, wish.to, feeds, wish.samples)
    calls = len(model.functions)
    model, able = in_order(bench.inlined(model)), bench.able  # by the same order of nodes
    model, masked, notes = _saturated(model, path.parent, wish, bench)
    say("measuring ranges and each node's own error")
    tensors, own, unseen = bench.measure() if able.slots else ({}, {}, set())
    facts = Facts(model, able, tensors, own, hazards(model, able, path.parent), wish.target, masked)
    graph = Graph(model, able, wish.io_types == "low")
    guarded = {**dict.fromkeys(unseen & able.slots.keys(), Guard("unseen")), **guards(facts)}
    if calls > len(model.functions):
        notes.append(f"the nodes of {calls} local functions take the place of their calls")
    if "quantized" in able.whole.values() and (why := obstacle(model)):
        notes.append(f"half-precision scales need operator set 19, and it cannot be raised: {why}")
    notes += _newer(graph)
    matched, unmatched = _named(model, wish.keep)
    for index in matched & able.slots.keys():
        guarded[index] = Guard("user")
    if any(guard.rule == "PRC011" for guard in guarded.values()):
        notes.append(_NORMS)

    search = Search(
        facts, graph, bench.errors, wish.budget, frozenset(guarded), wish.seconds, say, wish.max_time
    )
    return Found(search.plan(), facts, graph, guarded, (*notes, *unmatched), len(bench.feeds))


def without_bodies(
    found: Found, reason: str, wish: Wish, bench: Bench, say: Callable[[str], None]
) -> Found | None:
    """The plan with all nodes inside of others in float32, because of ``reason``; None where they are already."""
    first, graph = len(found.facts.model.graph.node), found.graph
    inner = [index for index in found.plan.low if index >= first]
    if not inner:
        return None
    guarded = {**{index: Guard("refused") for index in graph.able.slots if index >= first}, **found.guarded}
    plan = Search(found.facts, graph, bench.errors, wish.budget, frozenset(guarded), wish.seconds, say).plan()
    note = f"nodes inside of If, Loop and Scan stay in float32, because TensorRT refuses them: {reason}"
    return replace(found, plan=plan, guarded=guarded, notes=(*found.notes, note))


def _newer(graph: Graph) -> Iterator[str]:
    """A note about the operator set that has the low type for nodes that the model's has not."""
    able, opset = graph.able, opset_of(graph.model)
    kept = {graph.nodes[i].op_type for i, why in able.whole.items() if why == "schema" and graph.computes(i)}
    first = {name: first_opset(name, opset, able.to) for name in sorted(kept)}
    later = [name for name, version in first.items() if opset < version <= _NEWEST]
    if later:
        version = max(first[name] for name in later)
        names = ", ".join(later[:_OPERATORS]) + (" and others" if len(later) > _OPERATORS else "")
        yield (
            f"ONNX has {able.to} for {names} from operator set {version} on, and the model imports {opset}: "
            f"onnx.version_converter.convert_version(model, {version}) raises it"
        )


def _saturated(
    model: ModelProto, base_dir: Path, wish: Wish, bench: Bench
) -> tuple[ModelProto, frozenset[int], list[str]]:
    """The model with masks that the low type represents, where its outputs allow that; the nodes that they go through;
    and notes about it."""
    found = masks(model, base_dir)
    if not found.constants:
        return model, frozenset(), []
    bench.saturate(found.constants)
    moved = worst(bench.errors(()))
    if moved > wish.budget / 4:
        bench.saturate(())
        note = f"masks stay: at the lowest {wish.to} outputs move by {moved:.3g} of their scale"
        return model, frozenset(), [note]
    made = ModelProto()
    made.CopyFrom(model)
    saturate(made, found.constants, wish.to, base_dir)
    notes = [f"mask saturated to the lowest {wish.to}: {name}" for name in sorted(found.constants)]
    return made, found.nodes, notes


def _named(model: ModelProto, patterns: Collection[str]) -> tuple[set[int], list[str]]:
    """The nodes that patterns name: a node's name, the name of one of its outputs, or else a regular expression that
    matches the beginning of a node's name (as AutoCast of NVIDIA's Model Optimizer does it). A pattern that names none
    becomes a note. What is inside of a node is named with it."""
    found: set[int] = set()
    notes = []
    nodes = walk.graph_nodes(model.graph)
    for wanted in patterns:
        hits = {i for i, node in enumerate(nodes) if wanted in (node.name, *node.output)}
        if not hits:
            with contextlib.suppress(re.error):
                expression = re.compile(wanted)
                hits = {i for i, node in enumerate(nodes) if expression.match(node.name or _output(node))}
        if not hits:
            notes.append(f"no node is called {wanted!r}, nor matches it")
        found |= hits
    inside = {name for one in walk.nodes(nodes[index] for index in found) for name in one.output if name}
    found.update(index for index, node in enumerate(nodes) if not inside.isdisjoint(node.output))
    return found, notes


def _output(node: NodeProto) -> str:
    return next((name for name in node.output if name), "")


def described(found: Found, base: Lowering) -> Lowering:
    """``base`` with what the plan says."""
    plan, graph = found.plan, found.graph
    computing = [index for index in range(len(graph.nodes)) if graph.computes(index)]
    heavy = [index for index in computing if graph.nodes[index].op_type in HEAVY]
    kept = tuple(_kept(found, computing))
    constants = graph.constants
    measured = found.facts.tensors.items()
    ranges = [Range(name, one.highest, one.lost) for name, one in measured if name not in constants]
    names = [node.name for node in graph.nodes if node.name]
    best = plan.best if plan.best != float("inf") else None
    return replace(
        base,
        error=worst(plan.errors) if plan.low else None,
        best=best,
        outputs=plan.errors if plan.low else (),
        nodes=len(computing),
        low=sum(index in plan.low for index in computing),
        heavy=len(heavy),
        heavy_low=sum(index in plan.low for index in heavy),
        casts=graph.casts(plan.low),
        time=plan.time if plan.low else None,
        kept=kept,
        keep_fp32=tuple(pattern(one.place.node, names) for one in kept if one.place.node),
        ranges=tuple(sorted(ranges, key=lambda row: -row.highest)[:MOST_RANGES]),
        samples=found.samples,
        runs=plan.runs,
        notes=(*base.notes, *found.notes),
    )


def _kept(found: Found, computing: Sequence[int]) -> Iterator[Kept]:
    """The computing nodes in float32, those with the largest share of the error first, then in the graph's order."""
    plan, able, model = found.plan, found.graph.able, found.facts.model
    first = len(model.graph.node)
    scopes = [*Model(model, None).main.walk()][1:] if first < len(found.graph.nodes) else []
    inner = [node for scope in scopes for node in scope.nodes]
    rows = []
    for index in computing:
        if index in plan.low:
            continue
        guard = found.guarded.get(index)
        if guard is None and index not in able.slots:
            guard = Guard(able.whole.get(index, "unknown"))
        guard = guard or Guard("error" if index in plan.kept else "neighbor")
        own = found.facts.own.get(index)
        node = found.graph.nodes[index]
        place = place_of(node, index) if index < first else inner[index - first].at
        effect = plan.effects.get(index)
        rows.append(
            Kept(place, guard.why, guard.seen, guard.rule, own.error if own is not None else None, effect)
        )
    yield from sorted(rows, key=lambda row: -(row.effect or 0.0))
