"""Makes a decoder of any size, with random weights in a file of their own.

    python -m benchmarks.large.make FOLDER --gigabytes 8 [--single] [--numeric]

FOLDER gets ``decoder.onnx`` and ``decoder.data``. The weights are written block by block: the script takes little
memory. The decoder has what exporters write and exact rules fix; with ``--numeric`` also norms in the type of the
weights, whose fixes are numeric in half precision. ``--single``: float32 instead of half precision.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from benchmarks.command import parser_of
from benchmarks.large.decoder import HALF, SINGLE, WIDE, WIDTH, WORDS, Decoder

LAYER, REST = 4 * WIDTH**2 + 3 * WIDTH * WIDE, 2 * WIDTH * WORDS  # weights


class Random(Decoder):
    """A decoder whose weights are drawn; values keep their magnitude from layer to layer."""

    def __init__(self, data: Path, layers: int, elem: int, *, numeric: bool) -> None:
        super().__init__(data, layers, elem)
        self.numeric, self.drawn = numeric, np.random.default_rng(0)

    def block(self, shape: Sequence[int], start: int, length: int) -> bytes:
        dtype = np.dtype(self.dtype)
        values = self.drawn.standard_normal(length // dtype.itemsize, np.float32)
        if len(shape) == 1:
            values = 1 + values / 16
        elif shape[0] != WORDS:
            values *= shape[0] ** -0.5
        return bytes(values.astype(dtype).tobytes())

    def normalize(self, x: str) -> str:
        if not self.numeric:
            return super().normalize(x)
        mean = self.node("ReduceMean", self.node("Pow", x, self.constant(2, self.dtype)), self.constant([-1]))
        root = self.node("Sqrt", self.node("Add", mean, self.constant(1e-5, self.dtype)))
        return self.node("Mul", self.node("Div", x, root), self.weight(WIDTH))


def make(folder: Path, gigabytes: float, *, single: bool = False, numeric: bool = False) -> Path:
    """Write the model; returns its path."""
    elem = SINGLE if single else HALF
    layers = round((gigabytes * 1e9 / (4 if single else 2) - REST) / LAYER)
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "decoder.data"
    data.unlink(missing_ok=True)
    onnx.save(Random(data, max(layers, 1), elem, numeric=numeric).build(), folder / "decoder.onnx")
    return folder / "decoder.onnx"


def main() -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--numeric", action="store_true")
    options = parser.parse_args()
    print(make(options.folder, options.gigabytes, single=options.single, numeric=options.numeric))
    return 0


if __name__ == "__main__":
    sys.exit(main())
