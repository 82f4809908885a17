"""Networks made layer by layer with TensorRT's own interface: read back, and evaluated by TensorRT itself.

A recipe is plain data and crosses to the sandbox. TensorRT evaluates, without a GPU, whatever a shape hangs on while a
network is made: ``folded`` makes each element of a tensor of constants the size of a fill layer, whose shape it reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.lift import Lifted
from onnxfix.tensorrt.lift.types import numpy_type
from onnxfix.tensorrt.log import logger_of
from onnxfix.tensorrt.package import load
from support.lifted import Feed, run
from support.patience import PATIENCE

#: A dimension is not negative and below 2**31; a fraction is read to five places.
_ZERO, _PLACES = 10**9, 10**5


@dataclass(frozen=True)
class Raw:
    """Among the arguments of a step: weights that the layer itself holds, not the output of a constant layer."""

    values: Any


@dataclass(frozen=True)
class Step:
    """A layer: ``add_<call>`` of the network with ``arguments``, properties to set, inputs to set by their place, and
    names for its outputs. A string is a tensor by its name, an array a constant, a pair of
    strings a value of an enumeration."""

    call: str
    arguments: tuple[Any, ...]
    sets: dict[str, Any] = field(default_factory=dict)
    inputs: dict[int, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ("y",)


@dataclass(frozen=True)
class Recipe:
    """``inputs``: name -> TensorRT's type and the shape, -1 for dynamic dimensions. The output is ``y``."""

    inputs: dict[str, tuple[str, tuple[int, ...]]]
    steps: tuple[Step, ...]


def one(call: str, *arguments: Any, inputs: dict[str, Any] | None = None, **sets: Any) -> Recipe:
    """A network of one layer, of constants where it has no inputs."""
    return Recipe(inputs or {}, (Step(call, arguments, sets),))


def op(enumeration: str, name: str) -> tuple[str, str]:
    """A value of one of TensorRT's enumerations."""
    return enumeration, name


def own(dtype: str) -> Any:
    """The numpy type of one of TensorRT's, by name."""
    return numpy_type(dtype)


class Built:
    """The network of a recipe, with all that must live as long as it does."""

    def __init__(self, recipe: Recipe) -> None:
        self.trt: Any = load("tensorrt-rtx")
        self.builder = self.trt.Builder(logger_of(self.trt)[0])
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
            setattr(layer, name, self.native(value))
        for place, value in step.inputs.items():
            layer.set_input(place, self.native(value))
        for place, name in enumerate(step.names):
            layer.get_output(place).name = name
            self.tensors[name] = layer.get_output(place)

    def native(self, value: Any) -> Any:
        """What an argument of a step stands for."""
        if isinstance(value, str):
            return self.tensors.get(value, value)
        if isinstance(value, np.ndarray):
            return self.constant(value, value.dtype.type)
        if isinstance(value, Raw):
            return (
                self.weights(value.values, value.values.dtype.type)
                if value.values.size
                else self.trt.Weights()
            )
        if isinstance(value, list):
            return [self.native(one) for one in value]
        if isinstance(value, tuple):
            return getattr(getattr(self.trt, value[0]), value[1])
        return value

    def weights(self, values: Any, dtype: Any) -> Any:
        """Weights. TensorRT knows numpy's types by identity, and a pickled one is another."""
        own = np.empty(np.shape(values), np.dtype(dtype))
        own[...] = values
        self.kept.append(own)
        return self.trt.Weights(own)

    def constant(self, values: Any, dtype: Any) -> Any:
        """A tensor of constants."""
        return self.network.add_constant(np.shape(values), self.weights(values, dtype)).get_output(0)


def read_back(recipe: Recipe, out: str) -> Lifted:
    """Build a network and write what is read of it to the file ``out``."""
    built = Built(recipe)
    built.network.mark_output(built.tensors["y"])
    return lift.write(built.trt, built.network, Path(out), Lifted("refused", package="tensorrt-rtx"))


def fold(recipe: Recipe) -> list[float]:
    """The elements of ``y``, which hangs on constants alone.

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
    places = (built.constant([place], np.int64) for place in range(size))
    elements = [built.network.add_gather(flat, place, 0).get_output(0) for place in places]
    return [_fraction(built, one) if real else _whole(built, one) for one in elements]


def _fraction(built: Built, one: Any) -> float:
    unary, pair = built.trt.UnaryOperation, built.trt.ElementWiseOperation
    if _whole(built, built.network.add_unary(one, unary.ISNAN).get_output(0)):
        return math.nan
    if _whole(built, built.network.add_unary(one, unary.ISINF).get_output(0)):
        above = built.network.add_elementwise(one, built.constant([0], np.float32), pair.GREATER)
        return math.inf if _whole(built, above.get_output(0)) else -math.inf
    many = built.network.add_elementwise(one, built.constant([_PLACES], np.float32), pair.PROD).get_output(0)
    return _whole(built, built.network.add_unary(many, unary.ROUND).get_output(0)) / _PLACES


def _whole(built: Built, one: Any) -> int:
    trt, network = built.trt, built.network
    one = network.add_cast(one, trt.DataType.INT64).get_output(0)
    zero = built.constant([_ZERO], np.int64)
    dims = network.add_elementwise(one, zero, trt.ElementWiseOperation.SUM).get_output(0)
    fill = network.add_fill((1,), trt.FillOperation.LINSPACE, trt.DataType.FLOAT)
    for place, given in enumerate((dims, built.constant(0, np.float32), built.constant([0], np.float32))):
        fill.set_input(place, given)
    [size] = tuple(fill.get_output(0).shape)
    if size < 0:
        raise RuntimeError("TensorRT does not evaluate this layer")
    return int(size) - _ZERO


def read(worker: Worker, recipe: Recipe, folder: Path) -> Lifted:
    """``read_back`` in the sandbox."""
    outcome = worker.call(
        "support.trt_folding:read_back", timeout=PATIENCE, recipe=recipe, out=str(folder / "built.onnx")
    )
    assert outcome.ok, outcome.message
    found: Lifted = outcome.value
    return found


def outputs(worker: Worker, recipe: Recipe, folder: Path, feed: Feed) -> list[Any]:
    """What the network read back computes: by ONNX's reference where it takes BF16, which ONNX Runtime's Python cannot
    be given."""
    found = read(worker, recipe, folder)
    assert found.lifted, found.reason
    onnx.checker.check_model(found.path, full_check=True)
    exotic = any(tensor.dtype == "BF16" for tensor in (*found.inputs, *found.outputs))
    return run(Path(found.path), feed, "reference" if exotic else "ort-cpu")


def folded(worker: Worker, recipe: Recipe) -> list[float]:
    """``fold`` in the sandbox."""
    outcome = worker.call("support.trt_folding:fold", timeout=PATIENCE, recipe=recipe)
    assert outcome.ok, outcome.message
    found: list[float] = outcome.value
    return found
