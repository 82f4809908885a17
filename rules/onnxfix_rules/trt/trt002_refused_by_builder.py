"""TRT002."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Match, Severity, rule
from onnxfix.trt.records import TrtBuild
from onnxfix_rules.trt import _common as trt


@rule("TRT002", per="build", severity=Severity.ERROR)
def refused_by_builder(build: TrtBuild) -> Iterator[Match]:
    """TensorRT parses the model but cannot build an engine; the finding has the builder's message and node.

    ## Why it matters
    The engine cannot be built. The builder refuses what only the whole network shows: branches of unequal rank,
    limits of a layer, sizes that fit no input of the profile. An optimization profile that it refuses is reported
    here too, and so is a build that crashes, or exceeds its time or memory limit: it runs in a child process, and the
    message says how that ended.

    Unspecified profiles are derived from the model's symbols; those used are in the report and in the output of
    `--verbose`. If they do not fit the model, set the intended ones with `--trt-min-shapes`, `--trt-opt-shapes` and
    `--trt-max-shapes`.

    ## Fix
    The finding names the rule that fixes it, if there is one; that rule's page explains why and how. A finding of
    that rule at the same node is marked as confirmed.

    ## References
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-dynamic-shapes.html
    - Small models that TensorRT-RTX 1.7.1 refuses, with its messages: `fixtures/trt/README.md` in onnxfix's sources
    """
    for issue in build.errors if build.judged else ():
        if issue.stage in ("profile", "build"):
            yield trt.refusal(build, issue)
