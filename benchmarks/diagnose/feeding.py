"""Inputs that planted faults show with: padding in masks, sequences as long as attention has heads, images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from onnxfix.verification.feeds.inputs import make_inputs
from onnxfix.verification.feeds.signature import Input, Signature, signature

LARGE = 10 << 20
"""Bytes of a model from which on images come one at a time."""
ROWS = 3
#: As many as attention has heads, in the exports and in the fixtures: a permutation of the two still runs.
LONG, SHORT = 12, 4


def sizes_of(known: Signature, large: bool) -> dict[str, int]:
    """A size for each symbol: rows of texts, images, and the lengths of sequences."""
    found: dict[str, int] = {}
    for one in known.inputs:
        dims = one.dims or ()
        image = len(dims) > 2 and all(isinstance(dim, int) for dim in dims[1:])
        for axis, dim in enumerate(dims):
            if isinstance(dim, str):
                first = (1 if large else SHORT) if image else ROWS
                found.setdefault(dim, (LONG if large else SHORT) if axis else first)
    return found


def inputs_of(path: Path, seed: int) -> dict[str, Any]:
    """One feed for a model, the same for the same model and seed.

    Of a mask of texts the first row is full, the second has padding on the left, and the last is padding throughout, as
    rows are that fill up a batch: only there does the value of a mask show. A mask of images ends before its edges.
    """
    known = signature(path)
    feed = make_inputs(known, sizes_of(known, path.stat().st_size >= LARGE), seed)
    return {one.name: _masked(one, feed[one.name]) for one in known.inputs if one.name in feed}


def _masked(one: Input, value: Any) -> Any:
    if "mask" not in one.name or value.ndim < 2:
        return value
    mask = np.ones_like(value)
    if value.ndim == 2:
        mask[1:2, : value.shape[1] // 3] = 0
        mask[2:] = 0
    else:
        mask[..., value.shape[-2] * 4 // 5 :, :] = 0
        mask[..., :, value.shape[-1] * 3 // 4 :] = 0
    return mask
