"""OPS072 to OPS074: what TensorRT reads as another model, shown by its own network read back before and after the fix.

``lifted`` imports a model by the real parser and writes the imported network as ONNX again; ONNX Runtime then computes
both. No engine is executed; where two models are said to be one to TensorRT, the bytes of their engines are compared.
"""
# Long because: three rules are shown to TensorRT in the same way, each by models of its own.

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from onnxfix.registry import registry
from onnxfix.rule import Example, Safety, Severity
from onnxfix.sandbox import Worker
from onnxfix.testing import assert_interface_kept, findings, fixed, model_of
from onnxfix.trt.build import attempt
from support.lifted import Feed, agree, both, feed_of, lifted, text
from support.real_tensorrt import FACT, REAL, built

pytestmark = pytest.mark.corpus

CODES = ("OPS072", "OPS073", "OPS074")
RULES = {rule.code: rule for rule in registry().rules if rule.code in (*CODES, "OPS054")}
#: Left alone although TensorRT does not agree with ONNX Runtime, or nobody can say.
NOT_ABOUT = {
    "a scale per channel where opset 20 requires one per group: ONNX Runtime rejects it",
    "a function's input, which may be a weight at the call site",
    "the logarithm of integers, which is undefined",
    "before opset 18 there is no such attribute",
    "opset 11 has no Clip of integers",
}


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


def repaired(model: ModelProto, code: str) -> ModelProto:
    """The model after the rule's only fix."""
    assert {one.severity for one in findings(RULES[code], model)} == {Severity.ERROR}
    result, run = fixed([RULES[code]], model, safety=Safety.NUMERIC)
    assert run.applied
    assert not run.problems
    assert not findings(RULES[code], result)
    assert_interface_kept(model, result)
    return result


def readings(
    worker: Worker, model: ModelProto, code: str, folder: Path, feed: Feed
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What the model is to ONNX, what it is to TensorRT, and what its repaired form is to TensorRT, which builds."""
    (wanted,), (wrong,) = both(worker, model, folder, feed)
    result = repaired(model, code)
    (again,), (right,) = both(worker, result, folder, feed)
    assert same([wanted], [again])
    assert built(worker, result, folder).status == "accepted"
    return wanted, wrong, right


# --------------------------------------------------------------------------------------------- every example

FLAGGED = [
    pytest.param(code, example, id=f"{code}-{example.why[:50]}")
    for code in CODES
    for example in RULES[code].examples
    if example.after is not None
]
SILENT = [
    pytest.param(code, example, id=f"{code}-{example.why[:50]}")
    for code in CODES
    for example in RULES[code].examples
    if not example.found and example.target is None and example.why not in NOT_ABOUT
]


@FACT
@REAL
@pytest.mark.parametrize(("code", "example"), FLAGGED)
def test_a_flagged_example_is_misread_and_its_fix_is_read_right(
    code: str, example: Example, worker: Worker, tmp_path: Path
) -> None:
    model = model_of(example)
    wanted, wrong, right = readings(worker, model, code, tmp_path, feed_of(model))
    assert not same([wanted], [wrong])
    assert same([wanted], [right])


@FACT
@REAL
@pytest.mark.parametrize(("code", "example"), SILENT)
def test_an_example_that_is_left_alone_is_read_right_or_refused(
    code: str, example: Example, worker: Worker, tmp_path: Path
) -> None:
    model = model_of(example)
    feed = feed_of(model)
    if built(worker, model, tmp_path).status == "refused":
        assert "reject" in example.why
    elif any(0 in array.shape for array in feed.values()):  # ONNX Runtime cannot reshape all of these
        assert lifted(worker, model, tmp_path).lifted
    else:
        assert same(*both(worker, model, tmp_path, feed))


def test_the_exceptions_are_examples() -> None:
    assert {e.why for code in CODES for e in RULES[code].examples} >= NOT_ABOUT


# ------------------------------------------------------------------------------ OPS072: GroupNormalization

SIZES = {3: (2, 4, 5), 4: (2, 4, 3, 3), 5: (2, 4, 2, 1, 3)}
NAMES = {3: "N,C,L", 4: "N,C,H,W", 5: "N,C,D,H,W"}


def normalized(
    rank: int, groups: int, opset: int, *, dynamic: bool = False, op: str = "Group"
) -> tuple[ModelProto, Feed]:
    """A normalization of ``SIZES[rank]``, with scale and bias as inputs, and what to feed it."""
    count = 4 if opset >= 21 or op == "Instance" else groups
    shape = NAMES[rank] if dynamic else ",".join(map(str, SIZES[rank]))
    attributes = f"num_groups = {groups}, " if op == "Group" else ""
    model = text(
        f"""g (float[{shape}] x, float[{count}] s, float[{count}] b) => (float[{shape}] y) {{
            y = {op}Normalization<{attributes}epsilon = 0.01>(x, s, b) }}""",
        opset,
    )
    random = np.random.default_rng(rank)
    x = random.normal(size=SIZES[rank]) + np.arange(4).reshape(1, 4, *(1,) * (rank - 2))
    feed = {"x": x, "s": np.arange(1, count + 1), "b": np.arange(count)}
    return model, {name: np.asarray(value, np.float32) for name, value in feed.items()}


def by_hand(feed: Feed, axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The formula of both operators, over these axes."""
    x = feed["x"].astype(float)
    s, b = (feed[name].reshape(1, -1, *(1,) * (x.ndim - 2)) for name in ("s", "b"))
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 0.01) * s + b


@REAL
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("opset", [18, 20, 21, 23])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_one_group(rank: int, opset: int, dynamic: bool, worker: Worker, tmp_path: Path) -> None:
    model, feed = normalized(rank, 1, opset, dynamic=dynamic)
    wanted, wrong, right = readings(worker, model, "OPS072", tmp_path, feed)
    together, apart = by_hand(feed, tuple(range(1, rank))), by_hand(feed, tuple(range(2, rank)))
    np.testing.assert_allclose(wanted, together, atol=1e-5)
    np.testing.assert_allclose(wrong, apart, atol=1e-5)
    np.testing.assert_allclose(right, together, atol=1e-5)
    assert np.abs(together - apart).max() > 0.5


@REAL
@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("groups", [2, 4])
def test_more_groups_are_read_right(groups: int, opset: int, worker: Worker, tmp_path: Path) -> None:
    for rank, dynamic in itertools.product(SIZES, (False, True)):
        model, feed = normalized(rank, groups, opset, dynamic=dynamic)
        assert not findings(RULES["OPS072"], model)
        (wanted,), (read,) = both(worker, model, tmp_path, feed)
        np.testing.assert_allclose(read, wanted, atol=1e-4)


def engine(worker: Worker, model: ModelProto, folder: Path) -> bytes:
    """What TensorRT builds."""
    onnx.save(model, folder / "model.onnx")
    path = folder / "engine"
    path.unlink(missing_ok=True)
    build = attempt(worker, folder / "model.onnx", package="tensorrt-rtx", save_engine=str(path))
    assert build.status == "accepted", build.errors
    return path.read_bytes()


@REAL
def test_one_group_is_the_engine_of_an_instance_normalization(worker: Worker, tmp_path: Path) -> None:
    of = {
        groups: engine(worker, normalized(4, groups, 21, op=op)[0], tmp_path)
        for op, groups in (("Instance", 0), ("Group", 1), ("Group", 2), ("Group", 4))
    }
    assert of[1] == of[0]
    assert of[4] == of[0]
    assert of[2] != of[0]


# ------------------------------------------------------------------------------- OPS073: over no axes

MEANT = {
    "ReduceL1": [2.0, 3.0, 0.5],
    "ReduceL2": [2.0, 3.0, 0.5],
    "ReduceSumSquare": [4.0, 9.0, 0.25],
    "ReduceLogSum": [np.nan, np.log(3.0), np.log(0.5)],
}
NUMBERS = np.array([-2, 3, 0.5], np.float32)


def over_nothing(
    op_type: str, opset: int = 18, axes: str = "", kind: str = "float", shape: str = "3"
) -> ModelProto:
    weights = "<int64[0] a = {}>" if axes else ""
    return text(
        f"""g ({kind}[{shape}] x) => ({kind}[{shape}] y) {weights} {{
            y = {op_type}<noop_with_empty_axes = 1>(x{axes}) }}""",
        opset,
    )


@pytest.mark.parametrize("op_type", MEANT)
@pytest.mark.parametrize("opset", [18, 20, 23, 25])
def test_onnx_is_clear(op_type: str, opset: int) -> None:
    """The reference and the operator's own function agree, with axes left out and with an empty list."""
    for axes in ("", ", a"):
        model = over_nothing(op_type, opset, axes)
        with np.errstate(invalid="ignore"):
            (found,) = ReferenceEvaluator(model).run(None, {"x": NUMBERS})
        np.testing.assert_allclose(found, MEANT[op_type], rtol=1e-6)
    kinds = [node.op_type for node in onnx.defs.get_schema(op_type, opset).function_body.node]
    assert {"Abs", "Mul", "Log"} & set(kinds)


@REAL
@pytest.mark.parametrize("op_type", MEANT)
@pytest.mark.parametrize("shape", ["3", "N"])
def test_over_no_axes(op_type: str, shape: str, worker: Worker, tmp_path: Path) -> None:
    model = over_nothing(op_type, shape=shape)
    wanted, wrong, right = readings(worker, model, "OPS073", tmp_path, {"x": NUMBERS})
    np.testing.assert_allclose(wanted, MEANT[op_type], rtol=1e-6)
    np.testing.assert_array_equal(wrong, NUMBERS)
    np.testing.assert_allclose(right, MEANT[op_type], rtol=1e-6)


@REAL
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_over_no_axes_of_integers(kind: str, worker: Worker, tmp_path: Path) -> None:
    x = np.array([-2, 3, 5], kind)
    for op_type, meant in {"ReduceL1": [2, 3, 5], "ReduceSumSquare": [4, 9, 25]}.items():
        wanted, wrong, right = readings(
            worker, over_nothing(op_type, kind=kind), "OPS073", tmp_path, {"x": x}
        )
        assert (wanted.tolist(), wrong.tolist(), right.tolist()) == (meant, [-2, 3, 5], meant)
    norm = over_nothing("ReduceL2", kind=kind)
    assert [one.match.fix for one in findings(RULES["OPS073"], norm)] == [None]
    (wanted,), (wrong,) = both(worker, norm, tmp_path, {"x": x})
    assert (wanted.tolist(), wrong.tolist()) == ([2, 3, 5], [-2, 3, 5])
    assert built(worker, over_nothing("ReduceL2", axes=", a", kind=kind), tmp_path).status == "refused"


@REAL
@pytest.mark.parametrize(
    "op_type", ["ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"]
)
def test_a_copy_is_right_for_the_others(op_type: str, worker: Worker, tmp_path: Path) -> None:
    model = over_nothing(op_type)
    assert not findings(RULES["OPS073"], model)
    agree(worker, model, tmp_path, {"x": NUMBERS})


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
    found = {code for code in ("OPS054", "OPS074") if findings(RULES[code], model)}
    if built(worker, model, tmp_path).status == "refused":
        assert found == {"OPS054"}
        result, run = fixed([RULES["OPS054"]], model)
        assert run.applied
        agree(worker, result, tmp_path, feed)
        return
    (wanted,), (read,) = both(worker, model, tmp_path, feed)
    assert found == (set() if same([wanted], [read]) else {"OPS074"})
    if found:
        upper = 0 if high != "no" else 127
        np.testing.assert_array_equal(read, EIGHT.clip(0, upper))
        if "default" in (low, high):  # TensorRT refuses a Cast of one
            assert [one.match.fix for one in findings(RULES["OPS074"], model)] == [None]
            return
        _, _, right = readings(worker, model, "OPS074", tmp_path, feed)
        np.testing.assert_array_equal(right, wanted)


@FACT
@REAL
def test_the_engine_is_the_same_for_any_bounds(worker: Worker, tmp_path: Path) -> None:
    first, second = (
        engine(worker, clip("weight", "weight", *bounds), tmp_path) for bounds in ((-10, 20), (-50, 90))
    )
    assert first == second
    mended = [
        engine(worker, repaired(clip("weight", "weight", *bounds), "OPS074"), tmp_path)
        for bounds in ((-10, 20), (-50, 90))
    ]
    assert mended[0] != mended[1]


@REAL
@pytest.mark.parametrize("bounds", [(0, 0), (5, 0), (0, 5), (-5, 0), (5, 5), (-3, -8), (5, -3)])
def test_bounds_of_zero_are_left_alone_where_they_come_to_the_same(
    bounds: tuple[int, int], worker: Worker, tmp_path: Path
) -> None:
    model = clip("weight", "weight", *bounds)
    (wanted,), (read,) = both(worker, model, tmp_path, {"x": EIGHT})
    np.testing.assert_array_equal(wanted, np.minimum(np.maximum(EIGHT, bounds[0]), bounds[1]))
    assert not read.any()
    assert bool(findings(RULES["OPS074"], model)) == bool(wanted.any())


@REAL
@pytest.mark.parametrize("kind", ["float", "float16", "int32", "int64"])
def test_other_types_are_read_right(kind: str, worker: Worker, tmp_path: Path) -> None:
    zero = "{18688}" if kind == "float16" else "{10}"  # 10 in half precision, as its bits
    model = text(f"g ({kind}[7] x) => ({kind}[7] y) <{kind} b = {zero}> {{ y = Clip(x, , b) }}", 18)
    assert not findings(RULES["OPS074"], model)
    agree(worker, model, tmp_path, feed_of(model))
    model = text(f"g ({kind}[7] x) => ({kind}[7] y) <{kind} b = {zero}> {{ y = Clip(x, b, b) }}", 18)
    assert not findings(RULES["OPS074"], model)
    agree(worker, model, tmp_path, feed_of(model))
