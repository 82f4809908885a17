"""The known faults of releases: each has its source, and the rule that is said to find it does."""

from __future__ import annotations

import re
from datetime import date

import onnx
import pytest

import onnxfix
from onnxfix.rewrite.registry import registry
from onnxfix.targets import RELEASES
from onnxfix.targets.documented import Fault, faults, version_of
from onnxfix.testing import findings, model_of

OURS = "OPS123"
RULE = registry().get(OURS)
FOUND = [fault for fault in faults().values() if fault.rule == OURS]
_ELSE = {
    "if-branch-shapes": (
        13,
        """g (bool c, float[2] x, float[3] z) => (float[N] y) { y = If(c)<
            then_branch = p () => (float[2] u) { u = Neg(x) },
            else_branch = q () => (float[3] v) { v = Neg(z) }> }""",
    ),
    "int64-constant-clamped": (
        18,
        "g (int64[N] x) => (int64[N] y) <int64[1] a = {4294967296}> { y = Add(x, a) }",
    ),
    "reduce-axes-input-86": (
        18,
        "g (float[2,3] x) => (float[2] y) <int64[1] a = {1}> { y = ReduceMax<keepdims = 0>(x, a) }",
    ),
    "reshape-allowzero-84": (
        18,
        "g (float[2,3] x) => (float[3,2] y) <int64[2] a = {3, 2}> { y = Reshape<allowzero = 1>(x, a) }",
    ),
    "resize-antialias-ignored": (
        18,
        """g (float[1,1,8,8] x) => (float[1,1,4,4] y) <int64[4] s = {1, 1, 4, 4}> {
            y = Resize<antialias = 1, mode = "linear">(x, , , s) }""",
    ),
    "resize-keep-aspect-ignored": (
        18,
        """g (float[1,1,8,8] x) => (float[1,1,4,4] y) <int64[4] s = {1, 1, 4, 6}> {
            y = Resize<keep_aspect_ratio_policy = "not_larger", mode = "linear">(x, , , s) }""",
    ),
    "rmsnorm-no-importer": (
        23,
        "g (float[2,3] x, float[3] s) => (float[2,3] y) { y = RMSNormalization(x, s) }",
    ),
    "scatterelements-reduction-ignored": (
        18,
        """g (float[3,3] x, float[2,3] u) => (float[3,3] y) <int64[2,3] i = {0, 1, 2, 2, 1, 0}> {
            y = ScatterElements<reduction = "add">(x, i, u) }""",
    ),
    "scatternd-reduction-ignored": (
        18,
        """g (float[3,3] x, float[2,3] u) => (float[3,3] y) <int64[2,1] i = {0, 1}> {
            y = ScatterND<reduction = "add">(x, i, u) }""",
    ),
    "scatternd-reduction-none-refused": (
        18,
        """g (float[3,3] x, float[2,3] u) => (float[3,3] y) <int64[2,1] i = {0, 1}> {
            y = ScatterND<reduction = "none">(x, i, u) }""",
    ),
    "shape-start-end-ignored": (
        18,
        "g (float[2,N,4] x) => (int64[1] y) { y = Shape<start = 1, end = 2>(x) }",
    ),
    "gridsample-20-mode": (
        20,
        """g (float[1,1,4,4] x, float[1,3,3,2] r) => (float[1,1,3,3] y) {
            y = GridSample<mode = "cubic">(x, r) }""",
    ),
    "trilu-default-upper": (18, "g (float[4,4] x) => (float[4,4] y) { y = Trilu(x) }"),
    "groupnorm-1-group": (
        21,
        """g (float[2,4,3,3] x, float[4] s, float[4] b) => (float[2,4,3,3] y) {
            y = GroupNormalization<num_groups = 1>(x, s, b) }""",
    ),
    "groupnorm-21": (
        21,
        """g (float[2,4,3,3] x, float[4] s, float[4] b) => (float[2,4,3,3] y) {
            y = GroupNormalization<num_groups = 2>(x, s, b) }""",
    ),
    "qdq-uint8-as-int8": (
        18,
        """g (float[4] x) => (float[4] y) <float s = {0.1}, uint8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
    ),
    "mean-op-half": (18, "g (float16[4] x, float16[4] z) => (float16[4] y) { y = Mean(x, z) }"),
    "uint8-transpose-cast": (
        18,
        "g (uint8[4,3] x) => (float[3,4] y) { t = Transpose<perm = [1, 0]>(x)  y = Cast<to = 1>(t) }",
    ),
    "sdpa-split-scale-107": (
        18,
        """g (float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,4,8] v) => (float[1,2,4,8] y) <float f = {0.6}> {
            t = Transpose<perm = [0, 1, 3, 2]>(k)  a = Mul(q, f)  b = Mul(t, f)  s = MatMul(a, b)
            p = Softmax<axis = -1>(s)  y = MatMul(p, v) }""",
    ),
    "optional-outputs": (13, "g (float[4] x) => (float[2] y) { , y = Split(x) }"),
    "scatterelements-more-indices": (
        18,
        "g (float[2,3] x, int64[4,3] i, float[4,3] u) => (float[2,3] y) { y = ScatterElements(x, i, u) }",
    ),
    "local-function-name-alias": (
        18,
        """g (float[4] x) => (float[4] y) { a = Neg(x)  y = f.Act(a) }
            <domain: "f", opset_import: ["" : 18]> Act (x) => (v) { v = Relu(x) }""",
    ),
}
"""Models with the faults that other rules find: fault -> opset, graph."""


def ends(fault: Fault) -> list[str]:
    """The first and the last release of a fault that is a target."""
    known = [
        version
        for version in RELEASES
        if version_of(fault.first) <= version and (not fault.last or version <= version_of(fault.last))
    ]
    return [f"{major}.{minor}" for major, minor in dict.fromkeys((known[0], known[-1]))]


def test_forty_faults_and_more_are_found_by_a_rule() -> None:
    assert sum(fault.rule != "-" for fault in faults().values()) >= 40
    assert {fault.rule for fault in faults().values()} - {"-"} <= {rule.code for rule in registry().rules}


@pytest.mark.parametrize("fault", faults().values(), ids=lambda fault: fault.id)
def test_a_row_has_its_source_and_the_day_of_reading(fault: Fault) -> None:
    assert all((fault.source, fault.words, fault.pattern, fault.where))
    assert date.fromisoformat(fault.read) <= date.today()
    assert fault.effect in ("wrong values", "build fails", "parser refuses", "hang")
    assert fault.certainty in ("confirmed by NVIDIA", "reported, reproduced by others", "reported once")
    assert not fault.last or version_of(fault.first) <= version_of(fault.last)
    later = re.match(r"\d+\.\d+", fault.fixed)
    assert not later or not fault.last or version_of(later[0]) >= version_of(fault.last)


@pytest.mark.parametrize("fault", FOUND, ids=lambda fault: fault.id)
def test_a_fault_has_examples_and_is_reported_in_its_releases(fault: Fault) -> None:
    examples = [example for example in RULE.examples if example.why.startswith(f"{fault.id}: ")]
    assert {example.found for example in examples} == {True, False}
    assert f"`{fault.id}`: {fault.first}" in RULE.doc
    span = fault.first if fault.first == fault.last else f"{fault.first} to {fault.last}"
    for example in examples:
        for target in ends(fault) if example.found else ():
            said = [one.match.message for one in findings(RULE, model_of(example), target)]
            assert any(text.startswith(f"known fault of TensorRT {span}") for text in said)
    for target in ("10.6", "trt11", "rtx"):
        assert not [one for example in examples for one in findings(RULE, model_of(example), target)]


def test_all_others_have_a_model() -> None:
    assert {fault.id for fault in faults().values() if fault.rule not in ("-", OURS)} == _ELSE.keys()


@pytest.mark.parametrize("name", _ELSE)
def test_another_rule_finds_a_fault_in_its_releases(name: str) -> None:
    opset, graph = _ELSE[name]
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}, "f" : 1]> {graph}')
    for target in ends(faults()[name]):
        assert faults()[name].rule in {one.code for one in onnxfix.check(model, target=target).findings}, (
            target
        )


def test_check_says_it_of_the_releases_that_have_it() -> None:
    graph = """g (float[N,2] x) => (float[N,3] y)
        <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {0, 1, 2}, float m = {0}, float n = {6}> {
        p = MatMul(x, w)  a = Add(p, b)  y = Clip(a, m, n) }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {graph}')
    for target, said in {"10.11": 0, "10.12": 1, "10.13": 1, "10.14": 0}.items():
        found = [one for one in onnxfix.check(model, target=target).findings if one.code == OURS]
        assert len(found) == said
        assert all("TensorRT 10.12 to 10.13 (NVIDIA/TensorRT#4606)" in one.message for one in found)
