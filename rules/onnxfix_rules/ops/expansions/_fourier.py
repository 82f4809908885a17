"""Discrete Fourier transforms as constant matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

LIMIT = 1 << 22
"""Maximum elements of a matrix."""


@dataclass(frozen=True)
class Transform:
    """A DFT along an axis: of ``length`` elements of ``parts`` components (1 for real, 2 for complex), padded with
    zeros or cut to ``points``."""

    length: int
    parts: int
    points: int
    inverse: bool
    onesided: bool

    @property
    def results(self) -> int:
        """The number of result elements."""
        return self.points // 2 + 1 if self.onesided and not self.inverse else self.points

    @property
    def result_parts(self) -> int:
        """The number of components of each result element."""
        return 1 if self.onesided and self.inverse else 2

    @property
    def size(self) -> int:
        """Elements of the matrix."""
        return self.length * self.parts * self.results * self.result_parts

    def matrix(self, dtype: np.dtype[Any], columns: int | None = None) -> np.ndarray[Any, Any]:
        """The matrix of shape [length * parts, results * result_parts]; zero columns up to ``columns`` results."""
        used = min(self.length, self.points // 2 + 1 if self.result_parts == 1 else self.points)
        # Angles are computed modulo a full turn, so that quarter turns have exact sines.
        turns = np.outer(np.arange(used), np.arange(self.results)) % self.points / self.points
        sign = 1 if self.inverse else -1
        cosines, sines = _cosine(turns), sign * _cosine((turns - 0.25) % 1)
        wide = np.zeros((self.length, self.parts, columns or self.results, self.result_parts))
        wide[:used, 0, : self.results, 0] = cosines
        if self.result_parts == 2:
            wide[:used, 0, : self.results, 1] = sines
        if self.parts == 2:
            wide[:used, 1, : self.results, 0] = -sines
            if self.result_parts == 2:
                wide[:used, 1, : self.results, 1] = cosines
        if self.result_parts == 1:
            # All but the first, and the middle one of an even number, stand for a conjugate pair.
            weights = np.full(used, 2.0)
            weights[:1] = 1
            if self.points % 2 == 0 and used == self.points // 2 + 1:
                weights[-1] = 1
            wide[:used] *= weights[:, None, None, None]
        if self.inverse:
            wide /= self.points
        return wide.reshape(self.length * self.parts, -1).astype(dtype) + 0  # no negative zeros


def _cosine(turns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The cosine of angles in turns from 0 to 1; exact for quarter turns."""
    cosines = np.cos(2 * np.pi * turns)
    return np.where((turns == 0.25) | (turns == 0.75), 0.0, cosines)
