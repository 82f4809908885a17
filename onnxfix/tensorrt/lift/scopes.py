"""From the flat list of layers to nested graphs: which layers are a loop's body, which belong to a branch.

TensorRT ties the boundary layers of a loop or a conditional together by name and leaves everything else unmarked. A
loop's body is what depends on its recurrences and iterators and is needed for its results; a branch is what nothing but
one side of a conditional needs, which may as well be computed outside: sinking it keeps a failing branch from failing
the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnxfix.files import walk
from onnxfix.tensorrt.lift.network import Layer, Network, Tensor

_SOURCES = ("RECURRENCE", "ITERATOR")


@dataclass(eq=False)
class Unit:
    """What is emitted in one piece: a layer, a loop with its body, or a conditional.

    ``group`` is the name of the loop or conditional, "" for a layer; ``layers`` are its boundary layers; ``home`` is
    the loop in whose body it stands, None in the main graph.
    """

    group: str
    layers: list[Layer]
    home: Unit | None = None
    inputs: list[Tensor] = field(default_factory=list)  # from outside of the unit

    @property
    def outputs(self) -> list[Tensor]:
        """What others may read."""
        if not self.group:
            return list(self.layers[0].outputs)
        ends = ("LOOP_OUTPUT", "CONDITIONAL_OUTPUT")
        return [tensor for layer in self.layers if layer.kind in ends for tensor in layer.outputs]

    def of_kind(self, kind: str) -> list[Layer]:
        """Boundary layers of one kind."""
        return [layer for layer in self.layers if layer.kind == kind]

    @property
    def is_loop(self) -> bool:
        """Whether it is a loop."""
        return self.group.startswith("loop ")


class Scopes:
    """The units of a network. Dead layers are in none."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._groups: dict[str, list[Layer]] = defaultdict(list)
        for layer in network.layers:
            if layer.group and layer.kind != "CONDITIONAL_INPUT":  # which is an identity like any other
                self._groups[layer.group].append(layer)
        inside = {group: self._inside(group) for group in self._groups if group.startswith("loop ")}
        self._unit: dict[Layer, Unit] = {}
        self.units: list[Unit] = []
        self._live(network.outputs)
        self._settle(inside)
        self._gather_inputs()

    def unit_of(self, tensor: Tensor) -> Unit | None:
        """The unit that makes a tensor; None for an input of the network, and for a loop's own variables."""
        maker = self.network.maker.get(tensor)
        return None if maker is None or maker.kind in _SOURCES else self._unit.get(maker)

    # -- which layers are in which loop

    def _mates(self, layer: Layer) -> list[Layer]:
        """The layers that go where ``layer`` goes."""
        return self._groups.get(layer.group, [layer]) if layer.kind != "CONDITIONAL_INPUT" else [layer]

    def _inside(self, group: str) -> set[Layer]:
        """What depends on the variables of a loop, without the loop's own boundary."""
        sources = [layer for layer in self._groups[group] if layer.kind in _SOURCES]

        def after(layer: Layer) -> Iterator[Layer]:
            for tensor in layer.outputs:
                for user in self.network.users.get(tensor, ()):
                    if user.group != group:
                        yield from self._mates(user)

        return walk.reached(sources, after) - set(sources)

    def _live(self, roots: Iterable[Tensor]) -> None:
        """Make units of all that the outputs depend on."""
        stack = list(roots)
        while stack:
            maker = self.network.maker.get(stack.pop())
            if maker is None or maker in self._unit:
                continue
            mates = self._mates(maker)
            unit = Unit(maker.group if len(mates) > 1 or maker.group else "", list(mates))
            if maker.kind == "CONDITIONAL_INPUT":
                unit.group = ""
            self.units.append(unit)
            for layer in mates:
                self._unit[layer] = unit
                stack.extend(tensor for tensor in layer.inputs if tensor is not None)

    def _settle(self, inside: dict[str, set[Layer]]) -> None:
        """Put each unit into the innermost loop that any of its layers is in."""
        loops = {unit.group: unit for unit in self.units if unit.is_loop}
        around: dict[Unit, list[str]] = {unit: [] for unit in self.units}
        for group in loops:
            for unit in {self._unit[layer] for layer in inside[group] if layer in self._unit}:
                around[unit].append(group)
        for unit, groups in around.items():
            # Of nested loops the inner one is itself inside the outer one, and so inside more of them.
            depth = {group: len(around[loops[group]]) for group in groups}
            unit.home = loops[max(groups, key=lambda group: depth[group])] if groups else None

    def _gather_inputs(self) -> None:
        """What each unit reads from outside. A loop reads whatever its body does."""
        body: dict[Unit | None, list[Unit]] = defaultdict(list)
        for unit in self.units:
            body[unit.home].append(unit)

        def gather(unit: Unit) -> list[Tensor]:
            read = [tensor for layer in unit.layers for tensor in layer.inputs if tensor is not None]
            made: set[Tensor] = set()
            if unit.is_loop:
                made = {t for layer in unit.layers if layer.kind in _SOURCES for t in layer.outputs}
                for inner in body[unit]:
                    read += gather(inner)
                    made.update(inner.outputs)
            unit.inputs = [tensor for tensor in dict.fromkeys(read) if tensor not in made]
            return unit.inputs

        for unit in body[None]:
            gather(unit)
        self.bodies = body

    # -- order

    def order(self, units: Sequence[Unit], results: Iterable[Tensor]) -> list[Unit]:
        """The units that ``results`` depend on, of these, each after what it reads.

        Raises:
            ValueError: they read each other.
        """
        among = set(units)
        done: dict[Unit, bool] = {}  # False: being visited
        found: list[Unit] = []
        stack: list[tuple[Unit, bool]] = []
        for result in results:
            self._push(stack, [result], among)
            while stack:
                unit, leaving = stack.pop()
                if leaving:
                    done[unit] = True
                    found.append(unit)
                elif unit not in done:
                    done[unit] = False
                    stack.append((unit, True))
                    self._push(stack, unit.inputs, among)
                elif not done[unit]:
                    raise ValueError(f"layers around {unit.layers[0].name} read each other")
        return found

    def _push(self, stack: list[tuple[Unit, bool]], tensors: Iterable[Tensor], among: set[Unit]) -> None:
        for tensor in tensors:
            unit = self.unit_of(tensor)
            if unit is not None and unit in among:
                stack.append((unit, False))

    def readers(self, units: Iterable[Unit]) -> dict[Unit, set[Unit]]:
        """For each of the units, those that read its results."""
        found: dict[Unit, set[Unit]] = {unit: set() for unit in units}
        for unit in found:
            for maker in self._makers(unit.inputs, found):
                found[maker].add(unit)
        return found

    def _makers(self, tensors: Iterable[Tensor | None], among: Container[Unit]) -> dict[Unit, None]:
        """The units among these that make the tensors, each once."""
        units = (self.unit_of(tensor) for tensor in tensors if tensor is not None)
        return dict.fromkeys(unit for unit in units if unit is not None and unit in among)

    def branch(
        self, conditional: Unit, side: int, readers: Mapping[Unit, set[Unit]], kept: Iterable[Tensor]
    ) -> list[Unit]:
        """Units that only one side (0: true, 1: false) of a conditional needs.

        ``readers`` are those of all units that stand where the conditional stands, other branches included; ``kept``
        are tensors that must be made whatever the condition is.
        """
        ends = conditional.of_kind("CONDITIONAL_OUTPUT")
        fixed = {*kept, *(layer.inputs[1 - side] for layer in ends)}
        fixed.update(tensor for layer in conditional.of_kind("CONDITION") for tensor in layer.inputs)
        left: dict[Unit, int] = {}  # readers that are not known to belong to the branch
        own: dict[Unit, None] = {}
        stack = list(self._makers((layer.inputs[side] for layer in ends), readers))
        while stack:
            unit = stack.pop()
            left[unit] = left.get(unit, len(readers[unit])) - 1
            if not left[unit] and fixed.isdisjoint(unit.outputs):
                own[unit] = None
                stack.extend(self._makers(unit.inputs, readers))
        return list(own)
