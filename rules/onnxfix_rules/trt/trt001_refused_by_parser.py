"""TRT001."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Match, Severity, rule
from onnxfix.trt.records import TrtBuild
from onnxfix_rules.trt import _common as trt


@rule("TRT001", per="build", severity=Severity.ERROR)
def refused_by_parser(build: TrtBuild) -> Iterator[Match]:
    """TensorRT's parser refuses the model; the finding has its message and node.

    ## Why it matters
    The engine cannot be built. The parser usually stops at the first node that it refuses, so more errors may appear
    once that one is fixed. A TensorRT that crashes, or needs too much time or memory, while or before it parses is
    reported as well: it runs in a child process, and the message says how that ended.

    `check --trt` and the check `trt-build` of `apply` and `verify` use the installed TensorRT: TensorRT-RTX needs no
    GPU for it. Another version or product may accept other models.

    ## Fix
    The finding names the rule that fixes it, if there is one; that rule's page explains why and how. A finding of
    that rule at the same node is marked as confirmed. Otherwise use the message: another operator, type or shape at
    the named node.

    ## References
    - Operators and types of the parser: https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - Small models that TensorRT-RTX 1.7.1 refuses, with its messages: `fixtures/trt/README.md` in onnxfix's sources
    """
    for issue in build.errors if build.judged else ():
        if issue.stage in ("", "parse"):
            yield trt.refusal(build, issue)
