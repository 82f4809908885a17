"""Test inputs for a model, made from nothing but the model, an assignment of its symbols and a seed.

Integers that index something stay inside it, wherever on their way through the graph they do; masks are masks,
shapes are shapes. The same arguments give the same inputs on every machine.
"""
# Long because: each role of an input and each kind of data has its few lines here.

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx

from onnxfix.errors import UsageError
from onnxfix.verification.feeds.flow import Role
from onnxfix.verification.feeds.operands import HARMLESS
from onnxfix.verification.feeds.signature import FLOATS, Input, Signature, signature

if TYPE_CHECKING:
    import numpy.typing as npt

Array = Any
#: "normal": plausible values. "edge": with 0.0, -0.0, tiny and large ones. "extreme": the limits of the types, for
#: comparisons that demand identical bits. "small", "zeros", "ones": for models that refuse the others. "large":
#: magnitudes from 1 to 2048, so that squares, sums and products pass 65504, half precision's largest number.
#: "quantized": with values around the limits of what is quantized.
Kind = Literal["normal", "edge", "extreme", "small", "zeros", "ones", "large", "quantized"]
KINDS: tuple[Kind, ...] = ("normal", "edge", "extreme", "small", "zeros", "ones", "large", "quantized")

#: Uses as a size or a count: a large value would ask for a large tensor or a long loop.
_SIZES = {
    "size",
    "reshape",
    "expand",
    "repeat",
    "limit",
    "start",
    "one",
    "pads",
    "split",
    "depth",
    "scales",
    "length",
}
#: Operands that must suit the shape of the data: (that shape, how many numbers) -> the numbers.
_FROM_DATA: dict[str, Callable[[tuple[int, ...], int], list[int]]] = {
    "grid": lambda data, count: [*data[:1], *range(1, count)],  # AffineGrid: the batch of theta, then free
    "image": lambda data, count: [*data[-1:], *[1] * (count - 1)],  # Col2Im with blocks of one pixel
    "unpooled": lambda data, _: [*data[:2], *(2 * size + 1 for size in data[2:])],
}
#: Uses in which limits are all that a number has to meet.
_LIMITED = HARMLESS | {"index_nd", "length"}
#: What a float has to be for an operator to make a number of it -> how such floats are drawn.
_DRAWN: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "positive": lambda rng, shape: rng.uniform(0.5, 1.5, shape),
    "share": lambda rng, shape: rng.uniform(0.0, 1.0, shape),
}
#: The same where other floats make NaN, which says less: plausible values alone are drawn so.
_PLAIN: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "probability": lambda rng, shape: rng.uniform(0.01, 0.99, shape),
    "unit": lambda rng, shape: rng.uniform(-0.99, 0.99, shape),
    "above 1": lambda rng, shape: 1.0 + np.exp(rng.standard_normal(shape)),
    "above 0": lambda rng, shape: np.exp(rng.standard_normal(shape)),
    "pixel": lambda rng, shape: rng.integers(0, 256, shape).astype(np.float64),
}
_SHAPE_LIKE = ("reshape", "expand", "split", "axes", "pads", "length", "depth", "repeat", "size")
_MAX_ELEMENTS = 1 << 28


def make_inputs(
    model: onnx.ModelProto | Path | str | Signature,
    assignment: Mapping[str, int],
    seed: int = 0,
    *,
    kind: Kind = "normal",
    override: bool = False,
    gain: float = 1.0,
    turn: int = 0,
) -> dict[str, Any]:
    """Values for every input of ``model``.

    ``assignment`` gives each symbol (a dim_param, or ``input.axis`` for an unnamed dimension) its size, and an
    input without a rank its ``input.rank``; what it leaves out is 2. ``input.value`` is the value of an input that is
    one number. Inputs with a default are left to it unless ``override``. For the kind "quantized", ``gain`` is by how
    much to multiply the inputs on which a quantizer inside hangs, and ``turn`` how many such feeds came before, which
    had the first of the points. Never NaN or Inf. Raises
    UsageError for types that no test input can be made for.
    """
    known = model if isinstance(model, Signature) else signature(model)
    made = {}
    for one in known.inputs:
        if one.name in known.pinned:
            made[one.name] = known.pinned[one.name]
            continue
        if one.default is not None and (not override or not known.may_override(one)):
            continue
        # Each input has a stream of its own: another input more or less does not change it.
        rng = np.random.default_rng([seed & 0xFFFFFFFF, zlib.crc32(one.name.encode()), KINDS.index(kind)])
        maker = _Maker(known, one, dict(assignment), rng, seed, kind)
        maker.gain, maker.turn = gain, turn
        made[one.name] = maker.make()
    return made


def shape_of(known: Signature, one: Input, assignment: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input under an assignment."""
    if one.dims is None:
        rank = assignment.get(f"{one.name}.rank", 2)
        return tuple(assignment.get(f"{one.name}.{axis}", 2) for axis in range(rank))
    sizes = (known.size(dim, assignment) for dim in one.dims)
    return tuple(2 if size is None else size for size in sizes)


class _Maker:
    """Makes the value of one input."""

    def __init__(
        self,
        known: Signature,
        one: Input,
        assignment: dict[str, int],
        rng: np.random.Generator,
        seed: int,
        kind: Kind,
    ) -> None:
        self.known, self.one, self.assignment, self.rng, self.seed, self.kind = (
            known,
            one,
            assignment,
            rng,
            seed,
            kind,
        )
        self.gain, self.turn = 1.0, 0
        self.role: Role = known.roles[one.name]
        self.shape = shape_of(known, one, assignment)
        if math.prod(self.shape) > _MAX_ELEMENTS:
            raise UsageError(f"input {one.name} of shape {self.shape} is too large to make test data for")
        self.name = one.name.lower()

    def make(self) -> Any:
        kind = self.one.kind
        if kind == "optional":
            if self.seed % 2:
                return None
            kind = self.one.inner
        if kind == "sequence" and self.one.elem:
            return [self.tensor() for _ in range(2)]
        if kind == "tensor" and self.one.elem:
            return self.tensor()
        raise UsageError(
            f"no test input can be made for {self.one.name}: it is a {kind or 'value without a type'}"
        )

    def tensor(self) -> Array:
        pinned = self.assignment.get(f"{self.one.name}.value")
        if pinned is not None:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(self.one.elem)
            return np.full(self.shape, pinned).astype(dtype)
        if self.one.elem == onnx.TensorProto.STRING:
            return self._strings()
        dtype = onnx.helper.tensor_dtype_to_np_dtype(self.one.elem)
        if self.one.elem == onnx.TensorProto.BOOL:
            return self._bools()
        if dtype.kind == "c":
            real = self._floats(np.dtype(np.float64))
            return (real + 1j * self.rng.permuted(real)).astype(dtype)
        if "int" in dtype.name:
            return self._special_ints(dtype).astype(dtype).reshape(self.shape)
        return self._special_floats(dtype).astype(dtype).reshape(self.shape)

    def _strings(self) -> Array:
        words = self.known.strings or ["onnx", "", "a b", "Straße", "0"]
        flat = [words[i] for i in self.rng.integers(0, len(words), math.prod(self.shape))]
        return np.array(flat, dtype=object).reshape(self.shape)

    def _bools(self) -> Array:
        strict = self.role.strict
        if "true" in strict or self.kind == "ones":
            return np.ones(self.shape, bool)
        if "false" in strict or self.kind == "zeros":
            return np.zeros(self.shape, bool)
        if math.prod(self.shape) == 1:  # a condition: both branches have their turn
            return np.full(self.shape, self.seed % 2 == 0)
        return self._mask().astype(bool)

    def _mask(self) -> Array:
        """0 and 1, with at least one 1 in each row: a row without any makes a softmax of nothing but -inf."""
        mask = self.rng.integers(0, 2, self.shape)
        if mask.ndim and mask.shape[-1]:
            mask[..., 0] = 1
        return mask if mask.ndim else np.ones((), np.int64)

    def _beside(self) -> tuple[int, ...] | None:
        """The shape of the data beside a shape-like operand, when every dimension is known."""
        for dims in self.role.beside:
            sizes = [self.known.size(dim, self.assignment) for dim in dims] if dims is not None else [None]
            if all(size is not None for size in sizes):
                return tuple(size for size in sizes if size is not None)
        return None

    def _bounds(self) -> list[int | None]:
        """The sizes of the axes that it indexes, as far as they are known."""
        return [self.known.size(bound, self.assignment) for bound in self.role.bounds]

    def _full(self, value: int) -> Array:
        return np.full(self.shape, value, np.int64)

    def _limited(self) -> Array | None:
        """Numbers within the limits that are known of indices and lengths; None where there are none."""
        fit = self.role.strict <= _LIMITED
        ends = self.known.within(self.one.name, self.assignment) if fit else None
        if ends is None:
            return None
        least, most = math.ceil(ends[0]), math.floor(min(ends[1], ends[0] + 2**20))
        if "index" in self.role.strict:  # tables in loops and functions, of which the limits say nothing
            most = min([most, *(size - 1 for size in self._bounds() if size is not None and size > 0)])
        if self.one.elem in FLOATS and (
            least > most or self.role.strict.isdisjoint(("index", "index_nd", "length"))
        ):
            return self.rng.uniform(ends[0], min(ends[1], ends[0] + 2**20), self.shape)
        if least > most:
            return None
        if "length" in self.role.strict and most > 0:
            least = max(least, 1)
        if self.kind == "zeros":
            return np.full(self.shape, min(max(0, least), most), np.int64)
        if "position" in self.name and self.shape:
            steps = np.minimum(np.arange(self.shape[-1]) + least, most)
            return np.broadcast_to(steps, self.shape).astype(np.int64)
        return self._picked(least, min(most, least + 1) if self.kind in ("small", "ones") else most)

    def _picked(self, least: int, most: int) -> Array:
        """Numbers from ``least`` to ``most``; both ends are among them where the values are not just plausible."""
        picked = self.rng.integers(least, most + 1, self.shape)
        for number in self.role.compared:
            if least <= number <= most and number == int(number) and picked.size > 1:
                picked.reshape(-1)[self.rng.integers(picked.size)] = int(number)
        if self.kind not in ("normal", "small", "ones") and picked.size:
            picked.reshape(-1)[0] = most
            picked.reshape(-1)[-1] = least
        return picked

    def _special_ints(self, dtype: np.dtype[Any]) -> Array:
        strict, kind = self.role.strict, self.kind
        limited = self._limited()
        if limited is not None:
            return limited
        if strict & {"index", "index_nd", "class"}:
            return self._indices()
        for sort in (*_SHAPE_LIKE, *_FROM_DATA):
            if sort in strict:
                return self._shape_like(sort)
        plain = {"zero": 0, "start": 0, "one": 1, "limit": 3, "true": 1, "false": 0}
        for sort, value in plain.items():
            if sort in strict:
                return self._full(value)
        low = {"divisor": 1, "shift": 0, "exponent": 0}
        for sort, least in low.items():
            if sort in strict:
                return self.rng.integers(least, 4, self.shape)
        if "low" in strict or "high" in strict:
            return self._full(1 if "low" in strict else 5)
        if kind in ("zeros", "ones", "small"):
            return self._full(0) if kind == "zeros" else self._full(1) if kind == "ones" else self._mask()
        if "mask" in self.name:
            return self._mask()
        if "len" in self.name or self.role.loose & _SIZES:
            return self.rng.integers(1, 4, self.shape)
        if self.role.loose & {"index", "index_nd", "class", "zero", "axes"}:
            return self.rng.integers(0, 2, self.shape)
        if self.role.masks and kind == "normal" and self.seed % 2 == 0:
            return self._mask()
        return self._ints(dtype)

    def _indices(self) -> Array:
        sizes = self._bounds()
        known = [size for size in sizes if size is not None and size > 0]
        # An unknown axis (its data is computed) is taken to be at least 2 long; fallbacks try 0 alone.
        least = min(known) if known else 4 if "class" in self.role.strict else 2
        if None in sizes:
            least = min(least, 2) if not known else least
        if self.kind in ("zeros", "small", "ones"):
            return self._full(0) if self.kind == "zeros" else self.rng.integers(0, min(least, 2), self.shape)
        if "position" in self.name and self.shape:
            steps = np.minimum(np.arange(self.shape[-1]), least - 1)
            return np.broadcast_to(steps, self.shape).astype(np.int64)
        picked = self.rng.integers(0, least, self.shape)
        if self.kind != "normal" and picked.size:
            picked.reshape(-1)[0] = least - 1
            picked.reshape(-1)[-1] = 0
        return picked

    def _shape_like(self, sort: str) -> Array:
        count = math.prod(self.shape)
        beside = self._beside()
        if sort == "axes":
            return np.arange(count) if self.kind != "zeros" else self._full(0)
        if sort == "pads":
            return self.rng.integers(0, 2, count) if self.kind != "zeros" else self._full(0)
        if sort == "reshape":
            if beside is not None and len(beside) == count and self.kind != "ones":
                return np.array(beside if self.seed % 2 else beside[::-1])
            return np.array([-1, *[1] * (count - 1)][:count])
        if sort == "expand":
            fits = beside is not None and len(beside) == count and self.kind != "ones"
            return np.array(beside) if fits else np.ones(count, np.int64)
        if sort in _FROM_DATA and self.kind in ("normal", "edge", "extreme"):
            made = _FROM_DATA[sort](beside, count) if beside is not None else []
            return np.array(made if len(made) == count else [2] * count)
        if sort == "split":
            total = next((size for size in self._bounds() if size is not None), count)
            part = total // max(count, 1)
            return (
                np.array([part] * (count - 1) + [total - part * (count - 1)]) if self.shape else self._full(1)
            )
        if sort == "length":
            longest = min((size for size in beside or () if size > 0), default=1)
            return self.rng.integers(1, longest + 1, self.shape)
        if sort == "depth":
            return self._full(5)
        if self.kind in ("zeros", "ones"):
            return self._full(1)
        least, most = {"size": (1, 3), "image": (2, 6)}.get(sort, (1, 2))
        return self.rng.integers(least, most + 1, self.shape)

    def _ints(self, dtype: np.dtype[Any]) -> Array:
        info = np.iinfo(dtype) if dtype.kind in "iu" else onnx_iinfo(dtype)
        low, high = max(info[0], -50) if isinstance(info, tuple) else max(int(info.min), -50), 50
        least, most = info if isinstance(info, tuple) else (int(info.min), int(info.max))
        values = self.rng.integers(low, min(high, most) + 1, self.shape).astype(object)
        flat = values.reshape(-1)
        edges = [0, 1, -1, least if most < 1 << 15 else -129, most if most < 1 << 15 else 300]
        if self.kind == "extreme":
            edges = [
                least,
                most,
                0,
                -1,
                1,
                2**31 - 1,
                -(2**31),
                2**31,
                2**24 + 1,
                2**53 + 1,
                255,
                256,
                -129,
                65536,
            ]
        self._put(flat, [edge for edge in edges if least <= edge <= most], 2)
        self._put_compared(flat, [number for number in self.role.compared if least <= number <= most])
        self._put_points(flat, [round(point) for point in self._points(least, most)])
        return flat.reshape(self.shape)

    def _points(self, least: float, most: float) -> list[float]:
        """What to feed, as far as the input's type holds it, beginning where the feed before ended."""
        if self.kind != "quantized":
            return []
        known = [one for one in self.known.quantizers.points.get(self.one.name, ()) if least <= one <= most]
        first = self.turn * math.prod(self.shape) % len(known) if known else 0
        return known[first:] + known[:first]

    def _put_points(self, flat: Array, points: list[Any]) -> None:
        """Put each of the points into some element, the first ones first, into half of all elements or into all."""
        if not points or not flat.size:
            return
        count = flat.size if flat.size <= 2 * len(points) else flat.size // 2
        for number, place in enumerate(self.rng.permutation(flat.size)[:count]):
            flat[place] = points[number % len(points)]

    def _put_compared(self, flat: Array, numbers: list[float]) -> None:
        """Put what the model compares the input with into every fourth element of plausible values."""
        if self.kind != "normal" or not numbers or not flat.size:
            return
        for number, place in enumerate(self.rng.permutation(flat.size)[: max(1, flat.size // 4)]):
            flat[place] = numbers[number % len(numbers)]

    def _put(self, flat: Array, edges: list[Any], part: int) -> None:
        """Put edge values into every ``part``-th element, in random order and places; everywhere into a short one."""
        if self.kind not in ("edge", "extreme") or not flat.size:
            return
        few = self.kind == "extreme" and flat.size <= 32
        places = self.rng.permutation(flat.size)[: flat.size if few else max(1, flat.size // part)]
        order = self.rng.permutation(len(edges))
        for number, place in enumerate(places):
            flat[place] = edges[order[number % len(edges)]]

    def _special_floats(self, dtype: np.dtype[Any]) -> Array:
        strict = self.role.strict
        if "scales" in strict:
            flat = np.ones(math.prod(self.shape))
            flat[2:] = 2.0
            return flat
        plain = {"start": 0.0, "limit": 3.0, "one": 1.0, "ratio": 0.5, "low": -1.0, "high": 1.0}
        for sort, value in plain.items():
            if sort in strict:
                return np.full(self.shape, value)
        limited = self._limited()
        if limited is not None:
            return limited
        for sort, draw in _DRAWN.items():
            if sort in strict or (sort == "positive" and dtype.name.startswith("float8_e8m0")):
                return draw(self.rng, self.shape)
        if self.kind in ("zeros", "ones"):
            return np.full(self.shape, float(self.kind == "ones"))
        if self.kind == "small":
            return self.rng.uniform(0.0, 1.0, self.shape)
        if "mask" in self.name and self.kind == "normal":
            return self._mask()
        for sort, draw in _PLAIN.items():
            if sort in self.role.strict and self.kind == "normal":
                return draw(self.rng, self.shape)
        return self._floats(dtype)

    def _floats(self, dtype: np.dtype[Any]) -> npt.NDArray[np.float64]:
        values = np.asarray(self.rng.standard_normal(self.shape))
        if self.kind == "large":
            values = np.copysign(np.exp2(self.rng.uniform(0.0, 11.0, self.shape)), values)
        if self.kind in ("edge", "extreme") and values.size:
            flat = values.reshape(-1)
            narrow = dtype.itemsize < 4
            edges = [0.0, -0.0, 1e-3 if narrow else 1e-30, 100.0 if narrow else 1e4, -1.0, 0.5, 2.5]
            if self.kind == "extreme":
                top = {1: 100.0, 2: 6e4}.get(dtype.itemsize, 3e38)
                edges += [
                    top,
                    -top,
                    3e9 if not narrow else 3e4,
                    -3e9 if not narrow else -3e4,
                    16777217.0,
                    1e-45,
                ]
                edges = [edge for edge in edges if abs(edge) <= top]
            self._put(flat, edges, 3)
        self._put_compared(values.reshape(-1), list(self.role.compared))
        if self.kind == "quantized":
            top = float(ml_finfo(dtype).max)
            if self.one.name in self.known.quantizers.scaled:
                values = np.clip(values * self.gain, -top, top)
            self._put_points(values.reshape(-1), self._points(-top, top))
        if dtype.itemsize == 1:
            values = np.clip(values, -6.0, 6.0)  # float4 ends at 6
        return values


def ml_finfo(dtype: np.dtype[Any]) -> Any:
    """numpy's ``finfo``, also of the types that numpy has no name for, such as bfloat16."""
    import ml_dtypes

    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def onnx_iinfo(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Least and greatest value of an integer type that numpy has no name for, such as int4."""
    import ml_dtypes

    info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)
