"""Small models that a naive rewriter breaks: at least one for each known failure of other ONNX tools.

Each ``Peer`` is a trap and a bait. The trap is the pattern that the other tool gets wrong, and ``wrong`` is
that tool's rewrite, written out by hand, so that the tests can prove that their judge would notice it. The bait
is something that onnxfix does repair (a redundant Cast chain, an int64 shape subgraph, a dead node, an allowzero
attribute, an operand of lower rank), placed on or beside the trap, so that the model really is rewritten.

Models are ONNX text; what text cannot say is added by ``patch``.
"""
# Long because: a table of small models, one or more for each way in which another tool breaks models.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support import models

Feed = dict[str, Any]
INF = float("inf")


Wrong = tuple[tuple[str, str], ...] | Callable[[onnx.ModelProto], object]


@dataclass(frozen=True)
class Peer:
    """One model with the peer's wrong rewrite of it."""

    id: str
    """The number of the failure that this model stands for, and a word: 01-resize-x1.5."""
    text: str
    """Body of the model in ONNX text; the header is made from ``opset``, ``ir`` and ``domains``. Operators of ``my``
    need no import."""
    feeds: tuple[Feed, ...]
    wrong: Wrong
    """The peer's rewrite: replacements in ``text``, or a function that edits the model."""
    fault: str = "values"
    """What the judge must say about the wrong rewrite: values, refused, interface, checker, size or meta."""
    bait: str = "CST"
    """Rule families, separated by blanks, that must have fixed something; '' where there is no bait."""
    opset: int = 17
    ir: int = 0
    """The one that came with the opset, for 0."""
    domains: Mapping[str, int] | None = None
    patch: Callable[[onnx.ModelProto], object] | None = None
    keeps: tuple[str, ...] = ()
    """Op types of which the fixed model holds as many as the original."""

    @property
    def entry(self) -> int:
        return int(self.id[:2])

    def _parse(self, text: str) -> onnx.ModelProto:
        ir = self.ir or helper.find_min_ir_version_for([helper.make_opsetid("", self.opset)])
        model = models.model(text, self.opset, ir, self.domains or ({"my": 1} if "my." in text else {}))
        if self.patch is not None:
            self.patch(model)
        return model

    def model(self) -> onnx.ModelProto:
        """The original model, newly built."""
        return self._parse(self.text)

    def wrong_model(self) -> onnx.ModelProto:
        """What the peer makes of it. Raises ValueError where a replacement does not occur in the text."""
        if callable(self.wrong):
            model = self.model()
            self.wrong(model)
            return model
        text = self.text
        for old, new in self.wrong:
            if old not in text:
                raise ValueError(f"{self.id}: {old!r} is not in the text")
            text = text.replace(old, new)
        return self._parse(text)


def ramp(*shape: int, scale: float = 0.37) -> np.ndarray:
    """Distinct float32 values on both sides of zero, none of them an integer except by chance."""
    size = int(np.prod(shape, dtype=np.int64))
    return ((np.arange(size, dtype=np.float32) - np.float32(size / 2)) * np.float32(scale)).reshape(shape)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def node(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    """The node of the main graph that makes ``output``."""
    found: onnx.NodeProto = next(n for n in model.graph.node if output in n.output)
    return found


def drop(model: onnx.ModelProto, output: str) -> None:
    """Remove the node of the main graph that makes ``output``."""
    model.graph.node.remove(node(model, output))


def rename_output(model: onnx.ModelProto, name: str) -> bool:
    model.graph.output[0].name = name
    return True


def drop_input(name: str) -> Callable[[onnx.ModelProto], None]:
    """The rewrite that forgets that a graph input is part of the interface."""

    def wrong(model: onnx.ModelProto) -> None:
        model.graph.input.remove(next(i for i in model.graph.input if i.name == name))

    return wrong


def rename_input(old: str, new: str) -> Callable[[onnx.ModelProto], None]:
    """The rewrite that renames a graph input, and its uses in the main graph."""

    def wrong(model: onnx.ModelProto) -> None:
        for value in model.graph.input:
            value.name = new if value.name == old else value.name
        for n in model.graph.node:
            n.input[:] = [new if name == old else name for name in n.input]
        model.graph.node.append(helper.make_node("Identity", [new], [old]))

    return wrong


def baked(output: str, value: np.ndarray) -> Callable[[onnx.ModelProto], None]:
    """The rewrite that replaces the node that makes ``output`` by its value."""

    def wrong(model: onnx.ModelProto) -> None:
        drop(model, output)
        model.graph.initializer.append(numpy_helper.from_array(value, output))

    return wrong


PEERS: list[Peer] = []


def peer(id: str, text: str, feeds: Feed | tuple[Feed, ...], wrong: Any, **rest: Any) -> None:
    """Add a model. One feed and one replacement (old, new) need no tuple around them."""
    feeds = feeds if isinstance(feeds, tuple) else (feeds,)
    wrong = (wrong,) if isinstance(wrong, tuple) and isinstance(wrong[0], str) else wrong
    PEERS.append(Peer(id, text, feeds, wrong, **rest))


refused_peer, interface_peer, invalid_peer = (
    partial(peer, fault=fault) for fault in ("refused", "interface", "checker")
)
"""Those whose rewrite is refused by the runtime, has another interface, or is invalid for onnx.checker."""


# ---- 1: Cast(int to float), op with a constant, Cast(float to int) taken for integer arithmetic
RESIZE = """g (float[1,3,H,W] x) => (float[1,3,P,Q] y)
<float[1] c = {1.5}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}> {
  xd = Cast<to=11>(x)  xf = Cast<to=1>(xd)
  s = Shape(xf)  nc = Slice(s, zero, two)  hw = Slice(s, two, four)
  f = Cast<to=1>(hw)  m = Mul(f, c)  i = Cast<to=7>(m)
  sizes = Concat<axis=0>(nc, i)
  y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(xf, , , sizes)
}"""
ELIDED = (("f = Cast<to=1>(hw)  m = Mul(f, c)  i = Cast<to=7>(m)", "ci = Cast<to=7>(c)  i = Mul(hw, ci)"),)
peer("01-resize-x1.5", RESIZE, ({"x": ramp(1, 3, 8, 8)}, {"x": ramp(1, 3, 5, 7)}), ELIDED)
peer("01-resize-x1.5-static", RESIZE.replace("H,W", "8,8"), {"x": ramp(1, 3, 8, 8)}, ELIDED, bait="CST INT")
peer(
    "01-shape-ceil-of-half",
    """g (float[N,H] x) => (int64[2] y) <float[1] c = {2}> {
  xd = Cast<to=11>(x)  xf = Cast<to=1>(xd)
  s = Shape(xf)  f = Cast<to=1>(s)  h = Div(f, c)  r = Ceil(h)  y = Cast<to=7>(r)
}""",
    ({"x": ramp(1, 7)}, {"x": ramp(2, 4)}),
    (
        "f = Cast<to=1>(s)  h = Div(f, c)  r = Ceil(h)  y = Cast<to=7>(r)",
        "ci = Cast<to=7>(c)  y = Div(s, ci)",
    ),
)
peer(
    "01-add-half-cast-back",
    """g (int64[N] x) => (int64[N] y) <float c = {0.5}> {
  dead = Neg(x)  f = Cast<to=1>(x)  m = Add(f, c)  d = Cast<to=11>(m)  e = Cast<to=1>(d)  y = Cast<to=7>(e)
}""",
    ({"x": i64(-3, -1, 0, 7)}, {"x": i64(-1)}),
    ("f = Cast<to=1>(x)  m = Add(f, c)", "ci = Cast<to=7>(c)  m = Add(x, ci)"),
    bait="GRA CST",
)
peer(
    "01-mul-rounds-in-float",
    """g (int64[N] x) => (int64[N] y) <float c = {1}> {
  dead = Neg(x)  f = Cast<to=1>(x)  m = Mul(f, c)  d = Cast<to=11>(m)  e = Cast<to=1>(d)  y = Cast<to=7>(e)
}""",
    ({"x": i64(16777217, -16777219, 5)}, {"x": i64(2**40 + 1)}),
    (
        ("f = Cast<to=1>(x)  m = Mul(f, c)", "ci = Cast<to=7>(c)  m = Mul(x, ci)"),
        ("y = Cast<to=7>(e)", "y = Identity(m)"),
    ),
    bait="GRA CST",
)
peer(
    "01-fold-rounds-in-float",
    """g (float[N] x) => (int64[2] y, float[N] z) <int64[1] a = {16777217}> {
  b = Concat<axis=0>(a, a)  f = Cast<to=1>(b)  y = Cast<to=7>(f)  d = Cast<to=11>(x)  z = Cast<to=1>(d)
}""",
    {"x": ramp(2)},
    ("f = Cast<to=1>(b)  y = Cast<to=7>(f)", "y = Identity(b)"),
)

# ---- 2: a shared constant changed in place
refused_peer(
    "02-shared-cast-constant",
    """g (int64[N] x, float[N] v) => (int64[N] y, float[N] z) <float c = {2}> {
  f = Cast<to=1>(x)  m = Mul(f, c)  y = Cast<to=7>(m)
  vd = Cast<to=11>(v)  vf = Cast<to=1>(vd)  z = Add(vf, c)
}""",
    {"x": i64(1, -2), "v": ramp(2)},
    (
        ("float c = {2}", "int64 c = {2}"),
        ("f = Cast<to=1>(x)  m = Mul(f, c)  y = Cast<to=7>(m)", "y = Mul(x, c)"),
    ),
)
SHARED = """g (float[N,4,3] x, float[3] v) => (float[N,4,3] y, float[6] z) <float[3] c = {1, 2, -3}> {
  y = Add(x, c)  z = Concat<axis=0>(c, v)
}"""
refused_peer(
    "02-shared-bias-reshaped",
    SHARED,
    ({"x": ramp(1, 4, 3), "v": ramp(3)}, {"x": ramp(2, 4, 3), "v": ramp(3)}),
    ("float[3] c", "float[1,1,3] c"),
    bait="BRC",
)
refused_peer(
    "02-shared-with-subgraph",
    """g (float[N,4,3] x, bool k, float[3] v) => (float[N,4,3] y, float[6] z)
<float[3] c = {1, 2, -3}> {
  y = Add(x, c)
  z = If(k) <then_branch = t () => (float[6] tz) { tz = Concat<axis=0>(c, v) },
             else_branch = e () => (float[6] ez) { ez = Concat<axis=0>(v, c) }>
}""",
    (
        {"x": ramp(1, 4, 3), "k": np.array(True), "v": ramp(3)},
        {"x": ramp(2, 4, 3), "k": np.array(False), "v": ramp(3)},
    ),
    ("float[3] c", "float[1,1,3] c"),
    bait="BRC",
)

# ---- 3: Constant(value_float), Constant(value_floats), Constant(value_int), Constant(value_ints)
VALUES = """g (float[N,2,3] x) => (float[N,2,3] y, float[Q,6] z) {
  a = Constant<value_float = 0.1>()  b = Constant<value_floats = [1.5, 2.5, 3.5]>()
  i = Constant<value_ints = [-1, 6]>()
  m = Mul(x, a)  y = Add(m, b)  z = Reshape<allowzero=1>(y, i)
}"""
refused_peer(
    "03-value-float",
    VALUES,
    ({"x": ramp(1, 2, 3)}, {"x": ramp(4, 2, 3)}),
    ("Constant<value_float = 0.1>", "Constant<value = double {0.1}>"),
    bait="BRC RSH",
)
refused_peer(
    "03-value-float-folded",
    """g (float[N] x) => (float[N] y, float[1] z) {
  a = Constant<value_floats = [0.1]>()  d = Cast<to=11>(a)  z = Cast<to=1>(d)  y = Mul(x, z)
}""",
    ({"x": ramp(1)}, {"x": ramp(3)}),
    ("z = Cast<to=1>(d)  y = Mul(x, z)", "z = Identity(d)  y = Mul(x, z)"),
)
refused_peer(
    "03-value-int-in-shapes",
    """g (float[2,6] x) => (float[3,4] y) {
  a = Constant<value_int = 3>()  zero = Constant<value_ints = [0]>()  u = Unsqueeze(a, zero)
  b = Constant<value_ints = [-1]>()  s = Concat<axis=0>(u, b)  y = Reshape(x, s)
}""",
    {"x": ramp(2, 6)},
    ("value_int = 3", "value = int32 {3}"),
    bait="INT",
)

# ---- 4 and 44: an If with a constant condition
IF = """g (float[2,3] x) => (float[2,3] y, float[6] z) <bool c = {1}, int64[1] m = {-1}> {
  y, z = If(c) <then_branch = t () => (float[2,3] ty, float[6] tz) {
                  td = Cast<to=11>(x)  ty = Cast<to=1>(td)  tz = Reshape<allowzero=1>(ty, m) },
                else_branch = e () => (float[2,3] ey, float[6] ez) { ey = Neg(x)  ez = Reshape(ey, m) }>
}"""
refused_peer(
    "04-constant-if-two-outputs",
    IF,
    {"x": ramp(2, 3)},
    (IF[IF.index("  y, z") :], "  d = Cast<to=11>(x)  y = Cast<to=1>(d) }"),
    bait="CST RSH",
)
peer(
    "04-constant-if-else-taken",
    IF.replace("c = {1}", "c = {0}"),
    {"x": ramp(2, 3)},
    ("c = {0}", "c = {1}"),
    bait="CST CTL",
)
NESTED = """g (float[2,3] x, bool k) => (float[2,3] y) <bool c = {1}> {
  inner = Neg(x)
  y = If(c) <then_branch = t () => (float[2,3] ty) {
      a = Cast<to=11>(x)  b = Cast<to=1>(a)
      ty = If(k) <then_branch = tt () => (float[2,3] r) { r = Add(b, inner) },
                  else_branch = te () => (float[2,3] q) { q = Mul(b, b) }> },
    else_branch = e () => (float[2,3] ey) { ey = Identity(inner) }>
}"""
NESTED_FEEDS = ({"x": ramp(2, 3), "k": np.array(True)}, {"x": ramp(2, 3), "k": np.array(False)})
refused_peer(
    "44-nested-if-captures-branch",
    NESTED,
    NESTED_FEEDS,
    ("a = Cast<to=11>(x)  b = Cast<to=1>(a)", ""),
)
refused_peer(
    "44-branch-captures-outer-chain",
    """g (float[2,3] x, bool k) => (float[2,3] y) {
  a = Cast<to=11>(x)  b = Cast<to=1>(a)  d = Sub(x, b)
  y = If(k) <then_branch = t () => (float[2,3] ty) { ty = Add(b, x) },
             else_branch = e () => (float[2,3] ey) { ey = Neg(b) }>
}""",
    NESTED_FEEDS,
    ("b = Cast<to=1>(a)  d = Sub(x, b)", ""),
    bait="CST GRA",
)
peer(
    "44-both-branches-use-one-name",
    """g (float[2,3] x, bool k) => (float[2,3] y) {
  y = If(k) <then_branch = t () => (float[2,3] r) { a = Cast<to=11>(x)  b = Cast<to=1>(a)  r = Exp(b) },
             else_branch = e () => (float[2,3] r) { a = Neg(x)  b = Abs(a)  r = Mul(b, a) }>
}""",
    NESTED_FEEDS,
    ("a = Neg(x)  b = Abs(a)", "a = Neg(x)  b = Identity(x)"),
)

# ---- 6: a symbolic input dimension frozen to the other operand's size
interface_peer(
    "06-batch-frozen-to-bias-rows",
    """g (float[N,4] x) => (float[M,5] y)
<float[4,5] w = {1,2,3,4,5,6,7,8,9,10,-1,-2,-3,-4,-5,-6,-7,-8,-9,-10}, float[6,1] b = {1,2,3,4,5,6}> {
  xd = Cast<to=11>(x)  xf = Cast<to=1>(xd)  m = MatMul(xf, w)  y = Add(m, b)
}""",
    ({"x": ramp(1, 4)}, {"x": ramp(6, 4)}),
    ("float[N,4] x", "float[6,4] x"),
)
refused_peer(
    "06-batch-frozen-by-expand",
    """g (float[N,4] x) => (float[M,4] y) <int64[2] s = {6, 4}> {
  xd = Cast<to=11>(x)  xf = Cast<to=1>(xd)  y = Expand(xf, s)
}""",
    ({"x": ramp(1, 4)}, {"x": ramp(6, 4)}),
    ("y = Expand(xf, s)", "y = Reshape(xf, s)"),
)

# ---- 7: old operator sets
peer(
    "07-opset6-clip",
    """g (float[2,3,4] x) => (float[2,3,4] y) {
  dead = Neg(x)  y = Clip<min=-0.5, max=0.5>(x)
}""",
    {"x": ramp(2, 3, 4)},
    ("<min=-0.5, max=0.5>", "<min=-0.5>"),
    bait="",
    opset=6,
)
peer(
    "07-opset7-squeeze",
    """g (float[1,3,1] x) => (float[3] y, float[3] z) {
  b = Constant<value = float[1] {2}>()  d = Cast<to=11>(x)  e = Cast<to=1>(d)
  y = Squeeze(e)  z = Mul(y, b)
}""",
    {"x": ramp(1, 3, 1)},
    ("Squeeze(e)", "Squeeze<axes=[0]>(e)"),
    opset=7,
)

# ---- 8: a scale that broadcasts over W, H or N taken for a scale of the output channels
CONV = """g (float[N,1,3,3] x) => (float[M,3,3,3] y)
<float[3,1,1,1] w = {1, -2, 3}, float[3] s = {1, 10, 100}> { c = Conv(x, w)  d = Cast<to=11>(c)
  e = Cast<to=1>(d)  y = Mul(e, s) }"""
CONV_FEEDS = ({"x": ramp(1, 1, 3, 3)}, {"x": ramp(3, 1, 3, 3)})
PER_CHANNEL = (
    ("y = Mul(e, s)", "k = Constant<value = int64[4] {1,3,1,1}>()  v = Reshape(s, k)  y = Mul(e, v)"),
)
peer("08-conv-mul-width", CONV, CONV_FEEDS, PER_CHANNEL, bait="CST BRC")
peer(
    "08-conv-mul-height", CONV.replace("float[3] s", "float[3,1] s"), CONV_FEEDS, PER_CHANNEL, bait="CST BRC"
)
peer("08-conv-mul-batch", CONV.replace("float[3] s", "float[3,1,1,1] s"), CONV_FEEDS, PER_CHANNEL)
peer(
    "08-convtranspose-mul-width",
    CONV.replace("Conv(", "ConvTranspose(").replace("float[3,1,1,1] w", "float[1,3,1,1] w"),
    CONV_FEEDS,
    PER_CHANNEL,
    bait="CST BRC",
)
peer(
    "08-mul-conv-width",
    """g (float[N,3,3,3] x) => (float[N,1,3,3] y)
<float[1,3,1,1] w = {1, -2, 3}, float[3] s = {1, 10, 100}> { m = Mul(x, s)  y = Conv(m, w) }""",
    ({"x": ramp(1, 3, 3, 3)}, {"x": ramp(2, 3, 3, 3)}),
    ("m = Mul(x, s)", "k = Constant<value = int64[4] {1,3,1,1}>()  v = Reshape(s, k)  m = Mul(x, v)"),
    bait="BRC",
)

# ---- 12: the order of Pad's axes
peer(
    "12-pad-axes-order",
    """g (float[1,1,4,6] x) => (float[P,Q,R,S] y)
<int64[4] p0 = {0,0,1,0}, int64[4] p1 = {0,0,1,0}, int64[4] a = {0,1,3,2},
 float[1,1,1,1] w = {2}, float v = {0}> {
  p = Concat<axis=0>(p0, p1)  d = Cast<to=11>(x)  e = Cast<to=1>(d)
  q = Pad(e, p, v, a)  y = Conv(q, w)
}""",
    {"x": ramp(1, 1, 4, 6)},
    ("Pad(e, p, v, a)", "Pad(e, p, v)"),
    bait="CST INT",
    opset=18,
)

# ---- 13: the domain of an operator, and local functions that are called like standard operators
FN = """g (float[N] x) => (float[N] y) { d = Cast<to=11>(x)  e = Cast<to=1>(d)  a = my.%s(e)  y = my.%s(a) }
<domain: "my", opset_import: ["": 17]> %s"""


OWN = {
    "relu-twice": (
        "Relu",
        "Relu (x) => (y) { o = Constant<value_float = 1.0>()  y = Sub(x, o) }",
        ("a = my.Relu(e)", "a = Identity(e)"),
    ),
    "identity-negates": (
        "Identity",
        "Identity (x) => (y) { o = Constant<value_float = 1.0>()  y = Sub(o, x)  dead = Neg(x) }",
        (("a = my.Identity(e)", "a = Identity(e)"), ("y = my.Identity(a)", "y = Identity(a)")),
    ),
    "cast-halves": (
        "Cast<to = 1>",
        "Cast <to> (x) => (y) { o = Constant<value_float = 2.0>()  y = Div(x, o) }",
        ("a = my.Cast<to = 1>(e)", "a = Identity(e)"),
    ),
}
for _word, (_call, _body, _wrong) in OWN.items():
    peer(
        f"13-my-{_word}",
        FN % (_call, _call, _body),
        ({"x": ramp(4)}, {"x": ramp(1)}),
        _wrong,
    )
peer(
    "13-my-reshape-ignores-shape",
    """g (float[2,3] x) => (float[2,3] y) <int64[2] s = {2, 3}, int64[1] m = {6}> {
  r = Reshape<allowzero=1>(x, m)  b = Reshape<allowzero=1>(r, s)  y = my.Reshape<allowzero = 1>(b, s)
}
<domain: "my", opset_import: ["": 17]> Reshape <allowzero> (x, s) => (y) {
  z = Constant<value_int = @allowzero>()  f = Cast<to=1>(z)  y = Add(x, f)
}""",
    {"x": ramp(2, 3)},
    ("my.Reshape<allowzero = 1>", "my.Reshape<allowzero = 0>"),
    bait="RSH",
)

# ---- 14: sequences and optionals
refused_peer(
    "14-sequence-at",
    """g (float[N] x, float[N] v) => (float[N] y) <int64 one = {1}> {
  d = Cast<to=11>(v)  e = Cast<to=1>(d)  s = SequenceConstruct(x, e)  y = SequenceAt(s, one)
}""",
    {"x": ramp(2), "v": ramp(2, scale=9.1)},
    ("  y = SequenceAt(s, one)", ""),
)
peer(
    "14-sequence-output",
    """g (float[N] x, float[N] v) => (seq(float[N]) s, float[M] y) {
  d = Cast<to=11>(v)  e = Cast<to=1>(d)  s = SequenceConstruct(x, e, x)  y = ConcatFromSequence<axis=0>(s)
}""",
    {"x": ramp(2), "v": ramp(2, scale=9.1)},
    ("(x, e, x)", "(x, e)"),
)
refused_peer(
    "14-optional-get-element",
    """g (float[N] x) => (float[N] y) {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  o = Optional(e)  y = OptionalGetElement(o)
}""",
    {"x": ramp(2)},
    ("  y = OptionalGetElement(o)", ""),
)

# ---- 15 and 16: random numbers. The outputs are facts about the numbers that hold in every run.
TWO_DRAWS = """g (float[4,64] x) => (bool y) {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)
  a = %s  b = %s
  s = Sub(a, b)  t = Abs(s)  m = ReduceMax<keepdims=0>(t)  z = Constant<value_float = 0.0>()
  y = Greater(m, z)
}"""
ZEROS = ({"x": np.full((4, 64), 0.5, np.float32)}, {"x": np.full((4, 64), 0.5, np.float32)})
for _word, _draw in {
    "normal": "RandomNormal<shape = [4, 64]>()",
    "uniform": "RandomUniform<shape = [4, 64]>()",
    "normal-like": "RandomNormalLike(e)",
    "uniform-like": "RandomUniformLike(e)",
    "bernoulli": "Bernoulli(e)",
}.items():
    peer(f"15-two-draws-{_word}", TWO_DRAWS % (_draw, _draw), ZEROS, (f"b = {_draw}", "b = Identity(a)"))
peer(
    "15-two-draws-function",
    TWO_DRAWS % ("my.Draw(e)", "my.Draw(e)")
    + """
<domain: "my", opset_import: ["": 17]> Draw (x) => (y) { d = Cast<to=11>(x)  f = Cast<to=1>(d)
  y = RandomUniformLike(f) }""",
    ZEROS,
    ("b = my.Draw(e)", "b = Identity(a)"),
)
LOOP_DRAW = """g (float[64] x)
  => (bool y) <int64 trips = {2}, int64 zero = {0}, int64 one = {1}, bool go = {1}> {
  %s
  all = Loop(trips, go) <body = b (int64 i, bool c) => (bool c2, float[64] o) { c2 = Identity(c)  %s
  o = Mul(x, r) }>
  p = Gather(all, zero)  q = Gather(all, one)
  s = Sub(p, q)  d = Cast<to=11>(s)  e = Cast<to=1>(d)  t = Abs(e)  m = ReduceMax<keepdims=0>(t)
  z = Constant<value_float = 0.0>()  y = Greater(m, z)
}"""
DRAW = "r = RandomNormal<shape = [64]>()"
peer(
    "16-random-normal-folded",
    LOOP_DRAW % ("", DRAW),
    {"x": np.ones(64, np.float32)},
    ((f"c2 = Identity(c)  {DRAW}", "c2 = Identity(c)"), ("  all = Loop", f"  {DRAW}  all = Loop")),
    keeps=("RandomNormal",),
)
DRAW = "s1 = Constant<value_ints = [64]>()  u = ConstantOfShape(s1)  r = RandomUniformLike(u)"
peer(
    "16-random-like-of-constant-folded",
    LOOP_DRAW % ("", DRAW),
    {"x": np.ones(64, np.float32)},
    ((f"c2 = Identity(c)  {DRAW}", "c2 = Identity(c)"), ("  all = Loop", f"  {DRAW}  all = Loop")),
    keeps=("RandomUniformLike",),
)
peer(
    "16-training-dropout-folded",
    """g (float[N] x) => (bool[1024] y) <float[1024] w, float half = {0.5}, bool t = {1}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  a, b = Dropout(w, half, t)  c, f = Dropout(w, half, t)
  x1 = Xor(b, f)  i = Cast<to=6>(x1)  zero = Constant<value_ints = [0]>()  m = ReduceMax<keepdims=1>(i)
  k = Cast<to=9>(m)  s = Shape(w)  y0 = Expand(k, s)  n = ReduceSum<keepdims=1>(e)  j = IsNaN(n)
  y = Or(y0, j)
}""",
    {"x": ramp(3)},
    ("c, f = Dropout(w, half, t)", "f = Identity(b)"),
    bait="CST INT",
    patch=lambda m: fill(m, "w", np.ones(1024, np.float32)),
    keeps=("Dropout",),
)


def fill(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    """Give the initializer ``name`` a value too long for text."""
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(value, name))
            return
    model.graph.initializer.append(numpy_helper.from_array(value, name))


# ---- 17 and 18: the sign of zero, and zeros that do something
peer(
    "17-zero-and-minus-zero",
    """g (float[N,2] x) => (float[N,2] y, float[N,2] z)
<float[2] p = {0.0, 0.0}, float[2] n = {-0.0, -0.0}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  y = Div(e, p)  z = Div(e, n)
}""",
    ({"x": np.array([[1, -1]], np.float32)}, {"x": ramp(2, 2)}),
    ("z = Div(e, n)", "z = Div(e, p)"),
    bait="CST BRC",
)
ADD_ZERO = """g (float[N,2] x) => (float[N,2] y) <float[2] c = {0.0, 0.0}, float o = {1}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  a = Add(e, c)  y = Div(o, a)
}"""
MINUS_ZERO = ({"x": np.array([[-0.0, 0.0]], np.float32)}, {"x": ramp(2, 2)})
peer(
    "18-add-zero-removes-minus-zero",
    ADD_ZERO,
    MINUS_ZERO,
    ("a = Add(e, c)", "a = Identity(e)"),
    bait="CST BRC",
)
peer(
    "18-subtract-minus-zero",
    ADD_ZERO.replace("{0.0, 0.0}", "{-0.0, -0.0}").replace("Add", "Sub"),
    MINUS_ZERO,
    ("a = Sub(e, c)", "a = Identity(e)"),
    bait="CST BRC",
)
ADD_ZEROS = """g (int64[N] x) => (int64[%s] y) <int64[%s] c = {%s}> { dead = Neg(x)  y = Add(x, c) }"""
for _word, _out, _shape, _zeros, _feeds in (
    ("raises-rank", "P,N", "1,1", "0", (i64(5), i64(1, 2))),
    ("grows-batch-one", "P", "3", "0,0,0", (i64(5), i64(1, 2, 3))),
    ("outer-sum", "P,N", "2,1", "0,0", (i64(5), i64(1, 2, 3))),
):
    peer(
        f"18-int64-zeros-{_word}",
        ADD_ZEROS % (_out, _shape, _zeros),
        tuple({"x": v} for v in _feeds),
        ("y = Add(x, c)", "y = Identity(x)"),
        bait="GRA",
    )
peer(
    "18-int64-zeros-are-indices",
    """g (float[3,N] x) => (float[2,N] y, float[3,N] z, float[1,3,N] u)
<int64[2] k = {0, 0}, int64[1] a = {0}> {
  dead = Neg(x)  y = Gather<axis=0>(x, k)  z = Reshape(x, k)  u = Unsqueeze(x, a)
}""",
    ({"x": ramp(3, 1)}, {"x": ramp(3, 2)}),
    ("y = Gather<axis=0>(x, k)", "y = Identity(x)"),
    bait="GRA",
)
peer(
    "18-zero-minus-int64",
    """g (int64[N] x) => (int64[N] y, bool[N] z, int64[N] w) <int64[1] c = {0}> {
  dead = Neg(x)  y = Sub(c, x)  z = Equal(x, c)  w = Where(z, x, c)
}""",
    ({"x": i64(5, -5, 0)}, {"x": i64(-1)}),
    ("y = Sub(c, x)", "y = Identity(x)"),
    bait="GRA",
)

# ---- 19: inputs that nothing reads
interface_peer(
    "19-unused-input",
    """g (float[N] x, float[2,K] unused) => (float[N] y) {
  d = Cast<to=11>(x)  y = Cast<to=1>(d)
}""",
    ({"x": ramp(2), "unused": ramp(2, 1)}, {"x": ramp(1), "unused": ramp(2, 3)}),
    drop_input("unused"),
)
interface_peer(
    "19-input-read-for-its-shape",
    """g (float[2,3] x, float[6] v) => (float[2,3] y) { s = Shape(x)  y = Reshape(v, s) }""",
    {"x": ramp(2, 3), "v": ramp(6)},
    (("float[2,3] x, ", ""), ("s = Shape(x)", "s = Constant<value = int64[2] {2, 3}>()")),
    bait="INT",
)
interface_peer(
    "19-all-outputs-constant",
    """g (float[N] x) => (int64[2] y) <int64[1] a = {3}> { y = Concat<axis=0>(a, a)  dead = Neg(x) }""",
    {"x": ramp(2)},
    drop_input("x"),
    bait="GRA",
)

# ---- 20: strings
refused_peer(
    "20-string-initializer",
    """g (float[2] x) => (float[2] y, string[2] t) <string[2] s = {"a", "bc"}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  t = Identity(s)  n = Shape(s)  y = Reshape(e, n)
}""",
    {"x": ramp(2)},
    lambda m: raw_strings(m.graph.initializer[0]),
    bait="CST INT",
)
peer(
    "20-string-constants",
    """g (float[N] x, string[K] v) => (float[N] y, string[K] t) {
  d = Cast<to=11>(x)  y = Cast<to=1>(d)  a = Constant<value_strings = ["-", "."]>()
  b = Constant<value_string = "!">()
  i = Constant<value_int = 0>()  f = Gather(a, i)  c = StringConcat(v, f)  t = StringConcat(c, b)
}""",
    {"x": ramp(2), "v": np.array(["p", "q"], object)},
    ("StringConcat(c, b)", "StringConcat(b, c)"),
    opset=20,
)


def raw_strings(tensor: TensorProto) -> None:
    data = b"".join(tensor.string_data)
    tensor.ClearField("string_data")
    tensor.raw_data = data


# ---- 21: a declared output shape of another rank than the real one
def declare_rank(*dims: int | str) -> Callable[[onnx.ModelProto], None]:
    def patch(model: onnx.ModelProto) -> None:
        name = model.graph.output[0].name
        elem = model.graph.output[0].type.tensor_type.elem_type
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, elem, list(dims)))

    return patch


def infer_output(model: onnx.ModelProto) -> None:
    """The rewrite that corrects a graph output's declaration: right, but callers know another interface."""
    model.graph.output[0].type.tensor_type.ClearField("shape")


interface_peer(
    "21-declared-rank-of-reducesum",
    """g (float[3,4,5] x) => (float[Q] y) <int64[1] a = {1}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  y = ReduceSum<keepdims=1>(e, a)
}""",
    {"x": ramp(3, 4, 5)},
    infer_output,
    patch=declare_rank(3),
)
refused_peer(
    "21-value-info-lies",
    """g (float[N,4,3] x) => (float[Q,R,S] y) <float[3] c = {1, 2, 3}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  t = Transpose<perm=[2,1,0]>(e)  u = Transpose<perm=[2,1,0]>(t)
  y = Add(u, c)
}""",
    ({"x": ramp(1, 4, 3)}, {"x": ramp(2, 4, 3)}),
    ("float[3] c", "float[3,1] c"),
    bait="CST BRC",
    patch=lambda m: m.graph.value_info.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, [1, 3])),
)


# ---- 22: sparse tensors
def sparse(name: str) -> onnx.SparseTensorProto:
    """The 2x3 matrix [[0, 5, 0], [0, 0, 7]]."""
    return helper.make_sparse_tensor(
        numpy_helper.from_array(f32(5, 7), name), numpy_helper.from_array(i64(1, 5)), [2, 3]
    )


def sparse_initializer(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.append(sparse("w"))


def sparse_constant(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse("")))


SPARSE = """g (float[N,2,3] x) => (float[N,2,3] y) <float[3] c = {1, 2, 3}, float[2] unused = {1, 2}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  a = Mul(e, w)  y = Add(a, c)
}"""
SPARSE_FEEDS = ({"x": ramp(1, 2, 3)}, {"x": ramp(2, 2, 3)})
refused_peer(
    "22-sparse-initializer",
    SPARSE,
    SPARSE_FEEDS,
    lambda m: m.graph.ClearField("sparse_initializer"),
    bait="CST BRC",
    patch=sparse_initializer,
)
refused_peer(
    "22-sparse-constant",
    SPARSE,
    SPARSE_FEEDS,
    lambda m: drop(m, "w"),
    bait="CST BRC",
    patch=sparse_constant,
)

# ---- 23: integer MatMul and Add are no Gemm
refused_peer(
    "23-int32-matmul-add",
    """g (int32[N,2] x) => (int32[N,3] y)
<int32[2,3] w = {1,2,3,4,5,6}, int32[3] b = {7,8,9}> {
  d = Cast<to=7>(x)  e = Cast<to=6>(d)  m = MatMul(e, w)  y = Add(m, b)
}""",
    ({"x": np.array([[1, -2]], np.int32)}, {"x": np.array([[1, 2], [3, 4], [5, 6]], np.int32)}),
    ("m = MatMul(e, w)  y = Add(m, b)", "y = Gemm(e, w, b)"),
    bait="CST BRC",
)


# ---- 24: before IR version 4 every initializer is a graph input
def no_initializer_inputs(model: onnx.ModelProto) -> None:
    names = {t.name for t in model.graph.initializer}
    kept = [i for i in model.graph.input if i.name not in names]
    model.graph.ClearField("input")
    model.graph.input.extend(kept)


# ONNX Runtime takes no values for them then: only the declaration is to be kept.
IR3_FEEDS: tuple[Feed, ...] = ({"x": ramp(2, 3, 4)}, {"x": ramp(2, 3, 4, scale=-3.3)})
invalid_peer(
    "24-op7-dropout-broadcast",
    """g (float[2,3,4] x, float[4] b = {1, -2, 3, -4}) => (float[2,3,4] y) {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  a = Add(e, b)  y = Dropout(a)
}""",
    IR3_FEEDS,
    no_initializer_inputs,
    opset=7,
)
invalid_peer(
    "24-op8-shape-subgraph",
    """g (float[2,3,4] x, float[4] b = {1, -2, 3, -4}, int64[1] m = {-1}, int64 k = {0})
=> (float[2,12] y) {
  a = Mul(x, b)  s = Shape(a)  f = Gather<axis=0>(s, k)  u = Unsqueeze<axes=[0]>(f)  p = Concat<axis=0>(u, m)
  q = Shape(s)  dead = Neg(x)  y = Reshape(a, p)
}""",
    IR3_FEEDS,
    no_initializer_inputs,
    bait="GRA",
    opset=8,
)
invalid_peer(
    "24-op8-fold-in-ir3",
    """g (float[2,3,4] x) => (float[3,8] y) {
  c = Constant<value = int64[1] {8}>()  k = Constant<value = int64 {1}>()
  s = Shape(x)  f = Gather<axis=0>(s, k)  u = Unsqueeze<axes=[0]>(f)  p = Concat<axis=0>(u, c)
  y = Reshape(x, p)
}""",
    {"x": ramp(2, 3, 4)},
    baked("p", i64(3, 8)),
    bait="INT",
    opset=8,
)
invalid_peer(
    "24-op7-bias-in-ir3",
    """g (float[2,3,4] x) => (float[2,3,4] y) {
  b = Constant<value = float[4] {1, -2, 3, -4}>()  y = Add(x, b)
}""",
    {"x": ramp(2, 3, 4)},
    baked("b", f32(1, -2, 3, -4)),
    bait="BRC",
    opset=7,
)

# ---- 25: an initializer that is a graph input is a default, not a constant
OVERRIDE = """g (float[N,4,3] x, float[3] w = {1, 2, 3}) => (float[N,4,3] y) {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  y = Mul(e, w)
}"""
OVERRIDE_FEEDS = ({"x": ramp(1, 4, 3)}, {"x": ramp(2, 4, 3), "w": f32(-1, 0, 9)})
peer(
    "25-default-bias-ignored",
    OVERRIDE,
    OVERRIDE_FEEDS,
    ("y = Mul(e, w)", "c = Constant<value = float[1,1,3] {1, 2, 3}>()  y = Mul(e, c)"),
)
peer(
    "25-default-shape-with-allowzero",
    """g (float[A,B] x, int64[2] s = {3, 2}) => (float[P,Q] y, float[B2] z) <int64[1] m = {-1}> {
  y = Reshape<allowzero=1>(x, s)  d = Reshape<allowzero=1>(x, m)  z = Identity(d)
}""",
    ({"x": ramp(2, 3)}, {"x": ramp(3, 0), "s": i64(0, 0)}),
    ("y = Reshape<allowzero=1>(x, s)", "y = Reshape(x, s)"),
    bait="RSH",
)
peer(
    "25-default-int64-zeros",
    """g (int64[N] x, int64[1] c = {0}) => (int64[N] y) { dead = Neg(x)  y = Add(x, c) }""",
    ({"x": i64(1, 2)}, {"x": i64(1, 2), "c": i64(7)}),
    ("y = Add(x, c)", "y = Identity(x)"),
    bait="GRA",
)
peer(
    "25-default-fold",
    """g (float[N] x, int64[1] c = {2}) => (float[P] y, int64[1] z) <int64[1] o = {1}> {
  dead = Neg(x)  z = Add(c, o)  y = Tile(x, z)
}""",
    ({"x": ramp(2)}, {"x": ramp(2), "c": i64(0)}),
    ("z = Add(c, o)", "z = Constant<value = int64[1] {3}>()"),
    bait="GRA",
)
interface_peer(
    "25-default-unused",
    """g (float[N] x, float[3] w = {1, 2, 3}) => (float[N] y) { d = Cast<to=11>(x)  y = Cast<to=1>(d) }""",
    ({"x": ramp(2)}, {"x": ramp(2), "w": f32(0, 0, 0)}),
    lambda m: m.graph.ClearField("initializer"),
)
peer(
    "25-default-if-condition",
    """g (float[N] x, bool c = {1}) => (float[N] y) {
  y = If(c) <then_branch = t () => (float[N] ty) { a = Cast<to=11>(x)  ty = Cast<to=1>(a) },
             else_branch = e () => (float[N] ey) { ey = Neg(x) }>
}""",
    ({"x": ramp(2)}, {"x": ramp(2), "c": np.array(False)}),
    ("y = If(c)", "k = Constant<value = bool {1}>()  y = If(k)"),
)

# ---- 26: activations in a row
CLIP = """g (float[N] x) => (float[N] y) <float lo = {-5}, float hi = {-1}, float a = {0}, float b = {6}> {
  c = Clip(x, lo, hi)  d = Cast<to=11>(c)  e = Cast<to=1>(d)  y = %s
}"""
CLIP_FEEDS = ({"x": f32(-9, -3, -0.5, 0, 4, 9)}, {"x": f32(-INF, INF)})
peer("26-clip-then-relu", CLIP % "Relu(e)", CLIP_FEEDS, ("y = Relu(e)", "y = Clip(x, a, hi)"))
peer("26-clip-clip-disjoint", CLIP % "Clip(e, a, b)", CLIP_FEEDS, ("y = Clip(e, a, b)", "y = Clip(x, a, hi)"))

# ---- 27: two consumers that want the same new shape constant
refused_peer(
    "27-two-flattens",
    """g (float[2,3,4] x) => (float[2,12] y, float[6,4] z, float[24] u, float[24] v) <int64[1] m = {-1}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  y = Flatten<axis=1>(e)  z = Flatten<axis=2>(e)
  u = Reshape<allowzero=1>(y, m)  v = Reshape<allowzero=1>(z, m)
}""",
    {"x": ramp(2, 3, 4)},
    ("Flatten<axis=2>(e)", 'Reshape(e, "x/shape_1")'),
    bait="CST RSH",
)
refused_peer(
    "27-two-folds-of-one-shape",
    """g (float[2,3,4] x, float[2,3,4] v) => (float[4,6] y, float[4,6] z, float[4,6] w)
<int64 k = {2}, int64[1] zero = {0}, int64[1] six = {6}, float[6] c = {1,2,3,4,5,6}> {
  s = Shape(x)  f = Gather<axis=0>(s, k)  u = Unsqueeze(f, zero)  p = Concat<axis=0>(u, six)
  y0 = Reshape(x, p)  z = Reshape(v, p)  y = Add(y0, c)  w = Mul(z, c)
}""",
    {"x": ramp(2, 3, 4), "v": ramp(2, 3, 4, scale=0.9)},
    ("z = Reshape(v, p)", "z = Reshape(v, q)"),
    bait="INT BRC",
)

# ---- 28: operators of a later operator set in a model of an older one
invalid_peer(
    "28-squeeze-at-opset12",
    """g (float[1,3,1,2] x) => (float[3,2] y, float[1,3,2] z) {
  y = Squeeze(x)  z = Unsqueeze<axes=[0]>(y)
}""",
    {"x": ramp(1, 3, 1, 2)},
    ("y = Squeeze(x)", "a = Constant<value = int64[2] {0, 2}>()  y = Squeeze(x, a)"),
    bait="RSH",
    opset=12,
)
invalid_peer(
    "28-align-rank-at-opset11",
    """g (float[2,3,4] x, float[4] b) => (float[2,3,4] y, seq(float[2,3,4]) s) {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  y = Add(e, b)  s = SplitToSequence<axis=0>(y)
}""",
    {"x": ramp(2, 3, 4), "b": ramp(4)},
    ("y = Add(e, b)", "a = Constant<value = int64[2] {0, 1}>()  u = Unsqueeze(b, a)  y = Add(e, u)"),
    opset=11,
)
invalid_peer(
    "28-fold-at-opset12",
    """g (float[2,6] x) => (float[3,4] y, seq(float[2,6]) q) {
  s = Shape(x)  z = Constant<value = int64 {0}>()  f = Gather<axis=0>(s, z)  o = Constant<value = int64 {1}>()
  t = Add(f, o)  u = Unsqueeze<axes=[0]>(t)  m = Constant<value = int64[1] {-1}>()  p = Concat<axis=0>(u, m)
  y = Reshape(x, p)  q = SequenceConstruct(x, x)
}""",
    {"x": ramp(2, 6)},
    ("u = Unsqueeze<axes=[0]>(t)", "a = Constant<value = int64[1] {0}>()  u = Unsqueeze(t, a)"),
    bait="INT",
    opset=12,
)

# ---- 29: an input that is an output, and graphs of no nodes
interface_peer(
    "29-input-is-output",
    """g (float[N] x) => (float[N] x, float[N] y) { d = Cast<to=11>(x)  y = Cast<to=1>(d) }""",
    {"x": ramp(2)},
    rename_input("x", "x_orig"),
)
interface_peer(
    "29-no-nodes",
    """g (float[N] x) => (float[N] x) <float[2] unused = {1, 2}> { }""",
    {"x": ramp(2)},
    rename_input("x", "x_orig"),
    bait="GRA",
)
interface_peer(
    "29-no-op-cast-from-input-to-output",
    """g (float[N] x) => (float[N] y) { y = Cast<to=1>(x)  dead = Neg(x) }""",
    {"x": ramp(2)},
    lambda m: (m.graph.ClearField("node"), rename_output(m, "x")),
    bait="GRA",
)
refused_peer(
    "29-middle-of-a-chain-is-output",
    """g (float[N] x) => (double[N] a, float[N] b, float[N] y) {
  a = Cast<to=11>(x)  b = Cast<to=1>(a)  c = Cast<to=11>(b)  y = Cast<to=1>(c)
}""",
    {"x": ramp(2)},
    (("b = Cast<to=1>(a)", "b = Identity(x)"), ("a = Cast<to=11>(x)", "")),
)


# ---- 30 and 41: weights that are outputs, metadata
def constant_output(
    name: str, dims: list[int], elem: int = TensorProto.FLOAT
) -> Callable[[onnx.ModelProto], None]:
    return lambda m: m.graph.output.append(helper.make_tensor_value_info(name, elem, dims))


WEIGHT_OUT = """g (float[N,4,3] x) => (float[N,4,3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }"""
peer(
    "30-reshaped-weight-is-output",
    WEIGHT_OUT,
    ({"x": ramp(1, 4, 3)}, {"x": ramp(2, 4, 3)}),
    ("float[3] w", "float[1,1,3] w"),
    bait="BRC",
    patch=constant_output("w", [3]),
)
peer(
    "30-conv-weight-is-output",
    """g (float[N,1,3,3] x) => (float[N,2,3,3] y)
<float[2,1,1,1] k = {2, 3}, float[2] s = {1, 2}, float[2] b = {3, 4}, float[2] m = {5, 6},
 float[2] v = {7, 8}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  c = Conv(e, k)  y = BatchNormalization(c, s, b, m, v)
}""",
    ({"x": ramp(1, 1, 3, 3)}, {"x": ramp(2, 1, 3, 3)}),
    ("k = {2, 3}", "k = {4, 6}"),
    patch=constant_output("k", [2, 1, 1, 1]),
)
refused_peer(
    "41-zero-initializer-is-output",
    """g (int64[N] x) => (int64[N] y) <int64[1] w = {0}> { dead = Neg(x)  y = Add(x, w) }""",
    {"x": i64(3, 4)},
    lambda m: (
        m.graph.ClearField("initializer"),
        node(m, "y").CopyFrom(helper.make_node("Identity", ["x"], ["y"])),
    ),
    bait="GRA",
    patch=constant_output("w", [1], TensorProto.INT64),
)
refused_peer(
    "41-unused-initializer-is-output",
    """g (float[N] x) => (float[N] y) <float[3] w = {1, 2, 3}, float[1] unused = {1}> { y = Neg(x) }""",
    {"x": ramp(2)},
    lambda m: m.graph.ClearField("initializer"),
    bait="GRA",
    patch=constant_output("w", [3]),
)


def metadata(model: onnx.ModelProto) -> None:
    """Everything that a caller may have written down: on the model, the graph, the nodes, the values."""
    helper.set_model_props(model, {"classes": "cat,dog", "scale": "0.5"})
    model.producer_name, model.producer_version, model.domain, model.model_version = (
        "mine",
        "3",
        "org.mine",
        7,
    )
    model.doc_string, model.graph.doc_string = "model notes", "graph notes"
    for n in model.graph.node:
        n.doc_string = f"made {n.output[0]}"
        n.metadata_props.add(key="source", value=n.output[0])
    for value in [*model.graph.input, *model.graph.output]:
        value.doc_string = f"about {value.name}"
        value.metadata_props.add(key="layout", value="NC")
    for tensor in model.graph.initializer:
        tensor.doc_string = f"weights {tensor.name}"
    model.graph.metadata_props.add(key="stage", value="final")
    annotation = model.graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="q")


def no_metadata(model: onnx.ModelProto) -> None:
    model.ClearField("metadata_props")
    for n in model.graph.node:
        n.ClearField("metadata_props")


peer(
    "30-metadata",
    """g (float[N,2] x) => (float[N,2] y, float[N,2] z) <float[2] k = {1, 2}, float q = {0.5}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  a = Exp(e)  b = Add(a, k)  y = Neg(b)  z = Sqrt(a)
}""",
    {"x": ramp(1, 2)},
    no_metadata,
    fault="meta",
    bait="CST BRC",
    opset=20,
    ir=10,
    patch=metadata,
)

# ---- 33: folding that blows the file up. The file may grow by the new names and attributes, not by data.
BLOAT = """g (float[1] x) => (float y) <float[1] c = {3}, int64[1] t = {1000}, int64[2] u = {1000, 3}> {
  p = Concat<axis=0>(t, u)  big = %s  m = ReduceMax<keepdims=0>(big)  y = Add(x, m)  dead = Neg(x)
}"""


ONE = ({"x": f32(2)},)
for _word, _make in {
    "expand": "Expand(c, p)",
    "constant-of-shape": "ConstantOfShape<value = float[1] {3}>(p)",
}.items():
    peer(
        f"33-bloat-{_word}",
        (BLOAT % _make).replace("float y", "float[1] y"),
        ONE,
        baked("big", np.full((1000, 1000, 3), 3, np.float32)),
        fault="size",
        bait="INT GRA",
    )
peer(
    "33-bloat-int64-range",
    """g (int64[1] x) => (int64[1] y) <int64 a = {0}, int64 n = {700000}, int64 d = {1}> {
  e = Add(n, d)  big = Range(a, e, d)  m = ReduceMax<keepdims=0>(big)  y = Add(x, m)  dead = Neg(x)
}""",
    {"x": i64(2)},
    baked("big", np.arange(700001)),
    fault="size",
    bait="GRA",
)
peer(
    "33-bloat-widened-weights",
    """g (float[N,1] x) => (float[N,40000] y) {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  f = Cast<to=1>(w)  y = Mul(e, f)
}""",
    ({"x": ramp(1, 1)}, {"x": ramp(2, 1)}),
    baked("f", np.zeros((1, 40000), np.float32)),
    fault="size",
    patch=lambda m: fill(m, "w", np.arange(40000, dtype=np.int64).astype(np.int8)[None]),
)

# ---- 34: padding by zeros is not the padding of MaxPool
peer(
    "34-pad-maxpool",
    """g (float[N,1,2,2] x) => (float[N,1,P,Q] y) <int64[4] a = {0,0,1,1}, float v = {0}> {
  p = Concat<axis=0>(a, a)  d = Cast<to=11>(x)  e = Cast<to=1>(d)
  q = Pad(e, p, v)  y = MaxPool<kernel_shape = [2, 2]>(q)
}""",
    ({"x": np.full((1, 1, 2, 2), -1, np.float32)}, {"x": ramp(2, 1, 2, 2)}),
    (
        "q = Pad(e, p, v)  y = MaxPool<kernel_shape = [2, 2]>(q)",
        "y = MaxPool<kernel_shape = [2, 2], pads = [1, 1, 1, 1]>(e)",
    ),
    bait="CST INT",
)

# ---- 35: quantize and dequantize twice
QDQ = """g (float[N] x) => (float[N] y)
<float s = {0.1}, uint8 z = {128}, float t = {0.07}, uint8 k = {0}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  a = QuantizeLinear(e, s, z)  b = DequantizeLinear(a, s, z)
  bd = Cast<to=11>(b)  bf = Cast<to=1>(bd)  f = QuantizeLinear(bf, t, k)  y = DequantizeLinear(f, t, k)
}"""
QDQ_FEEDS = ({"x": f32(-20, -1.04, -0.05, 0.05, 0.99, 3.33, 20)}, {"x": ramp(64, scale=0.113)})
peer(
    "35-two-qdq-pairs",
    QDQ,
    QDQ_FEEDS,
    ("b = DequantizeLinear(a, s, z)", "b = Identity(e)"),
    keeps=("QuantizeLinear", "DequantizeLinear"),
)
peer(
    "35-dequantized-weight",
    """g (float[N,2] x) => (float[N,2] y) <int8[2] w = {-128, 127}, float s = {0.5}, int8 z = {3}> {
  b = DequantizeLinear(w, s, z)  d = Cast<to=11>(x)  e = Cast<to=1>(d)  y = Mul(e, b)
}""",
    ({"x": ramp(1, 2)}, {"x": ramp(3, 2)}),
    ("int8 z = {3}", "int8 z = {0}"),
    keeps=("DequantizeLinear",),
)

# ---- 39: attributes of local functions, operators nobody knows
peer(
    "39-attribute-reference",
    """g (float[N] x) => (float[N] y, float[N] z) { y = my.Via<to = 6>(x)  z = my.Via<to = 11>(x) }
<domain: "my", opset_import: ["": 17]> Via <to> (x) => (y) { a = Cast<to: int = @to>(x)  y = Cast<to=1>(a)
  dead = Neg(x) }""",
    {"x": f32(-1.5, 0.25, 7.75)},
    ("a = Cast<to: int = @to>(x)  y = Cast<to=1>(a)", "y = Identity(x)"),
    bait="",
)
peer(
    "39-attribute-reference-allowzero",
    """g (float[A,B] x, int64[2] s) => (float[P,Q] y, float[R,S] z) {
  y = my.Shaped<allowzero = 1>(x, s)  k = Constant<value_ints = [-1]>()  f = Reshape<allowzero=1>(y, k)
  t = Shape(x)  z = my.Shaped<allowzero = 0>(x, t)  dead = Neg(f)
}
<domain: "my", opset_import: ["": 17]> Shaped <allowzero> (x, s)
  => (y) { y = Reshape<allowzero: int = @allowzero>(x, s) }""",
    ({"x": ramp(2, 3), "s": i64(3, 2)}, {"x": ramp(3, 0), "s": i64(0, 0)}),
    ("Reshape<allowzero: int = @allowzero>", "Reshape"),
    bait="GRA",
)
peer(
    "39-custom-operator",
    """g (float[N,2] x) => (float[N,2] y, float[N,2] z) <float[2] k = {1, 2}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  a, b = org.mine.Twist<mode = "up">(e, k)  y = Neg(a)
  z = Cast<to=1>(b)
  dead = Neg(x)
}""",
    {"x": ramp(3, 2)},
    ("z = Cast<to=1>(b)", "z = Identity(y)"),
    bait="CST GRA",
    domains={"org.mine": 2},
)

# ---- 40: values captured by the bodies of Loop and Scan
refused_peer(
    "40-loop-captures-chain",
    """g (float[3] x) => (float[3] y, float[K,3] z) <int64 trips = {3}, bool go = {1}> {
  a = Cast<to=11>(x)  b = Cast<to=1>(a)  c = Exp(b)  dead = Neg(b)
  y, z = Loop(trips, go, x) <body = l (int64 i, bool k, float[3] v) => (bool k2, float[3] v2, float[3] o) {
    k2 = Identity(k)  v2 = Add(v, c)  o = Mul(v2, b)
  }>
}""",
    {"x": ramp(3)},
    ("c = Exp(b)  dead = Neg(b)", ""),
    bait="CST GRA",
)
refused_peer(
    "40-loop-captures-bias",
    """g (float[2,3] x) => (float[2,3] y) <int64 trips = {3}, bool go = {1}, float[3] w = {1, 2, 3}> {
  y = Loop(trips, go, x) <body = l (int64 i, bool k, float[2,3] v) => (bool k2, float[2,3] v2) {
    k2 = Identity(k)  d = Cast<to=11>(v)  e = Cast<to=1>(d)  v2 = Add(e, w)
  }>
}""",
    {"x": ramp(2, 3)},
    lambda m: m.graph.initializer.remove(m.graph.initializer[2]),
)
peer(
    "40-loop-iteration-changes-type",
    """g (float x) => (float y) <int64 trips = {3}, bool go = {1}> {
  y = Loop(trips, go, x) <body = l (int64 i, bool k, float v) => (bool k2, float v2) {
    k2 = Identity(k)  f = Cast<to=1>(i)  d = Cast<to=7>(f)  h = Cast<to=1>(d)  j = Cast<to=11>(v)
  w = Cast<to=1>(j)  v2 = Add(w, h)
  }>
}""",
    {"x": np.array(0.5, np.float32)},
    ("f = Cast<to=1>(i)", "f = Cast<to=1>(trips)"),
)
peer(
    "40-scan-body",
    """g (float[4,3] x) => (float[3] y, float[4,3] z) <float[3] w = {1, 2, 3}> {
  zero = Sub(w, w)  d = Cast<to=11>(zero)  e = Cast<to=1>(d)
  y, z = Scan<num_scan_inputs = 1, body = l (float[3] v, float[3] u) => (float[3] v2, float[3] o) {
    a = Cast<to=11>(u)  b = Cast<to=1>(a)  v2 = Add(v, b)  o = Mul(v2, w)
  }>(e, x)
}""",
    {"x": ramp(4, 3)},
    ("o = Mul(v2, w)", "o = Identity(v2)"),
)

# ---- 42: Slice without axes
peer(
    "42-slice-without-axes",
    """g (float[3,4,5] x)
  => (float[P,4,5] y, float[P,Q,5] z)
<int64[1] s = {1}, int64[1] e = {3}, int64[2] s2 = {1, 1}, int64[2] e2 = {9, -1}> {
  c = Cast<to=11>(x)  d = Cast<to=1>(c)  y = Slice(d, s, e)  z = Slice(d, s2, e2)
}""",
    {"x": ramp(3, 4, 5)},
    ("y = Slice(d, s, e)", "a = Constant<value = int64[1] {2}>()  y = Slice(d, s, e, a)"),
)

# ---- 43: start and end of Shape
START = """g (float[2,3,4] x) => (float[P,Q] y) <int64[1] m = {-1}> {
  s = Shape<%s>(x)  p = Concat<axis=0>(s, m)  y = Reshape(x, p)
}"""
for _word, _range in {
    "start1-end2": "start = 1, end = 2",
    "start-from-back": "start = -1",
    "end-beyond": "start = 2, end = 99",
    "end-from-back": "start = -3, end = -2",
}.items():
    peer(f"43-{_word}", START % _range, {"x": ramp(2, 3, 4)}, (f"Shape<{_range}>", "Shape"), bait="INT")
peer(
    "43-empty-range",
    """g (float[2,3,4] x) => (int64[1] y, int64[0] z) {
  z = Shape<start = 2, end = 1>(x)  y = Shape(z)  dead = Neg(x)
}""",
    {"x": ramp(2, 3, 4)},
    ("Shape<start = 2, end = 1>(x)", "Shape(x)"),
    bait="GRA",
)
peer(
    "43-symbolic-start",
    """g (float[2,N,4] x) => (float[P,Q] y, int64[2] z) <int64[1] m = {-1}> {
  c = Cast<to=11>(x)  d = Cast<to=1>(c)  s = Shape<start = 1, end = 2>(d)  p = Concat<axis=0>(s, m)
  y = Reshape(d, p)
  z = Shape<start = 1>(d)
}""",
    ({"x": ramp(2, 1, 4)}, {"x": ramp(2, 3, 4)}),
    ("z = Shape<start = 1>(d)", "z = Shape<end = 2>(d)"),
)


COPIED = """g (float[N,6] x) => (float[P,2,3] y) <int64 k = {0}, int64[1] a = {0}, int64[2] t = {2, 3}> {
  s = Shape(x)  f = Gather<axis=0>(s, k)  u = Unsqueeze(f, a)  p = Concat<axis=0>(u, t)
  y = Reshape<allowzero=1>(x, p)  dead = Neg(x)
}"""
COPIED_FEEDS = ({"x": ramp(0, 6)}, {"x": ramp(1, 6)}, {"x": ramp(3, 6)})
refused_peer(
    "43-copied-dimension-under-allowzero",
    COPIED,
    COPIED_FEEDS,
    ("p = Concat<axis=0>(u, t)", "p = Constant<value = int64[3] {0, 2, 3}>()"),
    bait="GRA",
)
peer(
    "43-dimension-of-another-axis",
    """g (float[2,N,4] x, float[2,N] v) => (float[P,Q] y, float[R,S] z) <int64[1] m = {-1}> {
  s = Shape<start = 1, end = 2>(v)  p = Concat<axis=0>(s, m)  y = Reshape(x, p)
  r = Concat<axis=0>(m, s)  z = Reshape(x, r)  dead = Neg(x)
}""",
    ({"x": ramp(2, 1, 4), "v": ramp(2, 1)}, {"x": ramp(2, 3, 4), "v": ramp(2, 3)}),
    ("p = Concat<axis=0>(s, m)", "p = Constant<value = int64[2] {0, -1}>()"),
    bait="GRA",
)


# ---- 31: models that are somewhat broken, which ONNX Runtime or a person still understands
def unshaped_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.ClearField("shape")


def unsorted(model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)[::-1]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)


def one_name(model: onnx.ModelProto) -> None:
    for n in model.graph.node:
        n.name = "same"


def no_graph_name(model: onnx.ModelProto) -> None:
    model.graph.name = ""


def no_import(model: onnx.ModelProto) -> None:
    del model.opset_import[1:]


BROKEN = """g (float[N,2,3] x) => (float[N,2,3] y) <float[3] c = {1, 2, 3}> {
  d = Cast<to=11>(x)  e = Cast<to=1>(d)  a = Add(e, c)  b = Exp(a)  y = Neg(b)
}"""
BROKEN_FEEDS = ({"x": ramp(1, 2, 3)}, {"x": ramp(2, 2, 3)})
SKIP_EXP = (("y = Neg(b)", "y = Neg(a)"),)
for _word, _patch, _fault, _bait in (
    ("output-without-shape", unshaped_output, "values", "CST BRC"),
    ("unsorted-nodes", unsorted, "values", "CST BRC GRA"),
    ("duplicate-node-names", one_name, "refused", "CST BRC GRA"),
    ("empty-graph-name", no_graph_name, "values", "CST BRC"),
):
    peer(f"31-{_word}", BROKEN, BROKEN_FEEDS, SKIP_EXP, fault=_fault, bait=_bait, patch=_patch)
peer(
    "31-missing-contrib-import",
    BROKEN.replace("Exp(a)", "com.microsoft.Gelu(a)"),
    BROKEN_FEEDS,
    SKIP_EXP,
    bait="CST BRC",
    domains={"com.microsoft": 1},
    patch=no_import,
)
