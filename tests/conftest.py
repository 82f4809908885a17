"""What holds for every test: its lane; hypothesis without deadlines, since a shared machine stalls at times; no GPU;
signals that reach Python; sandboxes, whose children are forked (support/nursery.py).

``pytest`` runs the quick lane: everything but the tests marked ``corpus``, ``slow`` or ``long``. ``--lane=rest`` runs
the first two of those, of a test marked ``corpus`` some of its cases, and ``--lane=full`` everything. Tests that are
asked for run in whatever lane: files that are named, ``-k`` and ``-m``.

``HYPOTHESIS_PROFILE=thorough pytest ...`` tries 1,000 examples instead of 60, in those tests that do not set a number;
``ONNXFIX_EXAMPLES=N`` sets that of some which do.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from typer import testing

from onnxfix.diagnosis.bench import Bench
from onnxfix.runtime import sandbox
from onnxfix.runtime.sandbox import Worker, shared
from onnxfix.shapes import propagate
from support import nursery
from support.real_tensorrt import INSTALLED

UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=60, **UNHURRIED)
settings.register_profile("thorough", max_examples=1000, **UNHURRIED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# The tests say the same with a GPU and without one: those about CUDA bring a fake driver (support/fake_cuda.py), and
# what needs a real one is in benchmarks/gpu. The mark ``gpu`` is for the few that look for one (test_trt_on_gpu.py).
os.environ.setdefault("ONNXFIX_TEST_GPUS", os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# pytest's workers have this from xdist, and lines would be wrapped there and nowhere else.
os.environ.pop("COLUMNS", None)

# A shell's background jobs ignore interrupts, those of nohup hangups, and so does all that they start; there are tests
# that send them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


testing._get_command = cache(testing._get_command)  # making the command line takes longer than most commands

if sys.platform.startswith("linux"):
    sandbox._started = nursery.started
    sandbox._by_fork = nursery.forked


LANES = ("quick", "rest", "full")
LATER = ("corpus", "slow")
"""The marks of what the quick lane leaves to the rest."""
EVERY = 5
"""Of the cases of a test marked ``corpus``, the rest lane takes one in so many, or as ``corpus(every=3)`` says."""
LONG = "long"
"""The mark of the few that take longest, which the full lane alone has."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lane",
        choices=LANES,
        help="quick: all but the tests marked corpus, slow or long (default); rest: a sample of the first and the "
        "second; full: everything",
    )


def lane_of(config: pytest.Config) -> str:
    """The lane that was chosen; everything where ``-k``, ``-m`` or ``--lf`` ask for tests; else the quick one."""
    asked = config.option.keyword or config.option.markexpr or config.getoption("lf", default=False)
    return config.getoption("--lane") or ("full" if asked else "quick")


def pytest_report_header(config: pytest.Config) -> str:
    return f"lane: {lane_of(config)} (--lane={'|'.join(LANES)})"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to another lane; of a file that was named, nothing, unless a lane was chosen, too."""
    lane = lane_of(config)
    named = {
        (config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args
    }

    cases: Counter[str] = Counter()

    def sampled(item: pytest.Item) -> bool:
        corpus = item.get_closest_marker("corpus")
        if corpus is None or not hasattr(item, "callspec"):
            return True
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        return (cases[test] - 1) % corpus.kwargs.get("every", EVERY) == 0

    def wanted(item: pytest.Item) -> bool:
        long = bool(item.get_closest_marker(LONG))
        later = long or any(item.get_closest_marker(mark) for mark in LATER)
        if lane == "rest":
            return later and not long and sampled(item)
        return lane == "full" or not later or (config.getoption("--lane") is None and item.path in named)

    kept, left_out = [], []
    for item in items:
        (kept if wanted(item) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from support.scheduling import Groups  # lazy: pytest may run without pytest-xdist

    return Groups(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_finish() -> None:
    """What was collected stays: no collection of garbage needs to look at 20,000 tests, and no fork to copy them."""
    gc.collect()
    gc.freeze()
    nursery.remember()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("trt") and not INSTALLED:
        pytest.skip("TensorRT-RTX is not installed: pip install 'onnxfix[tensorrt-rtx]'")
    nursery.Here.instead_of_forks = "monkeypatch" not in getattr(item, "fixturenames", ())


@pytest.fixture
def stride(request: pytest.FixtureRequest) -> int:
    """Of how many of ONNX's node models, or of models of one node, a test takes one."""
    return 1 if request.config.getoption("--lane") == "full" else 24


@pytest.fixture
def short_stride(stride: int) -> int:
    """The same of larger models, of which there are fewer."""
    return min(stride, 3)


@pytest.fixture
def new_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are new processes and forks of this one, as they are outside the tests."""
    monkeypatch.setattr(sandbox, "_started", nursery.new_process)
    monkeypatch.setattr(sandbox, "_by_fork", nursery.by_fork)


@pytest.fixture
def strict_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer function that stumbles is a failure."""
    monkeypatch.setattr(propagate, "STRICT", True)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Where diagnoses run models, with a folder of its own."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return Bench(shared(), folder)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A child for foreign code, one for all tests of a file."""
    with Worker() as one:
        yield one
