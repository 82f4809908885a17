"""Units to ONNX nodes, in order: layers by the table of ``kinds``, loops and conditionals with graphs of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from onnx import GraphProto, NodeProto

from onnxfix.errors import Fault, fault_of
from onnxfix.tensorrt.lift import kinds
from onnxfix.tensorrt.lift.emit import Emit, info
from onnxfix.tensorrt.lift.network import Layer, Tensor, Unliftable
from onnxfix.tensorrt.lift.records import Gap
from onnxfix.tensorrt.lift.scopes import Scopes, Unit

#: Of nodes that stand for layers which are not read back: no runtime knows it.
DOMAIN = "tensorrt"


class Writer:
    """Writes the units of a network into a model. ``gaps`` are the layers that it could not write."""

    def __init__(self, scopes: Scopes, emit: Emit) -> None:
        self.scopes, self.e = scopes, emit
        self.gaps: list[Gap] = []
        self._table = kinds.table()

    def write(self) -> None:
        """Write all that the network's outputs depend on."""
        units = self.scopes.bodies[None]
        for unit in self.scopes.units:  # initializers, wherever they are read
            if unit.layers[0].kind == "CONSTANT":
                self._layer(unit.layers[0])
        self._units(units, self.scopes.network.outputs)

    def _units(self, units: Sequence[Unit], results: Iterable[Tensor]) -> None:
        """Write the units that ``results`` depend on. What a branch alone needs is left to the branch."""
        results = list(results)
        rest = dict.fromkeys(unit for unit in units if unit.layers[0].kind != "CONSTANT")
        readers = self.scopes.readers(rest)
        sunk: dict[Unit, tuple[list[Unit], list[Unit]]] = {}
        for unit in reversed(self.scopes.order(list(rest), results)):
            if unit.group and not unit.is_loop and unit in rest:
                yes, no = (self.scopes.branch(unit, side, readers, results) for side in (0, 1))
                sunk[unit] = (yes, no)
                for one in (*yes, *no):
                    del rest[one]
        for unit in self._order(list(rest), results, sunk):
            if not unit.group:
                self._layer(unit.layers[0])
            else:
                self._group(unit, sunk.get(unit))

    def _order(
        self, rest: Sequence[Unit], results: Sequence[Tensor], sunk: dict[Unit, tuple[list[Unit], list[Unit]]]
    ) -> list[Unit]:
        """The order of the units that are left: a conditional comes after whatever its branches read."""
        wants = list(results)
        before = {unit: unit.inputs for unit in sunk}
        for unit, sides in sunk.items():
            read = [tensor for side in sides for one in side for tensor in one.inputs]
            unit.inputs = list(dict.fromkeys([*unit.inputs, *read]))
        try:
            return self.scopes.order(rest, wants)
        finally:
            for unit, inputs in before.items():
                unit.inputs = inputs

    def _group(self, unit: Unit, sides: tuple[list[Unit], list[Unit]] | None) -> None:
        """Write a loop, or a conditional with what stands in its branches."""
        try:
            if sides is None:
                self._loop(unit)
            else:
                self._conditional(unit, *sides)
        except Unliftable as error:
            self._gap(unit.layers[0], str(error), unit.inputs, unit.outputs)
        except Exception as error:
            raise _named(error, unit.layers[0]) from error

    def _gap(
        self, layer: Layer, reason: str, inputs: Iterable[Tensor | None], outputs: Iterable[Tensor]
    ) -> None:
        """Name a layer that cannot be written, and put a node of no ONNX domain in its place: people can look at it,
        and there may be other gaps to name."""
        self.gaps.append(Gap(layer.kind, layer.name, layer.label, reason))
        outputs = list(outputs)
        given = [self.e.of(tensor) if tensor is not None else "" for tensor in inputs]
        with self.e.at(layer):
            values = self.e.ops(layer.kind, *given, outputs=len(outputs), domain=DOMAIN)
            for tensor, value in zip(outputs, values, strict=True):
                self.e.bind(tensor, value)

    def _layer(self, layer: Layer) -> None:
        function = self._table.get(layer.kind)
        if function is None:
            return self._gap(layer, "this kind of layer is not read back", layer.inputs, layer.outputs)
        try:
            with self.e.at(layer):
                found = function(self.e, layer)
                values = (found,) if isinstance(found, str) else found
                for tensor, value in zip(layer.outputs, values, strict=True):
                    self.e.bind(tensor, value)
        except Unliftable as error:
            self._gap(layer, str(error), layer.inputs, layer.outputs)
        except Exception as error:
            raise _named(error, layer) from error
        return None

    # -- conditionals

    def _conditional(self, unit: Unit, yes: list[Unit], no: list[Unit]) -> None:
        """ONNX's If: one node for all outputs of the conditional."""
        [condition] = [layer.need(0) for layer in unit.of_kind("CONDITION")]
        ends = unit.of_kind("CONDITIONAL_OUTPUT")
        with self.e.at(ends[0]):
            then, other = [self._branch(units, ends, side) for side, units in enumerate((yes, no))]
            flag = self.e.op("Reshape", self.e.of(condition), self.e.ints([]))
            values = self.e.ops("If", flag, outputs=len(ends), then_branch=then, else_branch=other)
            for layer, value in zip(ends, values, strict=True):
                self.e.bind(layer.outputs[0], value)

    def _branch(self, units: list[Unit], ends: list[Layer], side: int) -> GraphProto:
        wanted = [layer.need(side) for layer in ends]
        with self.e.inside() as nodes:
            self._units(units, wanted)
            values = [self.e.op("Identity", self.e.of(tensor)) for tensor in wanted]
        return _graph("then" if side == 0 else "else", nodes, (), list(zip(values, wanted, strict=True)))

    # -- loops

    def _loop(self, unit: Unit) -> None:
        """ONNX's Loop. TensorRT's counts to a limit known before the loop, or goes on while a variable is true."""
        states, ends = unit.of_kind("RECURRENCE"), unit.of_kind("LOOP_OUTPUT")
        with self.e.at((ends or unit.layers)[0]):
            count, going = self._limits(unit)
            self._lengths(unit)
            made = [state.outputs[0] for state in states]
            rows = [one for one in ends if one.word("kind") != "LAST_VALUE" or one.need(0) not in made]
            number, condition = self.e.fresh("iteration"), self.e.fresh("condition")
            inner = [self.e.declare(layer.outputs[0]) for layer in states]
            initial = [self.e.of(layer.need(0)) for layer in states]
            with self.e.inside() as nodes:
                for layer in unit.of_kind("ITERATOR"):
                    self._iterator(layer, number)
                wanted = [layer.need(1) for layer in states] + [layer.need(0) for layer in rows]
                if going is not None:
                    wanted.append(going.need(1))
                self._units(self.scopes.bodies[unit], wanted)
                on = self.e.of(going.need(1)) if going is not None else condition
                results = [self.e.op("Identity", self.e.of(one)) for one in wanted[: len(states + rows)]]
                on = self.e.op("Reshape", on, self.e.ints([]))
            variables = [
                (name, one.outputs[0].dtype, _loose(one)) for name, one in zip(inner, states, strict=True)
            ]
            body = _graph(
                "body",
                nodes,
                [(number, "INT64", ()), (condition, "BOOL", ()), *variables],
                list(zip(results, wanted, strict=False)),
                on,
                fixed=len(states),
            )
            first = self.e.of(going.need(0)) if going is not None else ""
            first = self.e.op("Reshape", first, self.e.ints([])) if first else ""
            found = self.e.ops("Loop", count, first, *initial, outputs=len(states) + len(rows), body=body)
            last = dict(zip(states, found, strict=False))
            stacked = dict(zip(rows, found[len(states) :], strict=True))
            early = going is not None
            for layer in ends:
                if layer in stacked:
                    self.e.bind(layer.outputs[0], self._stacked(layer, stacked[layer], early))
                else:
                    state = next(s for s in states if s.outputs[0] is layer.need(0))
                    self.e.bind(layer.outputs[0], last[state])
                    last[state] = self.e.of(layer.outputs[0])  # it may have a new name by now

    def _limits(self, unit: Unit) -> tuple[str, Layer | None]:
        """The trip count ("" for none), and the recurrence that says whether to go on (None: always)."""
        count, going = "", None
        for layer in unit.of_kind("TRIP_LIMIT"):
            if layer.word("kind") == "COUNT":
                value = self.e.op("Cast", self.e.of(layer.need(0)), to=7)
                count = self.e.op("Reshape", value, self.e.ints([]))
            else:
                made = [one for one in unit.of_kind("RECURRENCE") if one.outputs[0] is layer.need(0)]
                if not made:
                    raise Unliftable("a loop that goes on while something else than a recurrence is true")
                going = made[0]
        return count, going

    def _lengths(self, unit: Unit) -> None:
        """Reject it: TensorRT does not document what happens to rows that are missing or too many."""
        counts = [layer.need(0) for layer in unit.of_kind("TRIP_LIMIT") if layer.word("kind") == "COUNT"]
        ends = [layer.need(1) for layer in unit.of_kind("LOOP_OUTPUT") if layer.word("kind") != "LAST_VALUE"]
        known = {int(array.item()) for one in counts + ends if (array := self.e.known(one)) is not None}
        if counts and len(known) > 1:
            raise Unliftable(f"outputs of another length than the trip count: {sorted(known)}")

    def _iterator(self, layer: Layer, number: str) -> None:
        """One slice of a tensor for each iteration, from the end where it is reversed."""
        data, axis = self.e.of(layer.need(0)), int(layer.native.axis)
        place = number
        if layer.native.reverse:
            size = self.e.op("Gather", self.e.op("Shape", data), self.e.const(np.int64(axis)))
            place = self.e.op("Sub", self.e.op("Sub", size, self.e.const(np.int64(1))), number)
        self.e.bind(layer.outputs[0], self.e.op("Gather", data, place, axis=axis))

    def _stacked(self, layer: Layer, value: str, early: bool) -> str:
        """The rows of a loop's output, laid along its axis. A loop that ends early leaves rows that nothing defines:
        NaN here, or 0, or False."""
        kind, rank = layer.word("kind"), layer.outputs[0].rank
        if kind == "LAST_VALUE":  # of a tensor that is not a recurrence
            return self.e.op("Gather", value, self.e.const(np.int64(-1)), axis=0)
        if early:
            length = self.e.op("Reshape", self.e.op("Cast", self.e.of(layer.need(1)), to=7), self.e.ints([1]))
            rows = self.e.op("Shape", value, start=0, end=1)
            missing = self.e.op("Sub", length, rows)
            zeros = self.e.const(np.zeros(rank, np.int64))
            pads = [zeros, missing] + ([self.e.const(np.zeros(rank - 1, np.int64))] if rank > 1 else [])
            dtype = layer.outputs[0].dtype
            wide = "FLOAT" if dtype == "BF16" else dtype  # ONNX Runtime pads no BF16
            value = self.e.cast(value, wide) if wide != dtype else value
            junk = self.e.const(np.nan, wide) if wide in ("FLOAT", "HALF") else ""
            value = self.e.op("Pad", value, self.e.op("Concat", *pads, axis=0), junk)
            value = self.e.cast(value, dtype) if wide != dtype else value
        if kind == "REVERSE":
            ends = [self.e.ints([number]) for number in (-1, -(2**63), 0, -1)]
            value = self.e.op("Slice", value, *ends)
        axis = int(layer.native.axis)
        if axis:
            value = self.e.op("Transpose", value, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)])
        return value


def _named(error: Exception, layer: Layer) -> Exception:
    """An error, and where it is one of our own, one that names the layer: a report of it should not lack that."""
    words = "" if isinstance(error, Fault) else fault_of(error)
    return Fault(str(Gap(layer.kind, layer.name, layer.label, words))) if words else error


def _loose(state: Layer) -> tuple[int | str, ...] | None:
    """The shape of a recurrence, of which only the rank is known to stay."""
    shape = state.outputs[0].shape
    return None if shape is None else (-1,) * len(shape)


def _graph(
    name: str,
    nodes: Sequence[NodeProto],
    inputs: Sequence[tuple[str, str, Sequence[int | str] | None]],
    results: Sequence[tuple[str, Tensor]],
    condition: str = "",
    fixed: int | None = None,
) -> GraphProto:
    """``results`` from the ``fixed``-th on keep their sizes: of rows that no iteration makes nothing else says them."""
    graph = GraphProto(name=name)
    graph.node.extend(nodes)
    graph.input.extend(info(*one) for one in inputs)
    if condition:
        graph.output.append(info(condition, "BOOL", ()))
    for number, (value, tensor) in enumerate(results):
        dims = tensor.shape
        if dims is not None and (fixed is None or number < fixed):
            dims = (-1,) * len(dims)
        graph.output.append(info(value, tensor.dtype, dims))
    return graph
