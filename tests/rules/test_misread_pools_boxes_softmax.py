"""OPS075 to OPS081 and OPS087: pools that round up, chosen boxes, resizes and the logarithm of a softmax, by ONNX
Runtime, by TensorRT's own network and by the reference evaluator.

``lifted`` imports a model by the real parser and writes the imported network as ONNX again; ONNX Runtime then
computes both. No engine is executed. The windows of pools are compared with an enumeration, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety, Severity
from onnxfix.runtime import backends
from onnxfix.runtime.sandbox import Worker
from onnxfix.shapes.symbols import as_dim, symbol
from onnxfix.testing import assert_interface_kept, assert_same_outputs, findings, fixed, overlay
from onnxfix_rules.ops.misimports._windows import Axis, rounded_up
from support import lifted
from support.lifted import both, run, text
from support.models import floats, of_nodes, write
from support.real_tensorrt import REAL

pytestmark = pytest.mark.corpus

CODES = ("OPS075", "OPS076", "OPS077", "OPS078", "OPS079", "OPS080", "OPS081")
RULES = {rule.code: rule for rule in registry().rules if rule.code in CODES}


def _saved(model: ModelProto, folder: Path) -> Path:
    path = write(folder / "original.onnx", model)
    return path


# -- boxes


def apart(number: int) -> np.ndarray[Any, Any]:
    """Boxes that do not overlap."""
    corner = np.arange(number, dtype=np.float32)[:, None] * 2
    return np.concatenate([corner, corner, corner + 1, corner + 1], axis=1)[None]


def severity(code: str, model: ModelProto) -> list[Severity]:
    return [one.severity for one in findings(RULES[code], model)]


@REAL
def test_rows_by_score_whatever_the_class(worker: Worker, tmp_path: Path) -> None:
    model = text("""g (float[1,2,4] b, float[1,2,2] s) => (int64[R,3] y)
        <int64 m = {2}, float i = {0.5}, float t = {0}> {
        y = NonMaxSuppression(b, s, m, i, t) }""")
    assert severity("OPS077", model) == [Severity.WARNING]
    feed = {"b": apart(2), "s": np.array([[[0.1, 0.4], [0.2, 0.3]]], np.float32)}
    [[wanted], [read]] = both(worker, model, tmp_path, feed)
    assert wanted.tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 1], [0, 1, 0]]
    assert read.tolist() == [[0, 0, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0]]


@REAL
@pytest.mark.parametrize("overlap", [", i", ""])
def test_scores_that_are_not_above_0(worker: Worker, tmp_path: Path, overlap: str) -> None:
    model = text(f"""g (float[1,4,4] b, float[1,1,4] s) => (int64[R,3] y) <int64 m = {{4}}, float i = {{0.5}}> {{
        y = NonMaxSuppression(b, s, m{overlap}) }}""")
    assert severity("OPS078", model) == [Severity.WARNING]
    feed = {"b": apart(4), "s": np.array([[[0.1, -5, 0, 3]]], np.float32)}
    [[wanted], [read]] = both(worker, model, tmp_path, feed)
    assert wanted[:, 2].tolist() == [3, 0, 2, 1]
    assert read[:, 2].tolist() == [3, 0]
    result, _ = fixed([RULES["OPS078"]], model, safety=Safety.NUMERIC)
    assert [one[0][:, 2].tolist() for one in both(worker, result, tmp_path, feed)] == [[3, 0, 2, 1]] * 2


@REAL
def test_the_highest_5000_scores(worker: Worker, tmp_path: Path) -> None:
    scores = np.linspace(0.9, 0.1, 5002, dtype=np.float32).reshape(1, 2, 2501)
    for number, severities in ((2500, []), (2501, [Severity.WARNING])):
        model = text(f"""g (float[1,{number},4] b, float[1,2,{number}] s) => (int64[R,3] y)
            <int64 m = {{3000}}, float i = {{0.5}}, float t = {{0}}> {{ y = NonMaxSuppression(b, s, m, i, t) }}""")
        assert severity("OPS079", model) == severities
        feed = {"b": apart(number), "s": scores[:, :, :number]}
        [[wanted], [read]] = both(worker, model, tmp_path, feed)
        assert len(wanted) == 2 * number
        assert len(read) == 5000


RAW = "g (float[1,6,4] b, float[1,6,2] a) => (int64[R,3] y) <int64 m = {3}>"


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ("p = Sigmoid(a)", Severity.INFO),
        ("q = Softmax(a)  p = Mul(q, q)", Severity.INFO),
        ("q = Sigmoid(a)  p = Concat<axis = 1>(q, q)", Severity.INFO),
        ("q = Sigmoid(a)  p = Mul(q, a)", Severity.WARNING),
        ("q = Sigmoid(a)  p = Concat<axis = 1>(q, a)", Severity.WARNING),
        ("p = Relu(a)", Severity.WARNING),  # many a score is exactly 0
        ("p = Identity(a)", Severity.WARNING),
    ],
)
def test_probabilities_are_above_0(nodes: str, wanted: Severity) -> None:
    model = text(f"{RAW} {{ {nodes}  s = Transpose<perm = [0,2,1]>(p)  y = NonMaxSuppression(b, s, m) }}")
    assert severity("OPS078", model) == [wanted]


def test_what_depends_on_unknown_numbers_is_no_more_than_information() -> None:
    for classes, boxes, wanted in (
        ("2", "6", [[Severity.WARNING], []]),
        ("C", "6", [[Severity.INFO], [Severity.INFO]]),
        ("C", "5001", [[Severity.INFO], [Severity.WARNING]]),
        ("1", "B", [[], [Severity.INFO]]),
    ):
        model = text(f"""g (float[1,{boxes},4] b, float[1,{classes},{boxes}] s) => (int64[R,3] y)
            <int64 m = {{3}}> {{ y = NonMaxSuppression(b, s, m) }}""")
        assert [severity(code, model) for code in ("OPS077", "OPS079")] == wanted
    for factor, wanted in (("Mul(f, k)", [Severity.INFO]), ("Div(k, k)", []), ("Add(k, k)", [Severity.INFO])):
        model = text(f"""g (float[H] x) => (float[A] y) <float[1] k = {{0.4}}> {{
            l = Shape(x)  f = Cast<to = 1>(l)  s = {factor}  y = Resize<mode = "linear">(x, , s) }}""")
        assert severity("OPS081", model) == wanted
    model = text("""g (float[H] x) => (float[A] y) <float[1] k = {0.4}> {
        s = Identity(k)  y = Resize<mode = "linear">(x, , s) }""")
    assert severity("OPS081", model) == [Severity.WARNING]


# -- windows


def starts(size: int, axis: Axis, *, up: bool, end: int) -> list[int]:
    """Where the windows start, counted from the padding; ``up``: as ONNX rounds up."""
    padded = axis.begin + size + end
    found = [0]
    while found[-1] + axis.kernel < padded if up else found[-1] + axis.step + axis.kernel <= padded:
        found.append(found[-1] + axis.step)
    return [place for place in found if not up or place < axis.begin + size]


def axes() -> Iterator[Axis]:
    for kernel, step in itertools.product(range(1, 5), range(1, 6)):
        for begin, end in itertools.product(range(kernel), range(kernel)):
            yield Axis(symbol("H"), kernel, step, begin, end)


def test_one_padding_does_for_all_sizes() -> None:
    for axis in axes():
        for size in range(max(axis.kernel - axis.begin - axis.end, 1), 14):
            known = Axis(as_dim(size), axis.kernel, axis.step, axis.begin, axis.end)
            wanted = starts(size, axis, up=True, end=axis.end)
            for padding in (axis.padding, known.padding):
                assert starts(size, axis, up=False, end=padding) == wanted
                assert 0 <= padding < axis.kernel
            kept = -(-(size + axis.begin + axis.end - axis.kernel) // axis.step) + 1
            assert known.in_padding.yes == (kept > len(wanted))
            reaches = wanted[-1] + axis.kernel > axis.begin + size + axis.end
            assert known.beyond.yes == reaches
            assert not known.in_padding.unknown
            assert not known.beyond.unknown
            assert not axis.in_padding.no or known.in_padding.no
            assert not axis.beyond.no or known.beyond.no


def test_pools_stay_the_same_to_the_bit(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    made = 0
    for number in range(150):
        kind = ("MaxPool", "AveragePool", "LpPool")[number % 3]
        kernel, steps = (random.integers(1, 5, 2).tolist() for _ in range(2))
        pads = [int(random.integers(0, one)) for one in (*kernel, *kernel)]
        sizes = random.integers(4, 9, 2).tolist()
        node = helper.make_node(
            kind, ["x"], ["y"], kernel_shape=kernel, strides=steps, pads=pads, ceil_mode=1
        )
        shape = [1, 2, *(sizes if number % 2 else "HW")]
        model = of_nodes([node], floats(x=shape), floats(y=None), opset=22)
        result, record = fixed([RULES["OPS075"], RULES["OPS076"]], model, safety=Safety.UNSAFE)
        made += bool(record.applied)
        feed = {"x": random.standard_normal((1, 2, *sizes)).astype(np.float32)}
        one, other = (run(_saved(proto, tmp_path), feed)[0] for proto in (model, result))
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    assert made > 40


def test_a_pool_is_no_pool_that_rounds_up() -> None:
    for attributes in (
        "strides = [2]",
        "strides = [0,2]",
        "strides = [2,2], pads = [1,0,0]",
        "strides = [2,2], pads = [1,0,0,0]",
        'strides = [2,2], auto_pad = "VALID", pads = [0,0,1,1]',
        "kernel_shape = [1,1,1]",
    ):
        kernel = "" if "kernel" in attributes else "kernel_shape = [1,1], "
        model = overlay(
            text(
                f"g (float[1,1,4,4] x) => (float y) {{ y = MaxPool<{kernel}{attributes}, ceil_mode = 1>(x) }}"
            )
        )
        assert rounded_up(model.main.nodes[0], model, 10) is None, attributes


LOG_SOFTMAX = next(rule for rule in registry().rules if rule.code == "OPS087")


def one(shape: str, axis: int | None = None, opset: int = 21, kind: str = "float") -> ModelProto:
    """``y = LogSoftmax(x)``."""
    given = "" if axis is None else f"<axis = {axis}>"
    source = f"g ({kind}[{shape}] x) => ({kind}[{shape}] y) {{ y = LogSoftmax{given}(x) }}"
    return lifted.text(source, opset)


def repaired(proto: ModelProto) -> ModelProto:
    """The model after the fix, which leaves nothing to find and the interface as it was."""
    assert {found.severity for found in findings(LOG_SOFTMAX, proto)} == {Severity.WARNING}
    same, run = fixed([LOG_SOFTMAX], proto)
    assert not run.applied, "numeric fixes are asked for"
    assert same == proto
    result, run = fixed([LOG_SOFTMAX], proto, safety=Safety.NUMERIC)
    assert run.applied
    assert not run.problems
    assert not run.remaining
    assert_interface_kept(proto, result)
    onnx.checker.check_model(result, full_check=True)
    return result


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_stays(special: float, tmp_path: Path) -> None:
    scores = np.array([[1, special, 2], [special, special, special], [0, -300, 3]], np.float32)
    found = []
    for name, proto in (("a", one("N,3")), ("b", repaired(one("N,3")))):
        onnx.save(proto, tmp_path / name)
        found.append(lifted.run(tmp_path / name, {"x": scores})[0])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_a_vector_is_made_a_matrix_first() -> None:
    rules = [rule for rule in registry().rules if rule.code in ("OPS023", "OPS087")]
    made = one("8")
    result, run = fixed(rules, made, safety=Safety.NUMERIC)
    assert [done.key.code for done in run.applied] == ["OPS023", "OPS087"]
    assert_same_outputs(made, result, exact=False)


@pytest.mark.parametrize("opset", [6, 9, 11, 12, 13, 18])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -2])
def test_the_reference_takes_no_logarithm_of_0(axis: int | None, opset: int, tmp_path: Path) -> None:
    """onnx's own evaluator does, and normalizes along one axis before opset 13 too; else the fix would be withdrawn."""
    if opset < 11 and axis is not None and axis < 0:
        axis = None
    onnx.save(one("2,3,4", axis, opset), tmp_path / "m")
    feed = {"x": np.random.default_rng(4).permutation(24).reshape(2, 3, 4).astype(np.float32) * -150}
    [meant], [found] = (
        backends.load(name, str(tmp_path / "m")).run(feed) for name in ("ort-cpu", "reference")
    )
    assert found.dtype == meant.dtype
    np.testing.assert_allclose(found, meant, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", ["", ", w"])
def test_the_reference_takes_no_loss_of_infinity(reduction: str, weighted: str, tmp_path: Path) -> None:
    model = lifted.text(f"""g (float[2,3,2] x, int64[2,2] t, float[3] w) => (float y, float[2,3,2] l) {{
        y, l = SoftmaxCrossEntropyLoss<reduction = "{reduction}", ignore_index = 1>(x, t{weighted}) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m")
    scores = np.random.default_rng(4).permutation(12).reshape(2, 3, 2).astype(np.float32) * -150
    feed = {"x": scores, "t": np.array([[0, 2], [1, 2]]), "w": np.array([1, 2, 4], np.float32)}
    meant, found = (backends.load(name, str(tmp_path / "m")).run(feed) for name in ("ort-cpu", "reference"))
    for right, other in zip(meant, found, strict=True):
        assert other.dtype == right.dtype
        np.testing.assert_allclose(other, right, rtol=1e-6)


def test_the_reference_of_nothing(tmp_path: Path) -> None:
    onnx.save(one("N,0"), tmp_path / "m")
    [found] = backends.load("reference", str(tmp_path / "m")).run({"x": np.zeros((3, 0), np.float32)})
    assert found.shape == (3, 0)
