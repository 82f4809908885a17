"""TRT001: errors of TensorRT's parser."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Match, Severity, rule
from onnxfix.trt.records import TargetOnly, TrtBuild
from onnxfix_rules.trt import _common as trt


@rule("TRT001", per="build", severity=Severity.ERROR)
def refused_by_parser(build: TrtBuild) -> Iterator[Match]:
    """TensorRT's parser refuses the model; the finding quotes its message at the node that it names.

    ## Why it matters
    Without a successful parse there is no engine. The parser usually stops at the first node that it refuses, so more
    errors may appear once that one is fixed. A crash, a timeout or running out of memory during or before parsing
    counts as well: TensorRT runs in a child process, and the message says how that process ended.

    `check --trt` and the check `trt-build` of `apply` and `verify` use the installed TensorRT. TensorRT-RTX needs no
    GPU for this. Other versions and products may accept other models. An operator that the installed TensorRT does not
    have and the target has is a note: nobody asked the target. The rest of the model is judged without it: what the
    operator computes becomes an input, with the values that ONNX Runtime computes.

    ## Fix
    The finding names the rule that repairs the node, if there is one; the page of that rule explains the fix. A finding
    of that rule at the same node is marked as confirmed. If no rule covers the message, change the operator, type or
    shape that it names.

    ## References
    - Operators and types of the parser: https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - Small models that TensorRT-RTX 1.7.1 refuses, with its messages: `fixtures/trt/README.md` in onnxfix's sources
    """
    lacking = build.part.lacking if build.part is not None else ()
    for issue in (*lacking, *build.errors) if build.judged or build.target_only else ():
        if isinstance(issue, TargetOnly):
            yield trt.match_of(issue, (), Severity.INFO)
        elif issue.stage in ("", "parse"):
            yield trt.refusal(build, issue)
