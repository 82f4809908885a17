"""OPS096: a small GRU of batch 1, which TensorRT-RTX compiles for a minute or longer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Silent,
    Value,
    is_read,
    rule,
    target_of,
)

MOST_HIDDEN = 16
"""The largest hidden size that is reported: 6 was slow and 64 fast, nothing in between was measured."""

_BATCH_AXES = {0: 1, 4: 0, 5: 1}
"""Batch axes of the inputs X, sequence_lens and initial_h."""
_OUTPUT_BATCH_AXES = (2, 1)
"""Batch axes of Y and Y_h."""


@rule("OPS096", ops=["GRU"], safety=Safety.NUMERIC)
def small_gru_of_one_sequence(node: Node, model: Model) -> Iterator[Match]:
    """A GRU of batch 1 with a static length and a small hidden size: TensorRT-RTX compiles it for a minute or longer.

    ## Why it matters
    TensorRT-RTX unrolls the loop into one large kernel and compiles it when the engine is built or loaded. Observed on
    executed engines (TensorRT-RTX 1.6.1.120, NVIDIA H200, and an H100 before), with `linear_before_reset=0`:

    - ONNX's test_gru_reverse and test_gru_bidirectional (length 3, hidden size 5) were not loaded after 60 s, and
      neither was test_gru_batchwise (hidden size 6), whose batch of 3 TensorRT interprets as the length (OPS011).
    - Hidden size 3 was not built after 30 s for length 8. For length 3 it took 3 s, in both directions 12 s.
    - Hidden sizes 64 and 128 took 2 s for lengths 8 and 16; hidden size 3 and length 8 took 1 s with
      `linear_before_reset=1`, and 0.5 s for batch 2 and 3. LSTM and RNN are not affected.

    Between hidden sizes 6 and 64 nothing was measured: the rule covers up to 16, and above 6 that is a guess.

    ## Fix
    Duplicate the sequence to a batch of 2: a Concat of X with itself, of `sequence_lens` and of `initial_h`, the GRU,
    and a Slice of the first row of its outputs. NUMERIC: a kernel for two rows may sum in another order. Executed for
    hidden size 3 and length 8, which was then built in 3.3 s, loaded in 4.2 s, and right to 1.5e-7, and in reverse and
    in both directions. Not executed for hidden sizes above 5. The recurrence is computed twice.

    Only for TensorRT-RTX, from opset 7, and if batch and length are known, which they are not in local functions. With
    `layout=1` the batch comes first, which OPS011 changes before.

    ## References
    - https://onnx.ai/onnx/operators/onnx__GRU.html
    """
    data = node.require(0)
    if target_of(model).package != "tensorrt-rtx" or node.opset < 7:
        return
    if node.attr("layout", 0) or node.attr("linear_before_reset", 0):
        return
    shape, hidden = model.shapes.shape(data), _hidden_size(node, model)
    if shape is None or len(shape) != 3 or hidden is None or not 0 < hidden <= MOST_HIDDEN:
        return
    length, batch = shape[0].value, shape[1].value
    if batch != 1 or length is None or length < 2 or not any(is_read(value) for value in node.outputs):
        return
    yield Match(
        f"GRU of batch 1, length {length} and hidden size {hidden}: TensorRT-RTX may compile it for a minute "
        "or longer",
        node=node,
        fix=Fix("duplicate the sequence to a batch of 2", _duplicated(node).edits, Safety.NUMERIC),
    )


def _hidden_size(node: Node, model: Model) -> int | None:
    """The attribute, or the last dimension of R."""
    given = node.attr("hidden_size")
    if given is not None:
        return int(given)
    weights = node.input(2)
    shape = None if weights is None else model.shapes.shape(weights)
    return shape[2].value if shape is not None and len(shape) == 3 else None


def _duplicated(node: Node) -> Draft:
    draft = Draft(node)
    inputs: list[Value | str | None] = list(node.inputs)
    for index, axis in _BATCH_AXES.items():
        value = node.input(index)
        if value is not None:
            inputs[index] = draft.add("Concat", [value, value], hint=f"twice_{index}", axis=axis)
    names, rows = [], []
    for output, axis in zip(node.outputs, _OUTPUT_BATCH_AXES, strict=False):
        names.append("")
        if output is not None and is_read(output):
            names[-1] = draft.name(f"twice_{output.name}")
            rows.append((names[-1], axis, output))
    while not names[-1]:
        names.pop()
    draft.replace_node(node, "", inputs, names)
    for source, axis, output in rows:
        _first(draft, source, axis, output)
    return draft


def _first(draft: Draft, source: str, axis: int, output: Value) -> None:
    """Slice the first row along ``axis``, in the opset's form."""
    if draft.anchor.scope.opset() < 10:
        draft.add("Slice", [source], output=output.name, starts=[0], ends=[1], axes=[axis])
        return
    values = {"starts": 0, "ends": 1, "axes": axis}
    constants = [draft.integers([value], name) for name, value in values.items()]
    draft.add("Slice", [source, *constants], output=output.name)


_WEIGHTS = "float[1,9,2] w, float[1,9,3] r"
_BOTH_DIRECTIONS = "float[2,9,2] w, float[2,9,3] r"
_ENDS = "int64[1] s = {0}, int64[1] e = {1}, int64[1] a = {1}"
_ENDS_OF_Y = "int64[1] s2 = {0}, int64[1] e2 = {1}, int64[1] a2 = {2}"
_BEFORE = f"""g (float[8,1,2] x, {_WEIGHTS}) => (float[1,1,3] h) {{ , h = GRU<hidden_size = 3>(x, w, r) }}"""
_fixed = partial(Fixed, safety=Safety.NUMERIC, target="rtx")
_silent = partial(Silent, target="rtx")


def _gru(attributes: str, x: str = "8,1,2", w: str = "1,9,2", r: str = "1,9,3", h: str = "1,1,3") -> str:
    return f"""g (float[{x}] x, float[{w}] w, float[{r}] r) => (float[{h}] h) {{
        , h = GRU<{attributes}>(x, w, r) }}"""


small_gru_of_one_sequence.examples = [
    _fixed(
        "the last state, length 8",
        before=_BEFORE,
        after=f"""g (float[8,1,2] x, {_WEIGHTS}) => (float[1,1,3] h) <{_ENDS}> {{ t = Concat<axis = 1>(x, x)
            , u = GRU<hidden_size = 3>(t, w, r)  h = Slice(u, s, e, a) }}""",
    ),
    Flagged("not fixed by default", _BEFORE, target="rtx"),
    _fixed(
        "reverse, with sequence_lens and initial_h; both outputs",
        before=f"""g (float[3,1,2] x, {_WEIGHTS}, float[1,18] b, int32[1] l, float[1,1,3] i) =>
            (float[3,1,1,3] y, float[1,1,3] h) {{
            y, h = GRU<hidden_size = 3, direction = "reverse">(x, w, r, b, l, i) }}""",
        after=f"""g (float[3,1,2] x, {_WEIGHTS}, float[1,18] b, int32[1] l, float[1,1,3] i) =>
            (float[3,1,1,3] y, float[1,1,3] h) <{_ENDS_OF_Y}, {_ENDS}> {{ t = Concat<axis = 1>(x, x)
            m = Concat<axis = 0>(l, l)  j = Concat<axis = 1>(i, i)
            v, u = GRU<hidden_size = 3, direction = "reverse">(t, w, r, b, m, j)
            y = Slice(v, s2, e2, a2)  h = Slice(u, s, e, a) }}""",
        opset=22,
    ),
    _fixed(
        "bidirectional, in an opset whose Slice has attributes; the last state is unused",
        before=f"""g (float[3,1,2] x, {_BOTH_DIRECTIONS}) => (float[3,2,1,3] y) {{
            y, dead = GRU<hidden_size = 3, direction = "bidirectional">(x, w, r) }}""",
        after=f"""g (float[3,1,2] x, {_BOTH_DIRECTIONS}) => (float[3,2,1,3] y) {{ t = Concat<axis = 1>(x, x)
            v = GRU<hidden_size = 3, direction = "bidirectional">(t, w, r)
            y = Slice<starts = [0], ends = [1], axes = [2]>(v) }}""",
        opset=7,
    ),
    Flagged("the hidden size from R", _BEFORE.replace("<hidden_size = 3>", ""), target="rtx"),
    Silent("another target", _BEFORE),
    _silent("linear_before_reset=1", _gru("hidden_size = 3, linear_before_reset = 1")),
    Silent("batch 2", _BEFORE.replace("[8,1,2]", "[8,2,2]").replace("[1,1,3] h", "[1,2,3] h"), target="rtx"),
    _silent("a dynamic batch", _BEFORE.replace("[8,1,2]", "[8,B,2]").replace("[1,1,3] h", "[1,B,3] h")),
    Silent("length 1", _BEFORE.replace("[8,1,2]", "[1,1,2]"), target="rtx"),
    Silent("a dynamic length", _BEFORE.replace("[8,1,2]", "[T,1,2]"), target="rtx"),
    _silent("a hidden size above 16", _gru("hidden_size = 17", w="1,51,2", r="1,51,17", h="1,1,17")),
    _silent("layout=1: OPS011 comes first", _gru("hidden_size = 3, layout = 1", x="1,8,2")),
    _silent(
        "an LSTM",
        """g (float[8,1,2] x, float[1,12,2] w, float[1,12,3] r) => (float[1,1,3] h) {
            , h = LSTM<hidden_size = 3>(x, w, r) }""",
    ),
]
