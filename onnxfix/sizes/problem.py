"""All that a model demands of the sizes of its inputs."""

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
from onnxfix.model import Model
from onnxfix.shapes import dimnames
from onnxfix.sizes.demands import Demand, open_ones
from onnxfix.sizes.operators import demanded


@dataclass(frozen=True)
class Problem:
    """The sizes that are free, and the demands on them.

    ``symbols`` are the symbols of graph inputs, those that are arithmetic on others ("past + 1") included; ``free`` the
    ones that can be chosen. ``likely`` are demands inside branches of an If whose condition is not known: they bind
    only where the branch runs.
    """

    symbols: tuple[str, ...] = ()
    demands: tuple[Demand, ...] = ()
    likely: tuple[Demand, ...] = ()

    @cached_property
    def strict(self) -> Problem:
        """The same with the demands of all branches: TensorRT builds them all."""
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
        """The symbols whose sizes can be chosen, and names that only arithmetic ones use."""
        found: dict[str, None] = {}
        for one in self.symbols:
            inside = dimnames.names(one) if one in self.composed else None
            found.update(dict.fromkeys(inside or (one,)))
        return tuple(found)

    @cached_property
    def by_symbol(self) -> Mapping[str, Sequence[Demand]]:
        """The demands in which each free symbol has a part."""
        found: defaultdict[str, list[Demand]] = defaultdict(list)
        for demand in self.demands:
            for name in self.parts(demand):
                found[name].append(demand)
        return found

    def parts(self, demand: Demand) -> frozenset[str]:
        """The free symbols that a demand hangs on."""
        found: set[str] = set()
        for one in demand.term.symbols:
            found.update((dimnames.names(one) or ()) if one in self.composed else (one,))
        return frozenset(found).intersection(self.free)

    def sizes(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """The sizes of all symbols, where those of the free ones are chosen."""
        found = dict(chosen)
        for one in self.composed:
            size = dimnames.evaluate(one, chosen)
            if size is not None:
                found[one] = size
        return found

    def broken(self, chosen: Mapping[str, int], demands: Sequence[Demand] | None = None) -> list[Demand]:
        """The demands that do not hold for these sizes; those that nobody can tell of are not among them."""
        sizes = self.sizes(chosen)
        among = self.demands if demands is None else demands
        return [one for one in among if one.term.holds(sizes) is False]


def problem_of(
    proto: ModelProto,
    values: Mapping[str, Any] | None = None,
    base_dir: Path | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Problem:
    """What a model demands, where the inputs in ``values`` have these values (numbers, or arrays of the input's type),
    and symbols have these ``sizes``.

    ``base_dir`` is where external data lies. Nothing is demanded by a model that cannot be read as a graph.
    """
    try:
        model = Model(_bound(proto, values or {}, sizes or {}) if values or sizes else proto, base_dir)
    except ModelError:
        return Problem()
    found: list[Demand] = []
    likely: list[Demand] = []
    for node, sure in _nodes(model, model.main, True):
        told = [Demand(term, node.place, node.op_type, about) for about, term in demanded(node, model.shapes)]
        (found if sure else likely).extend(told)
    return Problem(tuple(model.shapes.symbols), tuple(open_ones(found)), tuple(open_ones(likely)))


def _nodes(model: Model, scope: Scope, sure: bool) -> Iterator[tuple[Node, bool]]:
    """The nodes of a graph and of graphs inside that may run, and whether they do run."""
    for node in scope.nodes:
        yield node, sure
        taken = _taken(model, node)
        for inner in node.subgraphs:
            if taken is None or inner.attr == taken:
                yield from _nodes(model, inner, sure and taken is not None)


def _taken(model: Model, node: Node) -> str | None:
    """The branch that an If takes; None where that is not known, and for other nodes."""
    condition = node.input(0) if node.is_onnx and node.op_type == "If" else None
    known = model.shapes.value(condition) if condition is not None else None
    if known is None or len(known.data) != 1 or known.data[0].value is None:
        return None
    return "then_branch" if known.data[0].value else "else_branch"


def _bound(proto: ModelProto, values: Mapping[str, Any], sizes: Mapping[str, int]) -> ModelProto:
    """A copy of the model in which inputs are constants and dimensions of inputs are numbers."""
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
        copy.graph.initializer.append(_tensor(array, tensor.elem_type, one.name))
        del copy.graph.input[index]
    return copy


def _tensor(array: Any, elem: int, name: str) -> Any:
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    return numpy_helper.from_array(np.ascontiguousarray(array).astype(dtype), name)
