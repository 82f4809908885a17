"""A decoder as exporters write one, with its weights in a file of their own, which is as large as one wants."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

LAYERS, WIDTH, HEADS, WIDE, WORDS = 64, 2048, 16, 8192, 32000
"""Layers, width, heads, width of the feed-forward part, vocabulary: 4.4 billion weights."""
HALF, SINGLE, DOUBLE, LONG = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64
ALIGNMENT = 4096
BLOCK = 1 << 20
"""Bytes of a weight that are written at once."""


class Decoder:
    """Builds the model; ``data`` is the file of its weights, which is empty but for a few bytes of each. ``elem`` is
    the element type."""

    def __init__(self, data: Path, layers: int, elem: int = HALF) -> None:
        self.data, self.layers, self.elem, self.end, self.count = data, layers, elem, 0, 0
        self.model = ModelProto(ir_version=10)
        self.model.opset_import.add(version=21)
        self.graph = self.model.graph
        self.graph.name = "decoder"

    def build(self) -> ModelProto:
        """The model, whose data file is written."""
        graph = self.graph
        graph.input.append(helper.make_tensor_value_info("ids", LONG, ["batch", "tokens"]))
        graph.output.append(helper.make_tensor_value_info("logits", self.elem, ["batch", "tokens", WORDS]))
        x = self.node("Gather", self.weight(WORDS, WIDTH), "ids")
        for _ in range(self.layers):
            x = self.layer(x)
        self.node("MatMul", self.normalize(x), self.weight(WIDTH, WORDS), output="logits")
        os.truncate(self.data, self.end)
        return self.model

    @property
    def dtype(self) -> str:
        return str(helper.tensor_dtype_to_np_dtype(self.elem))

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def node(self, op_type: str, *inputs: str, output: str = "", **attributes: object) -> str:
        """Append a node with one output."""
        output = output or self.name()
        self.graph.node.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(self, value: object, dtype: str = "int64") -> str:
        """Add a small initializer."""
        name = self.name()
        self.graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """Add a weight in the data file, of which no two are the same."""
        name, length = self.name(), int(np.prod(shape)) * np.dtype(self.dtype).itemsize
        tensor = self.graph.initializer.add(name=name, data_type=self.elem, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.data.name), ("offset", self.end), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        with self.data.open("r+b" if self.data.exists() else "wb") as file:
            for start in range(0, length, BLOCK):
                file.seek(self.end + start)
                file.write(self.block(shape, start, min(BLOCK, length - start)))
        self.end += length + -length % ALIGNMENT
        return name

    def block(self, shape: Sequence[int], start: int, length: int) -> bytes:
        """The first bytes of a block of a weight, ``length`` bytes or fewer."""
        return np.array([self.count, start // BLOCK], np.uint16).tobytes()

    def normalize(self, x: str) -> str:
        """An RMSNorm in single precision, of which the Casts take a step too many."""
        wide = self.node("Cast", self.node("Cast", x, to=DOUBLE), to=SINGLE)
        mean = self.node(
            "ReduceMean", self.node("Pow", wide, self.constant(2, "float32")), self.constant([-1])
        )
        root = self.node("Sqrt", self.node("Add", mean, self.constant(1e-5, "float32")))
        back = self.node("Cast", self.node("Div", wide, root), to=self.elem)
        return self.node("Mul", back, self.weight(WIDTH))

    def reshape(self, x: str, *sizes: int) -> str:
        """A Reshape to batch, tokens and some sizes, which are computed as exporters do."""
        shape, parts = self.node("Shape", x), []
        for axis in (0, 1):
            size = self.node("Gather", shape, self.constant(axis), axis=0)
            parts.append(self.node("Unsqueeze", size, self.constant([0])))
        parts += [self.constant([size]) for size in sizes]
        return self.node("Reshape", x, self.node("Concat", *parts, axis=0))

    def heads(self, x: str) -> str:
        """A projection, in heads."""
        y = self.node("MatMul", x, self.weight(WIDTH, WIDTH))
        y = self.node("Add", self.node("Identity", y), self.weight(WIDTH))
        return self.node("Transpose", self.reshape(y, HEADS, WIDTH // HEADS), perm=[0, 2, 1, 3])

    def layer(self, x: str) -> str:
        """Attention and a feed-forward part."""
        y = self.normalize(x)
        query, key, value = self.heads(y), self.heads(y), self.heads(y)
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.node("Mul", scores, self.constant((WIDTH // HEADS) ** -0.5, self.dtype))
        weights = self.node("Softmax", self.node("Cast", scores, to=SINGLE), axis=-1)
        mixed = self.node("MatMul", self.node("Cast", weights, to=self.elem), value)
        mixed = self.reshape(self.node("Transpose", mixed, perm=[0, 2, 1, 3]), WIDTH)
        x = self.node("Add", x, self.node("MatMul", mixed, self.weight(WIDTH, WIDTH)))
        y = self.normalize(x)
        gate = self.node("MatMul", y, self.weight(WIDTH, WIDE))
        gate = self.node("Mul", gate, self.node("Sigmoid", self.node("Cast", gate, to=self.elem)))
        up = self.node("Mul", gate, self.node("MatMul", y, self.weight(WIDTH, WIDE)))
        return self.node("Add", x, self.node("MatMul", up, self.weight(WIDE, WIDTH)))
