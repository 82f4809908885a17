"""TRT002: errors of TensorRT's builder."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Match, Severity, rule
from onnxfix.trt.records import TargetOnly, TrtBuild
from onnxfix_rules.trt import _common as trt


@rule("TRT002", per="build", severity=Severity.ERROR)
def refused_by_builder(build: TrtBuild) -> Iterator[Match]:
    """TensorRT parses the model but cannot build an engine; the finding quotes the builder at the node of the layer.

    ## Why it matters
    There is no engine. The builder refuses what only the whole network shows: branches of unequal rank, limits of a
    layer, sizes that no profile allows. An invalid optimization profile is reported here too, and so is a build that
    crashes, times out or runs out of memory: TensorRT runs in a child process, and the message says how that process
    ended. Where no kernel computes a layer the builder says `Could not find any implementation for node`, and where a
    program of one's own sets no profile `Network has dynamic or shape inputs, but no optimization profile has been
    defined.`

    Without explicit profiles, onnxfix derives them from the model's symbols; the report and the output of `--verbose`
    list the profiles of the build. If they do not fit the model, set `--trt-min-shapes`, `--trt-opt-shapes` and
    `--trt-max-shapes`.

    ## Fix
    The finding names the rule that repairs the node, if there is one; the page of that rule explains the fix. A finding
    of that rule at the same node is marked as confirmed.

    ## References
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-dynamic-shapes.html
    - Small models that TensorRT-RTX 1.7.1 refuses, with its messages: `fixtures/trt/README.md` in onnxfix's sources
    """
    for issue in build.errors if build.judged else ():
        if issue.stage in ("profile", "build") and not isinstance(issue, TargetOnly):
            yield trt.refusal(build, issue)
