"""What a process frees is kept for what it allocates next, and given back: seen by its page faults."""

from __future__ import annotations

import platform

import pytest

from onnxfix import system
from onnxfix.sandbox import Worker
from support.paths import FIXTURES
from support.patience import PATIENCE
from support.real_tensorrt import REAL

pytestmark = pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="a setting of glibc")

MODEL = FIXTURES / "mixed_precision.legacy.op17.onnx"
"""A small model for which TensorRT fills 64 MiB."""


def _faults() -> int:
    import resource  # lazy: POSIX alone has it

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def of_blocks() -> list[int]:
    """Called in a child: page faults of filling 64 MiB twice as usual, twice with freed memory kept, and once more
    after it was given back."""

    def filled() -> int:
        before = _faults()
        assert b"\1" * (64 << 20)
        return _faults() - before

    usual = [filled(), filled()]
    system.keep_freed_memory()
    kept = [filled(), filled()]
    system.give_freed_memory_back()
    return [*usual, *kept, filled()]


def of_builds() -> list[int]:
    """Called in a child: page faults of building a model three times."""
    from onnxfix.trt import build  # lazy: as in every child

    found = []
    for _ in range(3):
        before = _faults()
        assert build.build(str(MODEL), package="tensorrt-rtx").accepted
        found.append(_faults() - before)
    return found


def test_it_is_kept_and_given_back() -> None:
    with Worker() as worker:
        *usual, first, kept, given_back = worker.call(f"{__name__}:of_blocks", timeout=PATIENCE).value
    assert kept < min(*usual, first, given_back) / 4


@REAL
def test_the_second_build_uses_the_memory_of_the_first() -> None:
    with Worker() as worker:
        first, *others = worker.call(f"{__name__}:of_builds", timeout=PATIENCE).value
    assert max(others) < first / 4
