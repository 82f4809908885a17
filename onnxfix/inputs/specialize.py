"""Fixed sizes and inputs (``--fix-dim``, ``--fix-input``, ``--static``), checked against the model: names, sizes and
values that fit it.

The result is data (``ResolvedSpecialization``). Here nothing is changed, so that every mistake shows before any work.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.files import Inputs, array_of, check_inputs, check_type, load_feeds
from onnxfix.inputs.feeds.profiles import given_profiles, symbols_of
from onnxfix.inputs.feeds.signature import Assignment, Input, Signature
from onnxfix.tensorrt.records import TrtOptions

if TYPE_CHECKING:
    from onnxfix.options import Specialization


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


LARGEST = 2**31 - 1
"""The largest size that a dimension may get: TensorRT's are no larger."""
MOST_FILLED = 256 << 20
"""Bytes of an input that a single value may fill: a model declares any size, and the value becomes part of it."""


def resolve(
    known: Signature,
    request: Specialization,
    inputs: Inputs = None,
    input_shapes: Sequence[str] | Mapping[str, Sequence[int]] = (),
) -> tuple[ResolvedSpecialization, list[dict[str, Any]] | None, tuple[str, ...]]:
    """The specialization, the user's feeds that have its sizes and values (None where there are none), and notes.

    Raises:
        UsageError: a name is not in the model, a size or a value does not fit it, or something is left open.
    """
    feeds = load_feeds(inputs)
    sizes = _named_sizes(known, request.dims)
    shapes = plan.bind_sizes(known, input_shapes) if input_shapes else {}
    if request.static:
        first = plan.bind_shapes(known, _shapes_of(known, feeds[0] if feeds else {}, known.names))
        for found, origin in ((first, "the first of --inputs"), (shapes, "--input-shapes")):
            _merge(sizes, {name: found[name] for name in _open_names(known) if name in found}, origin)
    values = _values(known, request.inputs, sizes)
    for name, size in shapes.items():
        if sizes.get(name, size) != size:
            raise UsageError(f"--input-shapes gives {name} the size {size}, but it is fixed as {sizes[name]}")
    _ranked(known, sizes)
    if request.static:
        _whole(known, sizes, values)
    ordered = {name: sizes[name] for name in (*_open_names(known), *sizes) if name in sizes}
    special = ResolvedSpecialization(ordered, values, request.keep)
    if feeds is None:
        return special, None, ()
    fitting, why = _fitting(known, special, feeds)
    if not fitting:
        raise UsageError(f"none of the given inputs has the fixed sizes and values: {why}")
    left = len(feeds) - len(fitting)
    note = (
        f"{left} of {len(feeds)} given inputs do not have the fixed sizes and values and were not used: {why}"
    )
    return special, fitting, (note,) if left else ()


def fit_profile(known: Signature, special: ResolvedSpecialization, trt: TrtOptions) -> None:
    """The user's profile must not cover what was fixed.

    Raises:
        UsageError: it does.
    """
    for profile in given_profiles(trt, known) or ():
        removed = next((name for name in (*profile.shapes, *profile.values) if name in special.without), None)
        if removed is not None:
            raise UsageError(f"input {removed} is fixed: TensorRT's optimization profile must not name it")
        for name, sizes in symbols_of(profile, known).items():
            if set(sizes) != {special.sizes.get(name, sizes[0])} and name in special.sizes:
                fixed = special.sizes[name]
                raise UsageError(
                    f"{name} is fixed as {fixed}: TensorRT's optimization profile gives it other sizes"
                )


# ---- sizes


def _open_names(known: Signature) -> tuple[str, ...]:
    """What can be fixed: symbols, and for an input that declares no rank that rank and its axes."""
    found = list(known.symbols)
    for one in known.inputs:
        if one.dims is None and one.kind == "tensor":
            found += [f"{one.name}.rank", *(f"{one.name}.{axis}" for axis in range(16))]
    return tuple(dict.fromkeys(found))


def _named_sizes(known: Signature, dims: Mapping[str, Any]) -> Assignment:
    """The sizes that the user gave by name."""
    names, sizes = _open_names(known), {}
    for name, size in dims.items():
        least = 0 if name.endswith(".rank") and name not in known.symbols else 1
        whole = isinstance(size, (int, np.integer)) and not isinstance(size, bool)
        if not whole or not least <= size <= LARGEST:
            raise UsageError(f"--fix-dim {name}={size}: a size is a whole number from {least} to {LARGEST}")
        if name in names:
            sizes[name] = int(size)
        else:
            _declared(known, name, size)  # it says what is wrong, unless the model has that size already
    return sizes


def _declared(known: Signature, name: str, size: int) -> None:
    """A dimension that is no symbol: the size may be what the model declares.

    Raises:
        UsageError: it is not.
    """
    owner, _, axis = name.rpartition(".")
    one = known[owner] if owner in known.names else None
    if one is not None and one.dims is not None and axis.isdecimal() and int(axis) < len(one.dims):
        dim = one.dims[int(axis)]
        if dim == size:
            return
        if isinstance(dim, int):
            raise UsageError(f"--fix-dim {name}={size}: the model declares this dimension as {dim}")
        raise UsageError(
            f"--fix-dim {name}={size}: this dimension has the name {dim}: --fix-dim {dim}={size}"
        )
    named = (
        one for one in _open_names(known) if not one.rpartition(".")[2].isdecimal() or one in known.symbols
    )
    raise UsageError(
        f"--fix-dim {name}={size}: the inputs have no dimension {name}; those that can be fixed are "
        f"{', '.join(named) or 'none'}"
    )


def _shapes_of(
    known: Signature, feed: Mapping[str, Any], names: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a feed, of the inputs ``names``."""
    return {
        name: np.shape(value)
        for name, value in feed.items()
        if name in names and known[name].kind == "tensor"
    }


def _merge(sizes: Assignment, more: Mapping[str, int], origin: str, least: int = 1) -> None:
    for name, size in more.items():
        if not name.endswith(".rank") and not least <= size <= LARGEST:
            raise UsageError(
                f"{name} is {size} by {origin}; a size is a whole number from {least} to {LARGEST}"
            )
        if sizes.setdefault(name, size) != size:
            raise UsageError(f"{name} is {sizes[name]} and, by {origin}, {size}")


def _ranked(known: Signature, sizes: Assignment) -> None:
    """Sizes of an input that declares no rank make sense with that rank alone."""
    for one in known.inputs:
        if one.dims is not None or one.kind != "tensor":
            continue
        rank = sizes.get(f"{one.name}.rank")
        axes = [axis for axis in range(16) if f"{one.name}.{axis}" in sizes]
        if axes and (rank is None or axes[-1] >= rank):
            reason = "it declares no rank" if rank is None else f"its rank is {rank}"
            raise UsageError(
                f"--fix-dim {one.name}.{axes[-1]}: {reason}: give --fix-dim {one.name}.rank=RANK too"
            )


def _whole(known: Signature, sizes: Mapping[str, int], values: Mapping[str, Any]) -> None:
    """Nothing may be left open in an input that stays."""
    lacking: dict[str, None] = {}
    for one in known.inputs:
        if one.name in values:
            continue
        if one.dims is None and one.kind == "tensor" and f"{one.name}.rank" not in sizes:
            lacking[f"{one.name}.rank"] = None
        lacking.update(dict.fromkeys(_list_unsized(known, one.dims or (), sizes)))
    if lacking:
        raise UsageError(
            f"--static does not know the size of {', '.join(lacking)}: give --inputs, --input-shapes or --fix-dim"
        )


def _list_unsized(known: Signature, dims: Iterable[int | str], sizes: Mapping[str, int]) -> list[str]:
    """The names without a size that these dimensions are made of, each once."""
    unknown = [dim for dim in dims if isinstance(dim, str) and known.size(dim, sizes) is None]
    return list(dict.fromkeys(name for dim in unknown for name in known.free(dim) if name not in sizes))


# ---- values


def _values(known: Signature, inputs: Mapping[str, Any], sizes: Assignment) -> dict[str, Any]:
    """The arrays that inputs become; symbols that an array's shape tells go to ``sizes``."""
    found: dict[str, Any] = {}
    for name, value in inputs.items():
        if name not in known.names:
            there = ", ".join(known.names) or "none"
            raise UsageError(f"--fix-input {name}: the model has no such input; its inputs are {there}")
        one = known[name]
        if one.kind != "tensor" or not one.elem:
            kind = "value without a type" if one.kind in ("", "tensor") else one.kind
            raise UsageError(f"--fix-input {name}: only a tensor can be fixed, and this is a {kind}")
        found[name] = _array(one, value)
    # What has a shape of its own says what others are filled to.
    for name in sorted(found, key=lambda name: found[name].ndim == 0):
        found[name] = _fitted(known, known[name], found[name], sizes)
    return found


def _array(one: Input, value: Any) -> np.ndarray[Any, Any]:
    """A value as an array of the input's type."""
    where = f"--fix-input {one.name}"
    if isinstance(value, str) and value.startswith("@"):
        path = Path(value[1:])
        try:
            value = np.load(path, allow_pickle=False)
        except MemoryError:
            raise
        except Exception as error:  # damaged headers raise whatever numpy's parsers of Python raise
            raise UsageError(f"{where}: {path} cannot be read as .npy: {error}") from None
        if not isinstance(value, np.ndarray):
            raise UsageError(f"{where}: {path} does not contain a single array; name a .npy file")
    elif isinstance(value, str):
        value = _parsed(one, value)
    if isinstance(value, (np.ndarray, np.generic)):
        array: np.ndarray[Any, Any] = check_type(one, np.asarray(value), " (--fix-input)")
        return array
    return array_of(where, one.elem, value)


def _parsed(one: Input, text: str) -> Any:
    """What a text says: JSON, or for strings the text itself. NaN and infinities are spelled as Python spells them."""
    if one.elem == TensorProto.STRING and not text.startswith("["):
        return text
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text)  # inf, nan, 1. and the like
    except ValueError:
        raise UsageError(
            f"--fix-input {one.name}={text}: write a number, true, false, a list such as [1,2,3], or @file.npy"
        ) from None


def _fitted(
    known: Signature, one: Input, array: np.ndarray[Any, Any], sizes: Assignment
) -> np.ndarray[Any, Any]:
    """The array in the input's shape: a single number fills it."""
    if one.dims is None:
        rank = sizes.get(f"{one.name}.rank", array.ndim)
        if rank != array.ndim:
            raise UsageError(
                f"--fix-input {one.name}: the rank is fixed as {rank}, and the value has {array.ndim}"
            )
        return array
    if not array.ndim and one.dims:
        shape = [known.size(dim, sizes) or 0 for dim in one.dims]
        lacking = _list_unsized(known, one.dims, sizes)
        if lacking:
            raise UsageError(
                f"--fix-input {one.name}: its shape {list(one.dims)} is not known, so that a single value cannot fill "
                f"it: give --fix-dim for {', '.join(lacking)}, or the whole value"
            )
        if math.prod(shape) * array.itemsize > MOST_FILLED:
            raise UsageError(
                f"--fix-input {one.name}: a single value would fill {math.prod(shape):,} elements, which is more than "
                f"{MOST_FILLED >> 20} MiB"
            )
        return np.full(shape, array[()], array.dtype)
    try:
        found = plan.bind_shapes(known, {one.name: array.shape})
    except UsageError as error:
        raise UsageError(f"--fix-input {one.name}: {error}") from None
    for dim, size in zip(one.dims, array.shape, strict=True):
        due = known.size(dim, sizes)
        if due is not None and due != size:
            raise UsageError(
                f"--fix-input {one.name}: {dim} is {due}, and the value has shape {list(array.shape)}"
            )
        unknown = [name for name in _list_unsized(known, [dim], sizes) if name not in found]
        if unknown:
            raise UsageError(
                f"--fix-input {one.name}: give --fix-dim for {', '.join(unknown)}, on which {dim} depends"
            )
    from_value = {name: size for name, size in found.items() if name in known.symbols}
    _merge(sizes, from_value, f"the value of {one.name}", least=0)
    return array


# ---- feeds


def _fitting(
    known: Signature, special: ResolvedSpecialization, feeds: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], str]:
    """The feeds with these sizes and values, fixed inputs filled in; and why the first of the others is none."""
    found, why = [], ""
    for feed in feeds:
        (checked,) = check_inputs(known, [{**special.values, **feed}])
        reason = _mismatch(known, special, checked)
        if reason:
            why = why or reason
        else:
            found.append(checked)
    return found, why


def _mismatch(known: Signature, special: ResolvedSpecialization, feed: Mapping[str, Any]) -> str:
    for name, value in special.values.items():
        given = np.asarray(feed[name])
        same = given.shape == value.shape and (
            given.tobytes() == value.tobytes() or np.array_equal(given, value)
        )
        if not same:
            return f"input {name} is {shown(given)}, and is fixed as {shown(value)}"
    for name, size in plan.bind_shapes(known, _shapes_of(known, feed, feed)).items():
        if special.sizes.get(name, size) != size:
            return f"{name} is {size}, and is fixed as {special.sizes[name]}"
    return ""
