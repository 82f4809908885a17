"""The known faults of releases: each has its source, and the rule that is said to find it does."""

from __future__ import annotations

import re
from datetime import date

import onnx
import pytest
from onnx import ModelProto

import onnxfix
from onnxfix.rewrite.registry import registry
from onnxfix.targets import RELEASES
from onnxfix.targets.documented import Fault, faults, version_of
from onnxfix.testing import findings, model_of
from support.models import model

OURS = "OPS123"
RULE = registry().get(OURS)
FOUND = [fault for fault in faults().values() if fault.rule == OURS]
_ELSE = {
    "if-branch-shapes": "the condition is an input",
    "int64-constant-clamped": "arithmetic and comparison",
    "reduce-axes-input-86": "whether a row of a mask is -inf, for TensorRT 8.6",
    "reshape-allowzero-84": "no 0 in an initializer",
    "resize-antialias-ignored": "antialiasing, linear, along one axis of several",
    "resize-keep-aspect-ignored": "a kept aspect ratio: 4 and 2 become 6 and 3",
    "scatterelements-reduction-ignored": "ScatterElements without duplicate indices",
    "scatternd-reduction-ignored": "ScatterND, add: no duplicate indices",
    "scatternd-reduction-none-refused": "ScatterND with the default written out",
    "shape-start-end-ignored": "the last dimensions, for TensorRT 8.6",
    "gridsample-20-mode": "cubic",
    "trilu-default-upper": "the upper triangle, by default",
    "groupnorm-1-group": "scale and bias per group, before opset 21; a dynamic batch of images",
    "groupnorm-21": "two channels a group",
    "qdq-uint8-as-int8": "zero point 0",
    "mean-op-half": "of three tensors, which broadcast",
    "uint8-transpose-cast": "an image, transposed to channels first",
    "sdpa-split-scale-107": "as PyTorch's legacy exporter writes it",
    "optional-outputs": "only the second output is named",
    "scatterelements-more-indices": "more indices than elements along the axis",
    "local-function-name-alias": "a parameter is named like an input of the graph, for TensorRT 10.6",
}
"""Faults that other rules find -> the rule's example with it."""
_NORM = "rmsnorm-no-importer"


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
    others = {fault.id for fault in faults().values() if fault.rule not in ("-", OURS)}
    assert others == {*_ELSE, _NORM}


def assert_found(name: str, proto: ModelProto) -> None:
    for target in ends(faults()[name]):
        codes = {one.code for one in onnxfix.check(proto, target=target).findings}
        assert faults()[name].rule in codes, target


@pytest.mark.parametrize("name", _ELSE)
def test_another_rule_finds_a_fault_in_its_releases(name: str) -> None:
    examples = registry().get(faults()[name].rule).examples
    [example] = [one for one in examples if one.why == _ELSE[name]]
    assert_found(name, model_of(example))


def test_an_operator_without_an_importer_is_found_in_its_releases() -> None:
    assert_found(
        _NORM, model("g (float[2,3] x, float[3] s) => (float[2,3] y) { y = RMSNormalization(x, s) }", 23)
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
