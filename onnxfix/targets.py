"""Which TensorRT the model is meant for. Rules and severities may depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfix.errors import UsageError


@dataclass(frozen=True)
class Target:
    """A product line of TensorRT.

    ``int64`` tells whether it computes int64 natively (TensorRT 9.0's changelog: "The ONNX parser no longer
    automatically casts INT64 to INT32"; before, int64 weights were clamped to int32).
    ``requires_allowzero`` tells whether its parser throws on a Reshape of opset 14 without the attribute
    (TensorRT 8.0 to 8.4.1; the default was added in 8.4.2).
    """

    name: str
    title: str
    version: tuple[int, int, int]
    int64: bool = True
    requires_allowzero: bool = False
    strongly_typed_only: bool = False


TARGETS = {
    target.name: target
    for target in (
        Target("trt8.4", "TensorRT 8.0 to 8.4.1", (8, 4, 1), int64=False, requires_allowzero=True),
        Target("trt8.6", "TensorRT 8.6", (8, 6, 1), int64=False),
        Target("trt10", "TensorRT 10.x", (10, 14, 0)),
        Target("trt11", "TensorRT 11.x", (11, 1, 0), strongly_typed_only=True),
        Target("rtx", "TensorRT-RTX 1.x", (1, 7, 1), strongly_typed_only=True),
    )
}
DEFAULT = TARGETS["trt11"]


def target_named(name: str | None) -> Target:
    """The target of that name; the newest without one.

    Raises:
        UsageError: there is none.
    """
    if name is None:
        return DEFAULT
    if name not in TARGETS:
        raise UsageError(f"unknown target {name!r}; choose one of {', '.join(TARGETS)}")
    return TARGETS[name]


def mismatch(target: Target, package: str, version: str) -> str:
    """What to say where the installed package is not what the target means; "" where it is.

    ``package`` is tensorrt or tensorrt-rtx, ``version`` its version.
    """
    rtx = package == "tensorrt-rtx"
    if rtx == (target.name == "rtx") and (rtx or version.split(".")[0] == str(target.version[0])):
        return ""
    name = "TensorRT-RTX" if rtx else "TensorRT"
    return f"{name} {version} judged the model, not the target {target.title}: what that accepts may differ"
