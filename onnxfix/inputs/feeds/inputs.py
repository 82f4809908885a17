"""Test inputs for a model, generated only from the model, an assignment of its symbols and a seed.

Integers that index something stay inside it, wherever on their way through the graph they do; masks are masks,
shapes are shapes. The same arguments give the same inputs on every machine.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds.draw import KINDS, Array, Draw, Kind, integers, shape_of
from onnxfix.inputs.feeds.signature import Signature, signature

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["KINDS", "Kind", "make_inputs", "shape_of"]


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

    Args:
        assignment: the size of each symbol (a dim_param, or ``input.axis`` for an unnamed dimension), and
            ``input.rank`` of an input without a rank; 2 by default. ``input.value`` is the value of an input that is
            one number.
        override: make values for inputs with a default, too.
        gain: for the kind "quantized", the factor for the inputs that feed a quantizer inside the model.
        turn: for the same kind, how many such feeds came before, which used the first of the points.

    Returns:
        Input name -> value in the input's element type; never NaN or Inf.

    Raises:
        UsageError: no test input can be made for a type or a shape.
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
        made[one.name] = _value(Draw(known, one, assignment, rng, seed, kind, gain, turn))
    return made


def _value(draw: Draw) -> Any:
    kind = draw.one.kind
    if kind == "optional":
        if draw.seed % 2:
            return None
        kind = draw.one.inner
    if kind == "sequence" and draw.one.elem:
        return [_tensor(draw) for _ in range(2)]
    if kind == "tensor" and draw.one.elem:
        return _tensor(draw)
    raise UsageError(
        f"no test input can be made for {draw.one.name}: it is a {kind or 'value without a type'}"
    )


def _tensor(draw: Draw) -> Array:
    pinned = draw.assignment.get(f"{draw.one.name}.value")
    if pinned is not None:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(draw.one.elem)
        return np.full(draw.shape, pinned).astype(dtype)
    if draw.one.elem == onnx.TensorProto.STRING:
        words = draw.known.strings or ["onnx", "", "a b", "Straße", "0"]
        flat = [words[i] for i in draw.rng.integers(0, len(words), math.prod(draw.shape))]
        return np.array(flat, dtype=object).reshape(draw.shape)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(draw.one.elem)
    if draw.one.elem == onnx.TensorProto.BOOL:
        return _bools(draw)
    if dtype.kind == "c":
        real = plain_floats(draw, np.dtype(np.float64))
        return (real + 1j * draw.rng.permuted(real)).astype(dtype)
    if "int" in dtype.name:
        return integers(draw, dtype).astype(dtype).reshape(draw.shape)
    return floats(draw, dtype).astype(dtype).reshape(draw.shape)


def _bools(draw: Draw) -> Array:
    strict = draw.role.strict
    if "true" in strict or draw.kind == "ones":
        return np.ones(draw.shape, bool)
    if "false" in strict or draw.kind == "zeros":
        return np.zeros(draw.shape, bool)
    if math.prod(draw.shape) == 1:  # a condition: both branches have their turn
        return np.full(draw.shape, draw.seed % 2 == 0)
    return draw.mask().astype(bool)


#: What a float has to be for an operator to accept it -> how such floats are drawn.
_DRAWN: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "positive": lambda rng, shape: rng.uniform(0.5, 1.5, shape),
    "share": lambda rng, shape: rng.uniform(0.0, 1.0, shape),
}
#: The same where other floats give NaN, which proves less: only plausible values are drawn so.
_PLAIN: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "probability": lambda rng, shape: rng.uniform(0.01, 0.99, shape),
    "unit": lambda rng, shape: rng.uniform(-0.99, 0.99, shape),
    "above 1": lambda rng, shape: 1.0 + np.exp(rng.standard_normal(shape)),
    "above 0": lambda rng, shape: np.exp(rng.standard_normal(shape)),
    "pixel": lambda rng, shape: rng.integers(0, 256, shape).astype(np.float64),
}


def floats(draw: Draw, dtype: np.dtype[Any]) -> Array:
    """Floats as float64, of the input's shape, that ``dtype`` can hold."""
    strict = draw.role.strict
    if "scales" in strict:
        flat = np.ones(math.prod(draw.shape))
        flat[2:] = 2.0
        return flat
    plain = {"start": 0.0, "limit": 3.0, "one": 1.0, "ratio": 0.5, "low": -1.0, "high": 1.0}
    for sort, value in plain.items():
        if sort in strict:
            return np.full(draw.shape, value)
    limited = draw.limited()
    if limited is not None:
        return limited
    for sort, drawn in _DRAWN.items():
        if sort in strict or (sort == "positive" and dtype.name.startswith("float8_e8m0")):
            return drawn(draw.rng, draw.shape)
    if draw.kind in ("zeros", "ones"):
        return np.full(draw.shape, float(draw.kind == "ones"))
    if draw.kind == "small":
        return draw.rng.uniform(0.0, 1.0, draw.shape)
    if "mask" in draw.name and draw.kind == "normal":
        return draw.mask()
    for sort, drawn in _PLAIN.items():
        if sort in draw.role.strict and draw.kind == "normal":
            return drawn(draw.rng, draw.shape)
    return plain_floats(draw, dtype)


def plain_floats(draw: Draw, dtype: np.dtype[Any]) -> npt.NDArray[np.float64]:
    """The same for an input of which no operator demands anything."""
    values = np.asarray(draw.rng.standard_normal(draw.shape))
    if draw.kind == "large":
        values = np.copysign(np.exp2(draw.rng.uniform(0.0, 11.0, draw.shape)), values)
    if draw.kind in ("edge", "extreme") and values.size:
        flat = values.reshape(-1)
        narrow = dtype.itemsize < 4
        edges = [0.0, -0.0, 1e-3 if narrow else 1e-30, 100.0 if narrow else 1e4, -1.0, 0.5, 2.5]
        if draw.kind == "extreme":
            top = {1: 100.0, 2: 6e4}.get(dtype.itemsize, 3e38)
            large = 3e4 if narrow else 3e9
            edges += [top, -top, large, -large, 16777217.0, 1e-45]
            edges = [edge for edge in edges if abs(edge) <= top]
        draw.put(flat, edges, 3)
    draw.put_compared(values.reshape(-1), list(draw.role.compared))
    if draw.kind == "quantized":
        top = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        if draw.one.name in draw.known.quantizers.scaled:
            values = np.clip(values * draw.gain, -top, top)
        draw.put_points(values.reshape(-1), draw.points(-top, top))
    if dtype.itemsize == 1:
        values = np.clip(values, -6.0, 6.0)  # float4 ends at 6
    return values
