"""Nodes of local functions are named by the function, although functions are inlined."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, inliner, parser

import onnxfix
from onnxfix.diagnosis.sides import restored, stamped

OUTER, INNER = "fn l::outer", "fn l::inner"

TEXT = """<ir_version: 8, opset_import: ["" : 17, "l": 1]> agraph (float[4] x) => (float[4] y) {
    h = l.outer(x)
    g = Neg(h)
    y = l.outer(g)
}
<domain: "l", opset_import: ["" : 17, "l": 1]> outer (a) => (b) { t = OUTER(a) u = l.inner(t) b = Sigmoid(u) }
<domain: "l", opset_import: ["" : 17]> inner (a) => (b) { t = INNER(a) b = Sin(t) }"""


def _model(outer: str = "Tanh", inner: str = "Atan") -> ModelProto:
    model = parser.parse_model(TEXT.replace("OUTER", outer).replace("INNER", inner))
    for number, node in enumerate(model.graph.node):
        node.name = f"call{number}"
    for function in model.functions:
        for number, node in enumerate(function.node):
            node.name = f"{function.name}{number}" if function.name == "outer" else ""
    return model


def test_places_of_inlined_nodes() -> None:
    model = _model()
    inlined = inliner.inline_local_functions(stamped(model))
    found = restored(inlined, model)
    places = [found.get(node.output[0]) for node in inlined.graph.node]
    called = [
        (one.graph, one.node, one.output, one.around.node, one.index)
        if one is not None and one.around
        else None
        for one in places
    ]
    expected = [
        ((OUTER,), "outer0", "t"),
        ((OUTER, INNER), "", "t"),
        ((OUTER, INNER), "", "b"),
        ((OUTER,), "outer2", "b"),
    ]
    assert called == [
        *((*one, "call0", 0) for one in expected),
        None,
        *((*one, "call2", 2) for one in expected),
    ]
    assert [node.name for node in inlined.graph.node] == [
        "outer0__1", "", "", "outer2__1", "call1", "outer0__3", "", "", "outer2__3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("other", "graph", "op_type"),
    [(_model(outer="Erf"), (OUTER,), "Tanh"), (_model(inner="Softsign"), (OUTER, INNER), "Atan")],
    ids=["outer", "inner"],
)
def test_a_fault_in_a_function(other: ModelProto, graph: tuple[str, ...], op_type: str) -> None:
    x = np.linspace(-2, 1, 4, dtype=np.float32)
    found = onnxfix.diagnose(_model(), other, inputs=[{"x": x}])
    assert found.status == "differ"
    places = {one.error.place for one in found.culprits}
    assert {(place.graph, place.op_type, place.output) for place in places} == {(graph, op_type, "t")}
    assert {one.error.place.around.node for one in found.culprits if one.error.place.around} <= {
        "call0",
        "call2",
    }
