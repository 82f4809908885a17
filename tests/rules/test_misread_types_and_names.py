"""OPS017, OPS054, OPS074, OPS085, QDQ017 and QDQ018: names, blocks, bytes and Clips of int8 that TensorRT misreads or
refuses. What it reads of the rules' examples is in test_errors_are_refused.py.

``lifted`` imports a model by the real parser and writes the imported network as ONNX again."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety, Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import assert_same_outputs, findings, fixed, model_of
from support import lifted, repairs
from support.lifted import Feed, agree, both, text
from support.real_tensorrt import FACT, REAL, built

pytestmark = pytest.mark.corpus

RULES = {rule.code: rule for rule in registry().rules if rule.code in ("QDQ017", "QDQ018")}
BLOCKS, WORDS = (RULES[code] for code in sorted(RULES))
F = np.float32


def repaired(code: str, proto: ModelProto) -> ModelProto:
    """The model after the rule's exact fixes, which leave nothing to find and the interface as it was."""
    assert {one.severity for one in findings(RULES[code], proto)} == {Severity.ERROR}
    result, run = repairs.repaired([RULES[code]], proto)
    assert run.applied
    assert not run.remaining
    assert not findings(RULES[code], result)
    return result


# -- QDQ017: a shorter last block


def weight(size: int, block: int, kind: int = TensorProto.INT8, batch: str = "N") -> ModelProto:
    """``x`` times a weight of ``size`` rows in blocks, the scales being powers of 10."""
    count = -(-size // block)
    values = (np.arange(size * 2).reshape(size, 2) % 7 + 1).astype(helper.tensor_dtype_to_np_dtype(kind))
    scales = np.repeat(10.0 ** np.arange(count), 2).reshape(count, 2).astype(F)
    made = lifted.text(f"""g (float[{batch},{size}] x) => (float[{batch},2] y) {{
        d = DequantizeLinear<axis = 0, block_size = {block}>(w, s)  y = MatMul(x, d) }}""")
    made.graph.initializer.extend(
        [numpy_helper.from_array(values, "w"), numpy_helper.from_array(scales, "s")]
    )
    return made


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_every_size_of_blocks(size: int, block: int) -> None:
    """A finding where the last block is shorter and not the only one; the same result in ONNX Runtime after it."""
    made = weight(size, block, batch="3")
    found = findings(BLOCKS, made)
    assert bool(found) == (size > block and size % block != 0)
    if found:
        result = repaired("QDQ017", made)
        assert_same_outputs(made, result)
        left = next(node for node in result.graph.node if node.op_type == "DequantizeLinear")
        new = helper.get_node_attr_value(left, "block_size")
        long = next(one.dims[0] for one in result.graph.initializer if one.name == left.input[0])
        assert new > 1
        assert long % new == 0


def test_no_fix_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scales of 6 rows take 24 bytes in place of 16, the weight of 5 rows 12 in place of 10."""
    for code, made, least in (("QDQ017", weight(6, 4), 24), ("QDQ017", weight(5, 3), 12)):
        for limit in (least - 1, least):
            monkeypatch.setattr(sys.modules[RULES[code].module], "WEIGHT_LIMIT", limit)
            (found,) = findings(RULES[code], made)
            assert (found.match.fix is not None) == (limit == least)


# -- QDQ018: bytes in words


@REAL
@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16", "INT8", "BOOL", "INT4", "FLOAT4E2M1", "INT32"])
def test_other_types_come_out_of_their_words(kind: str, worker: Worker, tmp_path: Path) -> None:
    """And so they are no finding. Many of them are refused at a Cast when it is built; here they are only read."""
    elem = getattr(TensorProto, kind)
    made = lifted.text("g (float[4] x) => (float[4] y) { c = Cast<to = 1>(w)  y = Add(x, c) }", 23)
    made.ir_version = 11
    made.graph.initializer.append(helper.make_tensor("w", elem, [4], [1, 0, 1, 1]))
    assert made.graph.initializer[0].int32_data
    assert not findings(WORDS, made)
    found = lifted.lifted(worker, made, tmp_path)
    assert found.lifted, found.reason
    assert lifted.run(Path(found.path), {"x": np.zeros(4, F)}, "reference")[0].tolist() == [1, 0, 1, 1]


def test_the_bytes_are_stored_as_bytes() -> None:
    """What the examples cannot say: the numbers are the same before and after."""
    made = lifted.text("""g (bool t, float[4] x) => (float[4] y) <uint8[4] w = {1, 2, 3, 255}> {
        k = Constant<value = uint8[4] {5, 6, 7, 8}>()
        y = If(t)<then_branch = p () => (float[4] u) <uint8[4] h = {9, 10, 11, 12}> {
            a = Cast<to = 1>(w)  b = Cast<to = 1>(k)  c = Cast<to = 1>(h)  u = Sum(a, b, c) },
            else_branch = r () => (float[4] v) { v = Neg(x) }> }""")
    result = repaired("QDQ018", made)
    inner = next(node for node in result.graph.node if node.op_type == "If").attribute[0].g.initializer
    constant = next(node for node in result.graph.node if node.op_type == "Constant").attribute[0].t
    stored = [*result.graph.initializer, constant, *inner]
    assert [bytes(one.raw_data) for one in stored] == [b"\1\2\3\xff", b"\5\6\7\x08", b"\x09\x0a\x0b\x0c"]
    assert not any(one.int32_data for one in stored)


CLIPS = {code: registry().get(code) for code in ("OPS054", "OPS074")}


def same(one: list[Any], other: list[Any]) -> bool:
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.allclose(
            a.astype(float),
            b.astype(float),
            rtol=1e-5,
            atol=2e-3 if a.dtype == np.float16 else 1e-5,
            equal_nan=True,
        )
        for a, b in zip(one, other, strict=True)
    )


def repaired_clip(model: ModelProto, code: str) -> ModelProto:
    """The model after the rule's only fix."""
    assert {one.severity for one in findings(CLIPS[code], model)} == {Severity.ERROR}
    result, run = repairs.repaired([CLIPS[code]], model, safety=Safety.NUMERIC)
    assert run.applied
    assert not findings(CLIPS[code], result)
    return result


def readings(
    worker: Worker, model: ModelProto, code: str, folder: Path, feed: Feed
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What the model is to ONNX, what it is to TensorRT, and what its repaired form is to TensorRT, which builds."""
    (wanted,), (wrong,) = both(worker, model, folder, feed)
    result = repaired_clip(model, code)
    (again,), (right,) = both(worker, result, folder, feed)
    assert same([wanted], [again])
    assert built(worker, result, folder).status == "accepted"
    return wanted, wrong, right


# --------------------------------------------------------------------------------------- OPS074: Clip of int8

EIGHT = np.array([-128, -100, -5, 0, 3, 50, 127], np.int8)
#: How a bound may be given: what it adds to the inputs, the initializers and the nodes, and its name.
FORMS = {
    "no": ("", "", "", ""),
    "weight": ("", "int8 {0} = {{{1}}}", "", "{0}"),
    "node": ("", "", "{0} = Constant<value = int8 {{{1}}}>()", "{0}"),
    "default": ("int8 {0} = {{{1}}}", "", "", "{0}"),
    "run time": ("int8 {0}", "", "", "{0}"),
    "computed": ("", "int8 {0} = {{{1}}}", "{0}i = Identity({0})", "{0}i"),
}


def clip(low: str, high: str, a: int = -10, b: int = 20) -> ModelProto:
    """A Clip of int8 with bounds in these forms."""
    parts = [
        [part.format(*bound) for part in FORMS[form]] for form, bound in ((low, ("a", a)), (high, ("b", b)))
    ]
    inputs, weights, nodes, names = (list(column) for column in zip(*parts, strict=True))
    given = ", ".join(filter(None, weights))
    while names and not names[-1]:
        names.pop()
    return text(
        f"""g ({", ".join(filter(None, ["int8[7] x", *inputs]))}) => (int8[7] y) {f"<{given}>" if given else ""} {{
            {" ".join(nodes)} y = Clip({", ".join(["x", *names])}) }}""",
        18,
    )


@FACT
@REAL
@pytest.mark.parametrize(("low", "high"), list(itertools.product(FORMS, FORMS)))
def test_each_clip_is_misread_refused_or_right(low: str, high: str, worker: Worker, tmp_path: Path) -> None:
    """What is misread is OPS074's, what is refused is OPS054's, and nobody speaks of the rest."""
    model = clip(low, high)
    forms = {"a": (low, -10), "b": (high, 20)}
    feed: Feed = {
        name: np.array(value, np.int8) for name, (form, value) in forms.items() if form == "run time"
    }
    feed["x"] = EIGHT
    found = {code for code in ("OPS054", "OPS074") if findings(CLIPS[code], model)}
    if built(worker, model, tmp_path).status == "refused":
        assert found == {"OPS054"}
        result, run = fixed([CLIPS["OPS054"]], model)
        assert run.applied
        agree(worker, result, tmp_path, feed)
        return
    (wanted,), (read,) = both(worker, model, tmp_path, feed)
    assert found == (set() if same([wanted], [read]) else {"OPS074"})
    if found:
        upper = 0 if high != "no" else 127
        np.testing.assert_array_equal(read, EIGHT.clip(0, upper))
        if "default" in (low, high):  # TensorRT refuses a Cast of one
            assert [one.match.fix for one in findings(CLIPS["OPS074"], model)] == [None]
            return
        _, _, right = readings(worker, model, "OPS074", tmp_path, feed)
        np.testing.assert_array_equal(right, wanted)


LOOP_CONDITION, PASSED_THROUGH = (registry().get(code) for code in ("OPS017", "OPS085"))


def names_in(model: ModelProto) -> tuple[list[str], list[str]]:
    """The names of a model's inputs without defaults, and of its outputs."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    inputs = [info.name for info in model.graph.input if info.name not in defaults]
    return inputs, [info.name for info in model.graph.output]


def names_read(worker: Worker, model: ModelProto, folder: Path) -> tuple[list[str], list[str]]:
    """What TensorRT calls the network's inputs and outputs."""
    network = lifted.lifted(worker, model, folder)
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
