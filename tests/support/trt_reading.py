"""What TensorRT's parser made of a model, and what that computes, in numpy. For models of a few nodes.

``read`` is called in the sandbox and returns the imported network as plain data; ``Network.run`` executes it by the
documented meaning of each layer. No engine is built or executed by any of it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from onnxfix.replies import accept
from onnxfix.sandbox import Worker
from onnxfix.trt.log import logger_of
from onnxfix.trt.package import load
from support.patience import PATIENCE

Array = np.ndarray[Any, Any]
_CLASSES = {
    "ELEMENTWISE": "ElementWise",
    "CONDITIONAL_INPUT": "IfConditionalInput",
    "CONDITIONAL_OUTPUT": "IfConditionalOutput",
}
_PROPERTIES = {
    "ACTIVATION": ("type",),
    "ATTENTION_INPUT": ("attention",),
    "CAST": ("to_type",),
    "CONCATENATION": ("axis",),
    "CONSTANT": ("weights", "shape"),
    "CONVOLUTION": ("pre_padding", "post_padding", "padding_mode"),
    "DECONVOLUTION": (
        *("kernel", "bias", "kernel_size_nd", "stride_nd", "dilation_nd", "num_groups", "num_output_maps"),
        *("pre_padding", "post_padding", "padding_mode"),
    ),
    "ELEMENTWISE": ("op",),
    "FILL": ("operation", "alpha", "beta", "shape"),
    "GATHER": ("axis", "mode"),
    "ITERATOR": ("axis", "reverse"),
    "LOOP_OUTPUT": ("kind", "axis"),
    "MATRIX_MULTIPLY": ("op0", "op1"),
    "REDUCE": ("op", "axes", "keep_dims"),
    "POOLING": ("pre_padding", "post_padding", "padding_mode"),
    "SHUFFLE": ("first_transpose", "reshape_dims", "second_transpose", "zero_is_placeholder"),
    "SLICE": ("start", "shape", "stride", "mode"),
    "TRIP_LIMIT": ("kind",),
    "UNARY": ("op",),
}
_LOOPS = ("ITERATOR", "LOOP_OUTPUT", "RECURRENCE", "TRIP_LIMIT")
_BRANCHES = ("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT")
_DTYPES = {"FLOAT": np.float32, "HALF": np.float16, "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_}


@accept
@dataclass(frozen=True)
class Layer:
    """A layer: its kind, the names of its tensors ("" where an input is left out), its properties as plain data, and
    the loop, conditional or attention that it belongs to."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: dict[str, Any]
    group: str = ""


@accept
@dataclass
class Network:
    """An imported network. ``inputs`` and ``outputs``: name -> shape; ``log`` are the parser's warnings."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    error: str = ""
    log: tuple[str, ...] = ()

    def of_kind(self, kind: str) -> list[Layer]:
        return [layer for layer in self.layers if layer.kind == kind]

    def run(self, **feed: Array) -> dict[str, Array]:
        """What the network computes. Rows of a loop's output that nothing defines are NaN, or the type's least."""
        assert not self.error, self.error
        return {name: _Run(self, feed).value(name) for name in self.outputs}


def read(path: str) -> Network:
    """Import a model file by TensorRT-RTX."""
    trt = load("tensorrt-rtx")
    log, ear = logger_of(trt)
    ear.clear()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    found = Network()
    if not parser.parse_from_file(path):
        found.error = (
            "; ".join(str(parser.get_error(i).desc()) for i in range(parser.num_errors)) or "refused"
        )
    else:
        found.inputs = {t.name: _shape(t) for t in map(network.get_input, range(network.num_inputs))}
        found.outputs = {t.name: _shape(t) for t in map(network.get_output, range(network.num_outputs))}
        found.layers = [_layer(trt, network.get_layer(i)) for i in range(network.num_layers)]
    found.log = tuple(message.text for message in ear.messages)
    return found


def reading(worker: Worker, model: ModelProto, folder: Path) -> Network:
    """``read`` in the sandbox, of a model that is written into ``folder``."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    outcome = worker.call("support.trt_reading:read", timeout=PATIENCE, path=str(path))
    assert outcome.ok, outcome.message
    network: Network = outcome.value
    return network


def _layer(trt: Any, layer: Any) -> Layer:
    kind = layer.type.name  # after the cast below some kinds have a property of that name
    tensors = [layer.get_input(i) for i in range(layer.num_inputs)]
    name = _CLASSES.get(kind) or "".join(word.capitalize() for word in kind.split("_"))
    if hasattr(trt, f"I{name}Layer"):
        layer.__class__ = getattr(trt, f"I{name}Layer")
    return Layer(
        kind,
        tuple("" if tensor is None else tensor.name for tensor in tensors),
        tuple(layer.get_output(i).name for i in range(layer.num_outputs)),
        {key: _plain(getattr(layer, key)) for key in _PROPERTIES.get(kind, ())},
        layer.loop.name if kind in _LOOPS else layer.conditional.name if kind in _BRANCHES else "",
    )


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _plain(value: Any) -> Any:
    """Enumerations by name, attention by what restricts it, everything that has a length as a list or an array."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, np.ndarray):
        return np.array(value)
    if hasattr(value, "causal_kind"):
        return {"causal": value.causal_kind.name, "mask": value.mask is not None}
    if hasattr(value, "name"):
        return value.name
    try:
        return [int(one) for one in value]
    except (TypeError, ValueError):  # dimensions that only a tensor says
        return None


_TWO = {
    "SUM": np.add, "SUB": np.subtract, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum,
    "GREATER": np.greater, "LESS": np.less, "EQUAL": np.equal, "AND": np.logical_and, "OR": np.logical_or,
    "XOR": np.logical_xor, "FLOOR_DIV": np.floor_divide, "POW": np.power,
    "DIV": lambda a, b: np.trunc(a / b).astype(a.dtype) if a.dtype.kind == "i" else a / b,
}  # fmt: skip
_ONE = {"NOT": np.logical_not, "NEG": np.negative, "ABS": np.abs, "SQRT": np.sqrt, "RECIP": lambda x: 1 / x}
_REDUCTIONS = {"MAX": np.max, "MIN": np.min, "SUM": np.sum, "PROD": np.prod}
_ACTIVATIONS = {
    "TANH": np.tanh,
    "SIGMOID": lambda x: 1 / (1 + np.exp(-x)),
    "RELU": lambda x: np.maximum(x, 0),
}


class _Run:
    """One execution: values by name, and for the inside of a loop those of one iteration."""

    def __init__(self, network: Network, feed: dict[str, Array]) -> None:
        self.made = {name: layer for layer in network.layers for name in layer.outputs}
        self.groups: dict[str, list[Layer]] = {}
        for layer in network.layers:
            if layer.group:
                self.groups.setdefault(layer.group, []).append(layer)
        self.known = dict(feed)

    def value(self, name: str, local: dict[str, Array] | None = None) -> Array:
        for known in (local, self.known):
            if known is not None and name in known:
                return known[name]
        layer = self.made[name]
        if layer.kind == "LOOP_OUTPUT":
            self._loop(layer.group)
            return self.known[name]
        if layer.kind == "CONDITIONAL_OUTPUT":
            [condition] = (one.inputs[0] for one in self.groups[layer.group] if one.kind == "CONDITION")
            return self.value(layer.inputs[0 if self.value(condition, local) else 1], local)
        inputs = [None if not one else self.value(one, local) for one in layer.inputs]
        result = getattr(self, f"_{layer.kind.lower()}")(layer.values, inputs)
        (self.known if local is None else local)[name] = result
        return np.asarray(result)

    def _loop(self, name: str) -> None:
        """Run a loop to its end and note all its outputs."""
        layers = self.groups[name]
        limits = {layer.values["kind"]: layer.inputs[0] for layer in layers if layer.kind == "TRIP_LIMIT"}
        states = [layer for layer in layers if layer.kind == "RECURRENCE"]
        local = {layer.outputs[0]: self.value(layer.inputs[0]) for layer in states}
        outputs = [layer for layer in layers if layer.kind == "LOOP_OUTPUT"]
        rows: dict[str, list[Array]] = {layer.outputs[0]: [] for layer in outputs}
        for number in itertools.count() if "COUNT" not in limits else range(int(self.value(limits["COUNT"]))):
            for layer in layers:
                if layer.kind == "ITERATOR":
                    data, axis = self.value(layer.inputs[0]), layer.values["axis"]
                    place = data.shape[axis] - 1 - number if layer.values["reverse"] else number
                    local[layer.outputs[0]] = np.take(data, place, axis)
            inner = dict(local)
            if "WHILE" in limits and not self.value(limits["WHILE"], inner):
                break
            for layer in outputs:
                if layer.values["kind"] != "LAST_VALUE":
                    rows[layer.outputs[0]].append(self.value(layer.inputs[0], inner))
            local.update({layer.outputs[0]: self.value(layer.inputs[1], inner) for layer in states})
        for layer in outputs:
            if layer.values["kind"] == "LAST_VALUE":
                self.known[layer.outputs[0]] = self.value(layer.inputs[0], dict(local))
            else:
                stacked = rows[layer.outputs[0]]
                length = int(self.value(layer.inputs[1]))
                junk = np.full_like(stacked[0], np.nan)
                stacked += [junk] * (length - len(stacked))
                if layer.values["kind"] == "REVERSE":
                    stacked.reverse()
                self.known[layer.outputs[0]] = np.stack(stacked, layer.values["axis"])

    # One method a kind: properties, inputs.

    def _constant(self, p: dict[str, Any], _: list[Any]) -> Array:
        return np.asarray(p["weights"]).reshape(p["shape"])

    def _cast(self, p: dict[str, Any], i: list[Any]) -> Array:
        return np.asarray(i[0]).astype(_DTYPES[p["to_type"]])

    def _identity(self, p: dict[str, Any], i: list[Any]) -> Array:
        return np.asarray(i[0])

    _conditional_input = _attention_output = _identity

    def _attention_input(self, p: dict[str, Any], i: list[Any]) -> Array:
        scores = np.matmul(i[0], np.swapaxes(i[1], -1, -2))
        if p["attention"]["causal"] == "UPPER_LEFT":
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        else:
            assert p["attention"]["causal"] == "NONE"
        if p["attention"]["mask"]:
            scores = np.where(i[3], scores, -np.inf) if i[3].dtype == bool else scores + i[3]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(np.matmul(weights / weights.sum(-1, keepdims=True), i[2]))

    def _reduce(self, p: dict[str, Any], i: list[Any]) -> Array:
        axes = tuple(axis for axis in range(i[0].ndim) if p["axes"] >> axis & 1)
        return np.asarray(_REDUCTIONS[p["op"]](i[0], axis=axes, keepdims=p["keep_dims"]))

    def _elementwise(self, p: dict[str, Any], i: list[Any]) -> Array:
        return np.asarray(_TWO[p["op"]](*i))

    def _unary(self, p: dict[str, Any], i: list[Any]) -> Array:
        return np.asarray(_ONE[p["op"]](i[0]))

    def _activation(self, p: dict[str, Any], i: list[Any]) -> Array:
        return np.asarray(_ACTIVATIONS[p["type"]](i[0]))

    def _select(self, p: dict[str, Any], i: list[Any]) -> Array:
        return np.where(*i)

    def _shape(self, p: dict[str, Any], i: list[Any]) -> Array:
        return np.array(i[0].shape, dtype=np.int64)

    def _concatenation(self, p: dict[str, Any], i: list[Any]) -> Array:
        return np.concatenate(i, p["axis"])

    def _gather(self, p: dict[str, Any], i: list[Any]) -> Array:
        assert p["mode"] == "DEFAULT"
        return np.take(i[0], i[1], p["axis"])

    def _unsqueeze(self, p: dict[str, Any], i: list[Any]) -> Array:
        return np.expand_dims(i[0], tuple(int(one) for one in i[1]))

    def _squeeze(self, p: dict[str, Any], i: list[Any]) -> Array:
        return np.squeeze(i[0], None if len(i) < 2 else tuple(int(one) for one in i[1]))

    def _matrix_multiply(self, p: dict[str, Any], i: list[Any]) -> Array:
        sides = [
            np.swapaxes(side, -1, -2) if op == "TRANSPOSE" else side
            for side, op in zip(i, (p["op0"], p["op1"]), strict=True)
        ]
        return np.asarray(np.matmul(*sides))

    def _fill(self, p: dict[str, Any], i: list[Any]) -> Array:
        assert p["operation"] == "LINSPACE"
        shape = [int(one) for one in (i[0] if i and i[0] is not None else p["shape"])]
        alpha, beta = (i[1], i[2]) if len(i) > 2 else (p["alpha"], [p["beta"]])
        steps = np.atleast_1d(beta)
        places = np.indices(shape)
        return np.asarray(alpha + sum(places[axis] * step for axis, step in enumerate(steps))).astype(
            steps.dtype
        )

    def _shuffle(self, p: dict[str, Any], i: list[Any]) -> Array:
        data = np.transpose(i[0], p["first_transpose"][: i[0].ndim])
        dims = [int(one) for one in i[1]] if len(i) > 1 else p["reshape_dims"]
        if dims is not None:
            zeros = p["zero_is_placeholder"]
            data = data.reshape([data.shape[k] if d == 0 and zeros else d for k, d in enumerate(dims)])
        return np.transpose(data, p["second_transpose"][: data.ndim])

    def _slice(self, p: dict[str, Any], i: list[Any]) -> Array:
        given = [*i, *[None] * 5]
        start, size, stride = (
            p[key] if value is None else [int(one) for one in value]
            for key, value in zip(("start", "shape", "stride"), given[1:4], strict=True)
        )
        data = given[0]
        for axis, (begin, count, step) in enumerate(zip(start, size, stride, strict=True)):
            places = begin + np.arange(count) * step
            if not data.shape[axis]:
                data = np.zeros_like(data, shape=[1 if k == axis else n for k, n in enumerate(data.shape)])
                places = np.full(count, -1)  # outside, all of them
            taken = np.take(data, np.clip(places, 0, data.shape[axis] - 1), axis)
            outside = ((places < 0) | (places >= data.shape[axis])).reshape(
                [-1 if k == axis else 1 for k in range(data.ndim)]
            )
            assert p["mode"] == "FILL" or not outside.any()
            data = np.where(outside, 0 if given[4] is None else given[4], taken).astype(data.dtype)
        return np.asarray(data)

    def _deconvolution(self, p: dict[str, Any], i: list[Any]) -> Array:
        data, count = i[0], len(p["stride_nd"])
        groups, maps, kernel_size = p["num_groups"], p["num_output_maps"], p["kernel_size_nd"]
        kernel = i[1] if len(i) > 1 and i[1] is not None else p["kernel"]
        kernel = np.asarray(kernel).reshape(data.shape[1], maps // groups, *kernel_size)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel_size, p["dilation_nd"], strict=True)]
        size = [(n - 1) * s + w for n, s, w in zip(data.shape[2:], p["stride_nd"], spans, strict=True)]
        full = np.zeros((data.shape[0], maps, *size), data.dtype)
        inside, outside = data.shape[1] // groups, maps // groups
        for group, tap in itertools.product(range(groups), np.ndindex(*kernel_size)):
            part = data[:, group * inside : (group + 1) * inside]
            weight = kernel[(slice(group * inside, (group + 1) * inside), slice(None), *tap)]
            where = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(tap, p["dilation_nd"], data.shape[2:], p["stride_nd"], strict=True)
            )
            target = (slice(None), slice(group * outside, (group + 1) * outside), *where)
            full[target] += np.einsum("ni...,io->no...", part, weight)
        bias = i[2] if len(i) > 2 and i[2] is not None else p["bias"]
        if np.size(bias):
            full += np.asarray(bias).reshape(1, -1, *[1] * count)
        before, after = p["pre_padding"], p["post_padding"]
        if p["padding_mode"].startswith("SAME"):
            cut = [max(0, w - s) for w, s in zip(spans, p["stride_nd"], strict=True)]
            less = [c // 2 for c in cut]
            more = [c - n for c, n in zip(cut, less, strict=True)]
            before, after = (less, more) if p["padding_mode"] == "SAME_UPPER" else (more, less)
        kept = tuple(slice(b, n - a) for b, a, n in zip(before, after, size, strict=True))
        return np.asarray(full[(slice(None), slice(None), *kept)])
