"""What onnxfix's rules say about a node is found by the node's outputs."""

from __future__ import annotations

import onnx

from onnxfix.diagnosis.findings import collect
from support.models import model
from support.paths import FIXTURES


def test_a_finding_is_at_the_outputs_of_its_node() -> None:
    found = collect(onnx.load(FIXTURES / "misread" / "decoder.onnx"))
    assert {name: [one.code for one in some] for name, some in found.by_output.items()} == {
        "upsampled": ["OPS013"]
    }
    (hazard,) = found.at(["upsampled", ""])
    assert (hazard.fix, hazard.safety) == ("replace output_shape by explicit pads", "exact")
    assert found.at(["mask"]) == ()


def test_a_finding_in_a_branch_is_at_the_node_around_it() -> None:
    found = collect(
        model(
            """
            g (float[1,2,2,2] x, float[2,1,3,3] w, bool c) => (float[1,1,4,4] z) {
                y = If(c)<then_branch = p () => (float[1,1,4,4] u) {
                            u = ConvTranspose<strides = [2,2], output_shape = [4,4]>(x, w) },
                        else_branch = q () => (float[1,1,4,4] v) {
                            v = ConvTranspose<strides = [2,2], pads = [1,1,0,0]>(x, w) }>
                z = Neg(y) }
            """
        )
    )
    assert [one.code for one in found.at(["y"])].count("OPS013") == 1
    assert found.at(["u"]) == ()
