"""Test inputs for a model, generated only from the model, an assignment of its symbols and a seed.

Integers that index something stay inside it, wherever on their way through the graph they do; masks are masks,
shapes are shapes. The same arguments give the same inputs on every machine.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfix.errors import UsageError
from onnxfix.verification.feeds.draw import KINDS, Array, Draw, Kind, shape_of
from onnxfix.verification.feeds.floats import floats, plain_floats
from onnxfix.verification.feeds.integers import integers
from onnxfix.verification.feeds.signature import Signature, signature

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
        draw = Draw(known, one, dict(assignment), rng, seed, kind)
        draw.gain, draw.turn = gain, turn
        made[one.name] = _value(draw)
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
        return _strings(draw)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(draw.one.elem)
    if draw.one.elem == onnx.TensorProto.BOOL:
        return _bools(draw)
    if dtype.kind == "c":
        real = plain_floats(draw, np.dtype(np.float64))
        return (real + 1j * draw.rng.permuted(real)).astype(dtype)
    if "int" in dtype.name:
        return integers(draw, dtype).astype(dtype).reshape(draw.shape)
    return floats(draw, dtype).astype(dtype).reshape(draw.shape)


def _strings(draw: Draw) -> Array:
    words = draw.known.strings or ["onnx", "", "a b", "Straße", "0"]
    flat = [words[i] for i in draw.rng.integers(0, len(words), math.prod(draw.shape))]
    return np.array(flat, dtype=object).reshape(draw.shape)


def _bools(draw: Draw) -> Array:
    strict = draw.role.strict
    if "true" in strict or draw.kind == "ones":
        return np.ones(draw.shape, bool)
    if "false" in strict or draw.kind == "zeros":
        return np.zeros(draw.shape, bool)
    if math.prod(draw.shape) == 1:  # a condition: both branches have their turn
        return np.full(draw.shape, draw.seed % 2 == 0)
    return draw.mask().astype(bool)
