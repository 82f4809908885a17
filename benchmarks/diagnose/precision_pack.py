"""Models and their variants in a small file, for a machine that nothing large can be sent to.

Weights of the originals are drawn from a seed, with the mean and deviation of the export's own, which are random as
well; so they can be drawn again there. Weights of a variant that are one of the original's, in some type, are named;
where a tool moved a few elements (those too small for half precision, say), these are stored beside the name. What is
neither is stored as it is.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

SMALL = 1 << 12
"""Bytes of a weight that is stored as it is."""
MOVED = 0.02
"""Share of the elements that a tool may have moved."""
_TYPES: dict[int, Any] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
}


def drawn(name: str, shape: tuple[int, ...], mean: float, deviation: float) -> np.ndarray[Any, Any]:
    """A weight, from its name."""
    rng = np.random.default_rng([20261123, zlib.crc32(name.encode())])
    return (rng.standard_normal(shape, np.float32) * np.float32(deviation) + np.float32(mean)).astype(
        np.float32
    )


def _large(model: onnx.ModelProto) -> Iterator[TensorProto]:
    for tensor in model.graph.initializer:
        if tensor.data_type in _TYPES and len(tensor.raw_data) >= SMALL:
            yield tensor


def _say(tensor: TensorProto, words: dict[str, str]) -> None:
    """Replace the data by where it comes from."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in {"location": "drawn", **words}.items():
        tensor.external_data.add(key=key, value=value)


def redraw(source: Path, model: Path, packed: Path) -> None:
    """Write ``source`` with drawn weights to ``model``, and without them to ``packed``."""
    proto, small = onnx.load(source), onnx.load(source)
    there = {tensor.name: tensor for tensor in small.graph.initializer}
    for tensor in _large(proto):
        if tensor.data_type != TensorProto.FLOAT:
            continue
        array = numpy_helper.to_array(tensor)
        mean, deviation = float(array.mean()), float(array.std())
        made = drawn(tensor.name, array.shape, mean, deviation)
        tensor.raw_data = made.tobytes()
        words = {"name": tensor.name, "mean": repr(mean), "deviation": repr(deviation)}
        _say(there[tensor.name], words)
    onnx.save(proto, model)
    packed.write_bytes(small.SerializeToString())


def _digest(data: bytes, kind: int) -> bytes:
    """Of a type's data: zeros of one type have the bytes of those of another."""
    return hashlib.blake2b(data, digest_size=16, salt=kind.to_bytes(2, "little")).digest()


def pack(original: Path, packed_original: Path, variant: Path, packed: Path) -> None:
    """Write ``variant`` to ``packed`` without the weights that are the original's in some type."""
    sources: dict[bytes, tuple[str, int]] = {}
    for tensor in _large(onnx.load(original)):
        array = numpy_helper.to_array(tensor)
        for turned, tag in ((array, "name"), (array.T if array.ndim == 2 else None, "turned")):
            if turned is None:
                continue
            for kind, dtype in _TYPES.items():
                with np.errstate(all="ignore"):
                    data = np.ascontiguousarray(turned.astype(dtype)).tobytes()
                sources.setdefault(_digest(data, kind), (f"{tag}:{tensor.name}", kind))
    model = onnx.load(variant)
    known = _recipes(onnx.load(packed_original, load_external_data=False))
    arrays = {
        one.name: numpy_helper.to_array(one) for one in _large(onnx.load(original)) if one.name in known
    }
    for tensor in _large(model):
        found = sources.get(_digest(tensor.raw_data, tensor.data_type))
        if found is not None:
            tag, _, name = found[0].partition(":")
            if name in known:
                _say(tensor, {**known[name], "turned": str(int(tag == "turned"))})
        else:
            _say_moved(tensor, arrays, known)
    packed.write_bytes(model.SerializeToString())


def _say_moved(
    tensor: TensorProto, arrays: Mapping[str, np.ndarray[Any, Any]], known: Mapping[str, dict[str, str]]
) -> None:
    """Name the weight that this one is but for a few elements, and keep those in ``raw_data``; nothing without one."""
    wanted = numpy_helper.to_array(tensor)
    for name, array in arrays.items():
        for turned, base in ((0, array), (1, array.T)):
            if base.shape != wanted.shape or (turned and array.ndim != 2):
                continue
            with np.errstate(all="ignore"):
                made = np.ascontiguousarray(base).astype(wanted.dtype).reshape(-1)
            at = np.flatnonzero(made[:4096] != wanted.reshape(-1)[:4096])
            if at.size > 4096 * MOVED:
                continue
            at = np.flatnonzero(made != wanted.reshape(-1))
            if at.size <= wanted.size * MOVED:
                file = io.BytesIO()
                values = wanted.reshape(-1)[at]
                np.savez_compressed(file, at=at.astype(np.uint32), bits=values.view(f"u{values.itemsize}"))
                _say(tensor, {**known[name], "turned": str(turned), "moved": "1"})
                tensor.raw_data = file.getvalue()
                return


def _recipes(model: onnx.ModelProto) -> dict[str, dict[str, str]]:
    """How the weights of a packed original are drawn, with their shapes."""
    found = {}
    for tensor in model.graph.initializer:
        words = {entry.key: entry.value for entry in tensor.external_data}
        if words.get("location") == "drawn":
            found[tensor.name] = {**words, "shape": ",".join(map(str, tensor.dims))}
    return found


def unpack(packed: Path, model: Path) -> None:
    """Write a packed model with its weights."""
    proto = onnx.load(packed, load_external_data=False)
    for tensor in proto.graph.initializer:
        words = {entry.key: entry.value for entry in tensor.external_data}
        if words.get("location") != "drawn":
            continue
        shape = (
            tuple(int(size) for size in words["shape"].split(",")) if "shape" in words else tuple(tensor.dims)
        )
        array = drawn(words["name"], shape, float(words["mean"]), float(words["deviation"]))
        array = array.T if words.get("turned") == "1" else array
        with np.errstate(all="ignore"):
            array = np.ascontiguousarray(array.astype(_TYPES[tensor.data_type])).reshape(-1)
        if words.get("moved"):
            with np.load(io.BytesIO(tensor.raw_data)) as moved:
                array[moved["at"]] = moved["bits"].view(array.dtype)
        tensor.raw_data = array.tobytes()
        del tensor.external_data[:]
        tensor.data_location = TensorProto.DEFAULT
    onnx.save(proto, model)
