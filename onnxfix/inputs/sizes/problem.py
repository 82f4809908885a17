"""All demands of a model on the sizes of its inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from onnxfix.errors import ModelError
from onnxfix.graph.overlay import Node, Scope
from onnxfix.inputs.sizes.demands import Demand, open_ones
from onnxfix.inputs.sizes.operators import demanded
from onnxfix.model import Model
from onnxfix.shapes import dimnames
from onnxfix.shapes.algebra.dim import Atom


@dataclass(frozen=True)
class Problem:
    """The free sizes, and the demands on them.

    ``symbols`` are the symbols of graph inputs, including arithmetic on others ("past + 1"); ``free`` those that can be
    chosen. ``likely`` are demands inside branches of an If with an unknown condition: they apply only if the branch
    runs.
    """

    symbols: tuple[str, ...] = ()
    demands: tuple[Demand, ...] = ()
    likely: tuple[Demand, ...] = ()

    @cached_property
    def strict(self) -> Problem:
        """The same with the demands of all branches, for TensorRT, which builds them all."""
        return Problem(self.symbols, (*self.demands, *self.likely)) if self.likely else self

    @cached_property
    def composed(self) -> tuple[str, ...]:
        """The symbols that are arithmetic on others."""
        return tuple(
            one
            for one in self.symbols
            if (inside := dimnames.names(one)) is not None and set(inside).intersection(self.symbols)
        )

    @cached_property
    def free(self) -> tuple[str, ...]:
        """The symbols whose sizes can be chosen, including names that appear in arithmetic only."""
        found: dict[str, None] = {}
        for one in self.symbols:
            inside = dimnames.names(one) if one in self.composed else None
            found.update(dict.fromkeys(inside or (one,)))
        return tuple(found)

    @cached_property
    def by_symbol(self) -> Mapping[str, Sequence[Demand]]:
        """The demands on each free symbol."""
        found: defaultdict[str, list[Demand]] = defaultdict(list)
        for demand in self.demands:
            for name in self.parts(demand):
                found[name].append(demand)
        return found

    def parts(self, demand: Demand) -> frozenset[str]:
        """The free symbols that a demand depends on."""
        found: set[str] = set()
        for one in demand.term.symbols:
            found.update((dimnames.names(one) or ()) if one in self.composed else (one,))
        return frozenset(found).intersection(self.free)

    def sizes(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """The sizes of all symbols, from those of the free ones."""
        found = dict(chosen)
        for one in self.composed:
            size = dimnames.evaluate(one, chosen)
            if size is not None:
                found[one] = size
        return found

    def broken(self, chosen: Mapping[str, int], demands: Sequence[Demand] | None = None) -> list[Demand]:
        """The demands that do not hold for these sizes, without those that cannot be evaluated."""
        among = self.demands if demands is None else demands
        return [one for one, holds in zip(among, self._held(chosen, among), strict=True) if holds is False]

    def met(self, chosen: Mapping[str, int]) -> bool:
        """Whether every demand can be evaluated for these sizes, and holds."""
        return all(self._held(chosen, self.demands))

    def _held(self, chosen: Mapping[str, int], demands: Sequence[Demand]) -> Iterator[bool | None]:
        sizes = self.sizes(chosen)
        memo: dict[Atom, int | None] = {}  # the demands of one model have most of their parts in common
        return (one.term.holds(sizes, memo) for one in demands)


def open_graph(proto: ModelProto, base_dir: Path | None = None) -> Model:
    """The model as a graph; an empty one where it cannot be read as a graph, so that it has no demands."""
    try:
        return Model(proto, base_dir)
    except ModelError:
        return Model(ModelProto())


def problem_of(model: Model) -> Problem:
    """The demands of a model."""
    demands: list[Demand] = []
    likely: list[Demand] = []
    for node, certain in _nodes(model, model.main, True):
        new = [Demand(term, node.place, node.op_type, about) for about, term in demanded(node)]
        (demands if certain else likely).extend(new)
    return Problem(tuple(model.shapes.symbols), tuple(open_ones(demands)), tuple(open_ones(likely)))


def _nodes(model: Model, scope: Scope, certain: bool) -> Iterator[tuple[Node, bool]]:
    """The nodes of a graph and its subgraphs that may run, each with whether it certainly runs."""
    for node in scope.nodes:
        yield node, certain
        condition = node.input(0) if node.is_onnx and node.op_type == "If" else None
        known = model.shapes.value(condition) if condition is not None else None
        branch = None  # that runs, where that is known
        if known is not None and len(known.data) == 1 and known.data[0].value is not None:
            branch = "then_branch" if known.data[0].value else "else_branch"
        for inner in node.subgraphs:
            if branch is None or inner.attr == branch:
                yield from _nodes(model, inner, certain and branch is not None)


def bind(proto: ModelProto, values: Mapping[str, Any], sizes: Mapping[str, int]) -> ModelProto:
    """A copy of the model whose inputs in ``values`` are these constants (numbers, or arrays of the input's type), and
    whose symbols in ``sizes`` are these numbers."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for one in copy.graph.input:
        for axis, dim in enumerate(one.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                continue
            name = dim.dim_param or f"{one.name}.{axis}"
            size = dimnames.replace(name, sizes)
            if isinstance(size, int):
                dim.dim_value = size
    for index in reversed(range(len(copy.graph.input))):
        one = copy.graph.input[index]
        if one.name not in values:
            continue
        tensor = one.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in tensor.shape.dim]
        array = np.broadcast_to(np.asarray(values[one.name]), dims)
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        value = np.ascontiguousarray(array).astype(dtype)
        copy.graph.initializer.append(numpy_helper.from_array(value, one.name))
        del copy.graph.input[index]
    return copy
