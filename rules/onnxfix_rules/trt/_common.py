"""From TensorRT's words to matches, and to the rules that look for the same thing."""

from __future__ import annotations

import re
from dataclasses import replace

from onnxfix.backends.trt_types import Issue, TrtBuild
from onnxfix.rule import Match, Severity

#: Reasons for which TensorRT refuses a model, and the rules that know them, the most telling first. Measured with
#: TensorRT-RTX 1.7.1, except for the two of allowzero and Squeeze, which are those of TensorRT 8 and 10.
_REASONS = (
    (r"\A\s*(?:false)?\s*\Z", ("OPS001",)),  # the parser's way to say that it knows no such operator
    (
        r"Plugin not found|plugin was not found|failed to load \w+ plugin|not found in plugin registry",
        ("OPS001",),
    ),
    (r"Found unsupported input type of INT(?:32|64)|operator SQRT with .*INT(?:32|64)", ("INT006",)),
    (
        r"Found unsupported input type of|input has type \w+ but must have type|Only FLOAT, HALF or INT8",
        ("OPS002",),
    ),
    (r"does not support UINT8 types for intermediate tensors", ("CST003", "INT001", "OPS002")),
    (r"Unsupported data type for the Cast operator", ("CST003", "CST004", "INT001")),
    (r"must resolve to a build-time constant|axis is not a constant", ("INT001",)),
    (r"must be an initializer|which is not an initializer", ("INT001",)),
    (r"at least 2 dimensions are required for input", ("OPS023",)),
    (r"input starts misaligns with the shape of input axes", ("OPS020",)),
    (r"doesn't support mode than 1 outputs for", ("OPS021",)),
    (r"Non-zero zero point is not supported", ("QDQ001", "QDQ002")),
    (r"K exceeds the maximum value allowed", ("OPS044",)),
    (r"reshape wildcard -1 has infinite number of solutions", ("RSH002",)),
    (r"reshape of non-empty tensor to empty tensor", ("RSH003", "RSH006")),
    (r"would change volume", ("RSH008",)),
    (r"not compatible for elementwise|broadcast dimensions must be conformable", ("BRC004",)),
    (r"Failed to import initializer", ("GRA002",)),
    (r"Node input was not registered", ("GRA004",)),
    (r"Attribute not found: allowzero", ("RSH005",)),
    (r"Cannot infer squeeze dimensions from a dynamic shape", ("RSH009",)),
)
#: TensorRT looks at nodes that nobody reads too, so that any reason may be one for this rule.
_DEAD = "GRA001"


def known(text: str) -> tuple[str, ...] | None:
    """The rules that look for what TensorRT refuses with ``text``; None where nobody knows."""
    found = [code for pattern, codes in _REASONS for code in codes if re.search(pattern, text)]
    return (*dict.fromkeys(found), _DEAD) if found else None


#: How a build ends that TensorRT does not refuse.
_ENDS = {"crash": "crash", "timeout": "timeout", "memory": "out of memory"}


def refusal(build: TrtBuild, issue: Issue) -> Match:
    """An error as a match. Who dies refuses nothing: then the message begins with how it ended."""
    found = match_of(issue, known(issue.text))
    end = _ENDS.get(build.status, "")
    told = end in found.message[:60].lower()
    return found if told else replace(found, message=f"{end}: {found.message}")


def match_of(issue: Issue, about: tuple[str, ...] | None = None, severity: Severity | None = None) -> Match:
    """TensorRT's message as a match at its place."""
    called = f" (called from {issue.place.around})" if issue.stack and issue.place.around else ""
    times = f" ({issue.count} times)" if issue.count > 1 else ""
    return Match(
        f"{issue.words}{called}{times}",
        severity=severity,
        at=issue.where,
        around=issue.place.around,
        about=about,
    )
