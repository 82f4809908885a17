"""TRT003: warnings of TensorRT's parser and builder."""

from __future__ import annotations

import re
from collections.abc import Iterator

from onnxfix.rule import Match, Severity, rule
from onnxfix.trt.records import Issue, TrtBuild
from onnxfix_rules.trt import _common as trt

#: Known warnings, their severity, and the rules that cover them. The first match counts.
_KNOWN: tuple[tuple[str, Severity, tuple[str, ...]], ...] = (
    (r"has Int64 binding", Severity.INFO, ("INT005",)),
    (r"^Unused Input: ", Severity.INFO, ()),
    (r"is unused or used only at compile-time", Severity.INFO, ()),
    (r"^Detected layernorm nodes in FP16", Severity.INFO, ()),
    (r"^Was not able to infer kOPT value", Severity.INFO, ()),
    (r"Empty initializer .* Overriding data to nullptr", Severity.INFO, ()),
    (r"^UINT8 data .* is being converted to INT32", Severity.INFO, ()),
    (r"will be converted to ScatterElements", Severity.INFO, ()),
    (
        r"A node named node_of_.* already exists",
        Severity.INFO,
        (),
    ),  # the parser's own name for an unnamed node
    (r"A node named .* already exists", Severity.WARNING, ("GRA005",)),
    (r"allowzero with opset < 14", Severity.WARNING, ("RSH007",)),
    (r"that might or might not be zero", Severity.WARNING, ("RSH004",)),
    (r"ISqueezeLayer without an axes input requires", Severity.WARNING, ("RSH009",)),
    (r"not compatible for elementwise", Severity.WARNING, ("BRC004",)),
    (r"UINT8 zero_point only on DLA", Severity.WARNING, ("QDQ004",)),
    (r"with FP16 Reduce or Pow may cause overflow", Severity.WARNING, ("PRC001",)),
    (r"ignores the \"seed\" field", Severity.WARNING, ()),
    (r"at least opset 7", Severity.WARNING, ("GRA020",)),
    (r"both a trip limit and a loop termination condition", Severity.WARNING, ("CTL001", "CTL013")),
    (r"out of range\. Clamping|outside the range of FLOAT was clamped", Severity.WARNING, ()),
    (r"first input has type \w+ but second input has type", Severity.WARNING, ()),
)
_PROFILE = re.compile(r"k(?:MIN|OPT|MAX) value")
#: A requirement of the layer, whatever the profile.
_REQUIRED = re.compile(r"ISqueezeLayer without an axes input requires")
_MACHINE = re.compile(
    r"cudaError (?:35|100)\b|CUDA (?:driver|initialization|lazy loading)|determine GPU memory usage", re.I
)


@rule("TRT003", per="build", severity=Severity.WARNING)
def warned_about(build: TrtBuild) -> Iterator[Match]:
    """TensorRT's parser or builder issues a warning.

    ## Why it matters
    A warning may be the only sign that the engine computes something else, or refuses an input at run time: a `Loop`
    whose outputs may have another shape, half precision that may overflow, a uint8 zero point that becomes int8, a
    `Squeeze` that forbids batch 1. Those are warnings here as well, and so is every unknown message.

    Harmless messages are information only: `Make sure input x has Int64 binding`, an input that the network does not
    read (its shape or type may still have been used), unnamed nodes to which the parser gives the same name.

    If another rule reports the same problem at the same node, that finding is listed, confirmed with TensorRT's
    message, and this one is not.

    Not reported: messages about the sizes of derived optimization profiles, and about the machine that builds the
    engine.

    ## Fix
    The finding names the rule that repairs the node, if there is one. What an accepted model computes despite the
    warning is not known before it runs.

    ## References
    The messages are those of TensorRT-RTX 1.7.1 over ONNX's node models, fourteen exports of PyTorch and the models of
    `fixtures/trt`.
    """
    derived = all(profile.derived for profile in build.profiles)
    for issue in build.warnings:
        if _of_machine(issue) or (derived and _of_profile(issue)):
            continue
        severity, about = _classified(issue.text)
        yield trt.match_of(issue, about, severity)


def _classified(text: str) -> tuple[Severity, tuple[str, ...] | None]:
    for pattern, severity, codes in _KNOWN:
        if re.search(pattern, text):
            return severity, codes
    return Severity.WARNING, None


def _of_profile(issue: Issue) -> bool:
    return bool(_PROFILE.search(issue.text)) and not _REQUIRED.search(issue.text)


def _of_machine(issue: Issue) -> bool:
    return issue.at is None and bool(_MACHINE.search(issue.text))
