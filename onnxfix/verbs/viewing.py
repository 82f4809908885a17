"""``view``: the nodes around a finding or a node, for a terminal, and as a model that opens in Netron; ``inspect``:
what a model consists of, and what onnxfix finds in it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from onnx import ModelProto

from onnxfix.errors import UsageError, decoded
from onnxfix.files import apart, atomic, loading, saving, tensors, walk
from onnxfix.graph.overlay import Node, Value
from onnxfix.model import Model
from onnxfix.options import Rules, RunOptions
from onnxfix.place import Place
from onnxfix.proof.validity import check
from onnxfix.report.findings import Finding, Neighborhood, finding_of
from onnxfix.report.report import NodeCounts
from onnxfix.rewrite import engine
from onnxfix.rule import Severity
from onnxfix.runtime.sandbox import forked
from onnxfix.verbs.checking import bytes_read, node_counts
from onnxfix.verbs.job import make_plan
from onnxfix.verbs.opening import output_file
from onnxfix.verbs.picturing import Atlas, neighborhood, surround, type_text

_SECONDS = 60.0
"""Time for onnx.checker."""
_SMALL = 1 << 10
"""Most bytes of a constant that stays a constant; a larger constant becomes an input of its type and shape."""
_FAN = 8
"""Most consumers of one value that are followed."""


@dataclass(frozen=True)
class View:
    """The nodes around ``place``: ``nodes`` counts them, ``around`` has them with their values. ``finding`` is what was
    searched for (None if a node is named), and ``findings`` are all of the run's rules at the node. ``others`` are the
    places of the rule's other findings. ``output`` is the file that was written ("": none), and ``complaint`` the error
    of onnx.checker for it, "" if it passes."""

    path: str
    output: str
    place: Place
    around: Neighborhood
    nodes: int
    finding: Finding | None = None
    findings: tuple[Finding, ...] = ()
    others: tuple[Place, ...] = ()
    complaint: str = ""


def view(
    source: Path,
    output: Path | None,
    *,
    rule: str = "",
    node: str = "",
    place: str = "",
    distance: int = 2,
    target: str | None = None,
) -> View:
    """The nodes around a finding of a rule, or around a node; as a model, too.

    Args:
        source: the model.
        output: the file to write the nodes to; None writes none.
        rule: the code or the name of the rule.
        node: the name of a node, or of a value that it computes; ``*`` selects all matching nodes of one graph.
        place: the name of the finding's node or value, also with ``*``; "" selects the first finding.
        distance: how many values away the other nodes may be.
        target: the name of the TensorRT version to check for.

    Raises:
        ModelError: the model cannot be read.
        UsageError: no finding matches or has a node, no node matches, or the file may not be written.
    """
    if bool(rule) == bool(node) or (node and place):
        raise UsageError(
            "name what to show: --rule RULE, with --place for one of its findings, or --node NAME"
        )
    plan = make_plan(RunOptions(rules=Rules(select=[rule] if rule else None, target=target)))
    loaded = loading.load(source)
    if output is not None:
        output_file(output)
        apart.separate([apart.File("the output", output)], list(apart.files_of(loaded)))
    model = Model(loaded.proto, loaded.base_dir)
    model.target = plan.target
    findings = [finding_of(one) for one in engine.check(model, plan.rules)]
    atlas = Atlas(model)
    finding: Finding | None = None
    if node:
        seeds, text = _named(model, node, source), f"--node {node}"
    else:
        finding = next((one for one in findings if _matches(one.place, place) and atlas.at(one.place)), None)
        if finding is None:
            raise _unfound(source, rule, place)
        seeds = list(atlas.at(finding.place))
        text = f"{finding.code} {finding.name}: {finding.message}"
    nodes = surround(seeds, distance, _FAN, len(model.orders[seeds[0].scope]))
    around = neighborhood(model, nodes, seeds, full=True)
    here = tuple(one for one in findings if not {*atlas.at(one.place)}.isdisjoint(seeds))
    others = tuple(one.place for one in findings if finding is not None and one is not finding)
    found = View(str(source), str(output or ""), seeds[0].at, around, len(nodes), finding, here, others)
    if output is None:
        loaded.check()
        return found
    title = (finding.place if finding is not None else found.place).text
    part = extract(model, nodes, dict.fromkeys(seeds, text), f"{title}\n{text}")
    loaded.check()
    atomic.put(output, saving.serialize(part))
    return replace(found, complaint=_complaint(output))


def _unfound(source: Path, rule: str, place: str) -> UsageError:
    where = f" at {place!r}" if place else ""
    return UsageError(
        f"{source}: {rule} finds nothing{where} that could be shown; onnxfix check lists the findings"
    )


def _named(model: Model, name: str, source: Path) -> list[Node]:
    """The nodes of one graph with this name, or that compute a value with it."""
    named = [one for one in model.nodes() if _matches(one.at, name) or name in one.proto.output]
    if not named:
        raise UsageError(f"{source}: has no node {name!r}, and none that computes a value of that name")
    return [one for one in named if one.scope is named[0].scope]


def _matches(place: Place, wanted: str) -> bool:
    names = (place.node, place.output, place.short, place.text)
    return not wanted or any(name == wanted or fnmatchcase(name, wanted) for name in names if name)


def _complaint(path: Path) -> str:
    """The error of onnx.checker for the file. It runs in a fork, since it is foreign native code."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder:
        outcome = forked(check, str(path), folder, timeout=_SECONDS)
    return str(outcome.value.refused or outcome.value.inference) if outcome.ok else outcome.message


def extract(model: Model, nodes: Collection[Node], notes: dict[Node, str], title: str) -> ModelProto:
    """A model of ``nodes``, which must be in one graph, in the order of this graph.

    A value that the nodes read but do not compute becomes an input, or stays a small constant. A value that they
    compute for other readers becomes an output. Inputs and outputs get their known types and dimensions. ``notes`` go
    into the documentation of nodes, and ``title`` goes into the documentation of the graph.

    Raises:
        UsageError: a node uses an attribute of its local function, or reads or computes a value whose type or rank
            depends on the call of this function.
    """
    scope = next(iter(nodes)).scope
    kept = set(nodes)
    ordered = [node for node in model.orders[scope] if node in kept]
    inner = list(walk.nodes([node.proto for node in ordered]))
    part = ModelProto(ir_version=model.ir_version, producer_name="onnxfix view")
    for domain, version in scope.imports().items():
        part.opset_import.add(domain=domain, version=version)
    if any((one.domain, one.op_type) in model.function_names for one in inner):
        part.functions.extend(model.proto.functions)
    part.graph.name, part.graph.doc_string = "part", title
    computed = {name for node in ordered for name in node.proto.output if name}
    reads = dict.fromkeys(name for node in ordered for name in walk.reads(node.proto))
    values = (scope.lookup(name) for name in reads if name and name not in computed)
    for value in dict.fromkeys(value for value in values if value is not None):
        _add_read(part, model, value)
    for node in ordered:
        part.graph.node.append(node.proto)
        if node in notes:
            part.graph.node[-1].doc_string = notes[node]
        for attribute in (one for proto in walk.nodes([node.proto]) for one in proto.attribute):
            if attribute.ref_attr_name:
                raise _depends_on_call(node, f"its attribute {attribute.name}")
    for value in (value for node in ordered for value in node.outputs if value is not None):
        inside = sum(use.node in kept for use in value.uses)
        if value.is_output or value.pinned or inside < value.use_count or not inside:
            part.graph.output.append(model.describe(value))
    for info in (*part.graph.input, *part.graph.output):
        tensor = info.type.tensor_type if info.type.WhichOneof("value") in (None, "tensor_type") else None
        if scope.root is not model.main and tensor is not None and not tensor.HasField("shape"):
            what = "rank" if tensor.elem_type else "type"
            raise _depends_on_call(ordered[0], f"the {what} of {info.name}")
    return part


def _add_read(part: ModelProto, model: Model, value: Value) -> None:
    """Add a value that the nodes read: a small constant as a constant, any other value as an input."""
    tensor, producer = value.initializer, value.producer
    stored = list(walk.node_tensors([producer.proto])) if producer is not None else []
    small = not any(map(tensors.is_external, stored)) and sum(map(tensors.nbytes, stored)) <= _SMALL
    if value.is_constant and tensor is not None and tensors.nbytes(tensor) <= _SMALL:
        if model.base_dir is not None and tensors.is_external(tensor):
            tensor = tensors.embedded(tensor, model.base_dir)
        part.graph.initializer.append(tensor)
    elif value.is_constant and producer is not None and small:
        part.graph.node.append(producer.proto)
    else:
        part.graph.input.append(model.describe(value))


def _depends_on_call(node: Node, what: str) -> UsageError:
    return UsageError(f"{node.place}: {what} is set by each call of the function; it cannot be shown alone")


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
