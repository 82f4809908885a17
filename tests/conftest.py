"""What holds for every test: hypothesis without haste, since a shared machine stalls at times; no GPU; signals that
reach Python; sandboxes.

``HYPOTHESIS_PROFILE=thorough pytest ...`` runs ten times the examples of those tests that do not set a number.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from onnxfix.sandbox import Worker

UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", **UNHURRIED)
settings.register_profile("thorough", max_examples=1000, **UNHURRIED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# The tests say the same with a GPU and without one: those about CUDA bring a driver that is none (fake_cuda.py), and
# what needs a real one is in benchmarks/gpu. The mark ``gpu`` is for the few that look for one (test_trt_on_gpu.py).
os.environ.setdefault("ONNXFIX_TEST_GPUS", os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""


# A shell's background jobs ignore interrupts, and so does all that they start; there are tests that send them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole",
        action="store_true",
        help="all of ONNX's node models, of which every fourth is tried without it",
    )


@pytest.fixture
def stride(request: pytest.FixtureRequest) -> int:
    """Of how many of ONNX's node models a test takes one."""
    return 1 if request.config.getoption("--whole") else 4


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A child for foreign code, one for all tests of a file."""
    with Worker() as one:
        yield one
