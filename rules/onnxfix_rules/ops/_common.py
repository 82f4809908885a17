"""What the rules about operators share: which nodes TensorRT's parser looks at, and for which target."""

from __future__ import annotations

from onnxfix.rule import DEFAULT, Model, Target, imported, imported_nodes

__all__ = ["imported", "imported_nodes", "target_of"]


def target_of(model: Model) -> Target:
    """The target that the model is meant for."""
    target: Target | None = model.target
    return DEFAULT if target is None else target
