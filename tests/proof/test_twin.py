"""The original in higher precision as a judge: when it is asked, what it forgives, and what it never forgives."""

# Long because: the comparison, the twin, the ladder and the evaluator are shown on the same few models.

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import defs, helper, numpy_helper

from onnxfix.proof.compare import twin
from onnxfix.proof.compare.compare import Metrics, Twin, compare, tolerance_for
from onnxfix.proof.verdict import RungResult
from onnxfix.proof.verify import verify
from onnxfix.runtime import backends
from onnxfix.runtime.backends import reference
from support.ended import ended
from support.models import of_nodes, of_opset, write

INF, NAN = math.inf, math.nan
TOLD = "the original leaves half precision's range; judged by the original in float64"


def f16(*values: float) -> Any:
    return np.array(values, np.float64).astype(np.float16)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def judged(original: Any, fixed: Any, single: Any, *, overflow: bool = True, exact: bool = False) -> Metrics:
    (found,) = compare("y", original, fixed, exact=exact, twin=Twin(single, "float16", overflow))
    return found


# ------------------------------------------------------------------------------------------------- comparison


@pytest.mark.parametrize("lost", [INF, -INF, NAN, 0.0])
def test_where_the_original_overflows_the_twin_judges(lost: float) -> None:
    found = judged(f16(1, 2, lost), f16(1, 2, 3), f32(1, 2, 3.001))
    assert (found.agreement, found.by_twin) == ("within", 1)
    assert found.max_abs < 0.01, "not the distance from what the original lost"
    assert judged(f16(1, 2, lost), f16(1, 2, 3.2), f32(1, 2, 3)).agreement == "different"
    assert judged(f16(1, 2, lost), f16(1, 2, 3), f32(1, 2, 3), exact=True).agreement == "different"
    assert judged(f16(1, 2, lost), f16(1, 2, 3), f32(1, 2, 3), overflow=False).agreement == "different"


@pytest.mark.parametrize("made", [INF, -INF, NAN])
@pytest.mark.parametrize("single", [INF, NAN, 3.0, 70000.0])
def test_a_fixed_model_that_alone_is_not_finite_is_wrong(made: float, single: float) -> None:
    found = judged(f16(1, INF, 3), f16(1, 2, made), f32(1, 2, single))
    assert (found.agreement, found.worse) == ("different", 1)
    assert "NaN or Inf at different positions (1 of 3" in found.reason


@pytest.mark.parametrize("single", [INF, NAN, 70000.0, 65530.0])
def test_a_twin_that_is_not_finite_itself_forgives_nothing(single: float) -> None:
    assert judged(f16(1, INF), f16(1, 65504), f32(1, single)).agreement == "different"
    assert judged(f16(1, INF), f16(1, NAN), f32(1, single)).agreement == "different"
    assert judged(f16(1, INF), f16(1, INF), f32(1, single)).agreement == "identical"


def test_what_agrees_with_the_original_needs_no_twin() -> None:
    found = judged(f16(1, INF, 0.5), f16(1, INF, 0.5005), f32(9, 9, 9))
    assert (found.agreement, found.by_twin) == ("within", 0)


def test_the_tolerance_beside_the_twin_is_half_precision_s_own() -> None:
    tolerance = tolerance_for("float16")
    limit = (tolerance.rtol + tolerance.atol) * 64
    for share, agreement in ((0.9, "within"), (1.2, "different")):
        found = judged(f16(64, INF), f16(64, 64 + share * limit), f32(64, 64))
        assert found.agreement == agreement
        wide = judged(f32(64, INF), f32(64, 64 + share * limit), f32(64, 64))
        assert wide.agreement == agreement


def test_integers_and_truths_that_hang_on_the_overflow() -> None:
    for kind in (np.int64, bool):
        original, fixed = np.array([1, 0, 1], kind), np.array([1, 1, 1], kind)
        assert judged(original, fixed, fixed).by_twin == 1
        assert judged(original, fixed, fixed).agreement == "within"
        assert judged(original, fixed, original).agreement == "different"
        assert judged(original, fixed, fixed, overflow=False).agreement == "different"
        assert judged(original, fixed, fixed, exact=True).agreement == "different"
        assert judged(original, fixed, fixed.astype(np.int32)).agreement == "different"


def test_sequences_maps_and_another_structure() -> None:
    low, high, right = f16(INF, 1), f32(3, 1), f16(3, 1)
    for make in (lambda one: [right, one], lambda one: {"k": one}):
        parts = compare("y", make(low), make(right), exact=False, twin=Twin(make(high), "float16", True))
        assert {part.agreement for part in parts} <= {"identical", "within"}
        assert sum(part.by_twin for part in parts) == 1
        parts = compare("y", make(low), make(right), exact=False, twin=Twin(high, "float16", True))
        assert parts[-1].agreement == "different"
    assert judged(low, right, f32(3)).agreement == "different", "a twin of another shape"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_wider_output_may_differ_as_the_original_does_from_its_twin(dtype: Any) -> None:
    exact, noisy, other = (np.array(v, dtype) for v in ([1, 2, 4], [1, 2.003, 4], [1, 1.997, 4]))
    assert compare("y", noisy, other, exact=False)[0].agreement == "different"
    assert judged(noisy, other, exact, overflow=False).agreement == "within"
    assert judged(exact, other, exact, overflow=False).agreement == "different", "no noise was measured"
    # Half precision's own tolerance bounds it, however noisy the original is.
    wild = np.array([1, 3, 4], dtype)
    assert judged(wild, np.array([1, 2, 4], dtype), exact, overflow=False).agreement == "different"


def test_where_the_original_was_right_an_overflow_beside_it_excuses_nothing() -> None:
    """Half precision's tolerance is none for a float32 value that half precision never touched."""
    assert judged(f32(1, INF), f32(1.009, 60000), f32(1, 60000)).agreement == "different"
    assert judged(f32(1, 0), f32(1.009, 60000), f32(1, 60000)).agreement == "different", "spoilt, but finite"
    assert judged(f32(1, INF), f32(1, 60100), f32(1, 60000)).agreement == "within"
    # In float32 too the roundings of half precision may be left out, as far as they were there.
    assert judged(f32(1, 402, INF), f32(1, 398, 60000), f32(1, 400, 60000)).agreement == "within"
    assert judged(f32(1, 400, INF), f32(1, 398, 60000), f32(1, 400, 60000)).agreement == "different"
    # What was lost is judged whole: zeros beside a large gain are no reference.
    assert judged(f16(0, 0), f16(1, 10000), f32(1, 10000)).agreement == "within"
    assert judged(f16(0, 0), f16(500, 10000), f32(1, 10000)).worse == 0, (
        "the original was wrong there as well"
    )
    assert judged(f16(1, 0), f16(500, 10000), f32(1, 10000)).worse == 1


def test_numbers_beyond_half_precision_are_no_measure() -> None:
    mask, lowest = f32(1, NAN, -INF), -3.4e38
    assert judged(mask, f32(1, 2, lowest), f32(1, 2, lowest)).agreement == "within"
    assert judged(mask, f32(1, 3, lowest), f32(1, 2, lowest)).agreement == "different"
    assert judged(mask, f32(7, 2, lowest), f32(1, 2, lowest)).agreement == "different"
    assert judged(mask, f32(1, 2, -1e5), f32(1, 2, lowest)).agreement == "different"


NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 1.004, 100.0, 60000.0, INF, -INF, NAN])


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5), st.booleans())
def test_what_passes_is_near_the_original_or_near_the_twin(
    rows: list[tuple[float, float, float]], overflow: bool
) -> None:
    a, b, t = (f16(*column) for column in zip(*rows, strict=True))
    found = judged(a, b, t.astype(np.float32), overflow=overflow)
    plain = compare("y", a, b, exact=False)[0]
    if plain.agreement != "different":
        assert found == plain
    if not overflow:
        assert found.agreement == plain.agreement
    if found.agreement != "different":
        assert not (np.isfinite(a) & ~np.isfinite(b)).any()
        assert (np.isfinite(b) | (a == b) | (np.isnan(a) & np.isnan(b))).all()
    if found.by_twin:
        assert overflow
        assert np.isfinite(t).any()


# ------------------------------------------------------------------------------------------------- the twin


model = of_opset(18, domains={"my": 1})


EVERYWHERE = """g (float16[N,2] x, bool c, seq(bfloat16[2]) q) => (float16[N,2] y, seq(float16[N,2]) r, float16[M] k)
    <float16[2] w = {15360, 16384}, float16 seven, float16[N,2] t> {
    t = Add(x, w)
    y = If(c) <then_branch = g1 () => (float16[N,2] u) <float16[2] v = {15360, 15360}> { u = Mul(t, v) },
               else_branch = g2 () => (float16[N,2] z) { f = Cast<to=1>(x) z = Cast<to=10>(f) }>
    e = SequenceEmpty<dtype=10>()  r = SequenceInsert(e, y)
    n = Constant<value_ints=[3]>()  h = ConstantOfShape<value=float16[1] {15360}>(n)
    s = Constant<value=bfloat16[1] {16256}>()  b = Cast<to=10>(s)
    o = my.Own<kind=10>(h)  k = Mul(o, b) }
    <domain: "my", opset_import: ["": 18]> Own <kind>(p) => (m) { i = Cast<to=1>(p)  m = Cast<to: int = @kind>(i) }"""


def test_every_type_attribute_of_onnx_is_known() -> None:
    """Of integer attributes those whose text says that they hold an element type."""
    found = {
        name
        for schema in defs.get_all_schemas_with_history()
        for name, attribute in schema.attributes.items()
        if attribute.type == defs.OpSchema.AttrType.INT
        and ("type" in name or "precision" in name or (name == "to" and "ast" in schema.name))
    }
    assert found == twin.TYPE_ATTRIBUTES


@pytest.mark.parametrize("backend", ["reference", "ort-cpu"])
@pytest.mark.parametrize("branch", [True, False])
def test_both_give_the_same_where_nothing_overflows(tmp_path: Path, backend: str, branch: bool) -> None:
    text = EVERYWHERE.replace("float16 seven, ", "")
    if backend == "ort-cpu":
        text = text.replace(", seq(bfloat16[2]) q)", ")")  # its Python API takes no such sequence
    path = write(tmp_path / "m.onnx", model(text))
    made = twin.load(backend, str(path), str(tmp_path))
    feed = {"x": f16(1, 2, 3, 4).reshape(2, 2), "c": np.array(branch)}
    if backend == "reference":
        feed["q"] = [np.ones(2, ml_dtypes.bfloat16)]
    lost, values = made.run(feed)
    assert lost == ()
    assert values["y"].dtype == values["r"][0].dtype == np.dtype(made.precision) == np.float64
    assert values["k"].tolist() == [1, 1, 1]
    wanted = [[2, 4], [4, 6]] if branch else [[1, 2], [3, 4]]
    np.testing.assert_array_equal(values["y"], np.array(wanted, np.float32))


SCORES = "g (float16[2,128] q, float16[128,2] k) => (float16[2,2] y) <float16 c = {18432}> {"
AFTER, BEFORE = "s = MatMul(q, k) y = Div(s, c) }", "p = Div(q, c) y = MatMul(p, k) }"
LARGE = {"q": np.full((2, 128), 100, np.float16), "k": np.full((128, 2), 10, np.float16)}


@pytest.mark.parametrize("backend", ["reference", "ort-cpu"])
def test_the_value_that_overflows_is_named(tmp_path: Path, backend: str) -> None:
    text = SCORES.replace("(float16[2,2] y)", "(float16[2,2] y, float16[2,2] s)") + AFTER
    onnx.save(model(text), tmp_path / "m.onnx")
    made = twin.load(backend, str(tmp_path / "m.onnx"), str(tmp_path))
    lost, values = made.run(LARGE)
    assert lost[0] == "s"
    np.testing.assert_array_equal(values["y"], np.full((2, 2), 16000, np.float32))
    assert made.run({name: value / np.float16(100) for name, value in LARGE.items()})[0] == ()


def test_weights_beside_the_model(tmp_path: Path) -> None:
    proto = model("g (float16[N,64] x) => (float16[N,64] y) { y = Mul(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.full(64, 300, np.float16), "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    made = twin.load("reference", str(tmp_path / "m.onnx"), str(tmp_path))
    lost, values = made.run({"x": np.full((1, 64), 300, np.float16)})
    assert lost == ("y",)
    assert (values["y"] == 90000).all()


def test_a_model_that_is_too_large_has_no_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(model(SCORES + AFTER), tmp_path / "m.onnx")
    monkeypatch.setattr(twin, "MOST_BYTES", 3)
    with pytest.raises(reference.Unsupported, match="GB of weights"):
        twin.load("reference", str(tmp_path / "m.onnx"), str(tmp_path))


def test_float32_where_float64_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(model("g (float16[1,N] x) => (float16[1,N] y) { y = Hardmax(x) }"), tmp_path / "m.onnx")
    feed = {"x": f16(1, 2).reshape(1, 2)}
    made = twin.load("ort-cpu", str(tmp_path / "m.onnx"), str(tmp_path))  # it has no such kernel
    assert (made.precision, made.run(feed)[1]["y"].dtype) == ("float32", np.float32)
    assert twin.load("reference", str(tmp_path / "m.onnx"), str(tmp_path)).precision == "float64"
    monkeypatch.setattr(twin, "_DOUBLE_BYTES", -1)
    assert twin.load("reference", str(tmp_path / "m.onnx"), str(tmp_path)).precision == "float32"


def test_what_is_infinite_in_both_is_no_overflow(tmp_path: Path) -> None:
    text = """g (float16[2] x, float16[2] z) => (float16[2] y) <float16[2] i = {64512, 0}> {
        m = Add(x, i)  d = Div(m, z)  y = Exp(d) }"""
    onnx.save(model(text), tmp_path / "m.onnx")
    for backend in ("reference", "ort-cpu"):
        made = twin.load(backend, str(tmp_path / "m.onnx"), str(tmp_path))
        assert made.run({"x": f16(1, 2), "z": f16(1, 0)})[0] == ()
        assert made.run({"x": f16(1, 60), "z": f16(1, 2)})[0] == ("y",)


# ------------------------------------------------------------------------------------------------- the ladder


def rung(folder: Path, before: str, after: str, name: str = "reference", **more: Any) -> RungResult:
    for file, text in (("a.onnx", before), ("b.onnx", after)):
        onnx.save(
            model(text, more.pop("opset", 18) if file == "b.onnx" else more.get("opset", 18)), folder / file
        )
    more.setdefault("exact", False)
    verdict = verify(folder / "a.onnx", folder / "b.onnx", rungs=[name], **more)
    return verdict.rungs[0]


def test_a_fix_that_removes_an_overflow_passes_and_the_line_says_why(tmp_path: Path) -> None:
    found = ended("passed", rung(tmp_path, SCORES + AFTER, SCORES + BEFORE, inputs=[LARGE]))
    assert found.reason == f"within tolerance on 1 feed; 4 of 4 values: {TOLD}"
    assert found.feeds[0].reason == f"4 of 4 values: {TOLD}"
    assert "in half precision the original's s is not finite; in float64 it is" in found.notes


def test_never_for_exact_fixes(tmp_path: Path) -> None:
    ended("failed", rung(tmp_path, SCORES + AFTER, SCORES + BEFORE, inputs=[LARGE], exact=True))


def test_the_way_back_adds_an_overflow_and_fails(tmp_path: Path) -> None:
    assert rung(tmp_path, SCORES + BEFORE, SCORES + AFTER, inputs=[LARGE]).status == "failed"


def test_a_wrong_fix_fails_where_the_original_overflows(tmp_path: Path) -> None:
    wrong = SCORES.replace("18432", "18688") + BEFORE  # 10 instead of 8
    found = ended("failed", rung(tmp_path, SCORES + AFTER, wrong, inputs=[LARGE]))
    assert "NaN or Inf at different positions (4 of 4" in found.reason


def test_a_difference_without_any_overflow_fails(tmp_path: Path) -> None:
    """Half precision rounds 2049 to 2048; who leaves the rounding out is right in float32, and changes the model."""
    text = (
        "g (float[1] x) => (float[1] y) { h = Cast<to=10>(x) f = Cast<to=1>(h) d = Sub(f, x) y = Floor(d) }"
    )
    other = "g (float[1] x) => (float[1] y) { d = Sub(x, x) y = Floor(d) }"
    assert rung(tmp_path, text, other, inputs=[{"x": f32(2049)}]).status == "failed"


def test_masked_rows_that_are_nan_in_higher_precision_too_must_stay(tmp_path: Path) -> None:
    text = "g (float16[1,2] x) => (float16[1,2] y) <float16[2] i = {%s}> { a = Add(x, i) y = Softmax(a) }"
    found = rung(
        tmp_path, text % "64512, 64512", text % "64511, 64511", inputs=[{"x": f16(1, 1).reshape(1, 2)}]
    )
    assert found.status == "failed"
    assert "NaN or Inf at different positions" in found.reason


INNER = """g (float16[2,8] x, bool c) => (float16[2,8] y) <float16 h = {14336}> { y = If(c) <
    then_branch = t () => (float16[2,8] u) { %s }, else_branch = e () => (float16[2,8] w) { w = Neg(x) }> }"""
FUNCTION = """g (float16[2,8] x) => (float16[2,8] y) { y = my.Half(x) }
    <domain: "my", opset_import: ["": 18]> Half (x) => (u) { h = Constant<value=float16 {14336}>() %s }"""
ROOT = ("q = Mul(x, x) s = Sqrt(q) u = Mul(s, h)", "s = Abs(x) u = Mul(s, h)")


@pytest.mark.parametrize("text", [INNER, FUNCTION], ids=["branch", "function"])
def test_overflow_inside_a_branch_and_inside_a_function(tmp_path: Path, text: str) -> None:
    for file, inner in zip(("a.onnx", "b.onnx"), ROOT, strict=True):
        onnx.save(model(text % inner), tmp_path / file)
    feed = {"x": np.full((2, 8), 1000, np.float16)}
    if text is INNER:
        feed["c"] = np.array(True)
    found = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", exact=False, rungs=["reference"], inputs=[feed])
    assert found.rungs[0].reason.endswith(f"16 of 16 values: {TOLD}")


def test_finite_values_that_an_overflow_spoilt(tmp_path: Path) -> None:
    """A quotient by infinity is 0, and no NaN shows that it is wrong."""
    lengths = "g (float16[1,8] x) => (float16[1,8] y) {%s}"
    before = "q = Mul(x, x) s = ReduceSum(q, a) l = Sqrt(s) y = Div(x, l) a = Constant<value_ints=[1]>()"
    before = lengths % ("a = Constant<value_ints=[1]>() " + before.rsplit(" a =", 1)[0])
    after = lengths % (
        "a = Constant<value_ints=[1]>() w = Cast<to=1>(x) q = Mul(w, w) s = ReduceSum(q, a) l = Sqrt(s)"
        " d = Div(w, l) y = Cast<to=10>(d)"
    )
    found = rung(tmp_path, before, after, inputs=[{"x": np.full((1, 8), 500, np.float16)}])
    assert found.reason.endswith(f"8 of 8 values: {TOLD}")


BESIDE = """g (float[2] f, float16[2] h, bool c) => (float[2] y, int64[2] k, float16[2] z) <float one = {%s}> {
    y = Mul(f, one) %s  z = If(c) <then_branch = t () => (float16[2] u) { p = Mul(h, h) u = Sqrt(p) },
    else_branch = e () => (float16[2] w) { w = Neg(h) }> }"""
ROUNDED = "r = Cast<to=10>(f) s = Cast<to=1>(r) k = Cast<to=7>(s)"


@pytest.mark.parametrize(
    ("one", "rounded", "wrong"),
    [("1.009", ROUNDED, "output y"), ("1", "k = Cast<to=7>(f)", "output k"), ("1", ROUNDED, "")],
)
def test_an_overflow_excuses_only_what_hangs_on_it(
    tmp_path: Path, one: str, rounded: str, wrong: str
) -> None:
    for file, text in (("a.onnx", BESIDE % ("1", ROUNDED)), ("b.onnx", BESIDE % (one, rounded))):
        if file == "b.onnx":
            text = text.replace("p = Mul(h, h) u = Sqrt(p)", "u = Abs(h)")
        onnx.save(model(text), tmp_path / file)
    feed = {"f": f32(2049, 1), "h": f16(900, 1), "c": np.array(True)}
    [found] = verify(
        tmp_path / "a.onnx", tmp_path / "b.onnx", exact=False, rungs=["reference"], inputs=[feed]
    ).rungs
    assert found.status == ("failed" if wrong else "passed")
    assert wrong in found.reason
    assert wrong or found.reason.endswith(f"1 of 2 values: {TOLD}")


def test_the_twin_on_onnxruntime(tmp_path: Path) -> None:
    """A Concat keeps ONNX Runtime from computing on in float32, so that overflow shows there as well."""
    kept = """z = Constant<value_ints=[0]>() o = Constant<value_ints=[2]>() s = MatMul(q, k)
        t = Concat<axis=0>(s, s) i = Slice(t, z, o) y = Div(i, c) }"""
    found = rung(tmp_path, SCORES + kept, SCORES + BEFORE, "ort-cpu", inputs=[LARGE])
    assert found.reason == f"within tolerance on 1 feed; 4 of 4 values: {TOLD}"


def test_without_a_twin_it_fails_as_before_and_says_why_there_is_none(tmp_path: Path) -> None:
    """Bits of half precision mean nothing in another type."""
    bits = SCORES + "i = BitCast<to=5>(q) b = BitCast<to=10>(i) " + AFTER.replace("q,", "b,")
    found = ended("failed", rung(tmp_path, bits, SCORES + BEFORE, inputs=[LARGE], opset=26))
    assert any(note.startswith("the original could not run in higher precision") for note in found.notes)


def test_float32_outputs_of_a_half_precision_model(tmp_path: Path) -> None:
    """Converters keep inputs and outputs in float32; the roundings of half precision are in them all the same."""
    text = """g (float[2,64] x) => (float[2,64] y) <float16 e = {168}, float16 two = {16384}> {
        h = Cast<to=10>(x) m = ReduceMean(h, a) d = Sub(h, m) q = Pow(d, two) v = ReduceMean(q, a) w = Add(v, e)
        s = Sqrt(w) n = Div(d, s) y = Cast<to=1>(n) }"""
    text = text.replace("{\n", "{ a = Constant<value_ints=[1]>()\n", 1)
    fused = """g (float[2,64] x) => (float[2,64] y) { o = Constant<value_ints=[64]>()
        one = ConstantOfShape<value=float16[1] {15360}>(o)
        h = Cast<to=10>(x) n = LayerNormalization<epsilon=0.00001>(h, one) y = Cast<to=1>(n) }"""
    assert rung(tmp_path, text, fused).status == "passed"
    wrong = fused.replace("0.00001", "0.1")
    assert rung(tmp_path, text, wrong).status == "failed"


# ------------------------------------------------------------------------------------------------- feeds


@pytest.mark.parametrize(
    ("name", "exact", "tried"), [("reference", False, 1), ("reference", True, 0), ("ort-cpu", False, 0)]
)
def test_who_is_asked_about_large_magnitudes(tmp_path: Path, name: str, exact: bool, tried: int) -> None:
    found = rung(tmp_path, SCORES + AFTER, SCORES + AFTER, name, exact=exact)
    kinds = [one.feed.kind for one in found.feeds if one.feed is not None]
    assert kinds.count("large") == tried
    single = SCORES.replace("float16", "float").replace("18432", "8") + AFTER
    found = rung(tmp_path, single, single, name)
    assert "large" not in [one.feed.kind for one in found.feeds if one.feed is not None]


def test_what_overflows_in_both_on_made_magnitudes_does_not_count(tmp_path: Path) -> None:
    """inf - inf is NaN and inf + 1 is inf: which one, depends on the order, and nobody asked for such values."""
    io = "g (float16[64] x) => (float16[64] y) {"
    before, after = io + "q = Mul(x, x) d = Sub(q, q) y = Add(d, q) }", io + "q = Mul(x, x) y = Identity(q) }"
    found = ended("passed", rung(tmp_path, before, after))
    [large] = [one for one in found.feeds if one.feed is not None and one.feed.kind == "large"]
    assert large.status == "not counted"
    # On the user's own values it does.
    assert rung(tmp_path, before, after, inputs=[{"x": np.full(64, 1000, np.float16)}]).status == "failed"
    # And a model that alone overflows is refuted on either, whatever else overflows.
    two = "g (float16[64] x) => (float16[64] y, float16[64] z) { y = Mul(x, x) %s }"
    assert rung(tmp_path, two % "z = Abs(x)", two % "q = Mul(x, x) z = Sqrt(q)").status == "failed"
    assert (
        rung(tmp_path, after.replace("Mul(x, x)", "Abs(x)"), io + "q = Mul(x, x) y = Sqrt(q) }").status
        == "failed"
    )


# ------------------------------------------------------------------------------------------------- the evaluator


def test_norms_compute_their_first_stage_in_float32() -> None:
    rows = np.resize(f16(0, 900), (1, 64))
    feed = {"x": rows, "s": np.full(64, 2, np.float16), "b": np.full(64, 0.5, np.float16)}
    io = "g (float16[1,64] x, float16[64] s, float16[64] b) => (float16[1,64] y, float[1,1] m, float[1,1] i)"
    y, mean, inverse = reference.evaluator(
        model(io + "{ y, m, i = LayerNormalization<epsilon=0.0>(x, s, b) }")
    ).run(None, feed)
    assert (y.dtype, mean.dtype, inverse.dtype) == (np.float16, np.float32, np.float32)
    np.testing.assert_array_equal(y, np.resize(f16(-1.5, 2.5), (1, 64)))
    assert (mean[0, 0], inverse[0, 0]) == (450, pytest.approx(1 / 450))
    io = "g (float16[1,64] x, float16[64] s) => (float16[1,64] y)"
    [y] = reference.evaluator(model(io + "{ y = RMSNormalization(x, s) }", 23)).run(
        None, {"x": rows, "s": feed["s"]}
    )
    np.testing.assert_allclose(y.astype(float), np.resize([0, 2 * math.sqrt(2)], (1, 64)), rtol=1e-3)
    assert y.dtype == np.float16


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_norms_agree_with_their_functions(op: str, axis: int, dtype: Any) -> None:
    """ONNX defines both operators by a function, which is executed here."""
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(axis + 1)
    shape = [3, 4, 5]
    x = (5 * rng.standard_normal(shape)).astype(dtype)
    scale = rng.uniform(0.5, 1.5, shape[axis:]).astype(dtype)
    node = helper.make_node(op, ["x", "s"], ["y"], axis=axis)
    types = [helper.make_tensor_type_proto(elem, dims).SerializeToString() for dims in (shape, shape[axis:])]
    body = onnx.FunctionProto.FromString(
        defs.get_schema(op).get_context_dependent_function(node.SerializeToString(), types)
    )
    inputs = {"x": (elem, shape), "s": (elem, shape[axis:])}
    proto = of_nodes([node], inputs, {"y": (elem, shape)}, opset=23, ir_version=11)
    [got] = reference.evaluator(proto).run(None, {"x": x, "s": scale})
    parts = list(body.node)
    if op == "RMSNormalization":  # its body takes Size for the rank: counts the elements of the shape
        assert any(part.op_type == "Size" for part in parts)
    renamed = {"X": "x", "Scale": "s", "scale": "s"}
    for part in parts:
        part.input[:] = [renamed.get(name, name) for name in part.input]
    opset = next(entry.version for entry in body.opset_import if not entry.domain)
    whole = of_nodes(parts, inputs, {body.output[0]: (elem, shape)}, opset=opset, ir_version=11)
    outputs = [name for name in (body.output[0],) if any(name in part.output for part in parts)]
    [wanted] = reference.evaluator(whole).run(outputs, {"x": x, "s": scale})
    assert got.dtype == wanted.dtype == np.dtype(dtype)
    step = {"float16": 2e-3, "float32": 1e-5, "bfloat16": 2e-2}[np.dtype(dtype).name]
    np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=step, atol=step)


@pytest.mark.parametrize("length", [5, 64, 200])
def test_gather_elements_over_long_axes(length: int) -> None:
    data = np.arange(2 * length).reshape(2, length).astype(np.float32)
    index = np.array([[0, -1, length - 1], [1, 2, -length]])
    io = f"g (float[2,{length}] x, int64[2,3] i) => (float[2,3] y) {{ y = GatherElements<axis=1>(x, i) }}"
    [got] = reference.evaluator(model(io)).run(None, {"x": data, "i": index})
    np.testing.assert_array_equal(got, np.take_along_axis(data, index % length, 1))
    with pytest.raises(IndexError):
        reference.evaluator(model(io)).run(None, {"x": data, "i": index + length})


@pytest.mark.parametrize("backend", ["reference", "ort-cpu"])
@pytest.mark.parametrize(("trips", "going"), [(0, 1), (3, 0), (2, 1)])
def test_a_loop_that_runs_zero_times_has_scan_outputs(
    tmp_path: Path, backend: str, trips: int, going: int
) -> None:
    text = f"""g (float16[3] x) => (float16[3] y, float16[N,3] z, int64[N] k) {{ n = Constant<value=int64 {{{trips}}}>()
        c = Constant<value=bool {{{going}}}>() y, z, k = Loop(n, c, x) <body = b (int64 i, bool d, float16[3] v) =>
        (bool e, float16[3] u, float16[3] s, int64 j) {{ e = Identity(d) u = Add(v, v) s = Neg(v) j = Identity(i)
        }}> }}"""
    onnx.save(model(text), tmp_path / "m.onnx")
    y, z, k = backends.load(backend, str(tmp_path / "m.onnx")).run({"x": f16(1, 2, 3)})
    rows = trips * going
    assert (z.shape, z.dtype, k.shape, k.dtype) == ((rows, 3), np.float16, (rows,), np.int64)
    np.testing.assert_array_equal(y, f16(1, 2, 3) * 2**rows)


def test_corrections_hold_inside_functions() -> None:
    text = """g (float16[1,64] x, float16[64] s) => (float16[1,64] y) { y = my.Norm(x, s) }
        <domain: "my", opset_import: ["": 18]> Norm (a, b) => (c) { c = LayerNormalization(a, b) }"""
    feed = {"x": np.resize(f16(0, 900), (1, 64)), "s": np.ones(64, np.float16)}
    [y] = reference.evaluator(model(text)).run(None, feed)
    np.testing.assert_array_equal(y, np.resize(f16(-1, 1), (1, 64)))
