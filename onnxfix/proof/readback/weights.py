"""The weights of a model against those of the network that TensorRT made of it, bit by bit.

Outputs are compared within a tolerance, under which a changed weight may hide; a weight is copied, not computed, and
so must be the same.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.files import lazy, loading
from onnxfix.place import NOWHERE
from onnxfix.proof.readback.locate import Pair, locate_node
from onnxfix.runtime.sandbox import Worker, one_line
from onnxfix.tensorrt.reading import Misread

if TYPE_CHECKING:
    import numpy.typing as npt

#: A constant that no initializer is called like is taken for a changed copy of one from this many elements on, ...
_FEWEST = 8
#: ... and if at least this share of them is the same.
_ALIKE = 0.5


@dataclass(frozen=True)
class Compared:
    """``same`` weights were found bit by bit, ``changed`` ones differ, at a place that is not known here; ``unmatched``
    were not found: the parser computes something of them, or needs them not."""

    same: int
    changed: tuple[Misread, ...]
    unmatched: tuple[str, ...]


def weights(worker: Worker, pair: Pair, timeout: float) -> tuple[list[Misread], str]:
    """``compare`` in the sandbox: what differs, and a word on what kept it from being known ("" for nothing).
    ``timeout`` is in seconds."""
    files = {"original": pair.path, "lifted": pair.lifted.path}
    outcome = worker.call(f"{__name__}:compare", timeout=timeout, **files)
    if not outcome.ok:
        return [], f"weights were not compared: {one_line(outcome.message)}"
    changed, graph = outcome.value.changed, pair.model.graph
    readers = {name: node for node in reversed(graph.node) for name in node.input}
    return [replace(one, place=locate_node(readers.get(one.name), graph)) for one in changed], ""


def compare(original: str, lifted: str) -> Compared:
    """Hold the initializers and Constant nodes of the model file ``original`` against the constants of the network,
    which was read back into ``lifted``. Call it in the sandbox.

    A constant of the network is called like the initializer that it was; where the parser hands weights to a layer
    instead, as those of convolutions, they are looked for among all others. float64 counts as rounded to float32, out
    of range as its largest number: TensorRT has no wider type.

    Raises:
        ModelError, OSError: a file cannot be read.
    """
    loaded = loading.open_model(Path(original))  # its file stays open as long as this lives
    own = dict(_weights(loaded.proto, Path(original).parent))
    network = onnx.load(lifted, load_external_data=False)
    folder = Path(lifted).parent
    named = {_layer(tensor): tensor for tensor in network.graph.initializer if _layer(tensor)}
    changed, left, same = [], {}, 0
    for name, (tensor, base) in own.items():
        partner = named.pop(name, None)
        if partner is None:
            left[name] = (tensor, base)
            continue
        found = _find_change(name, _read(tensor, base), _read(partner, folder))
        same += found is None
        changed += [found] if found is not None else []
    rest = [tensor for tensor in network.graph.initializer if not _layer(tensor) or _layer(tensor) in named]
    more, unmatched = _search(left, rest, folder)
    return Compared(same + len(left) - len(more) - len(unmatched), (*changed, *more), tuple(unmatched))


def _weights(model: ModelProto, base: Path) -> Iterator[tuple[str, tuple[TensorProto, Path]]]:
    """Initializers and constants of the main graph, by the name of the value."""
    for tensor in model.graph.initializer:
        yield tensor.name, (tensor, base)
    for node in model.graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            for attribute in node.attribute:
                if attribute.name == "value":
                    yield node.output[0], (attribute.t, base)


def _layer(tensor: TensorProto) -> str:
    """The name of the CONSTANT layer that an initializer of a lifted model was, "" for what others needed."""
    return next((entry.value for entry in tensor.metadata_props if entry.key == "trt_layer"), "")


def _read(tensor: TensorProto, base: Path) -> npt.NDArray[Any]:
    """The values, as TensorRT would hold them; of large ones that lie in a file no copy is made."""
    where = {entry.key: entry.value for entry in tensor.external_data}
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    packed = tensor.data_type in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1)
    inside = lazy.range_of(tensor)
    if inside is not None and inside.field == lazy.RAW and not packed:
        raw = np.memmap(inside.source.path, np.uint8, "r", inside.offset, (inside.length,))
        array: npt.NDArray[Any] = raw.view(dtype).reshape(tuple(tensor.dims))
    elif tensor.data_location == TensorProto.EXTERNAL and not packed and int(where.get("length", 0)):
        offset, length = int(where.get("offset", 0)), int(where["length"])
        raw = np.memmap(base / where["location"], np.uint8, "r", offset, (length,))
        array = raw.view(dtype).reshape(tuple(tensor.dims))
    elif tensor.raw_data and not packed:
        array = np.frombuffer(tensor.raw_data, dtype).reshape(tuple(tensor.dims))
    else:
        array = numpy_helper.to_array(lazy.with_payload(tensor), str(base))
    if array.dtype != np.float64:
        return array
    most = np.finfo(np.float32).max
    with np.errstate(all="ignore"):
        clipped = np.where(np.isfinite(array), np.clip(array, -most, most), array)
        return np.asarray(clipped.astype(np.float32))


def _bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As integers, by which NaN equals NaN and -0.0 is not 0.0."""
    if array.dtype.kind in "biu":
        return array
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _wide(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def _find_change(name: str, own: npt.NDArray[Any], other: npt.NDArray[Any]) -> Misread | None:
    """How a weight of that name differs in the network; None where it is the same."""
    if own.size != other.size:
        sides = f"shape {list(own.shape)}", f"shape {list(other.shape)}"
        return Misread("shape", NOWHERE, "weight", *sides, name=name)
    other = other.reshape(own.shape)
    # The parser widens what TensorRT has no arithmetic of, such as uint8: the same numbers are the same weight.
    alike = own.dtype == other.dtype
    unequal = _bits(own) != _bits(other) if alike else np.asarray(_wide(own) != _wide(other))
    if not unequal.any():
        return None
    at = tuple(int(place) for place in np.unravel_index(int(np.argmax(unequal)), own.shape))
    extent = f"{int(unequal.sum()):,} of {own.size:,} elements"
    return Misread("value", NOWHERE, "weight", str(own[at]), str(other[at]), at, extent, name=name)


def _search(
    left: Mapping[str, tuple[TensorProto, Path]], rest: list[TensorProto], folder: Path
) -> tuple[list[Misread], list[str]]:
    """Weights that no constant is called like, among the constants that no weight is called like, whatever their shape.

    One that is there bit by bit is found. Else one of the same size and type that is not found either, and agrees in
    most elements, is taken for a changed copy.
    """
    groups: dict[tuple[Any, int], list[npt.NDArray[Any]]] = defaultdict(list)
    for tensor in rest:
        array = _read(tensor, folder)
        groups[array.dtype, array.size].append(array)
    digests = {key: {_digest(one) for one in arrays} for key, arrays in groups.items()}
    own = {name: _read(tensor, base) for name, (tensor, base) in left.items()}
    known = {_digest(array) for array in own.values()}
    changed, unmatched = [], []
    for name, array in own.items():
        key = (array.dtype, array.size)
        if _digest(array) in digests.get(key, ()):
            continue
        strange = [one for one in groups.get(key, ()) if _digest(one) not in known]
        alike = (
            one for one in strange if np.mean(_bits(array.reshape(-1)) == _bits(one.reshape(-1))) >= _ALIKE
        )
        near = next(alike, None) if array.size >= _FEWEST else None
        found = _find_change(name, array, near) if near is not None else None
        if found is not None:
            changed.append(found)
        else:
            unmatched.append(name)
    return changed, unmatched


def _digest(array: npt.NDArray[Any]) -> bytes:
    return hashlib.blake2b(array.tobytes()).digest()
