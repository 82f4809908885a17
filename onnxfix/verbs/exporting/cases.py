"""What is compared with a module's own outputs: its arguments, others of their kind, and other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxfix.inputs.feeds.signature import Signature


@dataclass(frozen=True)
class Given:
    """A tensor among the arguments: its array, and the name of its parameter ("" where it lies within one)."""

    name: str
    array: Any


@dataclass(frozen=True)
class Case:
    """Inputs to compare on: ``label`` says which, ``arrays`` are in the order of ``Subject.given``."""

    label: str
    arrays: tuple[Any, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)


_LARGEST = 1 << 26
"""Elements of all inputs up to which larger ones are made."""


def wire_inputs(given: Sequence[Given], known: Signature) -> tuple[dict[int, str], str]:
    """Which given tensor is which input of the exported model: number -> name; and why that is not known, else "".

    By name where a parameter has the input's, and the rest by order. Exporters drop what nothing reads, and make
    constants of some arguments: where fewer inputs are left than tensors, order alone does not say which.
    """
    inputs = [one.name for one in known.inputs if one.default is None]
    wires = {number: one.name for number, one in enumerate(given) if one.name in inputs}
    rest = [number for number in range(len(given)) if number not in wires]
    left = [name for name in inputs if name not in wires.values()]
    if len(rest) == len(left) or not left:
        wires.update(zip(rest, left, strict=False) if left else ())
    else:
        count = f"{len(given)} tensor{'s' * (len(given) != 1)}"
        return {}, f"{count} were given and the exported model has {len(inputs)} inputs ({', '.join(inputs)})"
    for number, name in wires.items():
        dims, shape = known[name].dims, np.shape(given[number].array)
        fits = dims is None or (
            len(dims) == len(shape)
            and all(isinstance(dim, str) or dim == size for dim, size in zip(dims, shape, strict=True))
        )
        if not fits:
            return {}, f"input {name} is declared {list(dims or ())}, and was given with shape {list(shape)}"
    return wires, ""


def cases(
    given: Sequence[Given],
    wires: Mapping[int, str],
    known: Signature,
    bounds: Mapping[str, tuple[int, int]],
    seed: int,
) -> Iterator[Case]:
    """The given inputs, two of other values, and others of up to four other sizes where dimensions are dynamic."""
    arrays = tuple(one.array for one in given)
    yield Case("the given inputs", arrays)
    rng = np.random.default_rng(seed)
    for _ in range(2):
        drawn = tuple(_drawn(one, np.shape(one), rng) if n in wires else one for n, one in enumerate(arrays))
        yield Case("other values", drawn)
    for sizes in _sizes(arrays, wires, known, bounds):
        shapes = _shapes(arrays, wires, known, sizes)
        if sum(int(np.prod(shape)) for shape in shapes.values()) <= _LARGEST:
            label = ", ".join(f"{name}={size}" for name, size in sizes.items())
            made = (_drawn(one, shapes[n], rng) if n in shapes else one for n, one in enumerate(arrays))
            yield Case(label, tuple(made), sizes)


def _drawn(array: Any, shape: Sequence[int], rng: np.random.Generator) -> Any:
    """Values like those of an array: floats of its mean, spread and range; of anything else, some of its own, which
    are known to be valid (indices, masks)."""
    if not array.size:
        return np.zeros(shape, array.dtype)
    if array.dtype.kind not in "fV":  # V: ml_dtypes' floats
        return rng.choice(array.reshape(-1), size=tuple(shape))
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)] if np.isfinite(wide).any() else np.zeros(1)
    values = rng.normal(finite.mean(), finite.std(), tuple(shape))
    return np.clip(values, finite.min(), finite.max()).astype(array.dtype)


def _sizes(
    arrays: Sequence[Any], wires: Mapping[int, str], known: Signature, bounds: Mapping[str, tuple[int, int]]
) -> Iterator[dict[str, int]]:
    """Other sizes of the symbols: a little larger, twice as large, and the first (most often the batch) at 1.

    Symbols of one size stay of one size: exporters name one dimension differently in each input. Once, each becomes
    larger by another amount, so that none passes for another.
    """
    base = {
        dim: size
        for number, name in wires.items()
        for dim, size in zip(known[name].dims or (), np.shape(arrays[number]), strict=True)
        if isinstance(dim, str) and known.free(dim) == (dim,)
    }
    rank = {size: number for number, size in enumerate(dict.fromkeys(base.values()))}
    first = next(iter(base.values()), 0)
    wanted = [
        {name: size + 1 + rank[size] for name, size in base.items()},
        {name: size + 1 + number for number, (name, size) in enumerate(base.items())},
        {name: 2 * size + (0 if size > 1 else rank[size]) for name, size in base.items()},
        {name: 1 if size == first else size for name, size in base.items()},
    ]
    seen = [base]
    for sizes in wanted:
        low_high = {name: bounds.get(name, (0, size)) for name, size in sizes.items()}
        sizes = {name: min(max(size, low_high[name][0]), low_high[name][1]) for name, size in sizes.items()}
        if sizes and sizes not in seen:
            seen.append(sizes)
            yield sizes


def _shapes(
    arrays: Sequence[Any], wires: Mapping[int, str], known: Signature, sizes: Mapping[str, int]
) -> dict[int, tuple[int, ...]]:
    """The shape of every input under these sizes; a dimension that does not follow keeps its size."""
    found = {}
    for number, name in wires.items():
        pairs = zip(known[name].dims or (), np.shape(arrays[number]), strict=True)
        follow = ((known.size(dim, sizes), size) for dim, size in pairs)
        found[number] = tuple(size if new is None else new for new, size in follow)
    return found
