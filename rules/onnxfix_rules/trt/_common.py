"""Turns TensorRT's messages into matches, and finds the rules that look for the same problem."""

from __future__ import annotations

import re
from dataclasses import replace

from onnxfix.rule import Match, Severity
from onnxfix.trt.records import Issue, TrtBuild

#: Rules about operators without an importer. The first covers every operator; the others take precedence.
_OPERATORS = (
    "OPS001", "OPS026", "OPS050", "OPS051", "OPS052", "OPS053", "OPS056", "OPS057", "OPS061", "OPS063", "OPS068",
    "OPS070", "OPS088", "OPS089", "OPS090", "OPS091", "OPS092", "OPS101", "OPS102", "QDQ007", "QDQ008", "QDQ009",
    "QDQ020", "QDQ021", "CTL020",
)  # fmt: skip
_BYTES = ("OPS032", "OPS054", "OPS062", "QDQ002", "QDQ005", "QDQ011", "QDQ014", "QDQ016")
#: TensorRT's error messages and the rules that cover them, the most specific first. Measured with TensorRT-RTX 1.7.1,
#: except for the messages about allowzero and Squeeze, which come from TensorRT 8 and 10.
_REASONS = (
    (r"\A\s*(?:false)?\s*\Z", _OPERATORS),  # the parser's message for an unknown operator
    (
        r"Plugin not found|plugin was not found|failed to load \w+ plugin|not found in plugin registry",
        (*_OPERATORS, "QDQ014"),
    ),
    (r"Found unsupported input type of INT(?:32|64)|operator SQRT with .*INT(?:32|64)", ("INT006",)),
    (
        r"Found unsupported input type of|input has type \w+ but must have type|Only FLOAT, HALF or INT8",
        ("OPS002", "INT006", "OPS025", "OPS050", *_BYTES),
    ),
    (
        r"does not support UINT8 types for intermediate tensors",
        ("CST003", "INT001", "OPS002", "CST001", "OPS027", *_BYTES),
    ),
    (
        r"Unsupported data type for the Cast operator",
        ("CST003", "CST004", "INT001", "CST001", "CST005", "IFC005"),
    ),
    (r"Failed to convert ONNX date type", ("IFC005", "CST004", "CST005")),
    (
        r"must resolve to a build-time constant|axis is not a constant",
        ("INT001", "OPS040", "OPS041", "OPS042", "GRA010"),
    ),
    (r"must be an initializer|which is not an initializer", ("INT001", "QDQ011")),
    (r"Axis input must be an initializer", ("OPS040", "OPS041")),  # TensorRT-RTX 1.4 and 1.5
    (r"at least 2 dimensions are required for input", ("OPS023",)),
    (r"at least 1 dimensions are required for input", ("OPS024",)),
    (r"input starts misaligns with the shape of input axes", ("OPS020",)),
    (r"doesn't support mode than 1 outputs for", ("OPS021", "OPS037", "OPS043", "OPS050")),
    (r"only supports Attention nodes with one output", ("OPS021", "OPS050")),
    (r"Node has more output tensors than TRT expected", ("OPS022", "OPS060", "OPS091")),
    (r"does not support dilations other than 1", ("OPS037", "OPS066", "OPS067")),
    (r"ScatterND with reduction is not supported|Unsupported reduction type", ("OPS039",)),
    (r"training mode|training_mode", ("OPS043",)),
    (
        r"Non-zero zero point is not supported",
        ("QDQ001", "QDQ002", "QDQ003", "QDQ005", "QDQ011", "QDQ012"),
    ),
    (r"Scale coefficients must all be positive", ("QDQ010",)),
    (r"Quantized constant .* is only allowed before DQ", ("QDQ012", "QDQ002", "OPS032", "QDQ019")),
    (r"has datatype FP8 but is not", ("QDQ013", "CST005")),
    (r"K exceeds the maximum value allowed", ("OPS044",)),
    (
        r"Number of dimensions \(\d+\) is not in the valid range|Failed to convert ONNX dimensions",
        ("OPS045",),
    ),
    (r"Eyelike does not work for dynamically shaped tensors", ("OPS046",)),
    (r"Invalid character\(s\) in Einsum equation", ("OPS028",)),
    (r"must have same input types|must all be of the same type|must be of same type", ("PRC004", "OPS054")),
    (r"reshape wildcard -1 has infinite number of solutions", ("RSH002", "RSH006")),
    (r"reshape of non-empty tensor to empty tensor", ("RSH003", "RSH006")),
    (r"would change volume", ("RSH008",)),
    (r"not compatible for elementwise|broadcast dimensions must be conformable", ("BRC004",)),
    (r"slope tensor must be unidirectional broadcastable", ("BRC007",)),
    (r"size elements must be non-negative", ("BRC008",)),
    (r"IRecurrenceLayer must have inputs with same shape|inputs to IRecurrenceLayer", ("CTL015", "OPS011")),
    (r"No nesting relationship", ("CTL016",)),
    (r"padding size is larger than or equal to the filter size", ("OPS075",)),
    (r"`axes` attribute is supported with `scales` tensor only", ("OPS081",)),
    (r"quantization axis must divide into whole blocks", ("QDQ017",)),
    (r"Must have inputs with equal ranks when condition is not", ("CTL011", "IFC001", "QDQ019")),
    (r"does not support the sparse_value", ("GRA006", "GRA008")),
    (
        r"Failed to import initializer",
        ("GRA002", "CST005", "GRA008", "IFC005", "OPS032", "QDQ002", "QDQ006", "QDQ015"),
    ),
    (r"Node input was not registered", ("GRA004", "CTL012", "GRA007")),
    (r"Pre-opset 7 broadcasting is unsupported|Attribute scales is missing", ("GRA020",)),
    (r"is a shape tensor and must have type Int32 or Int64", ("OPS071",)),
    (r"Attribute not found: allowzero", ("RSH005",)),
    (r"Cannot infer squeeze dimensions from a dynamic shape", ("RSH009",)),
)
#: TensorRT also imports dead nodes, so this rule can explain any error.
_DEAD = "GRA001"


def known(text: str) -> tuple[str, ...] | None:
    """The rules that cover the error message ``text``; None for an unknown message."""
    found = [code for pattern, codes in _REASONS for code in codes if re.search(pattern, text)]
    return (*dict.fromkeys(found), _DEAD) if found else None


#: Build statuses other than an error message, and how a message names them.
_ENDS = {"crash": "crash", "timeout": "timeout"}


def refusal(build: TrtBuild, issue: Issue) -> Match:
    """An error as a match. For a crash or a timeout, the message starts with that status."""
    found = match_of(issue, known(issue.text))
    end = _ENDS.get(build.status, "")
    is_named = end in found.message[:60].lower()
    return found if is_named else replace(found, message=f"{end}: {found.message}")


def match_of(issue: Issue, about: tuple[str, ...] | None = None, severity: Severity | None = None) -> Match:
    """TensorRT's message as a match at the node that it names."""
    caller = f" (called from {issue.place.around})" if issue.stack and issue.place.around else ""
    times = f" ({issue.count} times)" if issue.count > 1 else ""
    return Match(
        f"{issue.words}{caller}{times}",
        severity=severity,
        at=issue.at,
        about=about,
        said=issue,
    )
