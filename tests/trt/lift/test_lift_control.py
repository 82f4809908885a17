"""Loops and conditionals, read back from TensorRT's flat list of layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxfix.runtime.sandbox import Worker
from support import lifted
from support.real_tensorrt import REAL, older_than

pytestmark = REAL
X = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)


LOOPS = {
    "two states that change places": """g (float[2,2] x) => (float[2,2] y, float[2,2] z) {
        n = Constant<value_int = 3>()
        k = Neg(x)
        y, z = Loop(n, , x, k) <body = b (int64 i, bool c, float[2,2] p, float[2,2] q)
                => (bool c2, float[2,2] q2, float[2,2] p2) {
            c2 = Constant<value = bool {1}>()
            q2 = Identity(q)
            p2 = Add(p, q)
        }>
    }""",
    "the iteration's number": """g (float[2,2] x) => (float[2,2] y, float[4,2,2] s) {
        n = Constant<value_int = 4>()
        y, s = Loop(n, , x) <body = b (int64 i, bool c, float[2,2] a) => (bool c2, float[2,2] a2, float[2,2] o) {
            c2 = Constant<value = bool {1}>()
            f = Cast<to = 1>(i)
            a2 = Add(a, f)
            o = Mul(a, f)
        }>
    }""",
    "a loop in a loop": """g (float[2,2] x) => (float[2,2] y, float[3,2,2] s) {
        n = Constant<value_int = 3>()
        m = Constant<value_int = 2>()
        y, s = Loop(n, , x) <body = b (int64 i, bool c, float[2,2] a) => (bool c2, float[2,2] a2, float[2,2] o) {
            c2 = Constant<value = bool {1}>()
            a2, t = Loop(m, , a) <body = d (int64 j, bool e, float[2,2] u)
                    => (bool e2, float[2,2] u2, float[2,2] v) {
                e2 = Constant<value = bool {1}>()
                h = Add(u, a)
                u2 = Mul(h, x)
                v = Sub(u, x)
            }>
            o = ReduceSum<keepdims = 0>(t, zero)
        }>
        zero = Constant<value_ints = [0]>()
    }""",
    "a loop whose count is the outer one's number": """g (float[2,2] x) => (float[2,2] y) {
        n = Constant<value_int = 4>()
        y = Loop(n, , x) <body = b (int64 i, bool c, float[2,2] a) => (bool c2, float[2,2] a2) {
            c2 = Constant<value = bool {1}>()
            a2 = Loop(i, , a) <body = d (int64 j, bool e, float[2,2] u) => (bool e2, float[2,2] u2) {
                e2 = Constant<value = bool {1}>()
                u2 = Add(u, x)
            }>
        }>
    }""",
    "a loop that hangs on the outer one by its count alone": """g (float[2,2] x) => (float[2,2] y) {
        n = Constant<value_int = 4>()
        y = Loop(n, , x) <body = b (int64 i, bool c, float[2,2] a) => (bool c2, float[2,2] a2) {
            c2 = Constant<value = bool {1}>()
            r = Loop(i, , x) <body = d (int64 j, bool e, float[2,2] u) => (bool e2, float[2,2] u2) {
                e2 = Constant<value = bool {1}>()
                u2 = Add(u, x)
            }>
            a2 = Mul(a, r)
        }>
    }""",
    "a loop three deep": """g (float[2,2] x) => (float[2,2] y) {
        n = Constant<value_int = 2>()
        y = Loop(n, , x) <body = b (int64 i, bool c, float[2,2] a) => (bool c2, float[2,2] a2) {
            c2 = Constant<value = bool {1}>()
            a2 = Loop(n, , a) <body = d (int64 j, bool e, float[2,2] u) => (bool e2, float[2,2] u2) {
                e2 = Constant<value = bool {1}>()
                w = Add(u, a)
                u2 = Loop(n, , w) <body = f (int64 k, bool p, float[2,2] r) => (bool p2, float[2,2] r2) {
                    p2 = Constant<value = bool {1}>()
                    q = Mul(r, x)
                    r2 = Add(q, u)
                }>
            }>
        }>
    }""",
    "a scan of rows, backwards": """g (float[2,2] x) => (float[2] y, float[2,2] s) {
        zero = Constant<value_floats = [0.0, 1.0]>()
        y, s = Scan<num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],
                body = b (float[2] a, float[2] row) => (float[2] a2, float[2] o) {
            a2 = Add(a, row)
            o = Mul(a, row)
        }>(zero, x)
    }""",
    "a scan of columns": """g (float[2,3] x) => (float[2] y, float[2,3] s) {
        zero = Constant<value_floats = [0.0, 1.0]>()
        y, s = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
                body = b (float[2] a, float[2] row) => (float[2] a2, float[2] o) {
            a2 = Add(a, row)
            o = Mul(a, row)
        }>(zero, x)
    }""",
}
IFS = {
    "an if in an if": """g (float[2,2] x, bool c, bool d) => (float[2,2] y) {
        y = If(c) <then_branch = t () => (float[2,2] p) {
                a = Add(x, x)
                p = If(d) <then_branch = t2 () => (float[2,2] r) { r = Sub(a, x) },
                           else_branch = e2 () => (float[2,2] s) { s = Mul(a, a) }>
            },
            else_branch = e () => (float[2,2] q) { q = Neg(x) }>
    }""",
    "a tensor that both branches and the outside read": """g (float[2,2] x, bool c) => (float[2,2] y, float[2,2] z) {
        a = Exp(x)
        y = If(c) <then_branch = t () => (float[2,2] p) { p = Add(a, x) },
                   else_branch = e () => (float[2,2] q) { q = Mul(a, x) }>
        z = Neg(a)
    }""",
    "a tensor that one branch reads and that is an output": """g (float[2,2] x, bool c)
            => (float[2,2] y, float[2,2] a) {
        a = Exp(x)
        y = If(c) <then_branch = t () => (float[2,2] p) { p = Add(a, x) },
                   else_branch = e () => (float[2,2] q) { q = Neg(x) }>
    }""",
    "branches that only pass on, crosswise": """g (float[2,2] x, bool c) => (float[2,2] y, float[2,2] z) {
        a = Exp(x)
        b = Neg(x)
        y, z = If(c) <then_branch = t () => (float[2,2] p, float[2,2] p2) { p = Identity(a)  p2 = Identity(b) },
                      else_branch = e () => (float[2,2] q, float[2,2] q2) { q = Identity(b)  q2 = Identity(a) }>
    }""",
    "a tensor that a branch of each of two reads": """g (float[2,2] x, bool c, bool d) => (float[2,2] z) {
        a = Neg(x)
        y = If(c) <then_branch = t () => (float[2,2] p) { h = Exp(a)  p = Abs(h) },
                   else_branch = e () => (float[2,2] q) { q = Identity(x) }>
        z = If(d) <then_branch = t2 () => (float[2,2] r) { k = Mul(a, y)  r = Abs(k) },
                   else_branch = e2 () => (float[2,2] s) { s = Exp(y) }>
    }""",
    "a loop in a branch": """g (float[2,2] x, bool c) => (float[2,2] y) {
        n = Constant<value_int = 3>()
        y = If(c) <then_branch = t () => (float[2,2] p) {
                p = Loop(n, , x) <body = b (int64 i, bool k, float[2,2] a) => (bool k2, float[2,2] a2) {
                    k2 = Constant<value = bool {1}>()
                    a2 = Add(a, x)
                }>
            },
            else_branch = e () => (float[2,2] q) { q = Neg(x) }>
    }""",
    "an if in a loop": """g (float[2,2] x, bool c) => (float[2,2] y) {
        n = Constant<value_int = 3>()
        y = Loop(n, , x) <body = b (int64 i, bool k, float[2,2] a) => (bool k2, float[2,2] a2) {
            k2 = Constant<value = bool {1}>()
            one = Constant<value_int = 1>()
            first = Equal(i, one)
            a2 = If(first) <then_branch = t () => (float[2,2] p) { p = Add(a, x) },
                            else_branch = e () => (float[2,2] q) { q = Mul(a, x) }>
        }>
    }""",
    "an if in a loop, whose condition does not change": """g (float[2,2] x, bool c) => (float[2,2] y) {
        n = Constant<value_int = 3>()
        y = Loop(n, , x) <body = b (int64 i, bool k, float[2,2] a) => (bool k2, float[2,2] a2) {
            k2 = Constant<value = bool {1}>()
            a2 = If(c) <then_branch = t () => (float[2,2] p) { p = Add(a, x) },
                        else_branch = e () => (float[2,2] q) { q = Mul(a, x) }>
        }>
    }""",
}


#: What the parser refuses before a release of TensorRT-RTX.
REFUSED_BEFORE = {"a loop in a loop": "1.5"}  # "Node input was not registered"


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_reads_back(worker: Worker, tmp_path: Path, name: str) -> None:
    model = lifted.text(LOOPS[name])
    if name in REFUSED_BEFORE and older_than(REFUSED_BEFORE[name]):
        assert lifted.lifted(worker, model, tmp_path).status == "refused"
        return
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    feed = {"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape) * 0.5 - 1}
    lifted.agree(worker, model, tmp_path, feed)


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("name", IFS)
def test_a_conditional_reads_back(worker: Worker, tmp_path: Path, name: str, condition: bool) -> None:
    feed = {"x": X, "c": np.array(condition), "d": np.array(not condition)}
    model = lifted.text(IFS[name])
    known = {value.name for value in model.graph.input}
    lifted.agree(worker, model, tmp_path, {key: value for key, value in feed.items() if key in known})


def test_a_branch_that_is_not_taken_is_not_computed(worker: Worker, tmp_path: Path) -> None:
    model = lifted.text("""g (float[2,2] x, bool c, int64[2] i) => (float[M,N] y) {
        y = If(c) <then_branch = t () => (float[M,N] p) { h = Neg(x)  p = Reshape(h, i) },
                   else_branch = e () => (float[M,N] q) { q = Exp(x) }>
    }""")
    feed = {"x": X, "c": np.array(False), "i": np.array([3, 3])}
    lifted.agree(worker, model, tmp_path, feed)
    with pytest.raises(Exception, match="cannot be reshaped"):
        lifted.run(tmp_path / "lifted.onnx", {**feed, "c": np.array(True)})


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_a_loop_that_ends_early_leaves_rows_that_nothing_defines(
    worker: Worker, tmp_path: Path, rounds: int
) -> None:
    """ONNX's scan output has as many rows as there were iterations, TensorRT's as many as the trip count allows."""
    model = lifted.text("""g (float[2] x, int64 last) => (float[2] y, float[K,2] s) {
        n = Constant<value_int = 4>()
        go = Constant<value = bool {1}>()
        y, s = Loop(n, go, x) <body = b (int64 i, bool c, float[2] a) => (bool c2, float[2] a2, float[2] o) {
            one = Constant<value_int = 1>()
            next = Add(i, one)
            c2 = Less(next, last)
            a2 = Add(a, x)
            o = Mul(a, x)
        }>
    }""")
    feed = {"x": np.array([1.0, -2.0], np.float32), "last": np.array(rounds)}
    (y, s), (seen, rows) = lifted.both(worker, model, tmp_path, feed)
    np.testing.assert_array_equal(seen, y)
    assert s.shape == (max(rounds, 1), 2)
    assert rows.shape == (4, 2)
    np.testing.assert_array_equal(rows[: len(s)], s)
    assert np.isnan(rows[len(s) :]).all()


@pytest.mark.parametrize("condition", [True, False])
def test_nodes_of_several_graphs_may_share_a_name(worker: Worker, tmp_path: Path, condition: bool) -> None:
    """TensorRT calls loops and conditionals like the nodes that they come from."""
    model = lifted.text("""g (float[2,2] x, bool c, bool d) => (float[2,2] y) {
        n = Constant<value_int = 3>()
        y = If(c) <then_branch = t () => (float[2,2] p) {
                p = If(d) <then_branch = t2 () => (float[2,2] r) { r = Neg(x) },
                           else_branch = e2 () => (float[2,2] r2) { r2 = Abs(x) }>
            }, else_branch = e () => (float[2,2] q) {
                q = Loop(n, , x) <body = b (int64 i, bool k, float[2,2] a) => (bool k2, float[2,2] a2) {
                    k2 = Constant<value = bool {1}>()
                    h = Add(a, x)
                    a2 = Loop(n, , h) <body = b2 (int64 j, bool l, float[2,2] u) => (bool l2, float[2,2] u2) {
                        l2 = Constant<value = bool {1}>()
                        u2 = Mul(u, a)
                    }>
                }>
            }>
    }""")
    stack = list(model.graph.node)
    while stack:
        node = stack.pop()
        stack.extend(inner for attribute in node.attribute for inner in attribute.g.node)
        if node.op_type in ("If", "Loop"):
            node.name = "same"
    lifted.agree(worker, model, tmp_path, {"x": X, "c": np.array(condition), "d": np.array(False)})
