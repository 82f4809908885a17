"""Into an If, Loop or Scan: the graphs inside as models of their own, on the values that they get in a run.

Of a suspected If the branch that is taken; of a Loop or Scan the body in the first iteration in which the two sides
make different values of the truth's. Local functions are inlined before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.evidence import Evidence
from onnxfix.diagnosis.fingerprints import probe
from onnxfix.diagnosis.graph import Graph, upstream
from onnxfix.diagnosis.iterations import ENTERED, Body, Unknown, is_true, iterations, value_in
from onnxfix.diagnosis.matching import match
from onnxfix.diagnosis.records import Culprit
from onnxfix.diagnosis.rows import Side
from onnxfix.errors import ModelError

_OFF = 1e-5  # share of the scale from which on an iteration differs


@dataclass(frozen=True)
class Inner:
    """The graphs that run inside of a node on both sides, and the values of the truth's inputs (``feed``). ``name`` is
    that of the node (of its first output, where it has none) and of the attribute; ``iteration`` counts from 0, None
    for a branch."""

    truth: Graph
    side: Side
    feed: Mapping[str, Any]
    name: str
    iteration: int | None = None


def inside(evidence: Evidence, truth: Graph, side: Side, bench: Bench) -> Inner | None:
    """What runs inside of a suspected node; None where the other side has no such node, it cannot be told what runs
    there, or no iteration differs."""
    row, node, other = evidence.row, evidence.node, side.graph
    targets = row.region.targets.items() if row.region is not None else ()
    number = next((other.producer[name] for name, ours in targets if ours == row.name), -1)
    if row.region is None or number < 0 or other.nodes[number].op_type != node.op_type:
        return None
    try:
        given = {
            name: evidence.given[ours] for name, ours in row.region.inputs.items() if ours in evidence.given
        }
        values = _compute(other, number, given, bench)
        if node.op_type != "If":
            return _enter_iteration(
                Body(truth, row.number, evidence.given, "body"),
                Body(other, number, values, "body"),
                side,
                bench,
            )
        taken = is_true(value_in(truth, evidence.given, node.input[0]))
        if taken != is_true(value_in(other, values, other.nodes[number].input[0])):
            return None  # the difference is the condition
        name = "then_branch" if taken else "else_branch"
        ours, theirs = Body(truth, row.number, evidence.given, name), Body(other, number, values, name)
        return _match(ours, theirs, [], None, side, bench)
    except (Unknown, ModelError, KeyError, IndexError, ValueError):
        return None


def _compute(graph: Graph, number: int, given: Mapping[str, Any], bench: Bench) -> Mapping[str, Any]:
    """The values that a node of the other side reads, from the truth's values of its region's inputs."""
    wanted = [name for name in graph.reads[number] if not graph.is_constant(name) and name not in given]
    reply = bench.run_part(graph, upstream(graph, wanted, frozenset(given)), wanted, given)
    if reply.error:
        raise Unknown
    return {**given, **reply.values}


def _enter_iteration(ours: Body, theirs: Body, side: Side, bench: Bench) -> Inner | None:
    """The first iteration in which the two bodies make different values of the same."""
    for number, now in enumerate(iterations(ours, bench)):
        both = zip(now.outputs, theirs.outputs(now.formal, bench), strict=True)
        if any(distance(np.asarray(one), np.asarray(other)).relative > _OFF for one, other in both):
            return _match(ours, theirs, now.formal, number, side, bench)
    return None


def _match(
    ours: Body, theirs: Body, formal: Sequence[Any], iteration: int | None, side: Side, bench: Bench
) -> Inner:
    """Both bodies as models, matched, on values of the formal inputs."""
    read = set(ours.outside)
    #: values of the main graph that both read: theirs -> ours
    shared = {name: side.pairs[name] for name in theirs.given if side.pairs.get(name) in read}
    feed = ours.feed(formal)
    truth, other = ours.model(feed, feed), theirs.model(theirs.feed(formal), {*theirs.formal, *shared})
    inputs = {**dict(zip(theirs.formal, ours.formal, strict=True)), **shared}
    outputs = dict(zip(other.outputs, truth.outputs, strict=True))
    bare = replace(side, graph=other, pairs=inputs, inputs=inputs, name=ours.name, notes=())
    matching = match(truth, other, probe(truth, other, bare.feed, bench, [feed]), {**inputs, **outputs})
    label = ours.node.name or next((name for name in ours.node.output if name), "")
    return Inner(truth, replace(bare, pairs=matching.pairs), feed, f"{label}.{ours.name}", iteration)


# ------------------------------------------------------------------------------------------------------ culprits


def moved(inner: Inner, around: Culprit, found: Sequence[Culprit]) -> list[Culprit]:
    """The culprits inside of a node, as culprits of the model around it."""
    outer = around.error.place
    when = f"in iteration {inner.iteration} (from 0), " if inner.iteration is not None else ""
    return [
        replace(
            one,
            error=replace(
                one.error,
                place=replace(
                    one.error.place,
                    graph=(*outer.graph, inner.name, *one.error.place.graph),
                    index=outer.index,
                    around=outer.around or outer,
                ),
                effect=around.error.effect,
                feed=around.error.feed,
            ),
            reason=when + one.reason,
        )
        for one in found
    ]


Diagnose = Callable[[Inner], Sequence[Culprit]]


def descended(
    evidence: Evidence, culprit: Culprit, truth: Graph, side: Side, bench: Bench, diagnose: Diagnose
) -> list[Culprit]:
    """The culprits inside of a culprit that has graphs inside, as ``diagnose`` finds them there; itself where there are
    none."""
    if evidence.node.op_type not in ENTERED:
        return [culprit]
    inner = inside(evidence, truth, side, bench)
    found = diagnose(inner) if inner is not None else ()
    return moved(inner, culprit, found) if inner is not None and found else [culprit]
