"""If, Loop and Scan: operators that run subgraphs, and what stays the same in every iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnx import TensorProto

from onnxfix.shapes.ops.base import (
    INTEGERS,
    UNKNOWN,
    Call,
    Elements,
    Info,
    Shape,
    Unknown,
    agree,
    axis_of,
    elements,
    finished,
)
from onnxfix.shapes.ops.sequence import merged
from onnxfix.shapes.symbols import Dim, constant, data_symbol, equal, positive, relu, symbol

if TYPE_CHECKING:
    from onnxfix.graph.overlay import Node, Scope, Value
    from onnxfix.shapes.propagate import Frame, Pass

MAX_ROUNDS = 6


def common(a: Elements | None, b: Elements | None) -> Elements | None:
    """Elements that are the same in both, None for the others."""
    if a is None or b is None or a.shape != b.shape:
        return None
    pairs = zip(a.reshape(-1), b.reshape(-1), strict=True)
    return elements(
        [x if x is y or (isinstance(x, float) and x == y and x != 0) else None for x, y in pairs], a.shape
    )


class State:
    """Loop-carried values: what holds at the start of every iteration, found as a fixpoint by widening."""

    def __init__(self, run: Pass, frame: Frame, targets: Sequence[Value], initial: Sequence[Info]) -> None:
        self.run = run
        self.frame = frame
        self.targets = targets
        self.infos = [self._named(target, info) for target, info in zip(targets, initial, strict=True)]

    def _label(self, target: Value, suffix: str) -> str:
        return self.run.mint(self.frame, target.scope, target.name + suffix)

    def _named(self, target: Value, info: Info) -> Info:
        if info.elem not in INTEGERS:
            return info
        return finished(info, lambda i, elem: data_symbol(self._label(target, f"[{i}]"), *INTEGERS[elem]))

    def bind(self) -> None:
        for target, info in zip(self.targets, self.infos, strict=True):
            self.frame.info[target] = info

    def widen(self, outcome: Sequence[Info]) -> bool:
        """Merge the results of an iteration; returns whether anything was widened."""
        changed = False
        for i, (target, now, then) in enumerate(zip(self.targets, self.infos, outcome, strict=True)):
            wide = self._widened(target, now, then)
            if not _same(now, wide):
                self.infos[i] = wide
                changed = True
        return changed

    def _widened(self, target: Value, now: Info, then: Info) -> Info:
        if now.kind != then.kind:
            return UNKNOWN
        if now.kind != "tensor":
            return merged([now, then])
        elem = now.elem if now.elem == then.elem else None
        if now.shape is None or then.shape is None or len(now.shape) != len(then.shape):
            return Info(elem)
        dims = zip(now.shape, then.shape, strict=True)
        shape = tuple(d if d is e else symbol(self._label(target, f".{i}")) for i, (d, e) in enumerate(dims))
        fill = now.fill if now.fill == then.fill else None
        return self._named(target, Info(elem, shape, common(now.value, then.value), fill))

    def forget(self) -> None:
        self.infos = [Info(info.elem) if info.kind == "tensor" else UNKNOWN for info in self.infos]

    def result(self, call: Call, k: int, at: int) -> Info:
        """Output ``k``, the carried value ``at`` after the last iteration, if any: what never changes, else unknown."""
        info = self.infos[at]
        local = self.run.minted[-1]
        if info.shape is None:
            return info
        shape = tuple(
            call.fresh(k, i) if not local.isdisjoint(d.symbols) else d for i, d in enumerate(info.shape)
        )
        value = None
        if info.value is not None:
            value = elements([_outside(item, local) for item in info.value.reshape(-1)], info.value.shape)
        return Info(info.elem, shape, value, info.fill)


def _outside(item: Dim | float | None, local: set[str]) -> Dim | float | None:
    return item if not isinstance(item, Dim) or local.isdisjoint(item.symbols) else None


def _same(a: Info, b: Info) -> bool:
    if a.elem != b.elem or a.kind != b.kind or a.fill != b.fill or (a.shape is None) != (b.shape is None):
        return False
    if a.kind != "tensor":
        return (a.item is None) == (b.item is None) and (
            a.item is None or b.item is None or _same(a.item, b.item)
        )
    if a.shape is not None and b.shape is not None and (len(a.shape) != len(b.shape) or a.shape != b.shape):
        return False
    if (a.value is None) != (b.value is None):
        return False
    if a.value is None or b.value is None:
        return True
    return a.value.shape == b.value.shape and list(a.value.reshape(-1)) == list(b.value.reshape(-1))


def iterate(run: Pass, frame: Frame, body: Scope, state: State, first: int) -> list[Info]:
    """Walk ``body`` until the carried values (its outputs from ``first`` on) are stable; returns its outputs."""
    count = len(state.targets)
    for round_ in range(MAX_ROUNDS + 1):
        if round_ == MAX_ROUNDS:
            state.forget()
        state.bind()
        run.walk(frame, body)
        outputs = [run.lookup(frame, value) for value in body.outputs]
        if len(outputs) < first + count:
            raise Unknown
        if round_ == MAX_ROUNDS or not state.widen(outputs[first : first + count]):
            break
    return outputs


def stacked(run: Pass, call: Call, k: int, info: Info, trips: Dim, at: int) -> Info:
    """A per-iteration output stacked along a new axis ``at``."""
    if info.shape is None or info.kind != "tensor":
        return Info(info.elem if info.kind == "tensor" else None)
    if not positive(trips).yes:
        # without any iteration, backends choose the other dimensions, and their number
        return Info(info.elem)
    local = run.minted[-1]
    rank = len(info.shape) + 1
    at = axis_of(at, rank)
    inner = iter(info.shape)
    dims: list[Dim] = []
    for i in range(rank):
        dim = trips if i == at else next(inner)
        dims.append(dim if i == at or local.isdisjoint(dim.symbols) else call.fresh(k, i))
    return Info(info.elem, tuple(dims))


def scoped(run: Pass) -> None:
    """Begin an iteration: symbols created before ``leave`` belong to it."""
    run.minted.append(set())


def leave(run: Pass) -> None:
    """The end of what ``scoped`` began."""
    inner = run.minted.pop()
    run.minted[-1] |= inner


BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64


def transfer(run: Pass, frame: Frame, node: Node, call: Call) -> Sequence[Info]:
    """Outputs of a node with subgraphs; also describes the values inside them.

    Raises:
        Unknown: the operator is not one of ONNX's own, or is malformed.
    """
    body = {scope.attr: scope for scope in node.subgraphs}
    if node.domain == "" and node.op_type == "If" and {"then_branch", "else_branch"} <= set(body):
        return _if(run, frame, call, body["then_branch"], body["else_branch"])
    if node.domain == "" and node.op_type in ("Loop", "Scan") and "body" in body:
        return (_loop if node.op_type == "Loop" else _scan)(run, frame, call, body["body"])
    for scope in node.subgraphs:
        _walk_unknown(run, frame, scope)
    raise Unknown


def _walk_unknown(run: Pass, frame: Frame, scope: Scope) -> None:
    for value in scope.inputs:
        frame.info[value] = UNKNOWN
    run.walk(frame, scope)


# ---- If


def _if(run: Pass, frame: Frame, call: Call, then: Scope, other: Scope) -> Sequence[Info]:
    results = []
    for scope in (then, other):
        for value in scope.inputs:
            frame.info[value] = UNKNOWN
        run.walk(frame, scope)
        results.append([run.lookup(frame, value) for value in scope.outputs])
    condition = call.ints(0)
    if condition and condition[0].value is not None:
        return results[0 if condition[0].value else 1]
    return [_merge(call, k, a, b) for k, (a, b) in enumerate(zip(*results, strict=False))]


def _merge(call: Call, k: int, a: Info, b: Info) -> Info:
    """What is true for both branches."""
    if a.kind != b.kind or a.kind != "tensor":
        return merged([a, b])
    elem = a.elem if a.elem == b.elem else None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Info(elem)
    shape = tuple(
        d if d is e else call.fresh(k, i) for i, (d, e) in enumerate(zip(a.shape, b.shape, strict=True))
    )
    return Info(elem, shape, common(a.value, b.value), a.fill if a.fill == b.fill else None)


# ---- Loop


def _loop(run: Pass, frame: Frame, call: Call, body: Scope) -> Sequence[Info]:
    if len(body.inputs) < 2 or len(body.inputs) - 2 != max(len(call.inputs) - 2, 0):
        _walk_unknown(run, frame, body)
        raise Unknown
    scoped(run)
    try:
        return _run_loop(run, frame, call, body)
    finally:
        leave(run)


def _run_loop(run: Pass, frame: Frame, call: Call, body: Scope) -> Sequence[Info]:
    counter, going = body.inputs[0], body.inputs[1]
    label = run.mint(frame, body, f"{counter.name}[0]")
    frame.info[counter] = _declared_scalar(counter, INT64, data_symbol(label, 0))
    carried = body.inputs[2:]
    truth = _declared_scalar(going, BOOL, constant(1))
    # A condition that is given is true whenever the body runs. One that is not may turn false and be ignored.
    fixed = call.has(1)
    targets, initial = list(carried), list(call.inputs[2:])
    if not fixed:
        targets, initial = [going, *targets], [truth, *initial]
    state = State(run, frame, targets, initial)
    frame.info[going] = truth
    outputs = iterate(run, frame, body, state, 1 if fixed else 0)
    trips = _trips(run, call, outputs[0])
    offset = 0 if fixed else 1
    count = len(carried)
    results = [state.result(call, i, i + offset) for i in range(count)]
    for k, info in enumerate(outputs[1 + count :], start=count):
        results.append(stacked(run, call, k, info, trips if trips is not None else call.fresh(k, 0), 0))
    return results


def _declared_scalar(value: Value, elem: int, item: Dim) -> Info:
    """The counter or the condition, which a body may declare as a vector of one element and then gets as such."""
    declared = value.declared
    shape = (
        declared.tensor_type.shape
        if declared is not None and declared.tensor_type.HasField("shape")
        else None
    )
    if shape is not None and len(shape.dim):
        return Info(elem)
    return Info(elem, (), elements([item], ()))


def _trips(run: Pass, call: Call, going: Info) -> Dim | None:
    """Number of iterations, if the trip count alone decides it."""
    limit = call.ints(0)
    if not limit or len(limit) != 1:
        return None
    if call.has(1):
        start = call.ints(1)
        if not start or start[0].value != 1:
            return None
    if going.value is None or going.value.size != 1 or not equal(going.value.reshape(-1)[0], 1).yes:
        return None
    return relu(limit[0])


# ---- Scan


def _scan(run: Pass, frame: Frame, call: Call, body: Scope) -> Sequence[Info]:
    scanned = call.attr("num_scan_inputs", 0)
    kept = len(call.inputs) - scanned
    if call.opset < 9 or kept < 0 or len(body.inputs) != len(call.inputs) or len(body.outputs) < kept:
        _walk_unknown(run, frame, body)
        raise Unknown
    scoped(run)
    try:
        return _run_scan(run, frame, call, body, kept)
    finally:
        leave(run)


def _run_scan(run: Pass, frame: Frame, call: Call, body: Scope, kept: int) -> Sequence[Info]:
    sources = call.inputs[kept:]
    axes = call.attr("scan_input_axes") or [0] * len(sources)
    lengths = []
    for target, source, axis in zip(body.inputs[kept:], sources, axes, strict=True):
        shape: Shape | None = None
        if source.shape is not None:
            at = axis_of(axis, len(source.shape))
            lengths.append(source.shape[at])
            shape = source.shape[:at] + source.shape[at + 1 :]
        frame.info[target] = State(run, frame, [target], [Info(source.elem, shape)]).infos[0]
    state = State(run, frame, body.inputs[:kept], call.inputs[:kept])
    outputs = iterate(run, frame, body, state, 0)
    results = [state.result(call, k, k) for k in range(kept)]
    out_axes = call.attr("scan_output_axes") or [0] * (len(outputs) - kept)
    for k, info in enumerate(outputs[kept:], start=kept):
        trips = agree(lengths) if lengths else call.fresh(k, 0)
        results.append(stacked(run, call, k, info, trips, out_axes[k - kept]))
    return results
