"""What a shell completes is what there is."""

from __future__ import annotations

import pytest

from onnxfix.cli import completion
from onnxfix.names import RUNGS, TARGETS
from onnxfix.rewrite.registry import BUILT_IN, registry
from onnxfix.targets import name_target
from onnxfix.verbs.reducing import CHECKS


def test_the_rules_of_the_catalog_are_completed() -> None:
    built_in = [rule for rule in registry().rules if rule.module.startswith(f"{BUILT_IN}.")]
    assert completion.known_rules() == {rule.code: rule.name for rule in built_in}


def test_rules() -> None:
    families = [value for value, _ in completion.rules("")]
    assert families[:2] == ["BRC", "CST"]
    assert {len(family) for family in families} == {3}
    assert ("CST002", "no-op-cast") in completion.rules("cst")
    assert completion.rules("CST")[:2] == [("CST", "all of the family"), ("CST001", "redundant-cast-chain")]
    assert completion.rules("no-op") == [("no-op-cast", "CST002")]
    assert completion.rules("BRC001,INT,CST002") == [("BRC001,INT,CST002", "no-op-cast")]
    assert completion.rules("nothing") == []


def test_checks() -> None:
    assert completion.checks("ort") == ["ort-cpu", "ort-cuda", "ort-trt"]
    assert completion.checks("ort-cpu,ort") == ["ort-cpu,ort-cuda", "ort-cpu,ort-trt"]
    assert len(completion.checks("")) == len(RUNGS)
    assert set(completion.failures("")) == set(CHECKS)


def test_targets() -> None:
    assert [value for value, _ in completion.targets("")] == [*TARGETS]
    assert completion.targets("TRT8.6") == [("trt8.6", "TensorRT 8.6")]
    assert completion.targets("10.3,TRT8.6") == [("10.3,trt8.6", "TensorRT 8.6")]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("trt10", "trt10"), ("TRT10", "trt10"), ("trt-10", "trt10"), ("10", "trt10"), ("10.3", "trt10.3"),
        ("10.x", "trt10"), ("10.13.3", "trt10.13"), ("TensorRT 10.14.1", "trt10.14"), ("tensorrt_11", "trt11"),
        ("v11.2", "trt11.2"), ("11.5", "trt11"), ("10.17", "trt10"), ("10.3.0", "trt10.3"), ("TRT10.3", "trt10.3"),
        ("jetpack6.2", "trt10.3"), ("JetPack 6.2", "trt10.3"), ("jetpack5.0.2", "trt8.4"), ("jetpack7.2", "trt10.16"),
        ("8.4", "trt8.4"), ("8.2.5", "trt8.4"), ("trt8.4.1", "trt8.4"), ("8.6.1", "trt8.6"), (" RTX ", "rtx"),
        ("rtx1.7", "rtx"), ("TensorRT-RTX 1.7.1", "rtx"), ("tensorrt-rtx", "rtx"),
        ("8.4.2", "trt8.4"), ("8.5", "trt8.5"),
        ("8", None), ("9", None), ("12", None), ("jetpack6", None), ("jetpack", None), ("trt", None), ("", None),
        ("rtx10.3", None), ("1.7", None), ("rtx2", None), ("trt10a", None), ("tensor", None),
    ],
)  # fmt: skip
def test_spellings_of_a_target(text: str, target: str | None) -> None:
    assert name_target(text) == target
