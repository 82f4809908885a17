"""Export small models of each kind that a rule repairs: one kind a function, random weights, a few kilobytes each.

    pip install "torch==2.13.0" timm onnxscript onnxruntime     (an environment of its own; no GPU, no download)
    python benchmarks/exports/kinds.py FOLDER [NAME...]

The name of a model says kind, producer and operator set: ``legacy`` is PyTorch's TorchScript exporter, ``dynamo`` its
torch.export, ``ort`` ONNX Runtime's quantization tools on a legacy export. ``fixtures/kinds`` holds the results, and
``tests/rules/test_exports_of_kinds.py`` says how each is repaired.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime.quantization as quantization
import timm.layers
import torch
import torch.nn.functional as F
from onnx import TensorProto
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from torch import Tensor, nn

from exports.make import BATCH, TEXT, Axes, Built, export

STATIC: Axes = {}
LONG = 70_000
"""Keys of an attention, and pixels of an image, whose exponentials half precision cannot sum."""


class Of(nn.Module):
    """A function of layers and tensors as a module."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*self.layers, *inputs)


def of(
    function: Callable[..., Any], *layers: nn.Module, out: Axes = BATCH, half: bool = False, **inputs: Any
) -> Built:
    """What is exported: ``inputs`` with their dynamic axes; ``half``: in half precision."""
    model = Of(function, *layers).eval()
    if half:
        model = model.half()
        inputs = {
            name: (x.half() if x.is_floating_point() else x, axes) for name, (x, axes) in inputs.items()
        }
    return Built(model, inputs, {"y": out})


def rows(*shape: int, axes: Axes = BATCH) -> tuple[Tensor, Axes]:
    """Random numbers, with a dynamic batch."""
    return torch.randn(*shape), axes


def chosen(*shape: int, axes: Axes = BATCH) -> tuple[Tensor, Axes]:
    """A random mask."""
    return torch.rand(*shape) > 0.5, axes


def pixels(*shape: int) -> tuple[Tensor, Axes]:
    """Images of uint8."""
    return torch.randint(0, 256, (2, *shape), dtype=torch.uint8), BATCH


def linear(size: int = 8) -> nn.Linear:
    return nn.Linear(8, size)


def dense(
    function: Callable[..., Any],
    count: int = 1,
    axes: Axes = BATCH,
    shape: tuple[int, ...] = (2, 8),
    **options: Any,
) -> Built:
    """A function of ``count`` linear layers and rows of 8."""
    return of(function, *(linear() for _ in range(count)), out=axes, x=rows(*shape, axes=axes), **options)


def images(
    function: Callable[..., Any],
    *layers: nn.Module,
    axes: Axes = BATCH,
    shape: tuple[int, ...] = (2, 3, 8, 8),
    **options: Any,
) -> Built:
    """A function of layers and images."""
    return of(function, *layers, out=axes, x=rows(*shape, axes=axes), **options)


def _relu(layer: nn.Module, x: Tensor) -> Any:
    return layer(x).relu()


def _perceptron(a: nn.Module, b: nn.Module, x: Tensor) -> Any:
    return b(a(x).relu())


def _ensemble(a: nn.Module, b: nn.Module, c: nn.Module, x: Tensor) -> Tensor:
    """A Mean by name: PyTorch itself writes Add and Div, or ReduceMean."""
    parts = (a(x), b(x), c(x))
    mean = torch.onnx.ops.symbolic("Mean", parts, dtype=parts[0].dtype, shape=parts[0].shape, version=1)
    return mean.sigmoid()


def _of_bfloat16(built: Built) -> Built:
    inputs = {name: (x.bfloat16(), axes) for name, (x, axes) in built.inputs.items()}
    return Built(built.model.bfloat16(), inputs, built.outputs)


class Block(nn.Module):
    """Self-attention of four heads, whose keys and values have ``groups``."""

    def __init__(self, groups: int = 4, causal: bool = False) -> None:
        super().__init__()
        self.groups, self.causal = groups, causal
        self.norm, self.q, self.o = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.k, self.v = nn.Linear(16, groups * 4), nn.Linear(16, groups * 4)

    def forward(self, x: Tensor, mask: Tensor | None = None, *past: Tensor) -> Any:
        n = self.norm(x)
        q, k, v = (layer(n).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if past:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal, enable_gqa=self.groups < 4)
        y = x + self.o(y.transpose(1, 2).flatten(2))
        return (y, k, v) if past else y


def attention(*inputs: Any, **options: Any) -> Built:
    names = dict(zip(("x", "mask", "past_k", "past_v"), inputs, strict=False))
    outputs = {"y": BATCH} | ({"k": BATCH, "v": BATCH} if len(names) > 2 else {})
    return Built(Of(lambda block, *given: block(*given), Block(**options)), names, outputs)


def _of_channels_last(conv: nn.Module, x: Tensor) -> Tensor:
    y = conv(x.permute(0, 3, 1, 2).float() / 255)
    return (y.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)


def _with_alpha(conv: nn.Module, x: Tensor, alpha: Tensor) -> Tensor:
    y = conv(torch.cat([x, alpha], 1).float().sub(127.5).div(127.5))
    return torch.cat([((y + 1) * 127.5).clamp(0, 255).byte(), alpha], 1)


def _assign(layer: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    y = layer(x).clone()
    y[mask] = -1.5
    return y.softmax(-1)


def _add(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x).clone()
    y[y > 0] += 2.0
    return y.tanh()


def _copy(layer: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    y = layer(x).clone()
    mask = y > 0
    y[mask] = z[mask]
    return y.tanh()


@torch.jit.script
def _by_size(x: Tensor) -> Tensor:
    if x.shape[0] > 2:
        y = x * 2.0
    else:
        y = x.exp()
    return y + 1.0


@torch.jit.script
def _by_flag(x: Tensor, flag: Tensor) -> Tensor:
    if bool(flag):
        y = x.relu()
    else:
        y = x.sigmoid() * x
    return y


@torch.jit.script
def _append(past: Tensor, x: Tensor, flag: Tensor) -> Tensor:
    if bool(flag):
        keys = torch.cat([past, x], 1)
    else:
        keys = x
    return keys


@torch.jit.script
def _pools(x: Tensor, weight: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for head in range(3):
        parts.append(F.conv2d(x[:, head], weight, stride=2))
    return torch.stack(parts, 1)


@torch.jit.script
def _cells(x: Tensor, weight: Tensor) -> Tensor:
    state = torch.zeros(x.shape[0], weight.shape[0])
    states: list[Tensor] = []
    for step in range(x.shape[1]):
        state = torch.tanh(x[:, step] + state @ weight)
        states.append(state)
    return torch.stack(states, 1)


def _thirds(a: nn.Module, x: Tensor) -> Tensor:
    first, second, third = torch.tensor_split(a(x), 3, dim=1)
    return first.sum(1) + second.sum(1) * third.amax(1)


def _class_token(a: nn.Module, x: Tensor) -> Tensor:
    first, rest = torch.tensor_split(a(x), (1,), dim=1)
    return torch.cat([rest.relu(), first], 1)


@torch.jit.script
def _while(x: Tensor) -> Tensor:
    i = 0
    while i < 4:
        x = x * 0.5 + x.sin()
        i += 1
    return x


class Experts(nn.Module):
    """One of two layers, or a layer with one of two activations, by torch.cond."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.last = linear(), linear(), torch.sin if shared else torch.relu
        self.b = self.a if shared else self.b

    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.a(x).relu(), lambda x: self.last(self.b(x)), (x,))


def bags(mode: str, axes: Axes = STATIC, number: Axes = STATIC) -> Built:
    ids, starts = (torch.randint(0, 10, (7,)), axes), (torch.tensor([0, 3, 5]), number)
    bag = nn.EmbeddingBag(10, 4, mode=mode)
    return of(lambda bag, ids, starts: bag(ids, starts), bag, out=number, ids=ids, starts=starts)


def _attend(q: nn.Module, k: nn.Module, x: Tensor, keys: Tensor) -> Tensor:
    return (q(x) @ k(keys).transpose(1, 2)).softmax(-1) @ keys


def _run(lstm: nn.Module, x: Tensor) -> Any:
    state = torch.zeros(1, len(x), 4)
    return lstm(x, (state, state))[0]


def _fold(conv: nn.Module, x: Tensor) -> Tensor:
    return F.fold(conv(F.unfold(x, 3, padding=1)), (8, 8), 3, padding=1)


def _conv(*sizes: int, **options: Any) -> nn.Module:
    return nn.Conv2d(*sizes, **options)


def _symbolic(op_type: str, inputs: tuple[Tensor | None, ...], shape: list[Any], **attributes: Any) -> Tensor:
    given = inputs[0]
    kind = torch.bfloat16 if given is not None and given.dtype == torch.bfloat16 else torch.float32
    return torch.onnx.ops.symbolic(op_type, inputs, attributes, dtype=kind, shape=shape, version=13)


def _clip(above: bool, layer: nn.Module, x: Tensor, *bound: Tensor) -> Tensor:
    """A Clip with one bound: PyTorch itself writes Min, Max, or a Clip with a constant minimum."""
    y = layer(x)
    end = bound[0] if bound else torch.tensor(0.5, dtype=y.dtype)
    return _symbolic("Clip", (y, None, end) if above else (y, end), [*y.shape]).exp()


def _squeeze(axes: tuple[int, ...], layer: nn.Module, x: Tensor) -> Tensor:
    return _symbolic("Squeeze", (layer(x), torch.tensor(axes)), [x.shape[0], 8]).relu()


class Four(nn.Module):
    """A layer with weights in NVFP4: blocks of 16, scales in float8."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "weights", torch.randint(0, 255, (32, 16), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        )
        self.register_buffer("scales", (torch.rand(32, 2) + 0.5).to(torch.float8_e4m3fn))
        self.register_buffer("scale", torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        scales = _symbolic("DequantizeLinear", (self.scales, self.scale), [32, 2])
        weights = _symbolic("DequantizeLinear", (self.weights, scales), [32, 32], axis=1, block_size=16)
        return x @ weights.T


class Eight(nn.Module):
    """A layer with weights in float8 and a scale for each block of 32: powers of two, for MXFP8."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.randn(32, 32).to(torch.float8_e4m3fn))
        self.register_buffer("scales", 2.0 ** torch.randint(-3, 3, (1, 32)))

    def forward(self, x: Tensor) -> Tensor:
        weights = _symbolic("DequantizeLinear", (self.weights, self.scales), [32, 32], axis=0, block_size=32)
        return x @ weights


def _of_blocks(layer: Callable[[], nn.Module], function: Callable[..., Any], count: int) -> Built:
    return of(function, *(layer() for _ in range(count)), x=rows(2, 32))


def _first(layer: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = layer(x)[0]
    return result


_BOTH = "legacy.op17 dynamo.op18"
_OLD = "legacy.op13 dynamo.op18"
_HALF, _FLAG = (torch.tensor(0.5), STATIC), (torch.tensor(True), STATIC)
_PAST = rows(2, 2, 5, 4, axes={0: "batch", 2: "past"})
KINDS: dict[str, tuple[str, Callable[[], Built]]] = {
    "mean_half": ("dynamo.op18", lambda: dense(_ensemble, 3, half=True)),
    "mean_bfloat16": ("dynamo.op20", lambda: _of_bfloat16(dense(_ensemble, 3))),
    "mean_half_broadcast": (
        "dynamo.op18",
        lambda: of(_ensemble, linear(), linear(), linear(1), half=True, x=rows(2, 8)),
    ),
    "clipped_above": ("dynamo.op18", lambda: _of_bfloat16(dense(partial(_clip, True)))),
    "clipped_above_by_input": ("dynamo.op20", lambda: _of_bfloat16(dense(partial(_clip, True), b=_HALF))),
    "clipped_below_by_input": ("dynamo.op18", lambda: _of_bfloat16(dense(partial(_clip, False), b=_HALF))),
    # One operator from operator set 23 on.
    "attention_causal": ("dynamo.op23", lambda: attention(rows(2, 6, 16, axes=TEXT), causal=True)),
    "attention_groups": ("dynamo.op24", lambda: attention(rows(2, 6, 16, axes=TEXT), groups=2)),
    "attention_mask": (
        "dynamo.op23",
        lambda: attention(
            rows(2, 6, 16, axes=TEXT), chosen(2, 1, 6, 6, axes={0: "batch", 2: "seq", 3: "seq"})
        ),
    ),
    "attention_cache": (
        "dynamo.op24",
        lambda: attention(
            rows(2, 1, 16), rows(2, 1, 1, 6, axes={0: "batch", 3: "total"}), _PAST, _PAST, groups=2
        ),
    ),
    # BatchNormalization in training mode, by which timm standardizes weights.
    "standardized": (
        "legacy.op13",
        lambda: images(_perceptron, timm.layers.StdConv2d(3, 4, 3), timm.layers.ScaledStdConv2d(4, 4, 3)),
    ),
    "standardized_half": (
        "legacy.op17",
        lambda: images(
            _perceptron,
            timm.layers.StdConv2d(3, 4, 3),
            timm.layers.StdConv2dSame(4, 4, 3, stride=2),
            half=True,
        ),
    ),
    "normalized_by_batch": (
        "legacy.op17",
        lambda: images(
            lambda c, x: F.batch_norm(c(x), None, None, training=True).sigmoid(), _conv(3, 4, 3), axes=STATIC
        ),
    ),
    "uint8_channels_last": (
        _OLD,
        lambda: of(_of_channels_last, _conv(3, 3, 3, padding=1), x=pixels(8, 8, 3)),
    ),
    "uint8_alpha": (
        "dynamo.op18",
        lambda: of(_with_alpha, _conv(4, 3, 3, padding=1), x=pixels(3, 8, 8), alpha=pixels(1, 8, 8)),
    ),
    "uint8_enlarged": (
        _BOTH,
        lambda: of(
            lambda c, x: c(F.interpolate(x, scale_factor=2, mode="nearest").float() / 255),
            _conv(3, 3, 1),
            x=pixels(3, 8, 8),
        ),
    ),
    "uint8_padded": (
        _BOTH,
        lambda: of(
            lambda c, x: c(F.pad(x, (1, 1, 1, 1)).flip(3).float() / 255), _conv(3, 3, 3), x=pixels(3, 8, 8)
        ),
    ),
    "mask_assign": (
        "dynamo.op18",
        lambda: of(_assign, linear(), x=rows(2, 5, 8, axes=TEXT), m=chosen(2, 5, 8, axes=TEXT), out=TEXT),
    ),
    "mask_assign_rows": (
        "dynamo.op18",
        lambda: of(_assign, linear(), x=rows(2, 5, 8, axes=TEXT), m=chosen(2, 5, axes=TEXT), out=TEXT),
    ),
    "mask_add": (_OLD, lambda: dense(_add)),
    "mask_copy": (_OLD, lambda: of(_copy, linear(), x=rows(2, 8), z=rows(2, 8))),
    "mask_scatter": (
        _BOTH,
        lambda: of(lambda a, x, z: a(x.masked_scatter(x > 0, z)), linear(), x=rows(2, 8), z=rows(2, 8)),
    ),
    "mask_mean": (
        _OLD,
        lambda: of(
            lambda a, x, z: (a(x) - z).abs()[z > 0].mean(), linear(), out=STATIC, x=rows(2, 8), z=rows(2, 8)
        ),
    ),
    "mask_sum": (
        _OLD,
        lambda: of(lambda a, x, m: a(x)[m].sum(), linear(), out=STATIC, x=rows(2, 8), m=chosen(2, 8)),
    ),
    "mask_sum_of_rows": (
        _OLD,
        lambda: of(lambda a, x, m: a(x)[m].sum(0), linear(), out=STATIC, x=rows(2, 5, 8), m=chosen(2, 5)),
    ),
    "mask_count": (_OLD, lambda: dense(lambda a, x: x * torch.nonzero(a(x) > 0).shape[0])),
    "mask_share": (
        _OLD,
        lambda: of(
            lambda a, x, m: a(x).sum() / torch.nonzero(m).size(0),
            linear(),
            out=STATIC,
            x=rows(2, 8),
            m=chosen(2, 8),
        ),
    ),
    "if_by_size": ("legacy.op13 legacy.op17", lambda: dense(lambda a, x: _by_size(a(x)))),
    "if_by_flag": ("legacy.op17", lambda: dense(lambda a, x, f: _by_flag(a(x), f), f=_FLAG)),
    "if_with_cache": (
        "legacy.op17",
        lambda: of(
            lambda a, b, x, past, f: a(x) @ _append(past, b(x), f).transpose(1, 2),
            linear(),
            linear(),
            out=STATIC,
            x=rows(2, 3, 8, axes=TEXT),
            past=rows(2, 5, 8, axes={0: "batch", 1: "past"}),
            f=_FLAG,
        ),
    ),
    "if_of_experts": ("dynamo.op18", lambda: of(lambda experts, x: experts(x), Experts(), x=rows(2, 8))),
    "if_of_activations": ("dynamo.op18", lambda: of(lambda one, x: one(x), Experts(True), x=rows(2, 8))),
    "loop_of_pools": (
        "legacy.op13 legacy.op17",
        lambda: images(lambda c, x: _pools(x, c.weight), _conv(4, 4, 2), shape=(2, 3, 4, 8, 8)),
    ),
    "loop_of_cells": (
        "legacy.op17",
        lambda: dense(lambda a, x: _cells(a(x), a.weight), 1, STATIC, (2, 6, 8)),
    ),
    "split_at_class_token": ("legacy.op17", lambda: dense(_class_token, 1, TEXT, (2, 7, 8))),
    "split_in_thirds": ("legacy.op17", lambda: of(_thirds, linear(), x=rows(2, 7, 8, axes=TEXT))),
    "loop_while": ("legacy.op17", lambda: dense(lambda a, x: _while(a(x)))),
    "bag_sum": (_BOTH, lambda: bags("sum")),
    "bag_mean": (_BOTH, lambda: bags("mean")),
    "bag_max": (_BOTH, lambda: bags("max")),
    "bag_dynamic": ("legacy.op17", lambda: bags("sum", {0: "ids"})),
    "bags_of_any_number": ("legacy.op17", lambda: bags("mean", {0: "ids"}, {0: "bags"})),
    "bag_mean_dynamic": ("dynamo.op18", lambda: bags("mean", {0: "ids"})),
    "softmax_of_keys": (
        _BOTH,
        lambda: of(
            _attend,
            nn.Linear(4, 4),
            nn.Linear(4, 4),
            out=STATIC,
            half=True,
            x=rows(1, 2, 4, axes=STATIC),
            keys=rows(1, LONG, 4, axes=STATIC),
        ),
    ),
    "softmax_of_pixels": (
        "legacy.op17",
        lambda: images(
            lambda c, x: c(x).flatten(2).softmax(-1).amax(-1),
            _conv(3, 2, 1),
            axes=STATIC,
            shape=(1, 3, 7, LONG // 7),
            half=True,
        ),
    ),
    # ``len`` is a number once the model is traced.
    "batch_expanded": (
        "legacy.op13 legacy.op17",
        lambda: of(
            lambda a, t, x: torch.cat([t.weight.expand(len(x), 1, 8), a(x)], 1),
            linear(),
            nn.Embedding(1, 8),
            x=rows(2, 5, 8),
        ),
    ),
    "batch_tiled": (
        "legacy.op17",
        lambda: of(
            lambda a, t, x: a(x) + t.weight.unsqueeze(0).repeat(len(x), 1, 1),
            linear(),
            nn.Embedding(5, 8),
            x=rows(2, 5, 8),
        ),
    ),
    "batch_of_states": ("legacy.op17", lambda: of(_run, nn.LSTM(8, 4, batch_first=True), x=rows(2, 5, 8))),
    "batch_viewed": (
        "legacy.op17",
        lambda: dense(lambda a, x: a(x).view(len(x), 5, 2, 4).transpose(1, 2), shape=(2, 5, 8)),
    ),
    "batch_of_pairs": (
        "legacy.op17",
        lambda: dense(lambda a, x: a(x).view(len(x), 10, 4).softmax(-1), shape=(2, 5, 8)),
    ),
    "batch_flattened": (
        "legacy.op13",
        lambda: of(lambda c, x: c(x).relu().reshape(len(x), -1).exp(), nn.Conv1d(5, 2, 3), x=rows(2, 5, 8)),
    ),
    "transposed_and_dilated": (
        _BOTH,
        lambda: images(_relu, nn.ConvTranspose2d(3, 2, 3, stride=2, dilation=2, padding=1, output_padding=1)),
    ),
    "transposed_in_groups": (
        "legacy.op17",
        lambda: images(
            _relu,
            nn.ConvTranspose2d(4, 4, 2, stride=(2, 1), dilation=(2, 3), groups=2),
            shape=(2, 4, 8, 8),
        ),
    ),
    "folded": (
        "legacy.op18 dynamo.op18",
        lambda: of(lambda c, x: F.fold(c(x), (8, 8), 2, stride=2), nn.Conv1d(12, 12, 1), x=rows(2, 12, 16)),
    ),
    "folded_with_overlap": ("legacy.op18 dynamo.op18", lambda: images(_fold, nn.Conv1d(27, 27, 1))),
    "antialiased": (
        "dynamo.op18",
        lambda: images(
            lambda c, x: F.interpolate(c(x), size=(5, 4), mode="bilinear", antialias=True), _conv(3, 3, 1)
        ),
    ),
    "antialiased_cubic": (
        "dynamo.op18",
        lambda: images(
            lambda c, x: F.interpolate(c(x), scale_factor=0.5, mode="bicubic", antialias=True), _conv(3, 3, 1)
        ),
    ),
    "max_pool_indices": (
        "legacy.op17 dynamo.op18",
        lambda: images(lambda c, x: F.max_pool2d(c(x), 3, 2, 1, return_indices=True)[1], _conv(3, 4, 3)),
    ),
    "scatter_add": (
        _BOTH,
        lambda: of(
            lambda a, x, i: torch.zeros_like(x).scatter_add(1, i, a(x)),
            linear(),
            x=rows(2, 8),
            i=(torch.randint(0, 8, (2, 8)), BATCH),
        ),
    ),
    "antialiased_up": (
        "dynamo.op18",
        lambda: images(
            lambda c, x: c(F.interpolate(x, scale_factor=(1.5, 0.75), mode="bilinear", antialias=True)),
            _conv(3, 3, 1),
        ),
    ),
    "relu_of_integers": (
        _BOTH,
        lambda: of(
            lambda e, x: e((x - 5).relu()),
            nn.Embedding(10, 4),
            x=(torch.randint(0, 10, (2, 3), dtype=torch.int32), BATCH),
        ),
    ),
    "matmul_of_integers": (
        _BOTH,
        lambda: of(
            lambda e, x: e((x @ x.transpose(1, 2)) % 10),
            nn.Embedding(10, 4),
            x=(torch.randint(0, 10, (2, 3, 4)), BATCH),
        ),
    ),
    "determinant": (
        _BOTH,
        lambda: of(lambda a, x: torch.linalg.det(a(x).unflatten(-1, (3, 3))), linear(9), x=rows(2, 8)),
    ),
    "determinant_of_gram": (
        "dynamo.op18",
        lambda: of(
            lambda a, x: torch.logdet(torch.eye(2) + (y := a(x).unflatten(-1, (2, 2))) @ y.transpose(1, 2)),
            linear(4),
            x=rows(2, 8),
        ),
    ),
    "sliced_by_scalars": (_BOTH, lambda: dense(lambda a, x: a(x)[:, 1:5].relu())),
    "sliced_from_the_end": (
        "dynamo.op20",
        lambda: dense(lambda a, x: torch.cat([a(x)[:, -3:], x[:, :-3]], 1)),
    ),
    "squeezed_twice": ("dynamo.op18", lambda: dense(partial(_squeeze, (1, 1)), shape=(2, 1, 8))),
    "squeezed_by_both_names": ("dynamo.op18", lambda: dense(partial(_squeeze, (1, -2)), shape=(2, 1, 8))),
    "squeezed_pair": ("dynamo.op20", lambda: dense(partial(_squeeze, (1, 2, -2)), shape=(2, 1, 1, 8))),
    **{
        name + more: (f"dynamo.op{opset}", partial(_of_blocks, layer, function, count))
        for name, layer, opset in (("nvfp4", Four, 23), ("mxfp8", Eight, 24))
        for more, function, count in (
            ("", lambda a, x: a(x), 1),
            ("_perceptron", _perceptron, 2),
            ("_residual", lambda a, x: x + a(x).sigmoid(), 1),
        )
    },
    "lstm_lower_case": (_BOTH, lambda: of(_first, nn.LSTM(8, 4), out=STATIC, x=rows(5, 2, 8, axes=STATIC))),
    "gru_lower_case": (
        "legacy.op13",
        lambda: of(_first, nn.GRU(8, 4), out=STATIC, x=rows(5, 2, 8, axes=STATIC)),
    ),
    "opset6_perceptron": ("legacy.op7", lambda: dense(_perceptron, 2, STATIC)),
    "opset6_softmax": (
        "legacy.op7",
        lambda: dense(lambda a, x: a(x).softmax(1) - x.mean(1, keepdim=True), 1, STATIC),
    ),
    "opset6_convolutions": (
        "legacy.op8",
        lambda: images(
            lambda a, b, x: b(a(x)).relu() * 2 + 1, _conv(3, 4, 3), nn.BatchNorm2d(4), axes=STATIC
        ),
    ),
    "untyped": ("dynamo.op18", lambda: dense(_relu)),
    "untyped_indices": ("legacy.op17", lambda: dense(lambda a, x: a(x).argmax(-1))),
    "untyped_mask": ("legacy.op13", lambda: dense(lambda a, x: a(x) > 0)),
    "declared_batch": ("dynamo.op18", lambda: dense(_perceptron, 2, STATIC)),
    "declared_sums": ("dynamo.op20", lambda: dense(lambda a, x: a(x).softmax(-1).sum(1), 1, STATIC)),
    "declared_images": (
        "dynamo.op20",
        lambda: images(
            lambda a, x: a(x).relu().mean((2, 3)), _conv(3, 2, 3), axes=STATIC, shape=(2, 3, 5, 5)
        ),
    ),
    "overloaded": ("dynamo.op18", lambda: dense(lambda a, x: a(x).relu().sigmoid())),
    "overloaded_twice": ("legacy.op17", lambda: dense(lambda a, b, x: b(a(x).relu().tanh()).relu(), 2)),
    "overloaded_in_if": ("legacy.op17", lambda: dense(lambda a, x: _by_size(a(x).relu()).sigmoid())),
}
"""Name -> (exporters and operator sets, what is exported)."""
ROWS: dict[str, tuple[Callable[[], Built], str, int]] = {
    f"{name}.{form}": (build, form.split(".op")[0], int(form.split(".op")[1]))
    for name, (forms, build) in KINDS.items()
    for form in forms.split()
}


# ONNX Runtime's quantization.
class Samples(quantization.CalibrationDataReader):
    """Three random inputs."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        draw = np.random.default_rng(0).standard_normal
        self.samples = iter([{"x": draw(shape).astype(np.float32)} for _ in range(3)])

    def get_next(self) -> Any:
        return next(self.samples, None)


def _of_gelu() -> tuple[nn.Module, Tensor]:
    layers = nn.Linear(32, 32, bias=False), nn.GELU(), nn.Linear(32, 32)
    return nn.Sequential(*layers), torch.randn(2, 5, 32)


def _of_relu() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)), torch.randn(2, 5, 16)


def _convolutions() -> tuple[nn.Module, Tensor]:
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 8)), torch.randn(2, 3, 16, 16)


def _few_bits(source: Path, target: Path, shape: tuple[int, ...], **options: Any) -> None:
    tool = MatMulNBitsQuantizer(onnx.load(source), block_size=16, **options)
    tool.process()
    onnx.save(tool.model.model, target)


def _static(source: Path, target: Path, shape: tuple[int, ...], **options: Any) -> None:
    quantization.quantize_static(str(source), str(target), Samples(shape), **options)


def _dynamic(source: Path, target: Path, shape: tuple[int, ...], **options: Any) -> None:
    quantization.quantize_dynamic(str(source), str(target), **options)


_SYMMETRIC = {"ActivationSymmetric": True}
Type, Format = quantization.QuantType, quantization.QuantFormat
QUANTIZED: dict[str, tuple[Callable[[], tuple[nn.Module, Tensor]], Callable[..., None]]] = {
    "few_bits_symmetric.ort.op17": (_of_gelu, partial(_few_bits, is_symmetric=True)),
    "few_bits_asymmetric.ort.op17": (_of_gelu, partial(_few_bits, is_symmetric=False)),
    "few_bits_of_8.ort.op17": (_of_gelu, partial(_few_bits, bits=8, is_symmetric=False)),
    "few_bits_as_qdq.ort.op21": (_of_gelu, partial(_few_bits, is_symmetric=False, quant_format=Format.QDQ)),
    "static_asymmetric.ort.op17": (_convolutions, partial(_static, activation_type=Type.QUInt8)),
    "static_symmetric.ort.op17": (
        _convolutions,
        partial(_static, activation_type=Type.QInt8, per_channel=True, extra_options=_SYMMETRIC),
    ),
    "static_operators.ort.op17": (_convolutions, partial(_static, quant_format=Format.QOperator)),
    "static_uint8_weights.ort.op17": (
        _of_gelu,
        partial(_static, activation_type=Type.QUInt8, weight_type=Type.QUInt8),
    ),
    "static_asymmetric_perceptron.ort.op17": (_of_relu, partial(_static, activation_type=Type.QUInt8)),
    "static_int8_asymmetric.ort.op17": (_convolutions, partial(_static, activation_type=Type.QInt8)),
    "static_symmetric.ort.op13": (
        _convolutions,
        partial(_static, activation_type=Type.QInt8, extra_options=_SYMMETRIC),
    ),
    "static_uint8_per_channel.ort.op17": (
        _convolutions,
        partial(_static, activation_type=Type.QUInt8, weight_type=Type.QUInt8, per_channel=True),
    ),
    "static_16_bits.ort.op21": (
        _of_relu,
        partial(_static, activation_type=Type.QInt8, weight_type=Type.QInt16, extra_options=_SYMMETRIC),
    ),
    "dynamic_per_channel.ort.op17": (_of_gelu, partial(_dynamic, per_channel=True)),
    "dynamic.ort.op17": (_of_gelu, _dynamic),
    "dynamic_convolutions.ort.op17": (_convolutions, _dynamic),
}
"""Name -> (what is quantized, how). The name says the operator set of the result."""


def _quantize(name: str, path: Path) -> None:
    build, quantize = QUANTIZED[name]
    opset = min(int(name.rpartition(".op")[2]), 20)  # ONNX Runtime's tools write 21 where they need it
    torch.manual_seed(0)
    model, example = build()
    axes = {0: "batch", 1: "seq"} if example.ndim == 3 else BATCH
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "float.onnx")
        export((lambda: Built(model.eval(), {"x": (example, axes)}, {"y": axes}), "legacy", opset), source)
        quantize(source, path, tuple(example.shape))


# What other tools make of an export.
def _reverse(model: onnx.ModelProto) -> None:
    """Nodes in no order, as quantizers append them."""
    nodes = [*model.graph.node][::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _scale_by_exponents(model: onnx.ModelProto) -> None:
    """Scales of type float8e8m0, which PyTorch 2.13 does not export."""
    for node in [node for node in model.graph.node if node.op_type == "DequantizeLinear"]:
        scales = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[1])
        exponents = onnx.numpy_helper.to_array(scales).astype(
            onnx.helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E8M0)
        )
        scales.CopyFrom(onnx.numpy_helper.from_array(exponents, scales.name))
        cast = onnx.helper.make_node(
            "Cast", [scales.name], [f"{node.output[0]}_scales"], to=TensorProto.FLOAT
        )
        node.input[1] = cast.output[0]
        model.graph.node.insert(0, cast)


def _make_scalars(model: onnx.ModelProto) -> None:
    """Starts, ends and axes of Slice as scalars, not vectors."""
    for node in model.graph.node:
        constants = [t for t in model.graph.initializer if node.op_type == "Slice" and t.name in node.input]
        made = [n for n in model.graph.node if node.op_type == "Slice" and n.output[0] in node.input[1:]]
        for tensor in (*constants, *(n.attribute[0].t for n in made if n.op_type == "Constant")):
            if tensor.dims == [1]:
                del tensor.dims[:]


def _lower(model: onnx.ModelProto) -> None:
    """Names of activations as other converters write them; PyTorch omits them."""
    for node in model.graph.node:
        if node.op_type in ("LSTM", "GRU"):
            names = ["sigmoid", "tanh", "tanh"][: 3 if node.op_type == "LSTM" else 2]
            node.attribute.append(onnx.helper.make_attribute("activations", names))


def _downgrade(model: onnx.ModelProto) -> None:
    """Operator set 6: the exporter has none below 7."""
    model.CopyFrom(onnx.version_converter.convert_version(model, 6))


def _forget_types(model: onnx.ModelProto) -> None:
    """Outputs without a type, as tools that cut graphs leave them."""
    for output in model.graph.output:
        output.ClearField("type")


def _double(model: onnx.ModelProto) -> None:
    """A batch of 4 in place of 2, where a script changes inputs and outputs and nothing else."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4


def _overload(model: onnx.ModelProto) -> None:
    """Activations as functions of one name, which differ by their overloads: no exporter writes overloads."""
    found = [node for graph in _graphs(model.graph) for node in graph.node]
    types = [
        name for name in ("Relu", "Sigmoid", "Tanh", "Exp") if any(node.op_type == name for node in found)
    ]
    for name in types:
        body = onnx.helper.make_node(name, ["x"], ["y"])
        opsets = [onnx.helper.make_opsetid("", model.opset_import[0].version)]
        overload = "" if name == types[0] else name.lower()
        model.functions.append(
            onnx.helper.make_function("layers", "Act", ["x"], ["y"], [body], opsets, overload=overload)
        )
    for node in found:
        if node.op_type in types:
            node.overload = "" if node.op_type == types[0] else node.op_type.lower()
            node.op_type, node.domain = "Act", "layers"
    model.opset_import.append(onnx.helper.make_opsetid("layers", 1))
    model.ir_version = max(model.ir_version, 10)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


CHANGES: dict[str, Callable[[onnx.ModelProto], None]] = {
    "nvfp4": _reverse,
    "mxfp8": _scale_by_exponents,
    "sliced": _make_scalars,
    "lstm_lower": _lower,
    "gru_lower": _lower,
    "opset6": _downgrade,
    "untyped": _forget_types,
    "declared": _double,
    "overloaded": _overload,
}
"""How a name begins -> what is done to the export."""


def _forget_places(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Remove what the exporter writes about where the source lies."""
    del graph.metadata_props[:]
    for value in graph.value_info:
        del value.metadata_props[:]
    for node in graph.node:
        del node.metadata_props[:]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _forget_places(attribute.g)


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or [*ROWS, *QUANTIZED]:
        path = folder / f"{name}.onnx"
        if name in QUANTIZED:
            _quantize(name, path)
        else:
            export(ROWS[name], path)
        model = onnx.load(path)
        for graph in (model.graph, *model.functions):
            _forget_places(graph)
        for start, change in CHANGES.items():
            if name.startswith(start):
                change(model)
        onnx.save(model, path)
        print(f"{name}: {path.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
