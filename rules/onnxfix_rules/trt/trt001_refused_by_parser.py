"""TRT001."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Match, Severity, rule
from onnxfix.trt.records import TrtBuild
from onnxfix_rules.trt import _common as trt


@rule("TRT001", per="build", severity=Severity.ERROR)
def refused_by_parser(build: TrtBuild) -> Iterator[Match]:
    """TensorRT's parser refuses the model, in its own words and at the node that it names.

    ## Why it matters
    There is no engine without it. The parser fails at the first node that it refuses as a rule, so that more may
    come to light once that one is repaired. A TensorRT that crashes, takes too long or too much memory while it
    parses, or before it comes to that, counts as well: it runs in a child process, and what became of that is the
    message.

    `check --trt` and the rung `trt-build` of `apply` and `verify` ask the TensorRT that is installed: TensorRT-RTX
    needs no GPU for it. What another version or product accepts may differ.

    ## Fix
    The finding names the rule that repairs it, where there is one; that rule's page says how and why. A finding of
    that rule at the same node is marked as confirmed. Where there is none, the message is all there is to go by:
    another operator, another type or another shape at the place that it names.

    ## References
    - Operators and types of the parser: https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - Small models that TensorRT-RTX 1.7.1 refuses, with its words: `fixtures/trt/README.md` in onnxfix's sources
    """
    for issue in build.errors if build.judged else ():
        if issue.stage in ("", "parse"):
            yield trt.refusal(build, issue)
