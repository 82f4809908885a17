"""One planted fault of each kind, end to end: the node is named first, with the right cause."""

from __future__ import annotations

from typing import Any

import pytest
from diagnose import observing, planting
from diagnose.places import Site

import onnxfix
from onnxfix.files import loading, saving
from support.paths import ROOT

FIXTURES = ROOT / "fixtures"

#: The fixture, what is planted, the cause, and words of the reason.
FAULTS: list[Any] = [
    ("bert.dynamo.op20", Site("weight scaled", 109, 1, 109), "weight", "times 1.01 (1024 elements)"),
    ("bert_fp16.legacy.op13", Site("weight scaled", 64, 0, 64), "weight", "times 1.01"),
    ("vit.dynamo.op20", Site("weight element", 1, 1, 1), "weight", "1 of 6144 elements differs at [4, 1, 2, 3]"),
    ("gpt2.dynamo.op18", Site("epsilon", 79), "attribute", "epsilon of LayerNormalization is 1e-05"),
    ("bert.legacy.op11", Site("epsilon", 71, 1), "weight", "is 1e-12 in the first model and 0.001 in the other"),
    ("bert.dynamo.op20", Site("axis", 103, 0, -3), "attribute", "axis of Softmax is -1 in the first model and -3"),
    ("mixed_precision.legacy.op17", Site("axis", 10, 0, -3), "attribute", "axes of ReduceSum is [-1] in"),
    ("vit.dynamo.op20", Site("perm", 41, 0, 1), "attribute", "perm of Transpose is [0, 2, 1, 3] in"),
    ("segformer.dynamo.op20", Site("pads", 48), "attribute", "pads of Conv is [1, 1, 1, 1] in"),
    ("vit.dynamo.op20", Site("lost Cast", 16), "precision", "the first model rounds to float16 here"),
    ("mixed_precision.legacy.op17", Site("lost Cast", 8, 0, 1), "operator", "from int64 to float32 is missing"),
    ("bert.dynamo.op20", Site("mask value", 57, 2), "weight", "is -3.4028e+38 in the first model and -10000 in"),
    ("mixed_precision.legacy.op17", Site("lost bias", 20), "weight", "'b.bias' is all zeros on the other side"),
    ("vit.dynamo.op20", Site("half precision", 77, 0, 1), "precision", "computes in float16"),
    ("gpt2.dynamo.op18", Site("half precision", 69, 0, 1), "overflow", "float16 ends at 65504: the input"),
    ("segformer.dynamo.op20", Site("shape constant", 47, 1), "attribute", "shape of Reshape is [-1, 32, 16, 16] in"),
    ("vit.dynamo.op20", Site("operands", 39), "operator", "the inputs 1 and 2 of Where are swapped"),
    ("gpt2.dynamo.op18", Site("operator", 138), "operator", "Tanh in the first model is computed by Erf"),
]  # fmt: skip


#: What moves no output beyond rounding: ``verify`` passes.
HIDDEN = {("vit.dynamo.op20", "lost Cast"), ("vit.dynamo.op20", "half precision")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "site", "cause", "words"), FAULTS, ids=[f"{name}-{site.kind}" for name, site, *_ in FAULTS]
)
def test_the_changed_node_is_named_first_with_its_cause(tmp_path, name, site, cause, words):
    path = FIXTURES / f"{name}.onnx"
    loaded = loading.load(path)
    planted = planting.plant(loaded.proto, site, FIXTURES)
    saving.save(planted.truth, tmp_path / "truth.onnx")
    saving.save(planted.other, tmp_path / "other.onnx")
    inputs = [observing.inputs_of(path, 0)]
    found = onnxfix.diagnose(tmp_path / "truth.onnx", tmp_path / "other.onnx", inputs=inputs)
    shows = (name, site.kind) not in HIDDEN
    assert (found.status, found.exit_code) == (("differ", 1) if shows else ("rounding", 0)), found.reason
    worst = found.culprits[0]
    assert {worst.error.place.node, worst.error.place.output} & {*planted.nodes, *planted.outputs}
    assert (worst.cause, words in worst.reason) == (cause, True), worst.reason
    assert bool(worst.advice) is shows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert.dynamo.op20", "vit_fp16.legacy.op16", "mixed_precision.legacy.op17"])
def test_nothing_is_named_where_nothing_was_planted(name):
    path = FIXTURES / f"{name}.onnx"
    found = onnxfix.diagnose(path, path, inputs=[observing.inputs_of(path, 0)])
    assert (found.status, found.culprits, found.exit_code) == ("agree", (), 0)
