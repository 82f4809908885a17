"""``--fix-dim``, ``--fix-input`` and ``--static``, resolved against a model: sizes and values as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_SHOWN = 8
"""Elements of a value up to which it is shown in full."""


@dataclass(frozen=True, eq=False)
class ResolvedSpecialization:
    """A specialization of one model.

    ``sizes`` maps symbols to numbers, by the names that ``verification.signature`` uses (and ``input.rank`` for an
    input that declares none); ``values`` maps inputs to the arrays that they become. With ``keep``, those inputs stay
    in the interface and nothing reads them. ``outputs`` are the sizes that follow for dimensions that outputs leave
    open, by output, with None where none does: the specialized model declares them.
    """

    sizes: Mapping[str, int]
    values: Mapping[str, np.ndarray[Any, Any]]
    keep: bool = False
    outputs: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)

    @property
    def without(self) -> tuple[str, ...]:
        """The inputs that the specialized model does not have."""
        return () if self.keep else tuple(self.values)

    def output_size(self, name: str, axis: int) -> int | None:
        """The size that follows for a dimension of an output; None where none does."""
        sizes = self.outputs.get(name, ())
        return sizes[axis] if axis < len(sizes) else None

    @property
    def exact(self) -> bool:
        """Whether a backend must compute the same bits: a constant of floats may be packed and summed another way."""
        return all(value.dtype.kind in "iubOUS" for value in self.values.values())

    @property
    def words(self) -> str:
        """For people: ``batch = 1, sr = 16000``."""
        sizes = [f"{name} = {size}" for name, size in self.sizes.items()]
        return ", ".join([*sizes, *(f"{name} = {shown(value)}" for name, value in self.values.items())])


def shown(value: np.ndarray[Any, Any]) -> str:
    """A value in a few characters: itself where it is short, else its type and shape."""
    if value.size > _SHOWN:
        return f"{value.dtype.name}{list(value.shape)}"
    if value.dtype.kind in "OUS":
        return repr(value.tolist())
    return str(value.tolist()).replace("True", "true").replace("False", "false")
