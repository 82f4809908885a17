"""Model files as graphs whose local functions are inlined, and where the nodes of these come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import FunctionProto, ModelProto, NodeProto

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.graph import Graph, open_graph
from onnxfix.errors import Fault, ModelError
from onnxfix.files import walk
from onnxfix.graph import order
from onnxfix.place import Place, place_of
from onnxfix.source import source_of


def opened(path: Path, bench: Bench) -> Graph:
    """The graph of a model file, local functions inlined.

    Raises:
        ModelError: it cannot be read.
    """
    stored = open_graph(path)
    try:
        proto, origins = inlined(stored.proto, bench)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    graph = Graph(proto, stored.folder, stored.mapped, path, _untensored(proto, bench))
    graph.origins = origins
    return graph


def inlined(proto: ModelProto, bench: Bench) -> tuple[ModelProto, dict[str, Place]]:
    """A model with its local functions in place of their calls, and the places of their nodes (see ``restored``).

    Raises:
        ModelError: that cannot be.
    """
    if not proto.functions:
        return proto, {}
    if reason := order.too_many(proto):
        raise ModelError(reason)
    try:
        data = bench.call("inlined", model=stamped(proto).SerializeToString())
    except Fault as error:
        raise ModelError(f"its local functions cannot be inlined: {error}") from error
    made = onnx.ModelProto.FromString(data)
    return made, restored(made, proto)


def _untensored(proto: onnx.ModelProto, bench: Bench) -> list[str]:
    """The values that are sequences, maps or optionals; by ONNX's shape inference, where there may be any."""
    kinds = ("Sequence", "Optional", "SplitToSequence", "ZipMap")
    makers = [node for node in walk.model_nodes(proto) if node.op_type.startswith(kinds)]
    if not makers and all(info.type.HasField("tensor_type") for info in proto.graph.input):
        return []
    try:
        return list(bench.call("untensored", model=proto.SerializeToString()))
    except Fault:
        return [name for node in makers for name in node.output]


_STAMP = "onnxfix inside "
_READ = re.compile(rf"{_STAMP}(\d+) (\d+)(?:__(\d+))?.*")


def stamped(proto: ModelProto) -> ModelProto:
    """A copy in which every node of a function is named by the numbers of the function and of the node in it.

    ONNX's inliner keeps the name, and appends ``__`` and the number of the call: ``restored`` reads both.
    """
    copy = walk.copied(proto)
    for number, function in enumerate(copy.functions):
        for place, node in enumerate(function.node):
            node.name = f"{_STAMP}{number} {place}"
    return copy


def restored(inlined: ModelProto, original: ModelProto) -> dict[str, Place]:
    """Give nodes their names back, in place, and return the places of those that come from functions, by each of their
    outputs: the function, the node and its output in it, and around it the node of the main graph that calls it."""
    functions = list(original.functions)
    chains = dict(enumerate(_chains(original), 1))
    found = {}
    for node in walk.nodes(inlined.graph.node):
        stamp = _READ.fullmatch(node.name)
        if stamp is None:
            continue
        function, place, call = (int(number or 0) for number in stamp.groups())
        source = functions[function].node[place]
        node.name = f"{source.name}__{call}" if source.name else ""
        chain, around = chains.get(call, ((), None))
        trail = [_named(functions[one]) for one in chain]
        if not chain or chain[-1] != function:  # counted in another way than expected
            trail, around = [_named(functions[function])], None
        index = around.index if around is not None else -1
        for name, old in zip(node.output, source.output, strict=False):
            said = source_of(source) or (around.source if around is not None else None)
            found[name] = Place(tuple(trail), source.name, source.op_type, old, index, around, source=said)
    return found


def _named(function: FunctionProto) -> str:
    """A function as places name it."""
    return f"fn {function.domain}::{function.name}" + (f":{function.overload}" if function.overload else "")


def _chains(model: ModelProto) -> Iterator[tuple[tuple[int, ...], Place]]:
    """The functions that each call is inside of, outermost first, and the main graph's node around it; in the order in
    which the inliner numbers calls: each before those inside of it."""
    known = {(one.domain, one.name, one.overload): number for number, one in enumerate(model.functions)}
    for index, node in enumerate(model.graph.node):
        place = place_of(node, index)
        for chain in _calls([node], known, model.functions, ()):
            yield chain, place


def _calls(
    nodes: Sequence[NodeProto],
    known: Mapping[tuple[str, str, str], int],
    functions: Sequence[FunctionProto],
    around: tuple[int, ...],
) -> Iterator[tuple[int, ...]]:
    for node in walk.nodes(nodes):
        number = known.get((node.domain, node.op_type, node.overload))
        if number is not None and number not in around:
            chain = (*around, number)
            yield chain
            yield from _calls(functions[number].node, known, functions, chain)
