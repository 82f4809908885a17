"""Inputs that the user brings: .npz, folders of .npy, the JSON of Polygraphy's ``save_json``, and values of options."""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import dtypes
from onnxfix.inputs.feeds.draw import integer_range
from onnxfix.inputs.feeds.signature import Input, Signature

Inputs = str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None
"""What a user gives: a path, or the feeds themselves; None: nothing."""


def load_feeds(inputs: Inputs) -> list[dict[str, Any]] | None:
    """The user's feeds; None where there are none.

    Raises:
        UsageError: they cannot be read.
    """
    if inputs is None:
        return None
    return load_inputs(Path(inputs)) if isinstance(inputs, (str, os.PathLike)) else list(map(dict, inputs))


def load_inputs(path: Path | str) -> list[dict[str, Any]]:
    """Read feeds (input name -> array) from a file or folder.

    ``.npz``: one feed, a key for each input. ``.npy``: one feed, named like the file. A folder of ``.npy``: one
    feed, a file for each input; a folder of such folders: one feed each, in the order of the numbers in their
    names. ``.json``: what Polygraphy's ``save_json`` or ``--save-inputs`` writes: a feed or a list of feeds;
    a folder of those: all of them in order. Raises UsageError, in one line, for anything else.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return _load_folder(path)
        if path.suffix == ".json":
            return _load_json(path)
        if path.suffix == ".npy":
            return [{path.stem: _load_npy(path)}]
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return [{name: archive[name] for name in archive.files}]
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename or path}: no such file of inputs", path) from error
    except (MemoryError, OnnxfixError):
        raise
    except Exception as error:
        # damaged files raise whatever zipfile, zlib and numpy's parsers of Python raise
        raise UsageError(f"the inputs in {path} cannot be read: {error}", path) from error
    raise UsageError(
        f"{path} is not a supported input file: expected .npz, .npy, .json or a folder of .npy files", path
    )


def _load_npy(path: Path) -> Any:
    loaded = np.load(path, allow_pickle=False)
    if not isinstance(loaded, np.ndarray):
        raise ValueError(f"{path.name} contains no array")
    return loaded


def _load_folder(path: Path) -> list[dict[str, Any]]:
    files = sorted(path.glob("*.npy"))
    if files:
        return [{file.stem: _load_npy(file) for file in files}]
    jsons = sorted(path.glob("*.json"))
    if jsons:
        return [feed for file in jsons for feed in _load_json(file)]

    def rank(folder: Path) -> tuple[int, str]:
        digits = re.findall(r"\d+", folder.name)
        return (int(digits[-1]) if digits else -1, folder.name)

    folders = sorted((one for one in path.iterdir() if one.is_dir() and any(one.glob("*.npy"))), key=rank)
    if not folders:
        raise UsageError(f"the folder {path} contains no .npy or .json files and no folders of .npy files")
    return [feed for folder in folders for feed in _load_folder(folder)]


def _load_json(path: Path) -> list[dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"), object_hook=_decode)
    feeds = content if isinstance(content, list) else [content]
    if not all(isinstance(feed, dict) for feed in feeds):
        raise UsageError(f"{path} is not a list of feeds (input name -> array)")
    for name, value in (item for feed in feeds for item in feed.items()):
        if isinstance(value, dict):
            raise UsageError(f"input {name} in {path} is not an array")
    return [{name: np.asarray(value) for name, value in feed.items()} for feed in feeds]


def _decode(pairs: dict[str, Any]) -> Any:
    """Polygraphy marks what it encodes by a class name."""
    kind = pairs.get("polygraphy_class")
    if kind is None:
        return pairs
    if kind == "ndarray":
        data = base64.b64decode(pairs["array"], validate=True)
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    if kind in ("LazyArray", "LazyNumpyArray"):
        return pairs["values"]
    raise UsageError(
        f"Polygraphy's JSON contains a {kind}: onnxfix reads NumPy arrays only; save them with NumPy"
    )


def check_inputs(known: Signature, feeds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Hold feeds against the model's inputs; returns them with strings and ml_dtypes restored.

    Raises UsageError in one line that says which input, what is expected and what was given.
    """
    return [
        _check_feed(known, feed, f" (feed {number})" if len(feeds) > 1 else "")
        for number, feed in enumerate(feeds)
    ]


def _check_feed(known: Signature, feed: Mapping[str, Any], where: str) -> dict[str, Any]:
    unknown = [name for name in feed if name not in known.names]
    if unknown:
        names = ", ".join(known.names) or "none"
        raise UsageError(
            f"the given inputs{where} have {unknown[0]}, which is not an input of the model; its inputs are {names}"
        )
    sizes: dict[str, int] = {}
    checked = {}
    for one in known.inputs:
        if one.name in feed:
            checked[one.name] = _check_value(known, one, feed[one.name], sizes, where)
        elif one.default is None and one.kind != "optional":
            raise UsageError(f"the given inputs{where} lack {one.name}")
    return checked


def _check_value(known: Signature, one: Input, value: Any, sizes: dict[str, int], where: str) -> Any:
    if one.kind != "tensor" or not one.elem:
        return value
    array = np.asarray(value)
    array = check_type(one, array, where)
    dims = one.dims
    if dims is None:
        return array
    if len(dims) != array.ndim:
        raise UsageError(
            f"input {one.name}{where}: expected rank {len(dims)} {list(dims)}, got shape {list(array.shape)}"
        )
    for axis, (dim, size) in enumerate(zip(dims, array.shape, strict=True)):
        wanted = known.size(dim, sizes)
        if wanted is None:
            sizes[str(dim)] = size
        elif wanted != size:
            named = f"{dim} = {wanted}" if isinstance(dim, str) else str(dim)
            raise UsageError(
                f"input {one.name}{where}: expected size {named} in dimension {axis}, got shape {list(array.shape)}"
            )
    return array


def check_type(one: Input, array: Any, where: str) -> Any:
    """The array in the input's type, with strings and ml_dtypes restored. Raises UsageError for another type."""
    if one.elem == onnx.TensorProto.STRING:
        if array.dtype.kind in "OUS":
            return array.astype(object)
        raise UsageError(f"input {one.name}{where}: expected strings, got {array.dtype.name}")
    dtype = numpy_type(f"input {one.name}{where}", one.elem)
    if array.dtype.kind == "V" and array.dtype.names is None and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)  # .npy files know no bfloat16: it comes back as bytes without a type
    if array.dtype.newbyteorder("=") == dtype:
        return array.astype(dtype, copy=False)
    raise UsageError(f"input {one.name}{where}: expected {dtype.name}, got {array.dtype.name}")


# ------------------------------------------------------------------------------- numbers, texts and lists as arrays


def array_of(where: str, elem: int, value: Any) -> np.ndarray[Any, Any]:
    """``value`` (a number, a boolean, a text, or lists of them) as an array of the element type ``elem``.

    Floats are rounded to the type as ever; whatever else does not fit is an error, which begins with ``where``.

    Raises:
        UsageError: it does not fit the type, or rows of a list differ in length.
    """
    given = np.array(value, dtype=object)
    flat, shape = given.reshape(-1).tolist(), given.shape
    if any(isinstance(one, (list, tuple)) for one in flat):
        raise UsageError(f"{where}: the rows of the list differ in length")
    name, dtype = dtypes.name_of(elem), numpy_type(where, elem)
    wrong = [one for one in flat if not _fits(elem, one)]
    if wrong:
        raise UsageError(f"{where}: the input is {name}, which {wrong[0]!r} is not")
    if elem == TensorProto.STRING:
        return np.array(flat, dtype=object).reshape(shape)
    if elem == TensorProto.BOOL:
        return np.array(flat, dtype=bool).reshape(shape)
    if "int" in dtype.name:
        least, most = integer_range(dtype)
        outside = [one for one in flat if not least <= one <= most]
    else:
        try:
            with np.errstate(over="ignore"):
                numbers = np.array(flat, complex if dtype.kind == "c" else float)
                lost = np.isfinite(numbers) & ~np.isfinite(numbers.astype(dtype).astype(complex))
            outside = [one for one, gone in zip(flat, lost, strict=True) if gone]
        except OverflowError:  # an integer of hundreds of digits
            outside = [max(flat, key=abs)]
    if outside:
        raise UsageError(f"{where}: {outside[0]!r} is outside the range of {name}")
    wide: Any = object if "int" in dtype.name else complex if dtype.kind == "c" else float
    exact = [int(one) for one in flat] if wide is object else flat
    return np.array(exact, dtype=wide).astype(dtype).reshape(shape)


def numpy_type(where: str, elem: int) -> np.dtype[Any]:
    """The type of arrays of an element type; objects for strings. ``where`` begins the message of an error.

    Raises:
        UsageError: ONNX does not have the type.
    """
    try:
        return helper.tensor_dtype_to_np_dtype(elem)
    except KeyError:
        raise UsageError(f"{where}: the input is {dtypes.name_of(elem)}, which has no values") from None


def _fits(elem: int, one: Any) -> bool:
    """Whether a value is of the sort that the type holds, whatever its size."""
    if elem == TensorProto.STRING:
        return isinstance(one, str)
    if elem == TensorProto.BOOL:
        return isinstance(one, bool) or (isinstance(one, int) and one in (0, 1))
    if isinstance(one, bool) or not isinstance(one, (int, float, complex)):
        return False
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    if "int" in dtype.name:
        return isinstance(one, int) or (isinstance(one, float) and one.is_integer())
    return dtype.kind == "c" or not isinstance(one, complex)
