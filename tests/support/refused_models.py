"""The models of fixtures/trt, which TensorRT refuses, and the script that makes them."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from support.paths import FIXTURES

FOLDER = FIXTURES / "trt"
HEADER = '<ir_version: 10, opset_import: ["" : 20]>\n'


def _make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trt_fixtures", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MAKE = _make()
CASES = pytest.mark.parametrize("case", MAKE.CASES, ids=lambda case: case.name)
