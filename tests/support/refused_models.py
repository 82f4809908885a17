"""The models of fixtures/trt, which TensorRT refuses, and the script that makes them."""

from __future__ import annotations

import pytest

from support.paths import FIXTURES
from support.scripts import script

FOLDER = FIXTURES / "trt"
HEADER = '<ir_version: 10, opset_import: ["" : 20]>\n'


MAKE = script(FOLDER / "make.py")
CASES = pytest.mark.parametrize("case", MAKE.CASES, ids=lambda case: case.name)
