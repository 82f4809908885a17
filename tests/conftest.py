"""What holds for every test: hypothesis without a deadline, since a shared machine stalls at times; no GPU; sandboxes.

``HYPOTHESIS_PROFILE=thorough pytest ...`` runs ten times the examples of those tests that do not set a number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from onnxfix.sandbox import Worker

settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# The tests say the same with a GPU and without one: those about CUDA bring a driver that is none (fake_cuda.py), and
# what needs a real one is in benchmarks/gpu.
os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A child for foreign code, one for all tests of a file."""
    with Worker() as one:
        yield one
