"""OPS082 to OPS086: what TensorRT reads as another model, shown by its own network read back before and after the fix.

``lifted`` imports a model by the real parser and writes the imported network as ONNX again. No engine is executed.
"""
# Long because: five rules are shown to TensorRT in the same way, each by models of its own.

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import assert_interface_kept, findings, fixed, model_of
from support.lifted import Feed, both, lifted, run, text
from support.real_tensorrt import REAL, built

pytestmark = pytest.mark.corpus

CODES = ("OPS082", "OPS083", "OPS084", "OPS085", "OPS086")
RULES = {rule.code: rule for rule in registry().rules if rule.code in CODES}
Array = np.ndarray[Any, Any]


def severities(code: str, model: ModelProto) -> list[Severity]:
    return [found.severity for found in findings(RULES[code], model)]


def repaired(code: str, model: ModelProto) -> ModelProto:
    """The model after the rule's only fix."""
    assert severities(code, model) == [Severity.ERROR]
    result, record = fixed([RULES[code]], model)
    assert record.applied
    assert not record.problems
    assert not findings(RULES[code], result)
    assert_interface_kept(model, result)
    return result


def evaluated(model: ModelProto, feed: Feed) -> Array:
    """The first output by ONNX's evaluator."""
    return np.asarray(ReferenceEvaluator(model).run(None, feed)[0])


def understood(worker: Worker, model: ModelProto, feed: Feed, folder: Path) -> Array:
    """The first output of TensorRT's reading of the model."""
    found = lifted(worker, model, folder)
    assert found.lifted, found.reason
    return np.asarray(run(Path(found.path), feed)[0])


def random_feed(model: ModelProto, **sizes: int) -> Feed:
    """Normal numbers for every input; some of the booleans are True, each row's first one always."""
    rng, feed = np.random.default_rng(5), {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = [dim.dim_value or sizes[dim.dim_param] for dim in tensor.shape.dim]
        values = rng.standard_normal(shape)
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if kind == np.bool_:
            values = values > 0
            values[..., 0] = True
        feed[info.name] = values.astype(kind)
    return feed


# ------------------------------------------------------------------------------------- OPS082: recurrences

GATES = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}


def recurrence(op: str, names: list[str], rest: str = "", direction: str = "forward") -> ModelProto:
    count = 2 if direction == "bidirectional" else 1
    rows, listed = GATES[op][0] * 4, ", ".join(f'"{name}"' for name in names)
    return text(
        f"""g (float[3,2,2] x, float[{count},{rows},2] w, float[{count},{rows},4] r) => (float[{count},2,4] h) {{
            , h = {op}<hidden_size = 4, direction = "{direction}", activations = [{listed}]{rest}>(x, w, r) }}"""
    )


@REAL
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(
    "name",
    [
        "Relu",
        "Tanh",
        "Sigmoid",
        "Softsign",
        "LeakyRelu",
        "HardSigmoid",
        "Elu",
        "ThresholdedRelu",
        "ScaledTanh",
    ],
)
@pytest.mark.parametrize("values", [(), (0.3, 0.7)], ids=["default", "given"])
def test_other_activations_are_read_right(
    op: str, name: str, values: tuple[float, ...], worker: Worker, tmp_path: Path
) -> None:
    count = GATES[op][1]
    first, second = ([value] * count for value in values or (0, 0))
    rest = f", activation_alpha = {first}, activation_beta = {second}" if values else ""
    model = recurrence(op, [name] * count, rest)
    assert not severities("OPS082", model)
    (wanted,), (read,) = both(worker, model, tmp_path, random_feed(model))
    if not values and name in ("ThresholdedRelu", "ScaledTanh"):  # ONNX Runtime's own defaults
        given = recurrence(
            op, [name] * count, f", activation_alpha = {[1.0] * count}, activation_beta = {[1.0] * count}"
        )
        (wanted,) = both(worker, given, tmp_path, random_feed(model))[0]
    np.testing.assert_allclose(read, wanted, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------------------- OPS084: Mod


@REAL
def test_a_remainder_is_wrong_for_infinite_divisors_and_large_quotients(
    worker: Worker, tmp_path: Path
) -> None:
    model = text("g (float[N] x, float[N] d) => (float[N] y) { y = Mod<fmod = 1>(x, d) }")
    assert severities("OPS084", model) == [Severity.INFO]
    large, divisor = np.float32(2**30 + 128), np.float32(3.1)
    feed = {
        "x": np.array([7, -7, 5, -5, large, 1.0], np.float32),
        "d": np.array([3, 3, np.inf, -np.inf, divisor, np.float32(0.1)], np.float32),
    }
    (meant,), (read,) = both(worker, model, tmp_path, feed)
    np.testing.assert_array_equal(meant, np.fmod(feed["x"], feed["d"]))
    assert meant[2:4].tolist() == [5, -5]
    assert read[:2].tolist() == [1, -1]
    assert np.isnan(read[2:4]).all()
    assert abs(read[4] - meant[4]) > 0.5
    assert abs(abs(read[5] - meant[5]) - 0.1) < 1e-6  # 1 / 0.1 is 9.99…, rounded to 10


# -------------------------------------------------------------------------------- OPS085: names


def interface(worker: Worker, model: ModelProto, folder: Path) -> tuple[list[str], list[str]]:
    """What TensorRT calls the network's inputs and outputs."""
    found = lifted(worker, model, folder)
    assert found.lifted, found.reason
    graph = onnx.load(found.path).graph
    return [info.name for info in graph.input], [info.name for info in graph.output]


@REAL
def test_an_input_that_is_an_output_gets_another_name(worker: Worker, tmp_path: Path) -> None:
    for example in RULES["OPS085"].examples:
        model = model_of(example)
        given = {tensor.name for tensor in model.graph.initializer}
        inputs = [info.name for info in model.graph.input if info.name not in given]
        outputs = [info.name for info in model.graph.output]
        both_ways = [name for name in inputs if name in outputs]
        found = severities("OPS085", model)
        assert found == [Severity.ERROR] * len(both_ways)
        names, results = interface(worker, model, tmp_path)
        if found and "another input" in example.why:
            assert names == inputs
            assert results != outputs
        elif found:
            assert names == [f"__{name}" if name in both_ways else name for name in inputs]
            assert results == outputs
            assert built(worker, model, tmp_path).status == "accepted"
        else:
            assert names == inputs
            assert all(read.startswith(name) for read, name in zip(results, outputs, strict=True))


def test_the_finding_says_both_names() -> None:
    model = text("g (float[2] x, float[2] z) => (float[2] z, float[2] x) { y = Add(x, z) }")
    found = findings(RULES["OPS085"], model)
    assert [one.match.place.text for one in found] == ["x", "z"]
    assert "'__x'" in found[0].match.message
    assert "'__z'" in found[1].match.message


# ------------------------------------------------------------------------------ OPS086: masks


def close(one: Array, other: Array) -> bool:
    return bool(np.allclose(one.astype(float), other.astype(float), atol=5e-3))


@REAL
@pytest.mark.parametrize("kind", ["bool", "float16"])
def test_a_shorter_mask_of_dynamic_size_fits_once_it_is_continued(
    kind: str, worker: Worker, tmp_path: Path
) -> None:
    model = text(
        f"""g (float16[B,2,S,64] q, float16[B,2,T,64] k, float16[B,2,1,64] a, {kind}[S,T] m)
            => (float16[B,2,S,64] y) {{ c = Concat<axis = 2>(a, k)  y = Attention(q, c, c, m) }}""",
        24,
    )
    for sizes in ({"B": 2, "S": 2, "T": 2}, {"B": 1, "S": 4, "T": 5}):
        feed = random_feed(model, **sizes)
        meant = evaluated(model, feed)
        assert built(worker, model, tmp_path).status == "accepted"
        with pytest.raises(Exception, match="broadcast"):
            understood(worker, model, feed, tmp_path)
        result = repaired("OPS086", model)
        assert close(understood(worker, result, feed, tmp_path), meant)


@REAL
def test_a_mask_that_may_be_shorter_is_right_where_it_is_not(worker: Worker, tmp_path: Path) -> None:
    model = text(
        """g (float16[B,2,S,64] q, float16[B,2,T,64] k, float16[S,M] m) => (float16[B,2,S,64] y) {
            y = Attention(q, k, k, m) }""",
        24,
    )
    assert severities("OPS086", model) == [Severity.INFO]
    assert not fixed([RULES["OPS086"]], model)[1].applied
    long = random_feed(model, B=1, S=2, T=3, M=3)
    assert close(understood(worker, model, long, tmp_path), evaluated(model, long))
    short = random_feed(model, B=1, S=2, T=3, M=1)
    assert not close(understood(worker, model, short, tmp_path), evaluated(model, short))


def test_bfloat16_is_continued_too() -> None:
    model = text(
        """g (bfloat16[1,1,2,8] q, bfloat16[1,1,3,8] k, bfloat16[2,2] m) => (bfloat16[1,1,2,8] y) {
            y = Attention(q, k, k, m) }""",
        24,
    )
    result = repaired("OPS086", model)
    never = onnx.numpy_helper.to_array(next(t for t in result.graph.initializer if "never" in t.name))
    assert float(never) == -np.inf
    onnx.checker.check_model(result, full_check=True)
