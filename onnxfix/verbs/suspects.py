"""The nodes at which TensorRT fails without naming any: what a short search for a smaller part leaves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto, NodeProto

from onnxfix.errors import OnnxfixError
from onnxfix.files import walk
from onnxfix.options import RunOptions
from onnxfix.place import Place
from onnxfix.proof.verdict import Verdict
from onnxfix.reduction.search import Reducer
from onnxfix.runtime import deadline, system
from onnxfix.tensorrt import messages
from onnxfix.tensorrt.places import Places
from onnxfix.tensorrt.records import TrtBuild
from onnxfix.verbs.reducing import narrow

SECONDS = 20.0
"""Maximum time of the search."""
_SHARE = 0.1  # of the rest of the run's time limit, at most
_FEW = 3  # nodes that are all named


def in_verdict(
    verdict: Verdict, path: Path, options: RunOptions, original: ModelProto, written: Path | None
) -> Verdict:
    """The verdict, whose check trt-build names the suspects in the last model that it built, the file ``path``; for
    the other arguments see ``name_suspects``."""
    rung = verdict.rung("trt-build")
    if rung is None or not rung.builds:
        return verdict
    build = name_suspects(rung.builds[-1], path, options, original, written)
    words = "".join(f"; {one.narrowed}" for one in build.errors if one.narrowed)
    named = replace(rung, reason=f"{rung.reason}{words}", builds=(*rung.builds[:-1], build))
    return replace(verdict, rungs=tuple(named if one is rung else one for one in verdict.rungs))


def name_suspects(
    build: TrtBuild, path: Path, options: RunOptions, original: ModelProto, written: Path | None
) -> TrtBuild:
    """The build of the file ``path``, whose error names the nodes of the smallest part that fails alike, if TensorRT
    refuses the model or its process dies, and no error names a node.

    ``original`` is the user's model, which fixes may have changed; ``written`` is the file that the user can reduce, if
    there is one.
    """
    errors, parts, complete = build.errors, list[Sequence[NodeProto]](), False
    fails = build.judged and build.status in ("refused", "crash") and build.stage in ("parse", "build")
    of_profile = build.status == "refused" and messages.means("profile", build.error_texts)
    if not fails or of_profile or build.part is not None or any(one.place.known for one in errors):
        return build

    def keep(reducer: Reducer) -> None:
        parts.append(reducer.case.model.graph.node)

    rest = deadline.left()
    seconds = SECONDS if rest is None else min(SECONDS, _SHARE * rest)
    try:
        with suppress(deadline.Expired), deadline.within(seconds):
            if not narrow(path, build, options, keep):
                return build
            complete = True
    except OnnxfixError:
        return build
    everything = [place for place, _ in Places(str(path)).every_node()]
    left, inside = next(filter(None, (_find(part, everything) for part in reversed(parts))), (everything, []))
    made = {name for node in walk.model_nodes(original) for name in node.output}
    names = [
        f"{one.op_type} {one.short}{'' if one.output in made else ', which a fix made'}"
        for one in (left if len(left) + len(inside) > _FEW else [*left, *inside])
    ]
    few, time = 0 < len(left) <= _FEW, "" if complete else f" found in {seconds:.2g} s"
    if few:
        words = f"the smallest part{time} that fails: {', '.join(names)}"
    elif len(left) < len(everything):
        extent = f"{len(left):,} of {len(everything):,} nodes"
        words = f"the smallest part{time} that fails: {names[0]} to {names[-1]}, {extent}"
    else:
        words = f"no smaller part that fails was{time or ' found'}"
    if written is not None and not (few and complete):
        words += f"; `onnxfix reduce {system.quoted_path(str(written))} --check trt-build` goes on"
    alone = next((places[0] for places in (inside, left) if len(places) == 1), errors[0].place)
    return replace(build, errors=(replace(errors[0], narrowed=words, place=alone), *errors[1:]))


def _find(part: Sequence[NodeProto], everything: Sequence[Place]) -> tuple[list[Place], list[Place]] | None:
    """The places of a part's nodes in the model, and of the nodes inside them, without constants and without what
    stands for removed nodes; None if the model lacks one of the nodes."""
    outer, both = (
        {(node.op_type, next(iter(node.output), "")) for node in nodes if node.op_type != "Constant"}
        for nodes in (part, walk.nodes(part))
    )
    alike = [place for place in everything if (place.op_type, place.output) in both]
    nodes = [place for place in alike if (place.op_type, place.output) in outer]
    nodes = [place for place in nodes if not place.graph] or nodes
    inside = [place for place in alike if place not in nodes and place.op_type != "Identity"]
    return (nodes, inside) if len(nodes) == len(outer) else None
