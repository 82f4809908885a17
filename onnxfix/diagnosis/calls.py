"""Where the nodes of inlined functions come from.

ONNX's inliner gives a node of a function the name of the node with ``__`` and the number of the call. Before it runs,
nodes of functions get names that say which node of which function they are; afterwards these are read and replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from onnx import FunctionProto, ModelProto, NodeProto

from onnxfix import walk
from onnxfix.place import Place

_STAMP = "onnxfix inside "


def stamped(proto: ModelProto) -> ModelProto:
    """A copy in which every node of a function is named by the numbers of the function and of the node in it."""
    copy = ModelProto()
    copy.CopyFrom(proto)
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
        function, place, call = _read(node)
        if function < 0:
            continue
        source = functions[function].node[place]
        node.name = f"{source.name}__{call}" if source.name else ""
        chain, around = chains.get(call, ((), None))
        trail = [functions[one].name for one in chain]
        if not chain or chain[-1] != function:  # counted in another way than expected
            trail, around = [functions[function].name], None
        index = around.index if around is not None else -1
        for name, old in zip(node.output, source.output, strict=False):
            found[name] = Place(tuple(trail), source.name, source.op_type, old, index, around)
    return found


def _read(node: NodeProto) -> tuple[int, int, int]:
    """The numbers of function, node and call in a stamp; -1 where there is none."""
    if not node.name.startswith(_STAMP):
        return -1, -1, -1
    function, _, rest = node.name[len(_STAMP) :].partition(" ")
    place, _, call = rest.partition("__")
    return int(function), int(place), int(call) if call.isdigit() else 0


def _chains(model: ModelProto) -> Iterator[tuple[tuple[int, ...], Place]]:
    """The functions that each call is inside of, outermost first, and the main graph's node around it; in the order in
    which the inliner numbers calls: each before those inside of it."""
    known = {(one.domain, one.name): number for number, one in enumerate(model.functions)}
    for index, node in enumerate(model.graph.node):
        output = next((name for name in node.output if name), "")
        place = Place((), node.name, node.op_type, output, index)
        for chain in _calls([node], known, model.functions, ()):
            yield chain, place


def _calls(
    nodes: Sequence[NodeProto],
    known: Mapping[tuple[str, str], int],
    functions: Sequence[FunctionProto],
    around: tuple[int, ...],
) -> Iterator[tuple[int, ...]]:
    for node in walk.nodes(nodes):
        number = known.get((node.domain, node.op_type))
        if number is not None and number not in around:
            chain = (*around, number)
            yield chain
            yield from _calls(functions[number].node, known, functions, chain)
