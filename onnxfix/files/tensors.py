"""Tensor bytes to numpy, up to a size limit. External data is read from the model's folder only."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

from onnxfix.errors import ModelError
from onnxfix.files import folders, lazy, walk
from onnxfix.files.folders import writing
from onnxfix.files.walk import model_tensors

BITS = {
    "BOOL": 8, "INT8": 8, "UINT8": 8, "INT16": 16, "UINT16": 16, "INT32": 32, "UINT32": 32, "INT64": 64,
    "UINT64": 64, "FLOAT16": 16, "BFLOAT16": 16, "FLOAT": 32, "DOUBLE": 64, "COMPLEX64": 64, "COMPLEX128": 128,
    "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8,
    "FLOAT4E2M1": 4, "INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
}  # fmt: skip
"""Bits of an element in raw data, by the name of its TensorProto type (onnx.proto)."""
MOST_DIMS = 1024
"""Dimensions of a tensor at most. numpy has 64 and TensorRT 8; a product of millions of them would take minutes."""
_TYPES = {number: BITS.get(name, 64) for name, number in TensorProto.DataType.items()}
"""The same by the number, of all types that the installed onnx knows."""
_PLAIN: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT: np.dtype("<f4"),
    TensorProto.INT64: np.dtype("<i8"),
    TensorProto.INT32: np.dtype("<i4"),
    TensorProto.BOOL: np.dtype("?"),
}
"""Types whose raw data numpy can use directly. Models have thousands of small constants of these types, and
``numpy_helper`` takes longer to look up the type than to read one."""


def element_count(dims: Any) -> int:
    """Number of elements of a tensor with these dimensions; negative dimensions count as 0."""
    count = 1
    for dim in dims:
        count *= max(int(dim), 0)
    return count


def nbytes(tensor: TensorProto) -> int:
    """Size of the tensor's raw data in bytes; for strings, the sum of their lengths."""
    if tensor.data_type == TensorProto.STRING:
        return sum(len(item) for item in tensor.string_data)
    return (element_count(tensor.dims) * _TYPES.get(tensor.data_type, 64) + 7) // 8


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor is stored as external data."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def locations(external: Iterable[TensorProto]) -> list[str]:
    """Relative locations of the files that these external tensors name, sorted."""
    return sorted({_entries(tensor).get("location", "") for tensor in external} - {""})


def _entries(tensor: TensorProto) -> dict[str, str]:
    """What a tensor says of its external data. Of several entries the last counts; ``external_range`` refuses them."""
    return {_text(entry.key, tensor): _text(entry.value, tensor) for entry in tensor.external_data}


def _text(text: object, tensor: TensorProto) -> str:
    """Refuse what is not UTF-8, which protobuf returns as bytes."""
    if not isinstance(text, str):
        raise ModelError(
            f"tensor {tensor.name!r}: {text!r} for its external data is not UTF-8; the file is damaged"
        )
    return text


def check_dims(tensor: TensorProto | SparseTensorProto) -> None:
    """Refuse a tensor whose dimensions cannot be a shape.

    Raises:
        ModelError: one is negative, or there are too many.
    """
    dims = tensor.dims
    if len(dims) <= MOST_DIMS and (not dims or min(dims) >= 0):
        return
    name = tensor.name if isinstance(tensor, TensorProto) else tensor.values.name
    if len(dims) > MOST_DIMS:
        raise ModelError(f"tensor {name!r} has {len(dims)} dimensions, more than {MOST_DIMS}")
    raise ModelError(f"tensor {name!r} has a negative dimension: {list(dims[:8])}")


def external_files(proto: ModelProto) -> list[str]:
    """Relative locations of the model's external data files, sorted."""
    return locations(tensor for tensor in model_tensors(proto) if is_external(tensor))


def link_data(proto: ModelProto, source: Path, folder: Path) -> None:
    """Make the external data of a model in ``source`` reachable from ``folder``, without a copy where links work.

    Raises:
        OnnxfixError: a copy cannot be written.
    """
    for location in external_files(proto):
        there, here = (source / location).resolve(), folder / location
        if not here.resolve().is_relative_to(folder.resolve()):
            continue  # ONNX forbids the location, and the reader of the copy reports it as missing
        here.parent.mkdir(parents=True, exist_ok=True)
        try:
            # A hard link changes the times of the user's file, and another run would refuse it meanwhile.
            here.symlink_to(there)
        except (OSError, NotImplementedError):
            with writing(here), contextlib.suppress(FileNotFoundError):
                shutil.copyfile(there, here)


def to_array(tensor: TensorProto, base_dir: Path | None, max_bytes: int) -> np.ndarray[Any, Any] | None:
    """The tensor as numpy, or None if it is larger than ``max_bytes`` or numpy has no such type."""
    if (
        tensor.data_type not in _TYPES
        or tensor.data_type == TensorProto.UNDEFINED
        or nbytes(tensor) > max_bytes
    ):
        return None
    if is_external(tensor):
        if base_dir is None:
            return None
        tensor = embedded(tensor, base_dir)
    try:
        tensor = lazy.with_payload(tensor)
        if tensor.data_type in _PLAIN and tensor.HasField("raw_data") and not tensor.HasField("segment"):
            return np.frombuffer(tensor.raw_data, _PLAIN[tensor.data_type]).reshape(tensor.dims)
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError):
        return None  # its size contradicts its shape: the checker reports that


def embedded(tensor: TensorProto, base_dir: Path) -> TensorProto:
    """A copy of an external tensor with its bytes embedded."""
    path, offset, length = external_range(tensor, base_dir)
    copy = walk.copied(tensor)
    copy.ClearField("external_data")
    copy.data_location = TensorProto.DEFAULT
    with path.open("rb") as file:
        file.seek(offset)
        copy.raw_data = file.read(length)
    return copy


def relocate(tensor: TensorProto, location: str, start: int | None) -> None:
    """Have an external tensor name the file ``location``. Where that is more than a copy of its own file, which begins
    at byte ``start`` there, the length is written out, and a checksum of the whole file removed."""
    info = _entries(tensor)
    wanted = {"location": location}
    if start is not None:
        offset, length = (_whole(info, key, tensor.name) for key in ("offset", "length"))
        wanted.update(offset=str(start + offset), length=str(length or nbytes(tensor)))
    for index in reversed(range(len(tensor.external_data))):
        entry = tensor.external_data[index]
        if entry.key in wanted:
            entry.value = wanted.pop(entry.key)
        elif entry.key == "checksum" and start is not None:
            del tensor.external_data[index]
    for key, value in wanted.items():
        tensor.external_data.add(key=key, value=value)


def external_range(
    tensor: TensorProto, base_dir: Path, known: dict[str, Path] | None = None
) -> tuple[Path, int, int]:
    """``(file, offset, length in bytes)`` of an external tensor's data.

    ``known`` caches the paths by location, for the other tensors of the model: most share a file.

    Raises:
        ModelError: the file is missing, too short, or outside ``base_dir`` (absolute, by ``..``, by a link), or what
            the tensor says of it has several meanings.
    """
    info = _entries(tensor)
    if len(info) < len(tensor.external_data):
        raise ModelError(
            f"tensor {tensor.name!r} describes its external data twice: a key may be there only once"
        )
    location = info.get("location", "")
    path = known.get(location) if known is not None else None
    if path is None:
        path = checked_location(location, base_dir, tensor.name)
        if known is not None:
            known[location] = path
    offset = _whole(info, "offset", tensor.name)
    length = _whole(info, "length", tensor.name) or nbytes(tensor)
    size = path.stat().st_size
    if offset + length > size:
        raise ModelError(
            f"external data {path}: has {size} bytes, but tensor {tensor.name!r} keeps its data in bytes {offset} to "
            f"{offset + length}: the file is too short"
        )
    if length < nbytes(tensor):
        raise ModelError(
            f"tensor {tensor.name!r} has {length} bytes in {location!r} but its shape and type need {nbytes(tensor)}"
        )
    return path, offset, length


def refer(tensor: TensorProto, base_dir: Path, sources: dict[Path, lazy.Source]) -> None:
    """Let an external tensor refer to its bytes in their file (``lazy``), or hold them where they are few. ``sources``
    keeps the files open.

    Raises:
        ModelError: as for ``external_range``.
    """
    path, offset, _ = external_range(tensor, base_dir)
    if path not in sources:
        sources[path] = lazy.Source(path)
    where = lazy.Range(sources[path], lazy.RAW, offset, nbytes(tensor))
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = where.token if where.length > lazy.LARGE else where.read()


def _whole(info: dict[str, str], key: str, name: str) -> int:
    """A number of bytes; 0 where there is none. Strictly digits: libraries read anything else in different ways.

    Raises:
        ModelError: it is something else.
    """
    text = info.get(key, "") or "0"
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS:
        raise ModelError(
            f"tensor {name!r}: {key} of its external data is not a number of bytes: {text[:40]!r}"
        )
    return int(text)


_DIGITS = 20
"""Digits of the largest number of bytes."""


def is_location(name: str) -> bool:
    """Whether ONNX takes the name of a file beside the model as the location of external data, on all systems."""
    return not name.startswith("..") and name[1:2] != ":" and "\\" not in name and "/" not in name


def checked_location(location: str, base_dir: Path, name: str) -> Path:
    """The file that an external tensor names, checked to be inside the model's folder.

    Raises:
        ModelError: it is outside, or not a file.
    """
    if not location:
        raise ModelError(f"tensor {name!r} is external but names no file")
    if os.path.isabs(location) or (len(location) > 1 and location[1] == ":"):
        raise ModelError(
            f"tensor {name!r} has an absolute path {location!r} for its data; ONNX requires a relative one"
        )
    path = base_dir / location
    try:
        if ".." in Path(location).parts:
            raise ModelError(f"tensor {name!r} keeps its data in {location!r}, outside the model's folder")
        if path.is_symlink():  # as in the caches of Hugging Face
            raise ModelError(
                f"tensor {name!r} keeps its data behind a symbolic link, {location!r}, which onnx refuses "
                f"too; give the model a folder with copies (cp -rL {base_dir} copy)"
            )
        if base_dir.resolve() not in path.resolve().parents:
            raise ModelError(f"tensor {name!r} keeps its data in {location!r}, outside the model's folder")
        found = folders.status(path)
        if found is None or not stat.S_ISREG(found.st_mode):
            raise ModelError(f"external data {path}: no such file (tensor {name!r} keeps its data there)")
        links = found.st_nlink
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL, a name too long
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(
            f"tensor {name!r} keeps its data in {location[:200]!r}, which cannot be read: {why}"
        ) from None
    if links > 1:
        raise ModelError(
            f"external data {path}: has {links} hard links, so that it may belong to another folder, which onnx "
            f"refuses too; give the model a copy of its own (cp {path.name} copy && mv copy {path.name})"
        )
    return path


def constant_node_array(
    node: NodeProto, base_dir: Path | None, max_bytes: int
) -> np.ndarray[Any, Any] | None:
    """The value of a Constant node, float32 for ``value_float(s)``, int64 for ``value_int(s)`` (ONNX, Constant); None
    if it is sparse or larger than ``max_bytes``."""
    for attribute in node.attribute:
        if attribute.name == "value":
            return to_array(attribute.t, base_dir, max_bytes)
        if attribute.name in ("value_float", "value_floats"):
            return np.array(helper.get_attribute_value(attribute), dtype=np.float32)
        if attribute.name in ("value_int", "value_ints"):
            return np.array(helper.get_attribute_value(attribute), dtype=np.int64)
        if attribute.name in ("value_string", "value_strings"):
            return np.array(helper.get_attribute_value(attribute), dtype=object)
        if attribute.type == AttributeProto.SPARSE_TENSOR:
            return None
    return None


def digest(tensor: TensorProto) -> bytes:
    """A hash of the tensor as stored (its bytes where embedded, the reference where external)."""
    import hashlib  # lazy: start-up, brings OpenSSL

    return hashlib.blake2b(tensor.SerializeToString(deterministic=True), digest_size=16).digest()
