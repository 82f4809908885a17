"""All differences between two models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from onnx import FunctionProto, GraphProto

from onnxfix.errors import UsageError, decoded
from onnxfix.files import loading
from onnxfix.files.dtypes import name_of
from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.graph.signatures import input_names
from onnxfix.model import Model
from onnxfix.place import NOWHERE, Place
from onnxfix.verbs.difference.pairs import (
    Pairs,
    Reasons,
    attribute_text,
    constant_text,
    find_regions,
    group,
    operator_name,
    same_attribute,
    same_constant,
    type_text,
)
from onnxfix.verbs.difference.records import Detail, ModelChange, ModelDifference, Sign, Subject


def diff(first: Path, second: Path, report: Path | None = None) -> ModelDifference:
    """What differs between two models; both are only read. ``report`` is the JSON report of the ``apply`` that wrote
    the second one.

    Raises:
        ModelError: a model cannot be read, or defines names twice.
        UsageError: the report cannot be read.
    """
    applied = read_fixes(report, second) if report is not None else ()
    loaded = loading.load(first), loading.load(second)
    models = [Model(one.proto, one.base_dir) for one in loaded]
    found = difference(models[0], models[1], (str(first), str(second)), applied)
    for one in loaded:
        one.check()
    return found


def read_fixes(report: Path, model: Path) -> list[tuple[str, Place]]:
    """Code and place of each fix that a JSON report names, for the model that was written under this name.

    Raises:
        UsageError: it is not such a report.
    """
    try:
        reports = json.loads(report.read_bytes())["reports"]
        found = [one for one in reports if Path(one["output"]).name == model.name] or reports
        return [
            (fix["code"], Place(tuple(fix["place"]["graph"]), output=fix["place"]["output"]))
            for fix in found[0]["applied"]
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{report}: is not the JSON report of an apply: {error!r}") from None


def difference(
    before: Model, after: Model, names: tuple[str, str], applied: Iterable[tuple[str, Place]] = ()
) -> ModelDifference:
    """What differs between two models. The order of nodes alone, documentation and declared types of inner values are
    no difference.

    Args:
        before: the first model.
        after: the second one.
        names: what the two are called.
        applied: code and place in ``before`` of each fix that is known to be in ``after``.

    Raises:
        ModelError: a file of weights was changed, or is not where it should be.
    """
    reasons = Reasons(applied)
    scopes = {scope.trail: scope for scope in after.scopes}
    numbers: dict[Node, int] = {}
    parts: list[Iterable[ModelChange]] = [_about(before, after), _functions(before, after)]
    for scope in before.scopes:
        other = scopes.get(scope.trail)
        if other is not None:
            pairs = Pairs(scope, other)
            parts += [_ends("input", pairs), _ends("output", pairs)]
            parts += [_initializers(pairs, reasons), _nodes(pairs, reasons, find_regions(pairs, numbers))]
    changes = tuple(chain.from_iterable(parts))
    return ModelDifference(*names, changes, group(changes))


def _about(before: Model, after: Model) -> Iterator[ModelChange]:
    """What stands beside the graph."""
    if before.ir_version != after.ir_version:
        detail = Detail("IR version", str(before.ir_version), str(after.ir_version))
        yield ModelChange("changed", "model", NOWHERE, (detail,))
    old, new = (
        {decoded(one.key): decoded(one.value) for one in model.proto.metadata_props}
        for model in (before, after)
    )
    found = [
        Detail(f"metadata {key}", old.get(key, ""), new.get(key, ""))
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]
    if found:
        yield ModelChange("changed", "model", NOWHERE, tuple(found))
    yield from _opsets(before.main, after.main)


def _opsets(before: Scope, after: Scope) -> Iterator[ModelChange]:
    old, new = before.imports(), after.imports()
    for domain in dict.fromkeys((*old, *new)):
        if old.get(domain) != new.get(domain):
            one, other = (str(some[domain]) if domain in some else "" for some in (old, new))
            place = Place(before.trail, output=domain or "ai.onnx")
            yield ModelChange(_sign(one, other), "opset", place, (Detail("version", one, other),))


def _sign(before: object, after: object) -> Sign:
    return "changed" if before and after else "removed" if before else "added"


def _functions(before: Model, after: Model) -> Iterator[ModelChange]:
    """Local functions that one model has; the contents of those of both are compared as graphs are."""
    old, new = ({scope.trail: scope for scope in model.functions} for model in (before, after))
    for trail in dict.fromkeys((*old, *new)):
        one, other = old.get(trail), new.get(trail)
        if one is None or other is None:
            texts = [f"{len(body.nodes)} nodes" if body is not None else "" for body in (one, other)]
            place = Place(output=" / ".join(trail))
            yield ModelChange(_sign(one, other), "function", place, (Detail("body", *texts),))
        else:
            yield from _opsets(one, other)


def _ends(subject: Subject, pairs: Pairs) -> Iterator[ModelChange]:
    """Inputs or outputs of a graph: which there are, their types, and their order."""
    old, new = (_declared(scope.proto, subject) for scope in (pairs.before, pairs.after))
    inner = bool(pairs.before.trail)  # whose names may change with those of the nodes that make them
    if inner:
        old = {pairs.renamed.get(name, name): kind for name, kind in old.items()}
    for name in dict.fromkeys((*old, *new)):
        one, other = old.get(name), new.get(name)
        found = []
        if one is None or other is None or (one != other and not inner):
            found.append(Detail("type", one or "", other or ""))
        if one is not None and other is not None and len(old) == len(new):
            at = list(old).index(name), list(new).index(name)
            if at[0] != at[1]:
                found.append(Detail("position", str(at[0]), str(at[1])))
        if found:
            sign: Sign = "added" if one is None else "removed" if other is None else "changed"
            yield ModelChange(sign, subject, Place(pairs.before.trail, output=name), tuple(found))


def _declared(proto: GraphProto | FunctionProto, subject: Subject) -> dict[str, str]:
    if isinstance(proto, FunctionProto):
        return dict.fromkeys(proto.input if subject == "input" else proto.output, "")
    given = {one.name for one in proto.initializer}
    return {
        one.name: type_text(one.type) + (" with a default" if one.name in given else "")
        for one in (proto.input if subject == "input" else proto.output)
    }


def _initializers(pairs: Pairs, reasons: Reasons) -> Iterator[ModelChange]:
    old, new = (
        {name: value for name, value in scope.values.items() if value.initializer is not None or value.sparse}
        for scope in (pairs.before, pairs.after)
    )
    for name in dict.fromkeys((*old, *new)):
        one, other = old.get(name), new.get(name)
        if one is not None and other is not None:
            sparse = one.sparse or other.sparse
            if _sparse(one) == _sparse(other) if sparse else same_constant(one, other):
                continue
        texts = [constant_text(value) if value is not None else "" for value in (one, other)]
        if texts[0] == texts[1]:
            texts = [texts[0], f"{texts[1]} with other values"]
        rules = {
            *(reasons.of_value(one, pairs, old=True) if one is not None else ()),
            *(reasons.of_value(other, pairs, old=False) if other is not None else ()),
        }
        place = Place(pairs.before.trail, output=name)
        detail = Detail("value", *texts)
        yield ModelChange(_sign(one, other), "initializer", place, (detail,), tuple(sorted(rules)))


def _sparse(value: Value) -> list[bytes]:
    """The bytes of a sparse initializer; none for a dense one."""
    rows = getattr(value.scope.proto, "sparse_initializer", ())
    return [row.SerializeToString(deterministic=True) for row in rows if row.values.name == value.name]


def _nodes(pairs: Pairs, reasons: Reasons, regions: Mapping[Node, int]) -> Iterator[ModelChange]:
    """The nodes in the order of the first graph; a new one stands before the next one that is in both."""
    new_before = _anchors(pairs)
    for node in pairs.before.nodes:
        twin = pairs.to.get(node)
        for new in new_before.get(node, ()):
            yield _one(new, "added", reasons.of_added(new, pairs), regions)
        if twin is None:
            yield _one(node, "removed", reasons.of_removed(node, pairs), regions)
            continue
        found = tuple(details(node, twin, pairs))
        if found:
            subject: Subject = "constant" if _is_constant(node) and _is_constant(twin) else "node"
            rules, region = reasons.of_pair(node, twin), regions.get(node, -1)
            yield ModelChange("changed", subject, node.at, found, rules, region)
    for new in new_before.get(None, ()):
        yield _one(new, "added", reasons.of_added(new, pairs), regions)


def _anchors(pairs: Pairs) -> dict[Node | None, Sequence[Node]]:
    """The nodes that only the second graph has, by the next node of the first one; None: at the end."""
    found: dict[Node | None, list[Node]] = {}
    waiting: list[Node] = []
    for node in pairs.after.nodes:
        old = pairs.back.get(node)
        if old is None:
            waiting.append(node)
        elif waiting:
            found[old] = waiting
            waiting = []
    found[None] = waiting
    return dict(found)


def _one(node: Node, sign: Sign, rules: tuple[str, ...], regions: Mapping[Node, int]) -> ModelChange:
    """A node that only one model has."""
    if not _is_constant(node):
        return ModelChange(sign, "node", node.at, (), rules, regions.get(node, -1))
    value = next((one for one in node.outputs if one is not None), None)
    text = constant_text(value) if value is not None and value.is_constant else ""
    detail = Detail("value", text, "") if sign == "removed" else Detail("value", "", text)
    return ModelChange(sign, "constant", node.at, (detail,), rules)


def _is_constant(node: Node) -> bool:
    return node.is_onnx and node.op_type == "Constant"


def details(old: Node, new: Node, pairs: Pairs) -> Iterator[Detail]:
    """Operator, name, inputs, outputs and attributes that differ."""
    if (old.domain, old.op_type) != (new.domain, new.op_type):
        yield Detail("operator", operator_name(old), operator_name(new))
    yield from _inputs(old, new, pairs)
    outputs = list(old.proto.output), list(new.proto.output)
    for index in range(max(map(len, outputs))):
        before, after = (names[index] if index < len(names) else "" for names in outputs)
        if before != after:
            yield Detail(f"output {index}" if index else "output", before, after)
    first, second = ({one.name: one for one in node.proto.attribute} for node in (old, new))
    for name in dict.fromkeys((*first, *second)):
        one, other = first.get(name), second.get(name)
        if one is None or other is None or not same_attribute(one, other, (old, new)):
            yield Detail(name, attribute_text(one, old), attribute_text(other, new))
    if old.name != new.name:
        yield Detail("name", old.name, new.name)


def _inputs(old: Node, new: Node, pairs: Pairs) -> Iterator[Detail]:
    names = input_names(new.op_type, new.opset, new.domain)
    for index in range(max(len(old.inputs), len(new.inputs))):
        before, after = old.input(index), new.input(index)
        if _same_value(before, after, pairs):
            continue
        label = names[min(index, len(names) - 1)] if names else f"input {index}"
        texts = _text(before, after), _text(after, before)
        if texts[0] == texts[1]:  # what differs is not shown: the names do
            names_of_both = [value.name if value is not None else "" for value in (before, after)]
            computed = before is not None and not before.is_constant
            folded = computed and after is not None and after.is_constant
            texts = names_of_both[0], texts[1] if folded else names_of_both[1]
        yield Detail(label, *texts)


def _same_value(before: Value | None, after: Value | None, pairs: Pairs) -> bool:
    """Whether both are the same value; that its own contents differ is said where it is defined."""
    if before is None or after is None:
        return before is after
    if before.name == after.name or pairs.renamed.get(before.name) == after.name:
        return True
    return before.is_constant and after.is_constant and same_constant(before, after)


def _text(value: Value | None, other: Value | None) -> str:
    """A value for people: what is in it, where that and the other one's contents are known, or its name."""
    if value is None:
        return ""
    if value.is_constant:
        kind, _, values = (text := constant_text(value)).partition(" ")
        elem = other.scope.model.shapes.elem_type(other) if other is not None else None
        return values if values and elem is not None and name_of(elem) == kind else text
    if other is not None and other.is_constant:
        known = value.scope.model.shapes.value(value)
        if known is not None and len(known.shape) < 2:
            items = ",".join(map(str, known.data))
            return f"[{items}]" if known.shape else items
    return value.name
