"""TensorRT's word on a model in a line: what it refused and accepts now, what it reads differently, what is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onnxfix.causes import Cause, Problem

if TYPE_CHECKING:
    from onnxfix.trt.reading import Reading
    from onnxfix.trt.records import TrtBuild


def headline(builds: Sequence[TrtBuild], networks: Sequence[Reading] = (), *, asked: bool = False) -> str:
    """TensorRT's word on a model, where that is news: it was refused and is not any more, or it still is; or it is
    accepted and read differently.

    ``builds`` and ``networks`` are of the original and, where there is one, of the result; ``asked`` says that its word
    is what the user wanted, so that it is news in any case.
    """
    told = _misread(networks)
    if told and all(build.accepted for build in builds):
        return told
    if not builds or not all(build.judged for build in builds):
        return ""
    from onnxfix.trt.package import product

    before, after = builds[0], builds[-1]
    name = product(
        after.package, after.version or before.version
    ).strip()  # a child that died told no version
    if after.accepted and before.accepted:
        return f"{name} accepts it" if asked else ""
    if after.accepted:
        return f"{name} {'refused' if before.status == 'refused' else 'failed on'} it and accepts the result"
    if before.accepted:
        return ""  # a rung that failed, which says so
    verb = "refuses" if after.status == "refused" else "fails on"
    return f"{name} {'still ' if len(builds) > 1 else ''}{verb} it"


def _misread(networks: Sequence[Reading]) -> str:
    """That TensorRT reads the model differently, or did so and does not any more."""
    from onnxfix.trt.package import product

    if not networks or "differs" not in (networks[0].status, networks[-1].status):
        return ""
    before, after = networks[0], networks[-1]
    name = product(after.package, after.version).strip()
    if after.status == "agrees":
        return f"{name} read it differently and reads the result as it is meant"
    if after.status != "differs" or (len(networks) > 1 and before.status == "agrees"):
        return ""
    return f"{name} accepts it and {'still ' if len(networks) > 1 else ''}reads it differently"


def unread(reading: Reading | None) -> Iterator[str]:
    """Why nothing is known of how TensorRT reads a model that it accepts."""
    if reading is not None and not reading.judged and reading.status not in ("refused", "broke"):
        why = "cannot be read back" if reading.status == "gap" else "could not be compared with the model"
        yield f"TensorRT's network {why}: {reading.reason or 'no reason was given'}"


def broken(reading: Reading | None) -> Iterator[Problem]:
    """What went wrong in onnxfix where it read TensorRT's network back."""
    if reading is not None and reading.status == "broke":
        text = f"reading TensorRT's network back failed: {reading.reason or 'no reason was given'}"
        yield Problem(text, reading.cause or "fault")


def trouble(build: TrtBuild | None) -> Iterator[Problem]:
    """Why TensorRT said nothing about a model: for lack of memory or by its installation, not for the model's sake."""
    if build is not None and not build.judged:
        text = f"TensorRT could not be asked: {build.reason or 'no reason was given'}"
        cause: Cause = "memory" if build.status == "memory" else "not-loadable"
        yield Problem(text, cause, "tensorrt")
