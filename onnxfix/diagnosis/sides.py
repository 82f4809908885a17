"""What the truth is held against: how each kind of other side is made from the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import onnx
from onnx import FunctionProto, ModelProto, NodeProto

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.fingerprints import probe
from onnxfix.diagnosis.graph import Graph, open_graph
from onnxfix.diagnosis.matching import match
from onnxfix.diagnosis.pairing import inputs_of
from onnxfix.diagnosis.rows import Side
from onnxfix.errors import Fault, ModelError
from onnxfix.files import walk
from onnxfix.graph import unfolding
from onnxfix.lowering.lowered import lowerable, with_casts
from onnxfix.place import Place, place_of
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.readback.interface import partners
from onnxfix.runtime.causes import Cause
from onnxfix.source import source_of
from onnxfix.tensorrt import lift

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


UNITS = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""Half of the distance between 1 and the next number of a low-precision type."""
LOW = {"fp16": "float16", "bf16": "bfloat16"}
"""Type names by what is asked."""
FIRST_OPSET = {"fp16": 6, "bf16": 13}
"""The first opset in which Cast has the type as an enumeration."""
KERNELS = 2e-5
"""Share of a tensor's scale that one kernel of a GPU may cost: other algorithms for convolutions, sums in parts."""


class Impossible(Exception):
    """The other side cannot be made; ``str`` is the reason, in one line, and ``cause`` the same as data."""

    def __init__(self, text: str, cause: Cause = "") -> None:
        super().__init__(text)
        self.cause = cause


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
    if reason := unfolding.too_many(proto):
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


def same_names(truth: Graph, other: Graph) -> dict[str, str]:
    """Tensors that carry the same name on both sides."""
    ours = {*truth.producer, *truth.inputs}
    return {name: name for name in (*other.producer, *other.inputs) if name in ours}


def optimized(truth: Graph, bench: Bench) -> Side:
    """The model as ONNX Runtime optimizes it by default.

    Raises:
        Impossible: ONNX Runtime does not load it.
    """
    out = bench.path(".onnx")
    error = bench.call("optimized", path=str(truth.path), out=str(out))
    if error:
        raise Impossible(f"ONNX Runtime does not load the model: {error}", "refused")
    other = opened(out, bench)
    pairs = same_names(truth, other)
    inputs = {name: name for name in other.inputs if name in truth.inputs}
    return Side(other, pairs, inputs=inputs, name="ONNX Runtime with its optimizations, on the CPU")


def itself(truth: Graph, backend: str, name: str) -> Side:
    """The model itself, on another backend."""
    inputs = {one: one for one in truth.inputs}
    kernels = KERNELS if backend else 0.0
    return Side(truth, same_names(truth, truth), backend, kernels=kernels, inputs=inputs, name=name)


def lowered(truth: Graph, against: Literal["fp16", "bf16"]) -> Side:
    """The model with the inputs and the output of every node rounded to half precision.

    Raises:
        Impossible: the model's opset has no Cast to the type.
    """
    low = LOW[against]
    opset = next((one.version for one in truth.proto.opset_import if one.domain in ("", "ai.onnx")), 1)
    if opset < FIRST_OPSET[against]:
        first = FIRST_OPSET[against]
        raise Impossible(
            f"ONNX casts to {low} from opset {first} on, and the model has opset {opset}", "refused"
        )
    able = lowerable(truth.proto, against, Path(truth.folder))
    other = Graph(
        with_casts(truth.proto, able, able.slots, apart=True),
        truth.folder,
        truth.mapped,
        untensored=truth.untensored,
    )
    notes: tuple[str, ...] = ()
    kept = Counter(truth.nodes[n].op_type for n in able.whole if truth.nodes[n].op_type != "Constant")
    if kept:
        text = ", ".join(f"{count} {kind}" for kind, count in sorted(kept.items()))
        notes = (f"nodes that stay in float32: {text}",)
    return Side(
        other,
        same_names(truth, other),
        unit=UNITS[against],
        inputs={one: one for one in truth.inputs},
        name=f"every node rounded to {low}, on the CPU (products and sums in float32)",
        notes=notes,
    )


def paired(truth: Graph, other: Graph, name: str, bench: Bench, samples: Iterable[Mapping[str, Any]]) -> Side:
    """The second model as the other side. Values of the first of ``samples`` that the truth accepts help to match.

    Raises:
        UsageError: the two have not the same interface.
    """
    inputs = inputs_of(truth, other)
    side = Side(other, inputs, inputs=inputs, name=name)
    matching = match(truth, other, probe(truth, other, side.feed, bench, samples))
    return replace(side, pairs=matching.pairs, notes=matching.notes)


_CAUSES: dict[str, Cause] = {"unlifted": "gap", "refused": "refused", "memory": "memory"}


def imported(truth: Graph, builder: Builder, bench: Bench) -> Side:
    """TensorRT's network of the model file of ``truth``.

    Raises:
        Impossible: TensorRT refuses the model, or a layer cannot be read back.
    """
    out = bench.path(".onnx")
    choice = builder.choice
    lifted = lift.attempt(
        builder.worker, str(truth.path), out, package=choice.package, timeout=builder.options.timeout
    )
    if not lifted.lifted:
        cause = _CAUSES.get(lifted.status, "")
        verb = (
            "imports no network" if lifted.status != "unlifted" else "imports a network that is not read back"
        )
        raise Impossible(f"{builder.product} {verb}: {lifted.reason}", cause)
    other = opened(out, bench)
    ours = {*truth.producer, *truth.inputs}
    pairs = {value: name for name, value in lifted.names.items() if name in ours}
    theirs = [info.name for info in other.proto.graph.input]
    found = partners(list(truth.inputs), [tensor.name for tensor in lifted.inputs])
    inputs = {theirs[number]: name for name, number in found.items()}
    pairs.update(inputs)
    files = [info.name for info in other.proto.graph.output]
    for name, number in partners(truth.outputs, [tensor.name for tensor in lifted.outputs]).items():
        pairs[files[number]] = name
    name = f"the network that {builder.product} imported, run by ONNX Runtime (no engine was executed)"
    return Side(other, pairs, inputs=inputs, name=name, notes=tuple(lifted.notes))
