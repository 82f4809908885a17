"""A model that measures itself: besides its own nodes, each computing node once more in the low type, on the inputs
that the node itself has. What comes out are a few numbers for each node and each tensor, so that one run of little more
than the model's own memory shows all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from onnxfix.lowering.lowered import ELEMENT, FLOAT, Lowerable, fresh, names_of


@dataclass(frozen=True)
class Tensor:
    """What was measured of a float32 tensor over ``samples``: the largest magnitude, how many elements there are, how
    many are not 0, how many still are not 0 when rounded, the largest distance to a whole number (``fraction``), and
    the largest distance to the rounded value (``rounding``)."""

    highest: float = 0.0
    count: float = 0.0
    nonzero: float = 0.0
    left: float = 0.0
    fraction: float = 0.0
    rounding: float = 0.0
    samples: int = 1

    @property
    def lost(self) -> float:
        """The share of elements that are not 0 and round to 0."""
        return (self.nonzero - self.left) / self.count if self.count else 0.0

    @property
    def whole(self) -> bool:
        """Whether all elements are whole numbers."""
        return self.fraction == 0.0

    def joined(self, other: Tensor) -> Tensor:
        """Both samples as one."""
        return Tensor(
            _greater(self.highest, other.highest),
            self.count + other.count,
            self.nonzero + other.nonzero,
            self.left + other.left,
            _greater(self.fraction, other.fraction),
            _greater(self.rounding, other.rounding),
            self.samples + other.samples,
        )


@dataclass(frozen=True)
class Own:
    """What was measured of a node's outputs in the low type, summed over outputs and samples: the sum of squares, that
    of the error, and the largest error. ``choices`` and ``changed`` count elements that are no floating-point numbers,
    and those of them that differ."""

    power: float = 0.0
    error_power: float = 0.0
    highest_error: float = 0.0
    choices: float = 0.0
    changed: float = 0.0

    @property
    def error(self) -> float:
        """The root mean square of the error as a share of that of the values; infinite where it is not finite."""
        if not np.isfinite(self.error_power):
            return float("inf")
        if not self.power or not np.isfinite(self.power):
            return 0.0 if not self.error_power else float("inf")
        return float(np.sqrt(self.error_power / self.power))

    def joined(self, other: Own) -> Own:
        """Both outputs, or both samples, as one."""
        return Own(
            self.power + other.power,
            self.error_power + other.error_power,
            _greater(self.highest_error, other.highest_error),
            self.choices + other.choices,
            self.changed + other.changed,
        )


def _greater(one: float, other: float) -> float:
    return float(np.fmax(one, other)) if np.isfinite(one) and np.isfinite(other) else float("inf")


class SelfMeasuring:
    """The self-measuring variant of a model (``model``, a copy): its outputs are the probes alone. ``tensors``,
    ``floats`` and ``choices`` say by the name of a probe what it is about: a tensor, or an output of a node. Places
    where the truth is not finite are left out: infinities are what masks are made of. ``low`` has the names of rounded
    tensors by the name of the original."""

    def __init__(self, model: ModelProto, able: Lowerable) -> None:
        self.model, self.able, self.to = ModelProto(), able, ELEMENT[able.to]
        self.model.CopyFrom(model)
        self.names = names_of(model)
        self.opset = next((one.version for one in model.opset_import if not one.domain), 1)
        self.nodes: list[NodeProto] = []
        self.low: dict[str, str] = {}
        self.tensors: dict[str, str] = {}
        self.floats: dict[str, int] = {}
        self.choices: dict[str, int] = {}
        self.outputs: list[str] = []
        self.zero = self._constant("zero", np.zeros(1, np.float32))
        self.flat = self._constant("flat", np.array([-1], np.int64))
        self.infinite = self._constant("infinite", np.full(1, np.inf, np.float32))
        self.done: set[str] = set()
        self._build()

    def read(self, values: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[int, Own]]:
        """What a run measured, by tensor and by node."""
        tensors: dict[str, Tensor] = {}
        for probe, name in self.tensors.items():
            highest, count, nonzero, left, fraction, rounding = map(float, values[probe])
            count -= 1  # without the zero that was added
            tensors[name] = Tensor(highest, count, nonzero, left, fraction, rounding)
        nodes: dict[int, Own] = {}
        for probe, index in self.floats.items():
            nodes[index] = nodes.get(index, Own()).joined(Own(*map(float, values[probe])))
        for probe, index in self.choices.items():
            count, changed = float(values[probe][0]) - 1, float(values[probe][1])
            nodes[index] = nodes.get(index, Own()).joined(Own(choices=count, changed=changed))
        return tensors, nodes

    def _build(self) -> None:
        graph = self.model.graph
        for info in graph.input:
            self._tensor(info.name)
        for index, node in enumerate(list(graph.node)):
            self.nodes.append(node)
            for name in node.output:
                self._tensor(name)
            if index in self.able.slots:
                self._again(index, node)
        del graph.node[:]
        graph.node.extend(self.nodes)
        del graph.output[:]
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.outputs)

    # -- small steps

    def _constant(self, hint: str, array: np.ndarray[Any, Any]) -> str:
        name = fresh(self.names, f"precision/{hint}")
        self.model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return name

    def _node(self, op_type: str, inputs: Iterable[str], **attributes: Any) -> str:
        name = fresh(self.names, f"precision/{op_type}/{len(self.names)}")
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name, **attributes))
        return name

    def _rounded(self, name: str) -> str:
        if name not in self.low:
            self.low[name] = self._node("Cast", [self._node("Cast", [name], to=self.to)], to=FLOAT)
        return self.low[name]

    def _flat(self, name: str) -> str:
        """One dimension, and at least one element: reductions refuse an empty tensor."""
        return self._node("Concat", [self._node("Reshape", [name, self.flat]), self.zero], axis=0)

    def _probe(self, parts: list[str]) -> str:
        name = self._node("Concat", parts, axis=0)
        self.outputs.append(name)
        return name

    # -- probes

    def _tensor(self, name: str) -> None:
        """Measure the finite values of a float32 tensor."""
        if name not in self.able.floats or name in self.done:
            return
        self.done.add(name)
        flat, low = self._flat(name), self._flat(self._rounded(name))
        finite = self._finite(flat)
        gaps = self._node("Abs", [self._where(finite, self._node("Sub", [flat, low]))])
        flat = self._where(finite, flat)
        parts = [
            self._node("ReduceMax", [self._node("Abs", [flat])]),
            self._count(flat),
            self._nonzero(flat),
            self._nonzero(low),
            self._node("ReduceMax", [self._node("Sub", [flat, self._node("Floor", [flat])])]),
            self._node("ReduceMax", [gaps]),
        ]
        self.tensors[self._probe(parts)] = name

    def _finite(self, flat: str) -> str:
        return self._node("Less", [self._node("Abs", [flat]), self.infinite])

    def _where(self, condition: str, flat: str) -> str:
        if self.opset >= 9:
            return self._node("Where", [condition, flat, self.zero])
        chosen = self._node("Cast", [condition], to=FLOAT)  # anything to the power of 0 is 1
        rest = self._node("Cast", [self._node("Not", [condition])], to=FLOAT)
        return self._node("Sub", [self._node("Pow", [flat, chosen]), rest])

    def _nonzero(self, flat: str) -> str:
        """How many elements are not 0."""
        signs = self._node("Cast", [self._node("Cast", [flat], to=TensorProto.BOOL)], to=FLOAT)
        return self._node("ReduceL1", [signs])

    def _count(self, flat: str) -> str:
        return self._node("Cast", [self._node("Shape", [flat])], to=FLOAT)

    def _again(self, index: int, node: NodeProto) -> None:
        """The node in the low type, on the inputs that it has, and how far its outputs are from its own."""
        slots = self.able.slots[index]
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = fresh(self.names, f"precision/{node.op_type}/{index}")
        for slot in slots.inputs:
            self._tensor(node.input[slot])  # of constants: other tensors are measured where they are made
            copy.input[slot] = self._rounded(node.input[slot])
        for slot, name in enumerate(node.output):
            copy.output[slot] = fresh(self.names, f"precision/{name}") if name else ""
        self.nodes.append(copy)
        for slot, name in enumerate(node.output):
            if not name:
                continue
            if slot in slots.outputs:
                self.floats[self._probe(self._error(name, copy.output[slot]))] = index
            elif name not in self.able.floats:
                self.choices[self._probe(self._changed(name, copy.output[slot]))] = index

    def _error(self, name: str, other: str) -> list[str]:
        rounded = self._node("Cast", [self._node("Cast", [other], to=self.to)], to=FLOAT)
        truth = self._flat(name)
        finite = self._finite(truth)
        gap = self._where(finite, self._node("Sub", [self._flat(rounded), truth]))
        truth = self._where(finite, truth)
        return [
            self._node("ReduceSumSquare", [truth]),
            self._node("ReduceSumSquare", [gap]),
            self._node("ReduceMax", [self._node("Abs", [gap])]),
        ]

    def _changed(self, name: str, other: str) -> list[str]:
        """Integers and booleans, as numbers; a wrong shape ends the run."""
        one, two = (self._flat(self._node("Cast", [each], to=FLOAT)) for each in (name, other))
        return [self._count(one), self._nonzero(self._node("Sub", [one, two]))]
