"""Two exports of one module: what differs is named in the first one's terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.fingerprints import probe
from onnxfix.diagnosis.graph import Graph
from onnxfix.runtime.sandbox import shared
from support.matched import planted, read, renamed

#: A, B, kind of fault, which place, the output of A's node.
FAULTS = [
    ("mixer.legacy.op12", "mixer.dynamo.op18", "weight", 1, "/deep/deep.0/Conv_output_0"),
    ("mixer.legacy.op12", "mixer.dynamo.op18", "operator", 1, "/Sigmoid_output_0"),
    ("bert.dynamo.op20", "bert.legacy.op11", "weight", 3, "val_126"),
    (
        "bert.legacy.op17", "bert.dynamo.op20", "epsilon", 1,
        "/model/encoder/layer.0/attention/output/LayerNorm/LayerNormalization_output_0",
    ),
    ("bert.dynamo.op20", "bert.legacy.op11", "operator", 1, "layer_norm_1"),
    (
        "llama.legacy.op14", "llama.dynamo.op20", "operator", 1,
        "/model/model/layers.0/post_attention_layernorm/Sqrt_output_0",
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b", "kind", "which", "named"), FAULTS)
def test_a_fault_in_the_other_export(a: str, b: str, kind: str, which: int, named: str) -> None:
    fault = planted(read(b), kind, which)
    found = onnxfix.diagnose(read(a), fault[0])
    assert found.status == "differ"
    assert [one.error.place.output for one in found.culprits] == [named]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("bert.dynamo.op20", "bert.legacy.op11"),
        ("llama.legacy.op14", "llama.dynamo.op20"),
        ("swin.dynamo.op18", "swin.legacy.op13"),
        ("mixer.legacy.op12", "mixer.dynamo.op18"),
    ],
)
def test_exports_of_one_module_agree(a: str, b: str) -> None:
    found = onnxfix.diagnose(read(a), read(b))
    assert found.status in ("agree", "rounding")
    assert not found.culprits
    assert found.notes, "how many tensors correspond"


def test_a_fault_under_other_names() -> None:
    fault = planted(read("mixer.dynamo.op18"), "weight", 1)
    found = onnxfix.diagnose(read("mixer.dynamo.op18"), renamed(fault[0])[0])
    assert [one.error.place.output for one in found.culprits] == [fault[1]]


def test_a_probe_skips_samples_that_the_truth_refuses(tmp_path: Path) -> None:
    nodes = "r = Reshape(x, s) f = Neg(r) y = ReduceSum<keepdims=0>(f)"
    text = f"agraph (float[N] x) => (float y) <int64[2] s = {{2, -1}}> {{ {nodes} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    graph, bench = Graph(model), Bench(shared(), tmp_path)
    samples = [{"x": np.ones(size, np.float32)} for size in (3, 4)]
    ours, theirs = probe(graph, graph, lambda feed: feed, bench, samples)(["r", "f"], ["f"])
    assert {name: seen.shape for name, seen in ours.items()} == {"r": (2, 2), "f": (2, 2)}
    assert set(theirs) == {"f"}
