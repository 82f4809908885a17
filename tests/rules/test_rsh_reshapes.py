"""The reshape rules against the ONNX reference and ONNX Runtime, on shapes that examples do not think of.

An EXACT fix must change nothing for any size of the inputs, 0 included: where the model ran it gives the same bytes,
where it failed it fails. What a rule says about a model ("fails for every other size") must be so.
"""
# Long because: generators of random reshapes stand beside the tests that draw from them.

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfix.files import walk
from onnxfix.rewrite.engine import Found
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Example, Safety, Severity
from onnxfix.testing import findings, fixed, graph_difference, model_of, overlay
from support.models import floats, of_nodes
from support.ort import session

RULES = [rule for rule in registry().rules if rule.code.startswith("RSH")]
BY_CODE = {rule.code: rule for rule in RULES}
SIZES = (0, 1, 2, 3, 4)
Dims = Sequence[int | str]

quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


# ---- building and judging ---------------------------------------------------------------------------------------


def build(
    inputs: dict[str, Dims], nodes: Sequence[NodeProto], constants: dict[str, Any], opset: int = 18
) -> ModelProto:
    """A model of float inputs whose output is ``y``, of a shape that is not declared."""
    stored = {name: np.asarray(value, dtype=np.int64) for name, value in constants.items()}
    return of_nodes(nodes, floats(**inputs), floats(y=None), stored, opset=opset)


def feeds(model: ModelProto, sizes: Sequence[int] = SIZES) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """Every assignment of ``sizes`` to the symbols, with data that differ in every element."""
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input
    }
    names = sorted({d for dims in shapes.values() for d in dims if isinstance(d, str)})
    for values in itertools.product(sizes, repeat=len(names)):
        env = dict(zip(names, values, strict=True))
        real = {k: [env[d] if isinstance(d, str) else d for d in dims] for k, dims in shapes.items()}
        yield env, {k: np.arange(np.prod(s), dtype=np.float32).reshape(s) for k, s in real.items()}


class Runner:
    """A model in the reference evaluator and in ONNX Runtime; ``None`` stands for an error."""

    def __init__(self, model: ModelProto) -> None:
        self.reference = ReferenceEvaluator(model)
        self.ort: Any = None
        try:
            self.ort = session(model)
        except Exception as error:  # ORT's exceptions share no narrower base
            self.refused = str(error)

    def reference_output(self, feed: dict[str, Any]) -> np.ndarray[Any, Any] | None:
        try:
            return np.asarray(self.reference.run(None, feed)[0])
        except (ValueError, IndexError, ZeroDivisionError):
            return None

    def ort_output(self, feed: dict[str, Any]) -> np.ndarray[Any, Any] | None:
        if self.ort is None:
            return None
        try:
            return np.asarray(self.ort.run(None, feed)[0])
        except Exception:  # see above
            return None


def same(a: np.ndarray[Any, Any] | None, b: np.ndarray[Any, Any] | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def assert_exact(before: ModelProto, target: str | None = None) -> None:
    """All EXACT fixes together change nothing at any size, and a second run changes nothing at all."""
    after, run = fixed(RULES, before, target=target)
    assert not run.problems
    again, second = fixed(RULES, after, target=target)
    assert not second.applied
    assert again.SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True)
    if not run.applied:
        assert after.SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True)
        return
    old, new = Runner(before), Runner(after)
    for env, feed in feeds(before):
        label = f"{[a.key.code for a in run.applied]} at {env}"
        assert same(old.reference_output(feed), new.reference_output(feed)), f"reference: {label}"
        assert same(old.ort_output(feed), new.ort_output(feed)), f"ort: {label}"


def outcomes(model: ModelProto, sizes: Sequence[int] = SIZES) -> list[tuple[dict[str, int], bool]]:
    """Whether the model runs, at every assignment; the two backends have to agree."""
    runner = Runner(model)
    result = []
    for env, feed in feeds(model, sizes):
        ran = runner.reference_output(feed) is not None
        assert ran == (runner.ort_output(feed) is not None), f"the backends disagree at {env}"
        result.append((env, ran))
    return result


def found(code: str, model: ModelProto, target: str | None = None) -> list[Found]:
    return findings(BY_CODE[code], model, target)


# ---- random models ----------------------------------------------------------------------------------------------

dims = st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, "N", "N", "M"]), min_size=0, max_size=3)
targets = st.lists(st.sampled_from([-1, 0, 0, 1, 2, 3, 4, 6, 12]), min_size=0, max_size=4)
allowzeros = st.sampled_from([None, 0, 1, 1])


def attribute(allowzero: int | None) -> dict[str, int]:
    return {} if allowzero is None else {"allowzero": allowzero}


@st.composite
def constant_reshapes(
    draw: st.DrawFn, sources: Any = dims, wanted: Any = targets, allowed: Any = allowzeros
) -> ModelProto:
    """Reshape to a constant, which is an initializer or a Constant node of either kind."""
    shape, target, allowzero = draw(sources), draw(wanted), draw(allowed)
    kind = draw(st.sampled_from(["initializer", "value", "value_ints"]))
    nodes, constants = [helper.make_node("Reshape", ["x", "s"], ["y"], **attribute(allowzero))], {}
    if kind == "initializer" or not target:
        constants["s"] = np.array(target, dtype=np.int64)
    elif kind == "value":
        tensor = numpy_helper.from_array(np.array(target, dtype=np.int64))
        nodes.insert(0, helper.make_node("Constant", [], ["s"], value=tensor))
    else:
        nodes.insert(0, helper.make_node("Constant", [], ["s"], value_ints=target))
    return build({"x": shape}, nodes, constants, opset=draw(st.sampled_from([14, 18, 21])))


literals = st.tuples(st.just("const"), st.sampled_from([-1, 1, 2, 3, 4]), st.just(0))
zeros = st.tuples(st.just("const"), st.just(0), st.just(0))
computed = st.one_of(
    st.tuples(st.just("dim"), st.integers(0, 2), st.just(0)),
    st.tuples(st.sampled_from(["Add", "Sub", "Div", "Mul"]), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("times"), st.integers(0, 2), st.integers(0, 2)),
)


def shape_nodes(recipe: Sequence[tuple[str, int, int]], data: str) -> tuple[list[NodeProto], dict[str, Any]]:
    """Nodes that compute ``s`` from the shape of ``data``, an element each."""
    nodes, constants = [helper.make_node("Shape", [data], ["d"])], {f"i{k}": [k] for k in range(3)}
    names = []
    for number, (kind, a, b) in enumerate(recipe):
        name = f"e{number}"
        names.append(name)
        if kind == "const":
            constants[name] = [a]
            continue
        nodes.append(helper.make_node("Gather", ["d", f"i{a}"], [f"{name}_a" if kind != "dim" else name]))
        if kind == "times":
            nodes.append(helper.make_node("Gather", ["d", f"i{b}"], [f"{name}_b"]))
            nodes.append(helper.make_node("Mul", [f"{name}_a", f"{name}_b"], [name]))
        elif kind != "dim":
            constants[f"{name}_k"] = [b]
            nodes.append(helper.make_node(kind, [f"{name}_a", f"{name}_k"], [name]))
    return [*nodes, helper.make_node("Concat", names, ["s"], axis=0)], constants


@st.composite
def computed_reshapes(
    draw: st.DrawFn, parts: Any = literals | zeros | computed | computed, allowed: Any = allowzeros
) -> ModelProto:
    """Reshape to what is computed from the data's shape: [N, M, 2], or twice as many rows."""
    recipe = draw(st.lists(parts, min_size=1, max_size=4))
    nodes, constants = shape_nodes(recipe, "x")
    data = "x"
    if draw(st.booleans()):
        data = "p"
        nodes.append(helper.make_node("Concat", ["x", "x"], ["p"], axis=0))
    nodes.append(helper.make_node("Reshape", [data, "s"], ["y"], **attribute(draw(allowed))))
    last = draw(st.sampled_from([1, 2, "M"]))
    return build({"x": ["N", draw(st.sampled_from([2, 3, "M"])), last]}, nodes, constants)


# ---- properties -------------------------------------------------------------------------------------------------


@quick
@given(constant_reshapes() | computed_reshapes(), st.sampled_from([None, "trt8.4"]))
def test_exact_fixes_of_reshapes_change_nothing(model: ModelProto, target: str | None) -> None:
    assert_exact(model, target)


@quick
@given(
    st.lists(st.sampled_from([0, 1, 1, 2, 3, "N"]), min_size=0, max_size=4),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([11, 13, 18]),
    st.booleans(),
)
def test_exact_fixes_of_squeezes_change_nothing(
    shape: Dims, double: int | None, opset: int, inner: bool
) -> None:
    nodes, data = [], "x"
    if double is not None and double < len(shape):
        nodes.append(helper.make_node("Concat", ["x", "x"], ["p"], axis=double))
        data = "p"
    nodes.append(helper.make_node("Squeeze", [data], ["q" if inner else "y"]))
    if inner:
        nodes.append(helper.make_node("Neg", ["q"], ["y"]))
    assert_exact(build({"x": shape}, nodes, {}, opset))


@quick
@given(constant_reshapes())
def test_what_is_called_broken_never_runs(model: ModelProto) -> None:
    """An ERROR says that no size runs."""
    errors = [f for rule in RULES for f in findings(rule, model) if f.severity == Severity.ERROR]
    if errors:
        ran = [env for env, ok in outcomes(model) if ok]
        assert not ran, f"{[f.match.message for f in errors]}, but it runs at {ran}"


@quick
@given(
    constant_reshapes(
        wanted=st.lists(st.sampled_from([-1, 0, 0, 2, 3]), min_size=1, max_size=3), allowed=st.just(1)
    )
)
def test_allowzero_that_breaks_is_found(model: ModelProto) -> None:
    """The converse: a Reshape with allowzero=1 and a 0 that no non-empty data passes is always found."""
    target = target_of(model)
    assume(0 in target and target.count(-1) < 2)
    known = [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    codes = {f.rule.code for rule in RULES for f in findings(rule, model)}
    assert ("RSH002" in codes) == (-1 in target)
    if -1 not in target:
        assert ("RSH003" in codes) == (0 not in known)
    assert "RSH001" not in codes


@quick
@given(
    constant_reshapes(
        st.lists(st.sampled_from([1, 2, 3, "N", "N", "M"]), min_size=1, max_size=3),
        st.lists(st.sampled_from([0, 1, 2, 3, 4, 6]), min_size=0, max_size=3),
    )
)
def test_a_pinned_size_runs_where_it_says_and_nowhere_else(model: ModelProto) -> None:
    target = target_of(model)
    assume(not any(a.name == "allowzero" and a.i for a in model.graph.node[-1].attribute) or 0 not in target)
    sizes = range(1, 13)
    for item in found("RSH008", model):
        message = item.match.message
        ran = [env for env, ok in outcomes(model, sizes) if ok]
        if "always fails" in message or "unless the data is empty" in message:
            assert not ran
        elif ", the traced size" in message:
            name, size = message.split("only at ")[1].split(", the traced size")[0].split(" = ")
            assert all(env[name] == int(size) for env in ran)
            assert bool(ran) == (int(size) in sizes)
        assert len(ran) < len(outcomes(model, sizes))


@quick
@given(
    constant_reshapes(
        st.lists(st.sampled_from([1, 2, 3, "N", "N", "M"]), min_size=1, max_size=3),
        st.lists(st.sampled_from([-1, 0, 1, 2, 3, 4, 6]), min_size=1, max_size=3),
    )
)
def test_freeing_a_pinned_size_is_equal_at_the_traced_one(model: ModelProto) -> None:
    """The UNSAFE fix of RSH008 gives the same wherever a model without -1 ran, and runs for every size."""
    if not any(f.match.fix for f in found("RSH008", model)):
        return
    after, run = fixed([BY_CODE["RSH008"]], model, safety=Safety.UNSAFE)
    assert run.applied
    old, new = Runner(model), Runner(after)
    for env, feed in feeds(model, range(1, 7)):
        before, now = old.ort_output(feed), new.ort_output(feed)
        assert now is not None, f"fails at {env}"
        assert same(now, new.reference_output(feed))
        if -1 not in target_of(model) and before is not None:
            assert same(before, now), f"differs at {env}"


@quick
@given(computed_reshapes(literals | computed | computed, st.none()))
def test_silence_about_zeros_means_that_both_readings_agree(model: ModelProto) -> None:
    """Where RSH004 is silent, allowzero=0 and 1 mean the same for all sizes from 1; where it speaks, a 0 exists."""
    shape = shape_only(model)
    rows = [Runner(shape).reference_output(feed) for _, feed in feeds(shape, range(1, 5))]
    flagged = found("RSH004", model)
    if flagged:
        text = flagged[0].match.message
        assert "which is 0 at" in text
        assert any(row is not None and (row == 0).any() for row in rows), text
        return
    # An element that is 0 for every size is no trap: both TensorRT and the author see it.
    assume(not any((column == 0).all() for column in np.array([row for row in rows if row is not None]).T))
    other = walk.copied(model)
    other.graph.node[-1].attribute.append(helper.make_attribute("allowzero", 1))
    old, new = Runner(model), Runner(other)
    for env, feed in feeds(model, range(1, 5)):
        assert same(old.reference_output(feed), new.reference_output(feed)), f"differs at {env}"


def target_of(model: ModelProto) -> list[int]:
    """The constant shape of the last node."""
    name = model.graph.node[-1].input[1]
    value = overlay(model).main.values[name].constant()
    assert value is not None
    return [int(v) for v in value]


def shape_only(model: ModelProto) -> ModelProto:
    """The model without its Reshape, so that the shape that it asks for is the output."""
    copy = walk.copied(model)
    del copy.graph.node[-1], copy.graph.output[:]
    copy.graph.output.append(helper.make_tensor_value_info("s", TensorProto.INT64, None))
    return copy


# ---- how the rules meet -----------------------------------------------------------------------------------------

PLAIN = "g (float[N,12] x) => (float[M,6] y) <int64[2] s = {-1, 6}> { y = Reshape%s(x, s) }"


@pytest.mark.parametrize("target", ["trt8.4", "trt8.6", "trt10", "trt11", "rtx"])
@pytest.mark.parametrize("attributes", ["", "<allowzero=0>", "<allowzero=1>"])
@pytest.mark.parametrize("first", ["trt8.4", "rtx"])
def test_rules_do_not_undo_one_another(attributes: str, first: str, target: str) -> None:
    """At the most daring level, one run is enough, and a model fixed for one target is fine for the next."""
    model = model_of(Example(why="", before=PLAIN % attributes))
    once, run = fixed(RULES, model, safety=Safety.UNSAFE, target=first)
    assert not run.problems
    twice, again = fixed(RULES, once, safety=Safety.UNSAFE, target=first)
    assert not again.applied
    assert twice.SerializeToString() == once.SerializeToString()
    other, _ = fixed(RULES, once, safety=Safety.UNSAFE, target=target)
    written = "trt8.4" in (first, target) or attributes == "<allowzero=0>"
    wanted = PLAIN % ("<allowzero=0>" if written else "")
    assert not graph_difference(other, model_of(Example(why="", before=wanted)))


@quick
@given(st.one_of(constant_reshapes(), computed_reshapes()), st.sampled_from([None, "trt8.4"]))
def test_every_level_converges(model: ModelProto, target: str | None) -> None:
    once, run = fixed(RULES, model, safety=Safety.UNSAFE, target=target)
    assert not run.problems
    twice, again = fixed(RULES, once, safety=Safety.UNSAFE, target=target)
    assert not again.applied
    assert twice.SerializeToString() == once.SerializeToString()


def test_a_shared_shape_is_not_changed_for_others() -> None:
    """A constant that a branch captures, and that another Reshape reads, keeps its value."""
    text = """g (bool b, float[N,12] x, float[2,12] z) => (float[A,B] y, float[2,12] w) <int64[2] s = {2, 12}> {
        w = Reshape(z, s)
        y = If (b) <then_branch = t () => (float[A,B] u) { u = Reshape(x, s) },
                    else_branch = e () => (float[A,B] v) { v = Reshape(z, s) }> }"""
    after, run = fixed(RULES, model_of(Example(why="", before=text)), safety=Safety.UNSAFE)
    assert [a.key.code for a in run.applied] == ["RSH008"]
    assert [numpy_helper.to_array(t).tolist() for t in after.graph.initializer] == [[2, 12]]
    branches = {a.name: a.g for node in after.graph.node for a in node.attribute if a.HasField("g")}
    assert [numpy_helper.to_array(t).tolist() for t in branches["then_branch"].initializer] == [[-1, 12]]
    assert not branches["else_branch"].initializer


EMPTYING = "g (float[%s,3] x) => (float[A] y) <int64[1] s = {0}> { y = Reshape<allowzero=1>(x, s) }"
FLAT = "g (float[%s] x) => (float[A] y) <int64[1] s = {%d}> { y = Reshape(x, s) }"
THIN = "g (float[%s,3] x) => (float[A,B] y) { y = Squeeze(x) }"


@pytest.mark.parametrize(
    ("code", "text", "target", "severity"),
    [
        ("RSH001", PLAIN % "<allowzero=1>", None, Severity.INFO),
        ("RSH003", EMPTYING % "2", None, Severity.ERROR),
        ("RSH003", EMPTYING % "N", None, Severity.WARNING),
        ("RSH008", FLAT % ("N,3", 6), None, Severity.WARNING),
        ("RSH008", FLAT % ("N,3", 7), None, Severity.ERROR),
        ("RSH008", FLAT % ("N,N,2", 0), None, Severity.WARNING),
        ("RSH009", THIN % "1", "trt10", Severity.INFO),
        ("RSH009", THIN % "N", "trt10", Severity.ERROR),
        ("RSH009", THIN % "N", "rtx", Severity.WARNING),
    ],
)
def test_severity_says_how_certain_it_is(
    code: str, text: str, target: str | None, severity: Severity
) -> None:
    assert [f.severity for f in found(code, model_of(Example(why="", before=text)), target)] == [severity]
