"""For people who write rules: run a rule's examples, compare graphs up to names, build models from text.

A rule pack's whole test can be ``for rule in rules: for example in rule.examples: check_example(rule, example)``.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxfix.engine import FixRun, Found, check, fix
from onnxfix.files import tensors
from onnxfix.model import Model
from onnxfix.rule import Example, Rule, Safety
from onnxfix.targets import target_named


def model_of(example: Example, text: str | None = None) -> ModelProto:
    """The example's model; ``text`` instead of ``before`` (for ``after``) under the same header.

    Raises:
        onnx.parser.ParseError: the text is not ONNX text.
    """
    source = example.before if text is None else text
    if callable(source):
        return source()  # type: ignore[no-any-return]
    if not source.lstrip().startswith("<"):
        header = f'<ir_version: {example.ir_version}, opset_import: ["" : {example.opset}]>'
        source = f"{header}\n{source}"
    return onnx.parser.parse_model(source)


def overlay(proto: ModelProto, target: str | None = None) -> Model:
    """``proto`` copied and indexed, for a target by name."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    model = Model(copy)
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


def check_example(rule: Rule, example: Example) -> None:
    """Assert everything that an example promises.

    Silent examples stay silent. Flagged ones are found; checking changes nothing; the result equals ``after`` up
    to names, passes the checker where the original did, leaves the rule nothing more to fix, keeps the interface,
    and computes the same (bit for bit, unless the example's safety says less).

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
    wanted = model_of(example, example.after)
    difference = graph_difference(result, wanted)
    assert not difference, f"{label}: {difference}\ngot:\n{onnx.printer.to_text(result)}"
    left = [f for f in run.remaining if f.match.fix is not None and f.match.fix.safety <= example.safety]
    assert not left, f"{label}: finds more after its fix: {[f.match.message for f in left]}"
    if _checks(proto):
        onnx.checker.check_model(result, full_check=False)
    assert_interface_kept(proto, result)
    if example.runs:
        assert_same_outputs(proto, result, exact=example.safety == Safety.EXACT)


def _checks(proto: ModelProto) -> bool:
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError:
        return False
    return True


def assert_interface_kept(before: ModelProto, after: ModelProto) -> None:
    """Graph inputs and outputs keep name, order, type and shape."""
    for kind in ("input", "output"):
        old = [info.SerializeToString() for info in getattr(before.graph, kind)]
        new = [info.SerializeToString() for info in getattr(after.graph, kind)]
        assert old == new, f"the graph's {kind}s changed"


def assert_same_outputs(before: ModelProto, after: ModelProto, *, exact: bool = True) -> None:
    """Both models give the same outputs on generated inputs, by the rungs of the ladder that need no GPU.

    Raises:
        AssertionError: they differ, or no rung could run either of them.
    """
    from onnxfix.verification.ladder import verify  # lazy: start-up
    from onnxfix.verification.verdict import CPU_RUNGS  # lazy: start-up

    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        first.write_bytes(before.SerializeToString())
        second.write_bytes(after.SerializeToString())
        verdict = verify(first, second, exact=exact, rungs=CPU_RUNGS)
    failed = [f"{r.name}: {r.reason}" for r in verdict.rungs if r.status == "failed"]
    assert not failed, "; ".join(failed)
    ran = [r.name for r in verdict.rungs if r.status == "passed" and r.name != "contract"]
    assert ran, "; ".join(f"{r.name}: {r.reason}" for r in verdict.rungs)


def graph_difference(first: ModelProto, second: ModelProto) -> str:
    """Empty where two models are the same up to the names of inner values, the order of independent nodes, node
    names, metadata, and whether a constant is an initializer or a Constant node; else a line that says what differs.
    """
    for kind in ("input", "output"):
        old = [info.name for info in getattr(first.graph, kind)]
        new = [info.name for info in getattr(second.graph, kind)]
        if old != new:
            return f"{kind}s {old} against {new}"
    a, b = _Shape(first.graph, {}), _Shape(second.graph, {})
    if a.outputs != b.outputs:
        wrong = [
            info.name for info, x, y in zip(first.graph.output, a.outputs, b.outputs, strict=True) if x != y
        ]
        return f"outputs {wrong} are computed differently: {_counts(a.ops, b.ops)}"
    if a.nodes != b.nodes:
        return f"other nodes: {_counts(a.ops, b.ops)}"
    if a.constants != b.constants:
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
            done = {id(node) for node in ready}
            pending = [node for node in pending if id(node) not in done]
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
        domain = "" if node.domain == "ai.onnx" else node.domain
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
        copy = AttributeProto()
        copy.CopyFrom(attribute)
        copy.doc_string = ""
        return _digest(copy.SerializeToString(deterministic=True))


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
