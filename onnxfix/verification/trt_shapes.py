"""Optimisation profiles from the user's ``--trt-min-shapes``, ``--trt-opt-shapes`` and ``--trt-max-shapes``."""

from __future__ import annotations

from onnxfix.backends.trt_types import Profile, TrtOptions
from onnxfix.errors import UsageError
from onnxfix.verification import plan
from onnxfix.verification.signature import Signature


def given_profiles(options: TrtOptions, known: Signature) -> tuple[Profile, ...] | None:
    """The profile that the user asked for; None where it is left to the model's symbols.

    Raises:
        UsageError: a spec cannot be read, names no input, or the three contradict each other.
    """
    specs = (options.min_shapes, options.opt_shapes, options.max_shapes)
    if not any(specs):
        return None
    least, usual, most = (plan.parse_shapes(spec, known.names) for spec in specs)
    shapes = {}
    for name in {**least, **usual, **most}:
        if name not in usual:
            raise UsageError(f"input {name} has no --trt-opt-shapes")
        middle = usual[name]
        shapes[name] = (least.get(name, middle), middle, most.get(name, middle))
    return (Profile(shapes, dict(shapes)),)
