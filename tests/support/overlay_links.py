"""Whether an overlay, after edits, says what one that is freshly made of the same model says; and a model to edit."""

from __future__ import annotations

from onnx import ModelProto, helper

from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from support.models import of_opset

CHAIN = """g (float[N] x, bool c) => (float[N] y) <float[1] w = {1}> {
    a = Neg(x) b = Abs(a) d = Mul(b, w)
    y = If (c) <then_branch = t () => (float[N] p) { p = Add(b, d) },
                else_branch = e () => (float[N] q) { q = Identity(d) }> }"""


proto_of = of_opset(18)


def chain() -> ModelProto:
    """CHAIN with a sparse initializer that nothing reads, and an annotation in a branch."""
    proto = proto_of(CHAIN)
    values, places = helper.make_tensor("sparse", 1, [1], [2.0]), helper.make_tensor("at", 7, [1], [1])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))
    branch = proto.graph.node[-1].attribute[0].g
    branch.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(key="X", value="p")
    return proto


def node_at(model: Model, output: str) -> Node:
    return next(node for node in model.nodes() if node.first_output == output)


def assert_links(model: Model) -> None:
    """The overlay says what a freshly built one says."""
    fresh = Model(model.proto)
    assert [s.path for s in model.scopes] == [s.path for s in fresh.scopes]
    for ours, theirs in zip(model.scopes, fresh.scopes, strict=True):
        assert sorted(ours.values) == sorted(theirs.values)
        assert model.names >= set(ours.values)
        assert (ours.attr, ours.kind) == (theirs.attr, theirs.kind)
        assert (ours.owner and ours.owner.place) == (theirs.owner and theirs.owner.place)
        assert (ours.parent and ours.parent.path) == (theirs.parent and theirs.parent.path)
        for one, other in ((ours.inputs, theirs.inputs), (ours.outputs, theirs.outputs)):
            assert [(v.name, v.scope.path) for v in one] == [(v.name, v.scope.path) for v in other]
        assert sorted(v.name for v in ours.captures()) == sorted(v.name for v in theirs.captures())
        assert ours.declared_types() == theirs.declared_types()
        assert [n.first_output for n in ours.nodes] == [n.first_output for n in theirs.nodes]
        for a, b in zip(ours.nodes, theirs.nodes, strict=True):
            assert a.proto == b.proto
            assert [v and (v.name, v.scope.path) for v in a.inputs] == [
                v and (v.name, v.scope.path) for v in b.inputs
            ]
            assert [sub.path for sub in a.subgraphs] == [sub.path for sub in b.subgraphs]
            assert [v and v.name for v in a.outputs] == [v and v.name for v in b.outputs]
        for name, value in ours.values.items():
            wanted = theirs.values[name]
            assert (value.is_input, value.is_output, value.pins) == (
                wanted.is_input,
                wanted.is_output,
                wanted.pins,
            ), name
            assert (value.sparse, value.initializer) == (wanted.sparse, wanted.initializer)
            assert sorted((u.node.place, u.index) for u in value.uses) == sorted(
                (u.node.place, u.index) for u in wanted.uses
            ), name
            assert (value.producer and value.producer.place) == (wanted.producer and wanted.producer.place)
