"""Tensors as the content of an .npz file, whatever their names: numpy's own function takes some for its options."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np


def npz(values: Mapping[str, Any]) -> bytes:
    """The tensors among values as an .npz file: texts in numpy's own type; no sequences."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                plain = value.astype(str) if value.dtype.kind == "O" else value
                # Its size is known when it was written, and may be more than a plain entry holds.
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, plain, allow_pickle=False)
    return stream.getvalue()
