"""A stand-in for the few functions of PyTorch that an export needs, over numpy.

A ``Module`` computes by ``forward`` and exports as the ONNX text in ``onnx``, which may say something else: that is a
wrong export. ``Exports`` records what it was called with.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.models import model, write


class Tensor:
    is_sparse = is_quantized = False
    device = "cpu"

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)

    def numpy(self) -> Any:
        return self.array

    def clone(self) -> Tensor:
        return Tensor(self.array.copy())

    def to(self, device: str, dtype: Any) -> Tensor:
        return Tensor(self.array.astype(dtype))

    def copy_(self, other: Tensor) -> None:
        self.array[...] = other.array

    def numel(self) -> int:
        return int(self.array.size)

    def element_size(self) -> int:
        return int(self.array.itemsize)

    def _same(self) -> Tensor:
        return self

    detach = cpu = contiguous = resolve_conj = resolve_neg = _same


class Module:
    """``call`` computes, ``text`` is the ONNX model that the exporter makes of it."""

    def __init__(self, call: Callable[..., Any], text: str, *parts: Module) -> None:
        self.call, self.text, self.parts = call, text, parts
        self.training = True
        self.state = Tensor(np.zeros(2, np.float32))
        self.seen: list[bool] = []

    def forward(self, x: Any, *more: Any, **named: Any) -> Any:
        self.seen.append(self.training)
        return self.call(x, *more, **named)

    __call__ = forward

    def modules(self) -> Iterator[Module]:
        yield self
        for part in self.parts:
            yield from part.modules()

    def buffers(self) -> Iterator[Tensor]:
        yield self.state

    def parameters(self) -> Iterator[Tensor]:
        yield Tensor(np.zeros(4, np.float32))

    def eval(self) -> None:
        for part in self.modules():
            part.training = False


class ONNXProgram:
    def __init__(self, text: str, exported_program: Any) -> None:
        self.model_proto, self.exported_program = model(text, 18), exported_program

    def save(self, path: str) -> None:
        write(Path(path), self.model_proto)


ONNXProgram.__module__ = "torch.onnx"


def _flatten(tree: Any) -> tuple[list[Any], Any]:
    if isinstance(tree, (tuple, list)):
        parts = [_flatten(one) for one in tree]
        return [leaf for leaves, _ in parts for leaf in leaves], (type(tree), [spec for _, spec in parts])
    if isinstance(tree, dict):
        parts = [_flatten(one) for one in tree.values()]
        return [leaf for leaves, _ in parts for leaf in leaves], (list(tree), [spec for _, spec in parts])
    return [tree], None


def _unflatten(leaves: list[Any], spec: Any) -> Any:
    def built(spec: Any) -> Any:
        if spec is None:
            return rest.pop(0)
        kind, parts = spec
        values = [built(one) for one in parts]
        return dict(zip(kind, values, strict=True)) if isinstance(kind, list) else kind(values)

    rest = list(leaves)
    return built(spec)


@contextlib.contextmanager
def _nothing(**_: Any) -> Iterator[None]:
    yield


def install(patch: pytest.MonkeyPatch) -> types.ModuleType:
    """Put the stand-in where ``import torch`` finds it; ``torch.calls`` are those of its exporter."""
    torch: Any = types.ModuleType("torch")
    onnx: Any = types.ModuleType("torch.onnx")
    tree: Any = types.ModuleType("torch.utils._pytree")

    def export(model: Any, args: Any = (), f: Any = None, *, kwargs: Any = None, dynamo: bool = True,
               external_data: bool = True, dynamic_shapes: Any = None, verbose: Any = None, training: Any = None,
               ) -> None:  # fmt: skip
        torch.calls.append({"dynamo": dynamo, "external_data": external_data, "verbose": verbose})
        if not model.text:
            raise RuntimeError("advice\non several lines") from ValueError(
                "\x1b[96mno such operator\x1b[0m\nmore"
            )
        write(Path(f), model.text, 18)

    torch.__version__, torch.calls, torch.seeds = "9.9.0+fake", [], []
    torch.Tensor, torch.onnx, onnx.export = Tensor, onnx, export
    torch.nn = types.SimpleNamespace(Module=Module)
    torch.from_numpy, torch.no_grad = Tensor, _nothing
    torch.manual_seed = torch.seeds.append
    torch.equal = lambda a, b: np.array_equal(a.array, b.array)
    torch.random = types.SimpleNamespace(fork_rng=_nothing)
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: False, device_count=lambda: 0)
    tree.tree_flatten, tree.tree_unflatten = _flatten, _unflatten
    tree.tree_leaves = lambda value: _flatten(value)[0]
    for name, module in (("torch", torch), ("torch.onnx", onnx), ("torch.utils._pytree", tree)):
        patch.setitem(sys.modules, name, module)
    patch.setitem(sys.modules, "torch.utils", types.ModuleType("torch.utils"))
    return torch  # type: ignore[no-any-return]
