"""The last stage of a run: the engine and the model, written once they are proven."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from onnxfix.files import loading
from onnxfix.files.lazy import Pending
from onnxfix.pipeline.counting import bytes_of
from onnxfix.pipeline.job import Job
from onnxfix.pipeline.prove import Proven
from onnxfix.report.report import DataFile, Report
from onnxfix.trt.records import TrtOptions
from onnxfix.verification.verdict import Verdict


def written(job: Job, proven: Proven, report: Report) -> Report:
    """Write the requested files if the model is proven; the report, with what was written.

    Raises:
        ModelError: the input has changed since it was read: the proof would be of another model.
        OnnxfixError: a file cannot be written. Nothing half-written is left behind.
    """
    if not proven.verdict.passed:
        return report
    trt = job.comparison.trt
    if trt.save_engine:
        job.plan.say("building the engine")
        path = proven.candidate.path if proven.changed else proven.original
        check = proven.candidate.check
        report = replace(report, engine=engine_of(path, trt, proven.verdict, job.loaded, check))
    if job.destination is not None:
        job.plan.say("writing")
        output = _installed(job, proven, job.destination)
        data = tuple(_data_of(proven, job.destination))
        size = bytes_of(job.destination) + sum(one.bytes for one in data)
        report = replace(report, output=output, bytes_after=size, data=data)
        if proven.candidate.split:
            report = replace(report, pending=Pending(proven.candidate.proto, job.loaded))
    return report


def _data_of(proven: Proven, destination: Path) -> Iterator[DataFile]:
    """The files beside the result that have weights of it."""
    candidate = proven.candidate
    for name in candidate.locations:
        own = candidate.split and name == candidate.location
        kind = "own" if own else "shared" if name in candidate.shared else "kept"
        path = destination.parent / name
        yield DataFile(str(path), bytes_of(path), kind, candidate.shared.get(name, ""))


def engine_of(
    path: Path,
    trt: TrtOptions,
    verdict: Verdict,
    loaded: loading.Loaded,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Build and save the engine of the model in a file, which ``trt`` names; returns that file.

    ``verdict`` has the build of the rung trt-build. ``loaded`` is the model that was read, and ``check`` raises where
    the file is not what was proven.
    """
    from onnxfix.verification.rungs.saved_engine import save_engine  # lazy: start-up, seldom used

    rung = verdict.rung("trt-build")
    assert rung is not None  # required wherever an engine is to be saved

    def unchanged() -> None:
        loaded.check()
        check()

    return save_engine(path, trt, rung.builds[-1], unchanged, loaded.mode)


def unmeasured(trt: TrtOptions, verdict: Verdict) -> tuple[str, ...]:
    """A note where latency was requested and no rung measured it."""
    rung = verdict.rung("trt-gpu")
    if not trt.benchmark or (rung is not None and rung.latency is not None):
        return ()
    return (f"no latency was measured: the check trt-gpu {'did not run' if rung is None else 'broke'}",)


def _installed(job: Job, proven: Proven, destination: Path) -> str:
    """Move the result to its place; returns the path. An unchanged model is copied byte for byte."""
    in_place = job.plan.options.output.in_place
    job.loaded.check()
    if not proven.changed:
        if in_place:
            return str(destination)
        if not proven.candidate.rewritten:
            proven.candidate.copy()
    proven.candidate.install(in_place=in_place)
    return str(destination)
