"""Which tensor of one model corresponds to which of another: exporters, opsets, tools, faults, names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, parser

import onnxfix
from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.canonical import content_of, tensor_content
from onnxfix.diagnosis.explain import missing
from onnxfix.diagnosis.fingerprints import error, fingerprint, probe
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.matching import match
from onnxfix.errors import UsageError
from onnxfix.files import loading, walk
from onnxfix.runtime.sandbox import shared
from support.evidence import evidence, normal
from support.matched import FAULTS, PAIRS, every_value, feed_of, measured, planted, probe_of, read, renamed
from support.models import model

#: A, B, and the least share of floating-point tensors of A and of B that must have a partner.
EXPORTS = [
    ("bert.legacy.op11", "bert.legacy.op17", 0.65, 1.0),
    ("bert.legacy.op17", "bert.dynamo.op20", 0.89, 1.0),
    ("bert.legacy.op11", "bert.dynamo.op20", 0.58, 1.0),
    ("llama.legacy.op14", "llama.dynamo.op20", 0.87, 1.0),
    ("swin.legacy.op13", "swin.dynamo.op18", 0.6, 0.95),
    ("mixer.legacy.op12", "mixer.dynamo.op18", 0.9, 0.93),
]
MODELS = sorted(path.stem for path in PAIRS.glob("*.onnx"))


def _graph(text: str) -> Graph:
    return Graph(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'))


@pytest.mark.parametrize("turned", [False, True], ids=["forth", "back"])
@pytest.mark.parametrize(("a", "b", "least_a", "least_b"), EXPORTS)
def test_exports_of_one_module(a: str, b: str, least_a: float, least_b: float, turned: bool) -> None:
    if turned:
        a, b, least_a, least_b = b, a, least_b, least_a
    found = measured(read(a), read(b))
    assert not found.wrong
    assert found.share_a >= least_a
    assert found.share_b >= least_b


@pytest.mark.parametrize("probing", [True, False], ids=["values", "structure"])
@pytest.mark.parametrize("name", MODELS)
def test_other_names_throughout(name: str, probing: bool) -> None:
    model = read(name)
    other, names = renamed(model)
    found = measured(model, other, probing=probing)
    assert not found.wrong
    assert min(found.share_a, found.share_b) >= 0.95
    same = sum(names.get(partner, partner) == theirs for theirs, partner in found.found.pairs.items())
    assert same >= 0.95 * len(found.found.pairs), "of equal values, those of the same place are paired"


@pytest.mark.corpus
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize(
    "name", ["bert.legacy.op17", "llama.legacy.op14", "swin.dynamo.op18", "mixer.dynamo.op18"]
)
def test_faults_stay_paired_under_other_names(name: str, kind: str) -> None:
    model = read(name)
    sound = every_value(model, feed_of(model))
    tried = 0
    for which in (0, 2, 5):
        fault = planted(model, kind, which)
        if fault is None:
            continue
        other, names = renamed(fault[0])
        found = measured(model, other, sound={names.get(old, old): value for old, value in sound.items()})
        tried += 1
        assert not found.wrong
        assert found.share_a >= 0.94
        if kind != "removed":
            assert found.found.pairs[names.get(fault[1], fault[1])] == fault[1]
    assert tried or (name, kind) in _NO_PLACE


_NO_PLACE = {("llama.legacy.op14", "epsilon")}


@pytest.mark.parametrize(
    "name",
    [
        "bert.legacy.op11",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("swin.legacy.op13", "mixer.dynamo.op18")),
    ],
)
def test_what_onnx_runtime_makes_of_a_model(name: str, tmp_path: Path) -> None:
    out = tmp_path / "optimized.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(PAIRS / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
    found = measured(read(name), onnx.load(out))
    assert not found.wrong
    assert found.share_b >= 0.93


@pytest.mark.parametrize(
    "name", ["bert.legacy.op11", pytest.param("swin.legacy.op13", marks=pytest.mark.slow)]
)
def test_what_onnxfix_makes_of_a_model(name: str, tmp_path: Path) -> None:
    out = tmp_path / "fixed.onnx"
    onnxfix.apply(PAIRS / f"{name}.onnx", out, numeric_fixes=True, verify=False)
    found = measured(read(name), onnx.load(out))
    assert not found.wrong
    assert found.share_b >= 0.99


def test_a_pair_that_would_cross_is_not_made() -> None:
    a = _graph("agraph (float[2] x) => (float[2] y) { first = Relu(x) second = Relu(first) y = Neg(second) }")
    b = _graph("agraph (float[2] x) => (float[2] y) { second = Relu(x) first = Relu(second) y = Neg(first) }")
    assert match(a, b).pairs == {"x": "x", "y": "y", "second": "first", "first": "second"}


# --------------------------------------------------------------------------------------------------------- names


def test_equal_names_of_other_values_are_not_believed() -> None:
    a = _graph(
        'agraph (float[4] x) => (float[4] y) { "1" = Exp(x) "2" = Tanh("1") "3" = Sin("2") y = Neg("3") }'
    )
    b = _graph(
        'agraph (float[4] x) => (float[4] y) { "2" = Exp(x) "3" = Tanh("2") "1" = Sin("3") y = Neg("1") }'
    )
    assert match(a, b).pairs == {"x": "x", "2": "1", "3": "2", "1": "3", "y": "y"}


def test_a_name_whose_node_computes_something_else_keeps_its_pair() -> None:
    text = "agraph (float[2,3] x) => (float[2,3] y) {{ a = Exp(x) b = Softmax<axis = {axis}>(a) y = Neg(b) }}"
    a, b = _graph(text.format(axis=1)), _graph(text.format(axis=0))
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    probe = probe_of(*(every_value(one.proto, {"x": x}) for one in (a, b)))
    found = match(a, b, probe)
    assert found.pairs == {name: name for name in "xaby"}


def test_values_find_what_is_built_in_another_way() -> None:
    a = _graph("agraph (float[8] x) => (float[8] y) { s = Sigmoid(x) m = Mul(x, s) e = Erf(m) y = Neg(e) }")
    b = _graph(
        "agraph (float[8] x) => (float[8] y) <float one = {1.0}> "
        "{ n = Neg(x) e = Exp(n) p = Add(e, one) d = Div(x, p) f = Erf(d) y = Neg(f) }"
    )
    x = np.linspace(-2, 2, 8, dtype=np.float32)
    values = [every_value(one.proto, {"x": x}) for one in (a, b)]
    assert match(a, b, probe_of(*values)).pairs == {"x": "x", "d": "m", "f": "e", "y": "y"}
    assert "d" not in match(a, b).pairs


def test_a_difference_that_vanishes_is_no_pair() -> None:
    """The scale before or after the product: the products differ, and all that follows is equal."""
    inputs = "agraph (float[4,4] q, float[4,4] k) => (float[4,4] y) <float s = {0.125}>"
    a = _graph(f"{inputs} {{ p = MatMul(q, k) m = Mul(p, s) t = Softmax(m) y = Neg(t) }}")
    b = _graph(f"{inputs} {{ h = Mul(q, s) r = MatMul(h, k) t = Softmax(r) y = Neg(t) }}")
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal((4, 4)).astype(np.float32) for name in "qk"}
    found = match(a, b, probe_of(*(every_value(one.proto, feed) for one in (a, b))))
    assert found.pairs["r"] == "m"
    assert "p" not in found.pairs.values()


# ----------------------------------------------------------------------------------------------------- interface


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("agraph (float[2] x, float[2] z) => (float[2] y) { y = Add(x, z) }", "1 inputs and 2"),
        (
            "agraph (float[2,2] x) => (float[2] y) { y = ReduceSum<keepdims = 0>(x) }",
            "input x has rank 1 and 2",
        ),
        ("agraph (int64[2] x) => (float[2] y) { y = Cast<to = 1>(x) }", "input x has another type"),
        ("agraph (float[2] x) => (float[2] y, float[2] z) { y = Neg(x) z = Abs(x) }", "1 outputs and 2"),
    ],
)
def test_interfaces_that_differ_are_refused(other: str, why: str) -> None:
    a = _graph("agraph (float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match=why):
        match(a, _graph(other))


def test_interfaces_under_other_names_go_by_position() -> None:
    a = _graph("agraph (float[2] x, float[2] z) => (float[2] y) { y = Sub(x, z) }")
    b = _graph("agraph (float16[2] u, float16[2] v) => (float16[2] w) { w = Sub(u, v) }")
    assert match(a, b).pairs == {"u": "x", "v": "z", "w": "y"}


# ------------------------------------------------------------------------------------------------------ evidence


def test_weights_that_stay_in_their_file_are_the_same_weights(tmp_path: Path) -> None:
    """Embedded, left in the file by a token, and as external data."""
    array = np.random.default_rng(0).standard_normal((400, 300)).astype(np.float32)
    model = walk.copied(_graph("agraph (float[N,400] x) => (float[N,300] y) { y = MatMul(x, w) }").proto)
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, "w"))
    onnx.save(model, tmp_path / "inside.onnx")
    onnx.save(model, tmp_path / "outside.onnx", save_as_external_data=True, location="outside.data")
    loaded = loading.load(tmp_path / "inside.onnx")
    assert len(loaded.proto.graph.initializer[0].raw_data) < 100
    expected = content_of(array)
    for proto in (model, loaded.proto, onnx.load(tmp_path / "outside.onnx", load_external_data=False)):
        assert tensor_content(proto.graph.initializer[0], str(tmp_path)) == expected
    assert content_of(np.ascontiguousarray(array.T)).key == expected.turned != expected.key
    assert content_of(array.astype(np.float16)).key == expected.key
    assert content_of(1.01 * array).key != expected.key


def test_a_missing_file_of_weights_is_no_error_here(tmp_path: Path) -> None:
    array = np.ones((300, 200), np.float32)
    model = ModelProto()
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="gone.data")
    (tmp_path / "gone.data").unlink()
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert tensor_content(proto.graph.initializer[0], str(tmp_path)) is None


def test_a_mask_does_not_hide_a_difference() -> None:
    x = np.linspace(0, 1, 32, dtype=np.float32)
    masked: Any = np.where(np.arange(32) % 2, np.float32(-3e38), x)
    other = np.where(np.arange(32) % 2, np.float32(-3e38), x + np.float32(0.01))
    found = error(fingerprint(masked), fingerprint(other))
    assert found is not None
    assert 0.005 < found < 1


def test_one_fault_under_other_names() -> None:
    model = read("mixer.dynamo.op18")
    fault = planted(model, "weight", 1)
    other, names = renamed(fault[0])
    found = measured(
        model, other, sound={names.get(k, k): v for k, v in every_value(model, feed_of(model)).items()}
    )
    assert not found.wrong
    assert found.found.pairs[names.get(fault[1], fault[1])] == fault[1]
    assert found.share_a == found.share_b == 1.0


# ---- Nodes that the other side does not have are named, not the node that reads what they read

HEADER = "g (float[2,8] x) => (float[2,8] y) "
FIRST = HEADER + "{ a = MatMul(x, w)  h = Cast<to = 10>(a)  b = Cast<to = 1>(h)  y = Mul(b, g) }"
CUT = HEADER + "{ a = MatMul(x, w)  h = Cast<to = 7>(a)  b = Cast<to = 1>(h)  y = Mul(b, g) }"
SECOND = HEADER + "{ a = MatMul(x, w)  y = Mul(a, g) }"
ALIVE = SECOND.replace("y = Mul", "r = Relu(a)  y = Mul")
WEIGHTS: dict[str, Any] = {"w": normal(8, 8), "g": normal(8, seed=1)}


@pytest.mark.parametrize(("text", "cause"), [(FIRST, "precision"), (CUT, "operator")])
def test_lost_casts_are_the_culprit(text, cause):
    found = onnxfix.diagnose(
        model(text, **WEIGHTS), model(SECOND, **WEIGHTS), inputs=[{"x": normal(2, 8, seed=2)}]
    )
    worst = found.culprits[0]
    assert (worst.error.place.output, worst.error.place.op_type, worst.cause) == ("b", "Cast", cause)
    assert "Cast, Cast before 'b' are missing in the second model, where Mul reads 'a'" in worst.reason


def step(first: str, second: str, names: dict[str, str], matched: set[str]) -> Any:
    """``missing`` at the Mul of both models."""
    feed = {"b": normal(2, 8), "g": WEIGHTS["g"]}
    last = model("g (float[2,8] b, float[8] g) => (float[2,8] y) { y = Mul(b, g) }")
    found = evidence(last, feed, own={"y": np.zeros((2, 8), np.float32)})
    others = [node for node in model(second, **WEIGHTS).graph.node if node.op_type == "Mul"]
    made = type(found)(**{**vars(found), "others": others, "names": names})
    return missing(made, Graph(model(first, **WEIGHTS)), matched)


def test_a_node_that_reads_another_tensor_although_it_has_the_right_one_is_its_own_culprit():
    relu = HEADER + "{ a = MatMul(x, w)  b = Relu(a)  y = Mul(b, g) }"
    place, cause, _ = step(relu, SECOND, {"a": "a", "g": "g"}, {"a", "x"})
    assert (place.op_type, cause) == ("Relu", "operator")
    assert step(relu, ALIVE, {"a": "a", "g": "g"}, {"a", "x", "b"}) is None


def test_a_tensor_that_does_not_lead_there_is_no_missing_node():
    two = HEADER + "{ a = MatMul(x, w)  c = Add(x, a)  b = Add(c, x)  y = Mul(b, g) }"
    assert step(two, SECOND, {"a": "a", "g": "g"}, {"a", "x"}) is None


# ---- Two exports of one module: what differs is named in the first one's terms

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
