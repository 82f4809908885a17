"""How far the truth itself moves where the other side differs, by rounding alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnxfix.diagnosis.bench import Bench, drop
from onnxfix.diagnosis.child import Reply
from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.rows import Row, aligned
from onnxfix.diagnosis.store import Held

_BOUND = 64  # nodes of the truth that a region stands for
_HALVES = ("float16", "bfloat16")


class Noise:
    """Weighs rows of one chunk. ``values`` are the truth's, ``computed`` the other side's of the same inputs, by the
    truth's names; ``unit`` is the share of a value that one rounding amounts to."""

    def __init__(
        self,
        bench: Bench,
        truth: Graph,
        unit: float,
        values: Mapping[str, Held],
        computed: Mapping[str, Held],
    ) -> None:
        self.bench, self.truth, self.unit, self.values, self.computed = bench, truth, unit, values, computed

    def weighed(self, off: Sequence[Row]) -> list[Row]:
        """The rows with their noise: the truth's nodes from the region's inputs on, these moved. If only the last
        node's inputs moved, a rounding that the truth has before it and the other side has not would count as noise.
        """
        outputs: dict[int, list[Row]] = {}
        for row in off:
            outputs.setdefault(row.number, []).append(row)
        bounded = {number: self._back(rows) for number, rows in outputs.items()}
        rows = [row for row in off if bounded[row.number]]
        asked = [(bounded[n], [row.name for row in outputs[n]]) for n in bounded if bounded[n]]
        return self._moved(rows, asked) if rows else []

    def _moved(self, off: Sequence[Row], asked: Sequence[tuple[list[int], list[str]]]) -> list[Row]:
        part, inputs, names = self.truth.apart(asked, self.values)
        feed = {name: self.values[name] for name in inputs}
        where = {name: new for one in names for name, new in one.items()}
        replies: list[Reply] = []
        halves = any(held.dtype in _HALVES for held in (*feed.values(), *(self.values[r.name] for r in off)))
        for moved, seed in (*(((0.0, 0),) if halves else ()), (self.unit, 0), (self.unit, 1)):
            replies.append(self.bench.run(part, feed, of=self.truth, moved=moved, seed=seed))
            if replies[-1].error:
                break
        if not replies[-1].error:
            found = [self._weighed(row, [r.values[where[row.name]] for r in replies], halves) for row in off]
        elif len(asked) == 1:
            found = list(off)
        else:
            half = len(asked) // 2
            found = []
            for some in (asked[:half], asked[half:]):
                names_here = {name for _, outputs in some for name in outputs}
                found += self._moved([row for row in off if row.name in names_here], some)
        drop([held for one in replies for held in one.values.values()])
        return found

    def _weighed(self, row: Row, values: Sequence[Held], halves: bool) -> Row:
        """A row with its noise. ``values`` are what the truth's nodes compute of moved inputs; with ``halves`` first
        of the inputs as they are: ONNX Runtime may compute a node among others with more digits than alone, in half
        precision."""
        truth, own = self.values[row.name], row.own
        base = values[0].load() if halves else truth.load()
        computed = self.computed.get(row.name)
        if halves and computed is not None and distance(truth.load(), base).relative > 0:
            own = distance(base, aligned(computed, truth).load())
        noise = [distance(base, one.load()) for one in values[int(halves) :]]
        quantiles = [one.typical.off for one in noise if one.typical is not None]
        return replace(
            row,
            own=own,
            noise=max(one.largest for one in noise),
            typical_noise=tuple(map(max, *quantiles)) if len(quantiles) > 1 else (*quantiles, ())[0],
            unstable=max(one.special for one in noise),
        )

    def _back(self, rows: Sequence[Row]) -> list[int]:
        """The truth's nodes that compute these outputs of one node from what the region reads; the node alone where
        that does not bound them; none where values that they read are not kept."""
        given = {name for row in rows if row.region is not None for name in row.region.inputs.values()}
        found, stack = {rows[0].number}, [rows[0].number]
        while stack and len(found) <= _BOUND:
            for name in self.truth.reads[stack.pop()]:
                number = self.truth.producer.get(name, -1)
                if name in given or self.truth.is_constant(name) or number in found or number < 0:
                    continue
                found.add(number)
                stack.append(number)
        numbers = sorted(found) if len(found) <= _BOUND else [rows[0].number]
        made = {name for number in numbers for name in self.truth.nodes[number].output}
        read = {name for number in numbers for name in self.truth.reads[number]} - made
        known = all(name in self.values or self.truth.is_constant(name) for name in read)
        return numbers if known and not self.truth.random.intersection(numbers) else []
