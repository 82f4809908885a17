"""For people who write rules: run a rule's examples, compare graphs up to names, build models from text.

A rule pack's whole test can be ``for rule in rules: for example in rule.examples: check_example(rule, example)``.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxfix.files import tensors, walk
from onnxfix.model import Model
from onnxfix.rewrite import contexts
from onnxfix.rewrite.engine import FixRun, Found, check, fix
from onnxfix.rule import Context, Example, Rule, Safety
from onnxfix.targets import target_named


def model_of(example: Example, text: str | None = None) -> ModelProto:
    """The example's model; ``text`` instead of ``before`` (for ``after``) under the same header.

    Beyond ONNX's text format, an example may name element types, ``Cast<to = FLOAT16>``, and give values of ``f16`` and
    ``bf16`` as they are, ``float16[2] w = {f16(0.5, inf)}``, where the format has numbers and bit patterns.

    Raises:
        onnx.parser.ParseError: the text is not ONNX text.
    """
    source = example.before if text is None else text
    if callable(source):
        return source()  # type: ignore[no-any-return]
    source = readable(source)
    if not source.lstrip().startswith("<"):
        header = f'<ir_version: {example.ir_version}, opset_import: ["" : {example.opset}]>'
        source = f"{header}\n{source}"
    return onnx.parser.parse_model(source)


def readable(text: str) -> str:
    """An example's text with element types as numbers and half-precision values as bit patterns, as ONNX reads it."""
    text = _TYPE.sub(lambda found: f"={found[1]}{TensorProto.DataType.Value(found[2])}", text)
    return _HALVES.sub(lambda found: _bits(found[1], found[2]), text)


_TYPE = re.compile(rf"=(\s*)({'|'.join(TensorProto.DataType.keys())})\b")
_HALVES = re.compile(r"\b(f16|bf16)\(([^()]*)\)")


def _bits(kind: str, values: str) -> str:
    dtype = np.float16 if kind == "f16" else ml_dtypes.bfloat16
    return ", ".join(str(np.array(float(one), dtype).view(np.uint16)) for one in values.split(","))


def overlay(proto: ModelProto, target: str | None = None) -> Model:
    """``proto`` copied and indexed, for a target by name."""
    model = Model(walk.copied(proto))
    model.target = target_named(target)
    return model


def findings(rule: Rule, proto: ModelProto, target: str | None = None) -> list[Found]:
    """What the rule finds in a copy of ``proto``."""
    return check(overlay(proto, target), [rule])


def fixed(
    rules: Sequence[Rule], proto: ModelProto, *, safety: Safety = Safety.EXACT, target: str | None = None
) -> tuple[ModelProto, FixRun]:
    """A copy of ``proto`` after the rules' fixes, and the run's record."""
    model = overlay(proto, target)
    run = fix(model, rules, safety=safety)
    return model.proto, run


def check_example(rule: Rule, example: Example, *, proven: bool = False) -> None:
    """Assert everything that an example promises.

    Silent examples stay silent. Flagged ones are found; checking changes nothing; the result equals ``after`` up
    to names, passes the checker where the original did, leaves the rule nothing more to fix, keeps the interface,
    and computes the same (bit for bit, unless the example's safety says less; ``proven``: for all values, by proof).

    Raises:
        AssertionError: something of this does not hold.
    """
    label = f"{rule.code} ({example.why})"
    proto = model_of(example)
    before = proto.SerializeToString(deterministic=True)
    model = overlay(proto, example.target)
    found = check(model, [rule])
    assert model.proto.SerializeToString(deterministic=True) == before, f"{label}: check changed the model"
    if not example.found:
        assert not found, f"{label}: must stay silent, found {[f.match.message for f in found]}"
        return
    assert found, f"{label}: nothing found"
    result, run = fixed([rule], proto, safety=example.safety, target=example.target)
    assert not run.problems, f"{label}: {run.problems}"
    if example.after is None:
        assert not run.applied, f"{label}: fixed although it only detects"
        return
    assert run.applied, f"{label}: found but not fixed"
    assert max(one.safety for one in run.applied) == example.safety, f"{label}: its fix has another safety"
    wanted = model_of(example, example.after)
    difference = graph_difference(result, wanted)
    assert not difference, f"{label}: {difference}\ngot:\n{onnx.printer.to_text(result)}"
    left = [f for f in run.remaining if f.match.fix is not None and f.match.fix.safety <= example.safety]
    assert not left, f"{label}: finds more after its fix: {[f.match.message for f in left]}"
    if _checks(proto):
        onnx.checker.check_model(result, full_check=False)
    assert_interface_kept(proto, result)
    from onnxfix.proof.checks.symbolic import find_obstacle  # lazy: start-up

    obstacle = find_obstacle(proto, result) if proven else ""
    assert not obstacle, f"{label}: not proven for all values: {obstacle}"
    if example.runs:
        assert_same_outputs(proto, result, exact=example.safety == Safety.EXACT, once=proven)


def check_contexts(rule: Rule) -> None:
    """Assert that each example of a rule holds wherever it stands.

    - ``renamed``: with other names for all inner values and nodes.
    - ``branch``: as a branch of an If, which captures the graph's inputs; then the initializers as well.
    - ``function``: as the body of a local function. Rules know nothing of its inputs; so it is compared with the
      example behind unknown operators.
    - ``foreign``: with one node at a time replaced by a call of a local function of its name in another domain, and all
      nodes of an operator by another domain's operator, and by a local function, of that name. Compared with another
      name, for examples that the rule finds.

    The findings are as many and as severe, and the fixed models are the same. Where the example or the rule ``differs``
    in a context, with a reason, it must: what is declared and not so fails, too.

    Raises:
        AssertionError: an example does not hold, or a difference is declared and is none.
    """
    found: dict[Context, list[str]] = {name: [] for name in get_args(Context)}
    for example in rule.examples:
        for name, difference in _in_contexts(rule, example).items():
            label = f"{rule.code} ({example.why}), {name}"
            if name in rule.differs or name not in example.differs:
                found[name] += [f"{label}: {difference}"] if difference else []
            else:
                assert difference, f"{label}: is declared to differ and does not"
    for name in rule.differs:
        assert found.pop(name), f"{rule.code}, {name}: is declared to differ and does not"
    wrong = [line for lines in found.values() for line in lines]
    assert not wrong, "\n".join(wrong)


def _in_contexts(rule: Rule, example: Example) -> dict[Context, str]:
    """What is different in each context; empty where nothing is."""
    run = partial(_held, rule, example)
    proto = model_of(example)
    plain = run(proto)
    unknown = run(contexts.of_unknown_inputs(proto))
    captured = run(contexts.in_branch(proto, captured=True))
    found: dict[Context, str] = {
        "renamed": _unlike(run(contexts.renamed(proto)), plain, contexts.renamed),
        "branch": _unlike(run(contexts.in_branch(proto)), plain, contexts.in_branch)
        or _unlike(captured._replace(proto=contexts.not_captured(captured.proto)), plain, contexts.in_branch),
        "function": _unlike(
            run(contexts.in_function(proto)),
            unknown,
            lambda fixed: contexts.in_function(contexts.of_known_inputs(fixed)),
        ),
        "foreign": "",
    }

    @cache
    def called(nodes: tuple[int, ...], operator: tuple[str, str], body: bool) -> list[str]:
        model = contexts.with_foreign(proto, nodes, operator, body=body)
        return _tally(findings(rule, model, example.target))

    for nodes, operator, body in _foreign(proto) if example.found else ():
        got, wanted = called(nodes, operator, body), called(nodes, ("foreign", "F"), body)
        if got != wanted:
            what = "function" if body else "operator"
            found["foreign"] = f"{what} {'::'.join(operator)}: findings {got} instead of {wanted}"
    return found


def _foreign(proto: ModelProto) -> Iterator[tuple[tuple[int, ...], tuple[str, str], bool]]:
    """Nodes that become calls, what they call then, and whether it is a function."""
    operators = contexts.operators(proto)
    local = {(function.domain, function.name) for function in proto.functions}
    for index, (_, name) in enumerate(operators):
        yield (index,), ("foreign", name), True
    for operator in sorted(set(operators) - local):
        nodes = tuple(index for index, other in enumerate(operators) if other == operator)
        yield nodes, ("foreign", operator[1]), False
        yield nodes, operator, True


class _Held(NamedTuple):
    """What a rule made of a model."""

    proto: ModelProto
    applied: int
    left: list[str]
    problems: list[str]


def _held(rule: Rule, example: Example, proto: ModelProto) -> _Held:
    result, run = fixed([rule], proto, safety=example.safety, target=example.target)
    return _Held(result, len(run.applied), _tally(run.remaining), [problem.text for problem in run.problems])


def _tally(found: Sequence[Found]) -> list[str]:
    """How severe findings are and what may be done about them."""
    return sorted(
        f"{one.severity.name}, {one.match.fix.safety.name if one.match.fix else 'no'} fix" for one in found
    )


def _unlike(got: _Held, plain: _Held, around: Callable[[ModelProto], ModelProto]) -> str:
    """What is different in a context; empty where nothing is."""
    if (got.applied, got.left, got.problems) != (plain.applied, plain.left, plain.problems):
        return f"{got.applied} fixes, then {got.left or 'nothing'} {got.problems or ''}; without {plain[1:]}"
    return graph_difference(got.proto, around(plain.proto), shared=True) if plain.applied else ""


def _checks(proto: ModelProto) -> bool:
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError:
        return False
    return True


def assert_interface_kept(before: ModelProto, after: ModelProto) -> None:
    """Graph inputs and outputs keep name, order, type and shape. An output without a type may get one."""
    for kind in ("input", "output"):
        for old, new in zip(getattr(before.graph, kind), getattr(after.graph, kind), strict=True):
            pair = [walk.clear_negative(one) if old.HasField("type") else one.name for one in (old, new)]
            assert pair[0] == pair[1], f"the graph's {kind} {old.name} changed"


def assert_same_outputs(old: ModelProto, new: ModelProto, *, exact: bool = True, once: bool = False) -> None:
    """Assert that both models give the same outputs on generated inputs, by the checks that need no GPU; ``once``: by a
    single run of ONNX Runtime, where there can be one, in which half precision agrees within its tolerance."""
    from onnxfix.proof.checks.symbolic import make_largest  # lazy: start-up
    from onnxfix.proof.compare.twin import half_type  # lazy: start-up
    from onnxfix.proof.verdict import CPU_RUNGS  # lazy: start-up
    from onnxfix.proof.verify import verify  # lazy: start-up

    identical = exact and not (once and half_type(old))
    rungs, inputs = (("ort-cpu",), [make_largest(old)]) if once else (CPU_RUNGS, None)
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        first.write_bytes(old.SerializeToString())
        second.write_bytes(new.SerializeToString())
        verdict = verify(first, second, exact=identical, rungs=rungs, inputs=inputs)
    words = "; ".join(f"{r.name}: {r.reason}" for r in verdict.rungs)
    assert not any(r.status == "failed" for r in verdict.rungs), words
    ran = any(r.status == "passed" and r.compares for r in verdict.rungs)
    if once and not ran:  # ONNX Runtime has no kernel, or needs other sizes
        return assert_same_outputs(old, new, exact=exact)
    assert ran, words


def graph_difference(first: ModelProto, second: ModelProto, *, shared: bool = False) -> str:
    """Empty where two models are the same up to the names of inner values, the order of independent nodes, node
    names, metadata, and whether a constant is an initializer or a Constant node; else a line that says what differs.

    ``shared``: nor does it matter whether equal constants are one.
    """
    for kind in ("input", "output"):
        old, new = ([info.name for info in getattr(one.graph, kind)] for one in (first, second))
        if old != new:
            return f"{kind}s {old} against {new}"
    difference = _graph_difference(first.graph, second.graph, shared)
    bodies = [{(f.domain, f.name, f.overload): f for f in model.functions} for model in (first, second)]
    for key in sorted(bodies[0].keys() & bodies[1].keys()):  # nothing calls the others, or the graphs differ
        one, other = (_body(each[key]) for each in bodies)
        if not difference and (inside := _graph_difference(one, other, shared)):
            difference = f"function {key[0]}::{key[1]}: {inside}"
    return difference


def _body(function: FunctionProto) -> GraphProto:
    graph = GraphProto(node=function.node)
    for name in function.input:
        graph.input.add(name=name)
    for name in function.output:
        graph.output.add(name=name)
    return graph


def _graph_difference(first: GraphProto, second: GraphProto, shared: bool) -> str:
    a, b = _Shape(first, {}), _Shape(second, {})
    if a.outputs != b.outputs:
        wrong = [info.name for info, x, y in zip(first.output, a.outputs, b.outputs, strict=True) if x != y]
        return f"outputs {wrong} are computed differently: {_counts(a.ops, b.ops)}"
    if a.nodes != b.nodes:
        return f"other nodes: {_counts(a.ops, b.ops)}"
    if set(a.constants) != set(b.constants) if shared else a.constants != b.constants:
        return f"other constants: {sorted((a.constants - b.constants).values())} more, or other values"
    return ""


def _counts(first: Counter[str], second: Counter[str]) -> str:
    return f"{dict(first - second)} more, {dict(second - first)} fewer"


class _Shape:
    """A graph's structure as hashes that do not depend on inner names."""

    def __init__(self, graph: GraphProto, outer: Mapping[str, str]) -> None:
        self.names: dict[str, str] = dict(outer)
        self.ops: Counter[str] = Counter()
        self.nodes: Counter[str] = Counter()
        self.constants: Counter[str] = Counter()
        for index, info in enumerate(graph.input):
            self.names[info.name] = _digest("input", index)
        inputs = {info.name for info in graph.input}
        for tensor in graph.initializer:
            key = self._constant(tensor)
            if tensor.name not in inputs:
                self.names[tensor.name] = key
        pending = [node for node in graph.node if not self._is_constant(node)]
        while pending:
            ready = [n for n in pending if all(not i or i in self.names for i in self._reads(n))]
            if not ready:
                break
            for node in ready:
                self._add(node)
            pending = [node for node in pending if not any(node is one for one in ready)]
        self.outputs = [self.names.get(info.name, "?") for info in graph.output]

    def _reads(self, node: NodeProto) -> list[str]:
        names = list(node.input)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                inner = {o for n in graph.node for o in n.output}
                inner |= {i.name for i in graph.input} | {t.name for t in graph.initializer}
                names += [i for n in graph.node for i in self._reads(n) if i not in inner]
        return names

    def _is_constant(self, node: NodeProto) -> bool:
        if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
            return False
        if any(a.name == "sparse_value" or a.ref_attr_name for a in node.attribute):
            return False
        array = tensors.constant_node_array(node, None, 1 << 30)
        if array is None:
            return False
        tensor = next((a.t for a in node.attribute if a.name == "value"), None)
        self.names[node.output[0]] = self._constant(tensor) if tensor is not None else self._array(array)
        return True

    def _constant(self, tensor: TensorProto) -> str:
        array = tensors.to_array(tensor, None, 1 << 30)
        if array is None:
            key = _digest("external", tensor.data_type, list(tensor.dims), str(tensor.external_data))
            self.constants[key] += 1
            return key
        return self._array(array)

    def _array(self, array: Any) -> str:
        data = array.tolist() if array.dtype == object else array.tobytes()
        key = _digest("constant", str(array.dtype), array.shape, data)
        self.constants[key] += 1
        return key

    def _add(self, node: NodeProto) -> None:
        attributes = sorted((a.name, self._attribute(a)) for a in node.attribute)
        inputs = [self.names[name] if name else "" for name in node.input]
        domain = walk.domain_of(node.domain)
        key = _digest("node", domain, node.op_type, inputs, attributes, [bool(o) for o in node.output])
        self.ops[node.op_type] += 1
        self.nodes[key] += 1
        for index, name in enumerate(node.output):
            if name:
                self.names[name] = _digest(key, index)

    def _attribute(self, attribute: AttributeProto) -> str:
        graphs = ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)
        if graphs:
            inner = [_Shape(graph, self.names) for graph in graphs]
            return _digest([(g.outputs, sorted(g.nodes.items())) for g in inner])
        copy = walk.copied(attribute)
        copy.doc_string = ""
        return _digest(copy.SerializeToString(deterministic=True))


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
