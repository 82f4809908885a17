"""TRT002."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Match, Severity, rule
from onnxfix.trt.records import TrtBuild
from onnxfix_rules.trt import _common as trt


@rule("TRT002", per="build", severity=Severity.ERROR)
def refused_by_builder(build: TrtBuild) -> Iterator[Match]:
    """TensorRT parses the model and builds no engine of it: the builder's own words, at the node of its layer.

    ## Why it matters
    There is no engine. The builder refuses what only the whole network shows: branches of unequal rank, limits of a
    layer, sizes that fit no input of the profile. An optimization profile that it does not take is reported here
    too, and so is a build that crashes, takes longer than it may, or more memory than there is: it runs in a child
    process, and what became of that is the message.

    Profiles that nobody gave are derived from the model's symbols; those of the build are in the report and in the
    output of `--verbose`. Where they do not fit the model, `--trt-min-shapes`, `--trt-opt-shapes` and
    `--trt-max-shapes` say what it is meant for.

    ## Fix
    The finding names the rule that repairs it, where there is one; that rule's page says how and why. A finding of
    that rule at the same node is marked as confirmed.

    ## References
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-dynamic-shapes.html
    - Small models that TensorRT-RTX 1.7.1 refuses, with its words: `fixtures/trt/README.md` in onnxfix's sources
    """
    for issue in build.errors if build.judged else ():
        if issue.stage in ("profile", "build"):
            yield trt.refusal(build, issue)
