"""Loop-carried values: what stays the same in every iteration, found as a fixpoint by widening."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnxfix.shapes.ops.base import INTEGERS, UNKNOWN, Call, Elements, Info, Unknown, axis_of, elements
from onnxfix.shapes.ops.finish import finished
from onnxfix.shapes.ops.sequence import merged
from onnxfix.shapes.symbols import Dim, data_symbol, positive, symbol

if TYPE_CHECKING:
    from onnxfix.graph.overlay import Scope, Value
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

    def _dim(self, target: Value, axis: int) -> Dim:
        return symbol(self._label(target, f".{axis}"))

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
        shape = tuple(d if d is e else self._dim(target, i) for i, (d, e) in enumerate(dims))
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
        return Info(
            info.elem
        )  # without any iteration, backends choose the other dimensions, and their number
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
