"""Engines built and executed in child processes that a model cannot take down, several models at a time.

The processes that build and those that execute have TF32 turned off by their environment, as ``trt_package`` has it.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

from ledger import Ledger
from machine import with_gpu

from onnxfix.errors import Fault, OnnxfixError, UsageError
from onnxfix.proof.checks.builder import builder
from onnxfix.proof.checks.probe import RUN, probe
from onnxfix.proof.checks.sessions import Sessions
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import build as tensorrt
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.package import TF32_OFF, Choice
from onnxfix.tensorrt.records import Profile, TrtOptions

#: ran: there are outputs. parser, builder: TensorRT's refused the model. timeout, crash: at ``stage``. failed: the
#: engine does not load, or its run fails. unfed: its inputs or outputs are not what the model's data are.
How = Literal["ran", "parser", "builder", "timeout", "crash", "failed", "unfed"]

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class Executed:
    """What became of one model. ``outputs`` by name for each feed; ``unread`` says why an output could not be read;
    ``operator`` is what TensorRT stopped at."""

    how: How
    stage: str = ""
    reason: str = ""
    operator: str = ""
    outputs: tuple[dict[str, Any], ...] = ()
    unread: dict[str, str] = field(default_factory=dict)


def ready(package: str) -> tuple[Choice, dict[str, Any]]:
    """The TensorRT whose engines run here in full float32, and what to say of the machine.

    Raises:
        OnnxfixError: no engine runs here, or float32 products are rounded.
    """
    options = TrtOptions(package=package)  # type: ignore[arg-type]
    found = builder(options)
    if isinstance(found, Missing):
        raise OnnxfixError(found.reason)
    with closing(found):
        told = probe(found)
    if told.reason:
        raise OnnxfixError(told.reason)
    if told.precision != "float32":
        raise OnnxfixError(
            f"float32 products are computed in {told.precision or 'no known precision'} here, though "
            f"{' '.join('='.join(one) for one in TF32_OFF.items())} was set: no comparison would be fair"
        )
    return found.choice, {"TensorRT": f"{found.choice.package} {found.choice.version}", **with_gpu()}


class Bench:
    """A child that builds, a child that executes, and a folder. One model at a time; its seconds are ``timeout``."""

    def __init__(self, choice: Choice, timeout: float) -> None:
        self._choice, self._timeout = choice, timeout
        self._builder, self._runner = (Worker(variables=TF32_OFF) for _ in range(2))
        self._folder = TemporaryDirectory(prefix="onnxfix-")

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._builder.close()
        self._runner.close()
        self._folder.cleanup()

    def execute(self, data: bytes, feeds: Sequence[Mapping[str, Any]], profile: Profile | None) -> Executed:
        """Build the model's engine for the profile and run it on each feed."""
        path, engine = Path(self._folder.name, "model.onnx"), Path(self._folder.name, "model.engine")
        path.write_bytes(data)
        engine.unlink(missing_ok=True)
        began = time.monotonic()
        refused = self._built(path, engine, profile)
        if refused is not None:
            return refused
        try:
            found = self._ran(engine, feeds, began + self._timeout)
        except Fault as error:  # of what executes engines: one model must not stop the others
            found = Executed("failed", "run", str(error))
        if found.how != "ran":
            # A device's error stays with its process, and what hangs in one would be waited for.
            self._runner.close()
        return found

    def _built(self, path: Path, engine: Path, profile: Profile | None) -> Executed | None:
        """Why there is no engine; None where there is one."""
        try:
            done = tensorrt.attempt(
                self._builder,
                path,
                package=self._choice.package,
                compute_capability=self._choice.capability,
                profiles=[profile] if profile is not None else None,
                timeout=self._timeout,
                save_engine=str(engine),
            )
        except UsageError as error:
            return Executed("unfed", "profile", str(error))
        except OnnxfixError as error:
            return Executed("failed", "build", str(error))
        if done.accepted:
            return None
        hows: dict[str, How] = {"timeout": "timeout", "crash": "crash", "memory": "crash"}
        refusal: How = "parser" if done.stage == "parse" else "builder"
        how = hows.get(done.status, refusal if done.status == "refused" else "failed")
        operator = done.errors[0].place.op_type if done.errors else ""
        return Executed(how, done.stage or "build", done.reason, operator)

    def _ran(self, engine: Path, feeds: Sequence[Mapping[str, Any]], deadline: float) -> Executed:
        left = deadline - time.monotonic()
        if left <= 0:
            return Executed("timeout", "build", f"took more than {self._timeout:g} s")
        told = {"package": self._choice.package}
        with Sessions(self._runner, RUN, told, loading=left, running=left) as side:
            reason = side.load("model", str(engine))
            if reason:
                return Executed(self._how(side.late), "load", reason)
            outputs: list[dict[str, Any]] = []
            unread: dict[str, str] = {}
            for feed in feeds:
                if time.monotonic() > deadline:
                    return Executed("timeout", "run", f"took more than {self._timeout:g} s")
                ran = side.run("model", feed)
                if ran.error:
                    return Executed(self._of(ran), "run", ran.error)
                outputs.append(ran.outputs)
                unread.update(ran.unread)
            return Executed("ran", outputs=tuple(outputs), unread=unread)

    def _how(self, late: bool) -> How:
        if late:
            return "timeout"
        return "failed" if self._runner.pid is not None else "crash"

    def _of(self, ran: Ran) -> How:
        if ran.broken:
            return "failed"
        if ran.late or self._runner.pid is None:
            return self._how(ran.late)
        return "unfed"


def spread(
    tasks: Iterable[T],
    jobs: int,
    opened: Callable[[], AbstractContextManager[S]],
    work: Callable[[S, T], object],
    *,
    budget: float,
) -> int:
    """Have ``jobs`` threads work on the tasks, each with what it ``opened``; returns how many tasks were not begun
    because ``budget`` seconds were over.

    Raises:
        Exception: what ``work`` raised first. The other threads end after their task.
    """
    waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    deadline = time.monotonic() + budget
    stopped: list[bool] = []

    def share(_: int) -> None:
        try:
            with opened() as bench:
                while not stopped and time.monotonic() < deadline:
                    try:
                        task = waiting.get_nowait()
                    except queue.Empty:
                        return
                    work(bench, task)
        except BaseException:
            stopped.append(True)
            raise

    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(share, range(min(jobs, max(waiting.qsize(), 1)))):
            pass
    return waiting.qsize()


def record(
    tasks: Sequence[T],
    jobs: int,
    opened: Callable[[], AbstractContextManager[S]],
    measure: Callable[[S, T], tuple[str, Any]],
    book: Ledger,
    *,
    began: float,
    budget: float,
    every: int,
) -> bool:
    """Have every task measured, as ``spread`` does, and what ``measure`` returns (a key, a result) recorded. Says how
    far it is after ``every`` so many. ``began`` is when the ``budget`` did. Returns whether all were measured.
    """

    def work(bench: S, task: T) -> None:
        book.record(*measure(bench, task))
        if len(book.results) % every == 0:
            print(f"{len(book.results):,}, {time.monotonic() - began:.0f} s", flush=True)

    left = spread(tasks, jobs, opened, work, budget=budget - (time.monotonic() - began))
    print(f"{len(tasks) - left:,} measured, {left:,} left, {time.monotonic() - began:.0f} s")
    return not left
