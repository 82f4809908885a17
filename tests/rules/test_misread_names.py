"""OPS017 and OPS085: inputs and outputs to which TensorRT gives other names than the model does.

``lifted`` imports the rules' examples by the real parser and writes the imported network as ONNX again.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import ModelProto

from onnxfix.rewrite.registry import registry
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import findings, fixed, model_of
from support.lifted import lifted, text
from support.real_tensorrt import REAL, built

pytestmark = pytest.mark.corpus

LOOP_CONDITION, PASSED_THROUGH = (registry().get(code) for code in ("OPS017", "OPS085"))


def names_in(model: ModelProto) -> tuple[list[str], list[str]]:
    """The names of a model's inputs without defaults, and of its outputs."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    inputs = [info.name for info in model.graph.input if info.name not in defaults]
    return inputs, [info.name for info in model.graph.output]


def names_read(worker: Worker, model: ModelProto, folder: Path) -> tuple[list[str], list[str]]:
    """What TensorRT calls the network's inputs and outputs."""
    network = lifted(worker, model, folder)
    assert network.lifted, network.reason
    return names_in(onnx.load(network.path))


@REAL
def test_a_loops_condition_takes_the_inputs_name(worker: Worker, tmp_path: Path) -> None:
    for example in LOOP_CONDITION.examples:
        model = model_of(example)
        wanted = set(names_in(model)[0])
        assert (set(names_read(worker, model, tmp_path)[0]) == wanted) == (not example.found), example.why
        result, _ = fixed([LOOP_CONDITION], model)
        assert set(names_read(worker, result, tmp_path)[0]) == wanted, example.why


@REAL
def test_an_input_that_is_an_output_gets_another_name(worker: Worker, tmp_path: Path) -> None:
    for example in PASSED_THROUGH.examples:
        model = model_of(example)
        inputs, outputs = names_in(model)
        passed = [name for name in inputs if name in outputs]
        assert len(findings(PASSED_THROUGH, model)) == len(passed)
        read, results = names_read(worker, model, tmp_path)
        if passed and "another input" in example.why:
            assert read == inputs
            assert results != outputs
        elif passed:
            assert read == [f"__{name}" if name in passed else name for name in inputs]
            assert results == outputs
            assert built(worker, model, tmp_path).accepted
        else:
            assert read == inputs
            assert all(found.startswith(name) for found, name in zip(results, outputs, strict=True))


def test_the_finding_says_both_names() -> None:
    model = text("g (float[2] x, float[2] z) => (float[2] z, float[2] x) { y = Add(x, z) }")
    found = findings(PASSED_THROUGH, model)
    assert [one.match.place.text for one in found] == ["x", "z"]
    assert "'__x'" in found[0].match.message
    assert "'__z'" in found[1].match.message
