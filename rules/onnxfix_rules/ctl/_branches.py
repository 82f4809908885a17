"""Shared by the rules about If: what its branches' sizes mean to TensorRT's compiler."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfix.rule import Dim, Model, equal, target_of


def share_a_size(first: Sequence[Dim], second: Sequence[Dim]) -> bool:
    """Whether two shapes of one rank have a dynamic size in common, and others that are not certainly equal."""
    same = [equal(d, e).yes for d, e in zip(first, second, strict=True)]
    return not all(same) and any(d.value is None for d, yes in zip(first, same, strict=True) if yes)


def of_compiler(model: Model) -> bool:
    """Whether the target compiles branches as TensorRT-RTX does, where this was measured."""
    target = target_of(model)
    return target.package == "tensorrt-rtx" or target.oldest >= (11,)
