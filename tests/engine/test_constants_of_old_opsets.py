"""Opsets before 9 have no Constant of integers: a fix that needs one is not applied where it has no other form."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from onnxfix.errors import ShadowedError
from onnxfix.model import Model
from onnxfix.rewrite.edits import Draft
from onnxfix.rewrite.fitting import refuse_misfit

TEXT = '<ir_version: {ir}, opset_import: ["" : {opset}]> g (float[N] x) => (float[N] y) {{ y = Neg(x) }}'


def needing(array: np.ndarray, ir: int, opset: int) -> None:
    """Put a fix that needs a constant before the guard."""
    model = Model(parser.parse_model(TEXT.format(ir=ir, opset=opset)))
    draft = Draft(next(iter(model.nodes())))
    draft.constant(array)
    refuse_misfit(model, draft.edits)


def test_no_integers_before_opset_9() -> None:
    with pytest.raises(ShadowedError, match="no constant of the type"):
        needing(np.zeros(1, np.int64), 3, 8)


@pytest.mark.parametrize(("ir", "opset", "kind"), [(3, 8, np.float32), (3, 9, np.int64), (4, 8, np.int64)])
def test_other_constants_have_a_form(ir: int, opset: int, kind: type) -> None:
    needing(np.zeros(1, kind), ir, opset)
