"""Translates units to ONNX nodes, in order. Loops and conditionals become nodes with subgraphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from onnx import GraphProto, NodeProto

from onnxfix.errors import Fault, fault_of
from onnxfix.tensorrt.lift.emit import Emit, info, table
from onnxfix.tensorrt.lift.network import Layer, Tensor, Unliftable
from onnxfix.tensorrt.lift.records import Gap
from onnxfix.tensorrt.lift.scopes import Scopes, Unit

#: Domain of the nodes that stand for layers that are not read back. No runtime supports it.
DOMAIN = "tensorrt"


class Writer:
    """Writes the units of a network into a model. ``gaps`` are the layers that it could not write."""

    def __init__(self, scopes: Scopes, emit: Emit) -> None:
        self.scopes, self.e = scopes, emit
        self.gaps: list[Gap] = []
        self._table = table()

    def write(self) -> None:
        """Write everything that the network's outputs depend on."""
        units = self.scopes.bodies[None]
        for unit in self.scopes.units:  # initializers, wherever they are read
            if unit.layers[0].kind == "CONSTANT":
                self._write_layer(unit.layers[0])
        self._write_units(units, self.scopes.network.outputs)

    def _write_units(self, units: Sequence[Unit], results: Iterable[Tensor]) -> None:
        """Write the units that ``results`` depend on. Units that only a branch needs go into the branch."""
        results = list(results)
        remaining = dict.fromkeys(unit for unit in units if unit.layers[0].kind != "CONSTANT")
        readers = self.scopes.readers(remaining)
        branch_units: dict[Unit, tuple[list[Unit], list[Unit]]] = {}
        for unit in reversed(self.scopes.order(list(remaining), results)):
            if unit.group and not unit.is_loop and unit in remaining:
                yes, no = (self.scopes.branch(unit, side, readers, results) for side in (0, 1))
                branch_units[unit] = (yes, no)
                for branch_unit in (*yes, *no):
                    del remaining[branch_unit]
        for unit in self._order(list(remaining), results, branch_units):
            if not unit.group:
                self._write_layer(unit.layers[0])
            else:
                self._write_group(unit, branch_units.get(unit))

    def _order(
        self,
        remaining: Sequence[Unit],
        results: Sequence[Tensor],
        branch_units: dict[Unit, tuple[list[Unit], list[Unit]]],
    ) -> list[Unit]:
        """Order the remaining units: a conditional comes after everything that its branches read."""
        wanted = list(results)
        own_inputs = {unit: unit.inputs for unit in branch_units}
        for unit, sides in branch_units.items():
            read = [tensor for side in sides for branch_unit in side for tensor in branch_unit.inputs]
            unit.inputs = list(dict.fromkeys([*unit.inputs, *read]))
        try:
            return self.scopes.order(remaining, wanted)
        finally:
            for unit, inputs in own_inputs.items():
                unit.inputs = inputs

    def _write_group(self, unit: Unit, sides: tuple[list[Unit], list[Unit]] | None) -> None:
        """Write a loop, or a conditional with the units of its branches."""
        try:
            if sides is None:
                self._write_loop(unit)
            else:
                self._write_conditional(unit, *sides)
        except Unliftable as error:
            self._write_gap(unit.layers[0], str(error), unit.inputs, unit.outputs)
        except Exception as error:
            raise _with_layer_name(error, unit.layers[0]) from error

    def _write_gap(
        self, layer: Layer, reason: str, inputs: Iterable[Tensor | None], outputs: Iterable[Tensor]
    ) -> None:
        """Record a layer that cannot be written, and put a node of another domain in its place. People can
        still look at the model, and other gaps are still recorded."""
        self.gaps.append(Gap(layer.kind, layer.name, layer.label, reason))
        outputs = list(outputs)
        names = [self.e.of(tensor) if tensor is not None else "" for tensor in inputs]
        with self.e.at(layer):
            values = self.e.ops(layer.kind, *names, outputs=len(outputs), domain=DOMAIN)
            for tensor, value in zip(outputs, values, strict=True):
                self.e.bind(tensor, value)

    def _write_layer(self, layer: Layer) -> None:
        function = self._table.get(layer.kind)
        if function is None:
            return self._write_gap(layer, "this kind of layer is not read back", layer.inputs, layer.outputs)
        try:
            with self.e.at(layer):
                written = function(self.e, layer)
                values = (written,) if isinstance(written, str) else written
                for tensor, value in zip(layer.outputs, values, strict=True):
                    self.e.bind(tensor, value)
        except Unliftable as error:
            self._write_gap(layer, str(error), layer.inputs, layer.outputs)
        except Exception as error:
            raise _with_layer_name(error, layer) from error
        return None

    # -- conditionals

    def _write_conditional(self, unit: Unit, yes: list[Unit], no: list[Unit]) -> None:
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
            self._write_units(units, wanted)
            values = [self.e.op("Identity", self.e.of(tensor)) for tensor in wanted]
        return _graph("then" if side == 0 else "else", nodes, (), list(zip(values, wanted, strict=True)))

    # -- loops

    def _write_loop(self, unit: Unit) -> None:
        """ONNX's Loop. TensorRT's loops run a fixed number of times, or while a variable is true."""
        states, ends = unit.of_kind("RECURRENCE"), unit.of_kind("LOOP_OUTPUT")
        with self.e.at((ends or unit.layers)[0]):
            count, while_state = self._limits(unit)
            self._check_lengths(unit)
            state_outputs = [state.outputs[0] for state in states]
            row_ends = [
                end for end in ends if end.word("kind") != "LAST_VALUE" or end.need(0) not in state_outputs
            ]
            number, condition = self.e.fresh("iteration"), self.e.fresh("condition")
            inner = [self.e.declare(layer.outputs[0]) for layer in states]
            initial = [self.e.of(layer.need(0)) for layer in states]
            with self.e.inside() as nodes:
                for layer in unit.of_kind("ITERATOR"):
                    self._iterator(layer, number)
                wanted = [layer.need(1) for layer in states] + [layer.need(0) for layer in row_ends]
                if while_state is not None:
                    wanted.append(while_state.need(1))
                self._write_units(self.scopes.bodies[unit], wanted)
                keep_going = self.e.of(while_state.need(1)) if while_state is not None else condition
                results = [
                    self.e.op("Identity", self.e.of(tensor)) for tensor in wanted[: len(states + row_ends)]
                ]
                keep_going = self.e.op("Reshape", keep_going, self.e.ints([]))
            variables = [
                (name, state.outputs[0].dtype, _rank_only(state))
                for name, state in zip(inner, states, strict=True)
            ]
            body = _graph(
                "body",
                nodes,
                [(number, "INT64", ()), (condition, "BOOL", ()), *variables],
                list(zip(results, wanted, strict=False)),
                keep_going,
                fixed=len(states),
            )
            initial_condition = self.e.of(while_state.need(0)) if while_state is not None else ""
            initial_condition = (
                self.e.op("Reshape", initial_condition, self.e.ints([])) if initial_condition else ""
            )
            outputs = self.e.ops(
                "Loop", count, initial_condition, *initial, outputs=len(states) + len(row_ends), body=body
            )
            last = dict(zip(states, outputs, strict=False))
            stacked = dict(zip(row_ends, outputs[len(states) :], strict=True))
            ends_early = while_state is not None
            for layer in ends:
                if layer in stacked:
                    self.e.bind(layer.outputs[0], self._stack_rows(layer, stacked[layer], ends_early))
                else:
                    state = next(s for s in states if s.outputs[0] is layer.need(0))
                    self.e.bind(layer.outputs[0], last[state])
                    last[state] = self.e.of(layer.outputs[0])  # it may have a new name by now

    def _limits(self, unit: Unit) -> tuple[str, Layer | None]:
        """The trip count ("" for none), and the recurrence that says whether to go on (None: always)."""
        count, while_state = "", None
        for layer in unit.of_kind("TRIP_LIMIT"):
            if layer.word("kind") == "COUNT":
                value = self.e.op("Cast", self.e.of(layer.need(0)), to=7)
                count = self.e.op("Reshape", value, self.e.ints([]))
            else:
                matches = [
                    recurrence
                    for recurrence in unit.of_kind("RECURRENCE")
                    if recurrence.outputs[0] is layer.need(0)
                ]
                if not matches:
                    raise Unliftable("a loop that goes on while something else than a recurrence is true")
                while_state = matches[0]
        return count, while_state

    def _check_lengths(self, unit: Unit) -> None:
        """Reject outputs whose length is not the trip count: TensorRT does not document their contents."""
        counts = [layer.need(0) for layer in unit.of_kind("TRIP_LIMIT") if layer.word("kind") == "COUNT"]
        ends = [layer.need(1) for layer in unit.of_kind("LOOP_OUTPUT") if layer.word("kind") != "LAST_VALUE"]
        lengths = {
            int(array.item()) for tensor in counts + ends if (array := self.e.known(tensor)) is not None
        }
        if counts and len(lengths) > 1:
            raise Unliftable(f"outputs of another length than the trip count: {sorted(lengths)}")

    def _iterator(self, layer: Layer, number: str) -> None:
        """One slice of a tensor for each iteration; a reversed iterator starts at the end."""
        data, axis = self.e.of(layer.need(0)), int(layer.native.axis)
        position = number
        if layer.native.reverse:
            size = self.e.op("Gather", self.e.op("Shape", data), self.e.const(np.int64(axis)))
            position = self.e.op("Sub", self.e.op("Sub", size, self.e.const(np.int64(1))), number)
        self.e.bind(layer.outputs[0], self.e.op("Gather", data, position, axis=axis))

    def _stack_rows(self, layer: Layer, value: str, early: bool) -> str:
        """Stack the rows of a loop's output along its axis. If the loop ends early, the remaining rows are
        undefined: here they are NaN, 0 or False."""
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
            filler = self.e.const(np.nan, wide) if wide in ("FLOAT", "HALF") else ""
            value = self.e.op("Pad", value, self.e.op("Concat", *pads, axis=0), filler)
            value = self.e.cast(value, dtype) if wide != dtype else value
        if kind == "REVERSE":
            ends = [self.e.ints([number]) for number in (-1, -(2**63), 0, -1)]
            value = self.e.op("Slice", value, *ends)
        axis = int(layer.native.axis)
        if axis:
            value = self.e.op("Transpose", value, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)])
        return value


def _with_layer_name(error: Exception, layer: Layer) -> Exception:
    """For a bug of onnxfix, a Fault that names the layer for the bug report. Otherwise the error itself."""
    fault = "" if isinstance(error, Fault) else fault_of(error)
    return Fault(str(Gap(layer.kind, layer.name, layer.label, fault))) if fault else error


def _rank_only(state: Layer) -> tuple[int | str, ...] | None:
    """The shape of a recurrence with unknown sizes: only its rank is the same in all iterations."""
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
    """``results`` from index ``fixed`` on keep their sizes: without iterations, nothing else tells them."""
    graph = GraphProto(name=name)
    graph.node.extend(nodes)
    graph.input.extend(info(*declaration) for declaration in inputs)
    if condition:
        graph.output.append(info(condition, "BOOL", ()))
    for number, (value, tensor) in enumerate(results):
        dims = tensor.shape
        if dims is not None and (fixed is None or number < fixed):
            dims = (-1,) * len(dims)
        graph.output.append(info(value, tensor.dtype, dims))
    return graph
