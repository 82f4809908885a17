"""Networks made layer by layer with TensorRT's own interface: read back, and evaluated by TensorRT itself.

These have forms of layers that TensorRT's ONNX parser does not make. A recipe is plain data and crosses to the sandbox.
TensorRT evaluates, without a GPU, whatever a shape depends on while a network is made: ``folded`` makes each element of
a tensor of constants the size of a fill layer, whose shape it reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.lift import Lifted
from onnxfix.tensorrt.lift.records import numpy_type
from onnxfix.tensorrt.log import logger_of
from onnxfix.tensorrt.package import load
from support.lifted import Feed, run
from support.patience import PATIENCE

#: The numpy types of those of TensorRT's that move.
TYPES = {
    name: numpy_type(name) for name in ("FLOAT", "HALF", "BF16", "FP8", "INT8", "INT32", "INT64", "BOOL")
}
#: A dimension is not negative and below 2**31; a fraction is read to five places.
_ZERO, _PLACES = 10**9, 10**5


@dataclass(frozen=True)
class Raw:
    """Among the arguments of a step: weights that the layer itself holds, not the output of a constant layer."""

    values: Any = None


@dataclass(frozen=True)
class Step:
    """A layer: ``add_<call>`` of the network with ``arguments``, properties to set ("input 3" sets an input), and names
    for its outputs. Among the values, a string is a tensor by its name or, as "trt.X.Y", a constant of the package; an
    array is a constant layer."""

    call: str
    arguments: Sequence[Any]
    sets: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ("y",)


@dataclass(frozen=True)
class Recipe:
    """``inputs``: name -> TensorRT's type and the shape, -1 for dynamic dimensions. ``outputs`` are tensors by name."""

    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...] = ("y",)


def one(
    call: str,
    *arguments: Any,
    inputs: Mapping[str, Any] | None = None,
    outputs: tuple[str, ...] = ("y",),
    **sets: Any,
) -> Recipe:
    """A network of one layer, of constants where it has no inputs."""
    return Recipe(inputs or {}, (Step(call, arguments, sets, outputs),), outputs)


def op(enumeration: str, name: str) -> str:
    """A value of one of TensorRT's enumerations."""
    return f"trt.{enumeration}.{name}"


def own(dtype: str) -> Any:
    """The numpy type of one of TensorRT's, by name."""
    return numpy_type(dtype)


class Built:
    """The network of a recipe, with all that must live as long as it does."""

    def __init__(self, recipe: Recipe) -> None:
        self.trt: Any = load("tensorrt-rtx")
        log, ear = logger_of(self.trt)
        ear.clear()
        self.builder = self.trt.Builder(log)
        flags = 1 << int(self.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        self.network = self.builder.create_network(flags)
        self.kept: list[Any] = []  # TensorRT reads weights where they lie
        self.tensors = {
            name: self.network.add_input(name, getattr(self.trt.DataType, dtype), shape)
            for name, (dtype, shape) in recipe.inputs.items()
        }
        for step in recipe.steps:
            self._add(step)

    def _add(self, step: Step) -> None:
        layer = getattr(self.network, f"add_{step.call}")(*map(self.native, step.arguments))
        for name, value in step.sets.items():
            if name.startswith("input "):
                layer.set_input(int(name.split()[1]), self.native(value))
            else:
                setattr(layer, name, self.native(value))
        for place, name in enumerate(step.names):
            layer.get_output(place).name = name
            self.tensors[name] = layer.get_output(place)

    def native(self, value: Any) -> Any:
        """What an argument of a step stands for."""
        if isinstance(value, str) and value.startswith("trt."):
            return reduce(getattr, value.split(".")[1:], self.trt)
        if isinstance(value, str):
            return self.tensors.get(value, value)
        if isinstance(value, np.ndarray):
            return self.constant(value)
        if isinstance(value, Raw):
            return self.weights(value.values)
        if isinstance(value, list):
            return [self.native(each) for each in value]
        return value

    def weights(self, values: Any) -> Any:
        """Weights. TensorRT knows numpy's types by identity, and a pickled one is another."""
        if values is None or not np.size(values):
            return self.trt.Weights() if values is None else self.trt.Weights(self.trt.DataType.INT64)
        array = np.empty(np.shape(values), np.dtype(values.dtype.type))
        array[...] = values
        self.kept.append(array)
        if array.dtype.name == "bfloat16":
            return self.trt.Weights(self.trt.bfloat16, array.ctypes.data, array.size)
        return self.trt.Weights(array)

    def constant(self, values: Any) -> Any:
        """A tensor of constants."""
        return self.network.add_constant(np.shape(values), self.weights(values)).get_output(0)


def read_back(recipe: Recipe, out: str) -> Lifted:
    """Build a network and write what is read of it to the file ``out``."""
    built = Built(recipe)
    for name in recipe.outputs:
        built.network.mark_output(built.tensors[name])
    return lift.write(built.trt, built.network, Path(out), Lifted("refused", package="tensorrt-rtx"))


def read(worker: Worker, recipe: Recipe, folder: Path) -> Lifted:
    """``read_back`` in the sandbox, to ``lifted.onnx`` in ``folder``."""
    out = str(folder / "lifted.onnx")
    outcome = worker.call("support.handmade:read_back", timeout=PATIENCE, recipe=recipe, out=out)
    assert outcome.ok, outcome.message
    found: Lifted = outcome.value
    return found


def made(
    worker: Worker,
    folder: Path,
    inputs: Mapping[str, tuple[str, tuple[int, ...]]],
    call: str,
    arguments: Sequence[Any],
    sets: Mapping[str, Any],
) -> Lifted:
    """A network of one layer, read back."""
    return read(worker, Recipe(inputs, (Step(call, arguments, sets),)), folder)


def compute(found: Lifted, feed: Feed, backend: str = "ort-cpu") -> list[Any]:
    """The outputs of a network that was read back. The model must be a valid one."""
    assert found.lifted, found.reason
    onnx.checker.check_model(found.path, full_check=True)
    return run(Path(found.path), feed, backend)


def computed(found: Lifted, feed: Feed) -> Any:
    """The only output."""
    [output] = compute(found, feed)
    return output


def outputs(worker: Worker, recipe: Recipe, folder: Path, feed: Feed) -> list[Any]:
    """What the network read back computes: by ONNX's reference where it takes BF16."""
    found = read(worker, recipe, folder)
    exotic = any(tensor.dtype == "BF16" for tensor in (*found.inputs, *found.outputs))
    return compute(found, feed, "reference" if exotic else "ort-cpu")


def operators(found: Lifted) -> list[str]:
    """The operators of a network that was read back, in order."""
    return [node.op_type for node in onnx.load(found.path).graph.node]


# -- what TensorRT evaluates itself


def folded(worker: Worker, recipe: Recipe) -> list[float]:
    """``fold`` in the sandbox."""
    outcome = worker.call("support.handmade:fold", timeout=PATIENCE, recipe=recipe)
    assert outcome.ok, outcome.message
    found: list[float] = outcome.value
    return found


def fold(recipe: Recipe) -> list[float]:
    """The elements of ``y``, which depends on constants alone.

    Raises:
        RuntimeError: TensorRT does not evaluate the layer, or an element is beyond what a dimension can hold.
    """
    built = Built(recipe)
    trt, tensor = built.trt, built.tensors["y"]
    real = tensor.dtype in (trt.DataType.FLOAT, trt.DataType.HALF, trt.DataType.BF16)
    size = math.prod(tensor.shape)
    cast = built.network.add_cast(tensor, trt.DataType.FLOAT if real else trt.DataType.INT64).get_output(0)
    shuffle = built.network.add_shuffle(cast)
    shuffle.reshape_dims = (size,)
    flat = shuffle.get_output(0)
    places = (built.constant(np.array([place], np.int64)) for place in range(size))
    elements = [built.network.add_gather(flat, place, 0).get_output(0) for place in places]
    return [_fraction(built, element) if real else _whole(built, element) for element in elements]


def _fraction(built: Built, element: Any) -> float:
    unary, pair = built.trt.UnaryOperation, built.trt.ElementWiseOperation
    zero, places = (built.constant(np.array([number], np.float32)) for number in (0, _PLACES))
    if _whole(built, built.network.add_unary(element, unary.ISNAN).get_output(0)):
        return math.nan
    if _whole(built, built.network.add_unary(element, unary.ISINF).get_output(0)):
        above = built.network.add_elementwise(element, zero, pair.GREATER)
        return math.inf if _whole(built, above.get_output(0)) else -math.inf
    many = built.network.add_elementwise(element, places, pair.PROD).get_output(0)
    return _whole(built, built.network.add_unary(many, unary.ROUND).get_output(0)) / _PLACES


def _whole(built: Built, element: Any) -> int:
    trt, network = built.trt, built.network
    number = network.add_cast(element, trt.DataType.INT64).get_output(0)
    zero = built.constant(np.array([_ZERO], np.int64))
    dims = network.add_elementwise(number, zero, trt.ElementWiseOperation.SUM).get_output(0)
    fill = network.add_fill((1,), trt.FillOperation.LINSPACE, trt.DataType.FLOAT)
    alpha, beta = (built.constant(np.array(values, np.float32)) for values in (0, [0]))
    for place, tensor in enumerate((dims, alpha, beta)):
        fill.set_input(place, tensor)
    [size] = tuple(fill.get_output(0).shape)
    if size < 0:
        raise RuntimeError("TensorRT does not evaluate this layer")
    return int(size) - _ZERO
