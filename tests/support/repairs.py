"""What holds for every repair, and for outputs that must be the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxfix.rewrite.engine import FixRun
from onnxfix.rule import Rule, Safety
from onnxfix.testing import assert_interface_kept, fixed


def repaired(
    rules: Sequence[Rule], proto: ModelProto, *, safety: Safety = Safety.EXACT, target: str | None = None
) -> tuple[ModelProto, FixRun]:
    """The model after the rules' fixes. None of them fails, a second run changes nothing, the interface stays."""
    result, run = fixed(rules, proto, safety=safety, target=target)
    assert not run.problems, run.problems
    again, second = fixed(rules, result, safety=safety, target=target)
    assert not second.applied, second.applied
    assert again.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)
    assert_interface_kept(proto, result)
    return result, run


def assert_same_bits(first: Sequence[Any], second: Sequence[Any]) -> None:
    """The same types, shapes and bits, output by output."""
    for one, other in zip(map(np.asarray, first), map(np.asarray, second), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
