"""The rules about branches, loops and sequences: against TensorRT's parser and builder, on random bodies, and CTL016
of loops that read each other's results.

TensorRT is asked where it is installed; no engine is executed. Values are ONNX Runtime's, without optimizations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, parser

from onnxfix.rewrite.registry import registry
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import findings, fixed, model_of
from support import ort, repairs
from support.models import of_opset
from support.real_tensorrt import REAL, built
from support.repairs import assert_same_bits

CODES = ("CTL010", "CTL011", "CTL012", "CTL013", "CTL014", "CTL015", "CTL020")
RULES = {rule.code: rule for rule in registry().rules if rule.code in CODES}
Feed = dict[str, Any]


model = of_opset(18)


def feed_of(proto: ModelProto, size: int = 3) -> Feed:
    """Random inputs; named sizes are ``size``."""
    random = np.random.default_rng(7)
    weights = {tensor.name for tensor in proto.graph.initializer}
    feed: Feed = {}
    for info in proto.graph.input:
        tensor = info.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else size for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        value = random.integers(1, 5, shape) if dtype.kind in "iub" else random.standard_normal(shape)
        if info.name not in weights:
            feed[info.name] = np.asarray(value).astype(dtype)
    return feed


def repaired(proto: ModelProto, code: str) -> ModelProto:
    """The model after the rule's fixes, of which there is one at least."""
    result, run = repairs.repaired([RULES[code]], proto)
    assert run.applied
    return result


_NEG = (
    "<then_branch = p () => (float[2] u) { u = Neg(x) }, else_branch = q () => (float[2] v) { v = Abs(x) }>"
)


# ------------------------------------------------------------------------------------------ random bodies

_UNARY = ("Neg", "Abs", "Identity", "Floor")
_BINARY = ("Add", "Sub", "Max")


@st.composite
def bodies(draw: st.DrawFn, names: tuple[str, ...], results: int, *, prefix: str) -> tuple[str, list[str]]:
    """Statements over float[2] values that read ``names``, and what they hand out: any of all these."""
    known = list(names)
    lines = []
    # Names repeat between branches, and those of values outside are avoided only as far as ONNX asks for it.
    for number in range(draw(st.integers(0, 4))):
        name = f"{prefix}{number}"
        if draw(st.booleans()):
            lines.append(f"{name} = {draw(st.sampled_from(_UNARY))}({draw(st.sampled_from(known))})")
        else:
            a, b = draw(st.sampled_from(known)), draw(st.sampled_from(known))
            lines.append(f"{name} = {draw(st.sampled_from(_BINARY))}({a}, {b})")
        known.append(name)
    return "  ".join(lines), [draw(st.sampled_from(known)) for _ in range(results)]


def _graph(name: str, inputs: str, outputs: list[str], statements: str, extra: str = "") -> str:
    """A subgraph; an output that comes from outside or twice gets an Identity, as ONNX's checker wants it."""
    lines, listed = [statements], []
    for number, output in enumerate(outputs):
        lines.append(f"{name}_o{number} = Identity({output})")
        listed.append(f"float[2] {name}_o{number}")
    return f"{name} ({inputs}) => ({extra}{', '.join(listed)}) <float[2] {name}_k = {{1, -3}}> {{ {'  '.join(lines)} }}"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_branches(data: st.DataObject) -> None:
    """Captures from the graph, from around an inner If, shared names in both branches, weights, graph outputs.

    The inner If's condition is known as well, or comes from outside: then it stays, with all that it reads.
    """
    taken, twice, nested = data.draw(st.booleans()), data.draw(st.booleans()), data.draw(st.booleans())
    inner_condition = data.draw(st.sampled_from(["c", "d"]))
    around = ("x", "w", "e")
    parts = []
    for branch, name in (("then_branch", "p"), ("else_branch", "q")):
        statements, outputs = data.draw(bodies((*around, f"{name}_k"), 2, prefix="b"))
        if nested:
            inner = []
            for attr, sub in (("then_branch", "r"), ("else_branch", "s")):
                known = (*around, f"{name}_k", f"{sub}_k", *(["b0"] if "b0 =" in statements else []))
                lines, held = data.draw(bodies(known, 1, prefix=f"{sub}d"))
                inner.append(
                    f"{attr} = {_graph(f'{name}{sub}', '', held, lines).replace(f'{name}{sub}_k', f'{sub}_k')}"
                )
            statements += f"  {name}n = If({inner_condition})<{', '.join(inner)}>"
            outputs[0] = f"{name}n"
        parts.append(f"{branch} = {_graph(name, '', outputs, statements)}")
    tail = "z = Add(m, e)" if twice else "z = Neg(e)"
    text = f"""g (float[2] x, bool d) => (float[2] y, float[2] m, float[2] z)
        <float[2] w = {{2, 5}}, bool c = {{{int(taken)}}}> {{ e = Exp(x)  y, m = If(c)<{", ".join(parts)}>  {tail} }}"""
    proto = model(text)
    result = repaired(proto, "CTL010")
    onnx.checker.check_model(result, full_check=True)
    left = [node for node in result.graph.node if node.op_type == "If"]
    assert len(left) == int(nested and inner_condition == "d")
    assert all(list(node.input) == ["d"] for node in left)
    for flag in (False, True):
        feed = {"x": np.array([0.5, -2], np.float32), "d": np.array(flag)}
        assert_same_bits(ort.run(proto, feed), ort.run(result, feed))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_loops(data: st.DataObject) -> None:
    """States in any order, captures, weights, the counter, scan outputs, branches, and 0 to 4 iterations."""
    count, states, rows = (
        data.draw(st.integers(0, 4)),
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(0, 2)),
    )
    opset = data.draw(st.sampled_from([11, 13, 18]))
    given_condition = data.draw(st.booleans())
    inner = [f"v{k}" for k in range(states)]
    around, branches = ("x", "e", "b_k", "f", *inner), ""
    if data.draw(st.booleans()):
        parts = []
        for attr, name in (("then_branch", "p"), ("else_branch", "q")):
            lines, held = data.draw(bodies((*around, f"{name}_k"), 1, prefix="s"))
            parts.append(f"{attr} = {_graph(name, '', held, lines)}")
        branches, around = f"nb = If(d)<{', '.join(parts)}>", (*around, "nb")
    lines, held = data.draw(bodies(around, states + rows, prefix="t"))
    inputs = ", ".join(["int64 i", "bool on", *(f"float[2] {name}" for name in inner)])
    more = "more = Identity(on)" if given_condition else "more = Constant<value = bool {1}>()"
    body = _graph(
        "b", inputs, held, f"{more}  h = Cast<to = 1>(i)  f = Add(h, x)  {branches}  {lines}", "bool more, "
    )
    starts = [data.draw(st.sampled_from(["x", "e", "w"])) for _ in range(states)]
    outputs = [f"y{k}" for k in range(states)] + [f"z{k}" for k in range(rows)]
    declared = [f"float[2] y{k}" for k in range(states)] + [f"float[K,2] z{k}" for k in range(rows)]
    kept = data.draw(st.sets(st.sampled_from(range(len(outputs))), min_size=1))
    used = [declared[k] for k in sorted(kept)]
    text = f"""g (float[2] x, bool d) => ({", ".join(used)}, float[2] last)
        <float[2] w = {{2, 5}}, int64 n = {{{count}}}, bool c = {{1}}> {{
        e = Exp(x)  {", ".join(outputs)} = Loop(n, {"c" if given_condition else ""}, {", ".join(starts)})<body = {body}>
        last = Add(y0, e) }}"""
    proto = model(text, opset)
    if not count and any(k >= states for k in kept):
        assert not findings(RULES["CTL014"], proto)
        return
    result = repaired(proto, "CTL014")
    onnx.checker.check_model(result, full_check=True)
    assert not any(node.op_type == "Loop" for node in result.graph.node)
    for flag in (False, True):
        feed = {"x": np.array([0.5, -2], np.float32), "d": np.array(flag)}
        assert_same_bits(ort.run(proto, feed), ort.run(result, feed))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_sequences(data: st.DataObject) -> None:
    """Chains of insertions and removals, read in every way."""
    keep, sizes = data.draw(st.booleans()), data.draw(st.sampled_from(["", ", p", ", l"]))
    keep = keep or sizes != ""  # ONNX Runtime does not ignore the attribute there, as ONNX has it
    lines = [
        data.draw(
            st.sampled_from(
                [
                    f"s = SplitToSequence<keepdims = {int(keep)}>(x{sizes})",
                    "s = SequenceConstruct(a, b)",
                    "s = SequenceEmpty()",
                ]
            )
        )
    ]
    split = lines[0].startswith("s = Split")
    length = (2 if sizes else 4) if split else (2 if "Construct" in lines[0] else 0)
    flat = split and not keep and not sizes  # rows without the axis
    last = "s"
    weights = ["int64[2] p = {1, 3}", "int64 l = {2}"]
    for number in range(data.draw(st.integers(0, 4))):
        erase = length > 0 and data.draw(st.booleans())
        low, high = -length, length - 1 if erase else length
        at = data.draw(st.none() | st.integers(low, high))
        weights.append(f"int64 k{number} = {{{at or 0}}}")
        where = "" if at is None else f", k{number}"
        tensor = "r" if flat else data.draw(st.sampled_from(["a", "b"]))
        call = f"SequenceErase({last}{where})" if erase else f"SequenceInsert({last}, {tensor}{where})"
        lines.append(f"s{number} = {call}")
        length += -1 if erase else 1
        last = f"s{number}"
    lines.append(f"n = SequenceLength({last})")
    declared = ["int64 n"]
    if length:
        axis = data.draw(st.integers(-1, 0))
        lines.append(f"y = ConcatFromSequence<axis = {axis if flat or axis == 0 else 0}>({last})")
        weights.append(f"int32 q = {{{data.draw(st.integers(-length, length - 1))}}}")
        lines.append(f"z = SequenceAt({last}, q)")
        shape = "A" if flat else "A,B"
        declared += [f"float[{shape}] y", f"float[{shape}] z"]
    text = f"""g (float[4,3] x, float[2,3] a, float[1,3] b, float[3] r) => ({", ".join(declared)})
        <{", ".join(weights)}> {{ {"  ".join(lines)} }}"""
    proto = model(text)
    result = repaired(proto, "CTL020")
    assert not any("Sequence" in node.op_type for node in result.graph.node)
    feed = feed_of(proto)
    assert_same_bits(ort.run(proto, feed), ort.run(result, feed))


def test_a_node_of_the_branch_keeps_no_name_that_another_has() -> None:
    """ONNX Runtime refuses two nodes of one name, and branches may use the graph's names again."""
    proto = model(f"g (float[2] x) => (float[2] y) <bool c = {{1}}> {{ t = If(c){_NEG}  y = Exp(t) }}")
    proto.graph.node[1].name = "same"
    for attribute in proto.graph.node[0].attribute:
        attribute.g.node[0].name = "same"
    result = repaired(proto, "CTL010")
    feed = feed_of(proto)
    assert_same_bits(ort.run(proto, feed), ort.run(result, feed))


def test_a_weight_of_the_body_is_written_once() -> None:
    proto = model(
        """g (float[2] x) => (float[2] y) <int64 n = {5}> { y = Loop(n, , x)
        <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) <float[2] k = {1, 2}> {
            more = Constant<value = bool {1}>()  w = Add(v, k) }> }"""
    )
    result = repaired(proto, "CTL014")
    assert len(result.graph.initializer) == 1
    assert len(result.graph.node) == 5


def test_nodes_of_two_branches_keep_names_apart() -> None:
    """TensorRT names a node without a name by its output, and refuses two quantizers of one name."""
    inner = """If(t)<then_branch = p () => (float[2] u) { [a] m = Neg(x)  [b] u = Abs(m) },
        else_branch = q () => (float[2] v) { [c] v = Exp(x) }>"""
    text = f"""g (float[2] x, bool c) => (float[2] y) <bool t = {{1}}> {{ [top] y = If(c)<
        then_branch = r () => (float[2] k) {{ [first] k = {inner} }},
        else_branch = s () => (float[2] k) {{ [second] k = {inner} }}> }}"""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    result, _ = fixed([registry().get("CTL010")], proto)
    branches = [attribute.g for attribute in result.graph.node[0].attribute]
    assert [[node.name for node in graph.node] for graph in branches] == [
        ["first/a", "first/b"],
        ["second/a", "second/b"],
    ]
    assert [list(graph.node[0].output) for graph in branches] == [["k_m"], ["k_m"]]


CTL014, CTL016 = (registry().get(code) for code in ("CTL014", "CTL016"))
DEFAULT = [rule for rule in registry().rules if rule.default]


def unrolled() -> ModelProto:
    """CTL014's example of a loop inside a loop: unrolled, the second copy reads what the first one gives."""
    why = "a loop in the body, whose trip count is an input"
    return model_of(next(one for one in CTL014.examples if one.why == why))


@REAL
def test_what_is_unrolled_builds(worker: Worker, tmp_path: Path) -> None:
    model = unrolled()
    assert built(worker, model, tmp_path).accepted
    result, run = fixed(DEFAULT, model)
    assert {"CTL014", "CTL016"} <= {item.key.code for item in run.applied}
    assert not run.problems
    build = built(worker, result, tmp_path)
    assert build.accepted, build.reason


FUNCTION = """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
    g (float[2] x, int64 n) => (float[2] y) { y = my.F(x, n) }
    <domain: "my", opset_import: ["" : 18]> F (x, n) => (y) {
    w = Loop(n, , x)<body = a (int64 ai, bool ag, float[2] ah) => (bool af, float[2] ao) {
        af = Constant<value = bool {1}>()  ao = Add(ah, x) }>
    y = Loop(n, , x)<body = b (int64 bi, bool bg, float[2] bh) => (bool bf, float[2] bo) {
        bf = Constant<value = bool {1}>()  bo = Add(bh, w) }> }"""


@REAL
def test_in_a_local_function(worker: Worker, tmp_path: Path) -> None:
    model = parser.parse_model(FUNCTION)
    assert not built(worker, model, tmp_path).accepted
    result, run = fixed([CTL016], model)
    assert len(run.applied) == 1
    onnx.checker.check_model(result)
    build = built(worker, result, tmp_path)
    assert build.accepted, build.reason
