"""TensorRT's result on a model in one line, and the notes and problems that go with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onnxfix.causes import Cause, Problem

if TYPE_CHECKING:
    from onnxfix.trt.reading import Reading
    from onnxfix.trt.records import TrtBuild

_NO_REASON = "no reason was given"


def headline(builds: Sequence[TrtBuild], networks: Sequence[Reading] = (), *, always: bool = False) -> str:
    """TensorRT's result on a model: refused or not, before and after the fixes; or accepted and read differently.

    Args:
        builds: of the original and, if it is another model, of the result.
        networks: the same, of the imported networks.
        always: also say that TensorRT accepts a model that it accepted before; "" otherwise.
    """
    part = builds[-1].part if builds else None
    extent = f" in part ({part.words})" if part is not None else ""
    misread = _misread(networks, extent)
    if misread and all(build.accepted for build in builds):
        return misread
    if not builds or not all(build.judged for build in builds):
        return ""
    before, after = builds[0], builds[-1]
    name = _product(after.package, after.version or before.version)  # a child that died reports no version
    if after.accepted and before.accepted:
        return f"{name} accepts it{extent}" if always else ""
    if after.accepted:
        did = "refused" if before.status == "refused" else "failed on"
        return f"{name} {did} it and accepts the result{extent}"
    if before.accepted:
        return ""  # a failed rung, which reports that itself
    verb = "refuses" if after.status == "refused" else "fails on"
    return f"{name} {'still ' if len(builds) > 1 else ''}{verb} it"


def _misread(networks: Sequence[Reading], extent: str) -> str:
    """That TensorRT reads the model as something else, or did so before the fixes; "" where neither holds.
    ``extent`` says how much of the model it read."""
    if not networks or "differs" not in (networks[0].status, networks[-1].status):
        return ""
    before, after = networks[0], networks[-1]
    name = _product(after.package, after.version)
    if after.status == "agrees":
        return f"{name} read it differently and imports the new model correctly{extent}"
    if after.status != "differs" or (len(networks) > 1 and before.status == "agrees"):
        return ""
    return f"{name} accepts it{extent} and {'still ' if len(networks) > 1 else ''}reads it differently"


def _product(package: str, version: str) -> str:
    from onnxfix.trt.package import product  # lazy: start-up

    return product(package, version).strip()


def import_notes(reading: Reading | None) -> Iterator[str]:
    """Why it is unknown how TensorRT imports a model that it accepts."""
    if reading is not None and not reading.judged and reading.status not in ("refused", "broke"):
        why = "cannot be read back" if reading.status == "gap" else "could not be compared with the model"
        yield f"TensorRT's network {why}: {reading.reason or _NO_REASON}"


def import_problems(reading: Reading | None) -> Iterator[Problem]:
    """A failure of onnxfix as it read TensorRT's network back."""
    if reading is not None and reading.status == "broke":
        text = f"reading TensorRT's network back failed: {reading.reason or _NO_REASON}"
        yield Problem(text, reading.cause or "fault")


def build_problems(build: TrtBuild | None) -> Iterator[Problem]:
    """Why there is no result of TensorRT: out of memory or a broken installation, not a fault of the model."""
    if build is not None and not build.judged and not build.target_only:
        cause: Cause = "memory" if build.status == "memory" else "not-loadable"
        yield Problem(f"TensorRT could not run: {build.reason or _NO_REASON}", cause, "tensorrt")
