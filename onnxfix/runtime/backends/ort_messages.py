"""What ONNX Runtime's own messages mean. Every expression that is applied to a text of ONNX Runtime's stands here.

Its exceptions carry what they are about only as text. Those texts are input from outside: they become data here, and
nothing else reads them. Texts that onnxfix makes are never matched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from onnxfix.runtime.causes import NO_MEMORY

_OWN = re.compile(
    r"/onnxruntime_src/\S+?:\d+ "
    # The signature of a function: its arguments may hold parentheses of their own.
    r"(?:[\w:<>~ ,*&=]+\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? )?"
)
_STOP = r"running (?P<op>\w+) node\. Name:'(?P<name>[^']*)'"
_AT = re.compile(_STOP)
_BEFORE = re.compile(rf"\A.*Non-zero status code returned while {_STOP} Status Message: ")
_STATUS = re.compile(
    r"\A(?:\w+: )?(?:\[ONNXRuntimeError\] : \d+ : \w+ : )?(?:Load model from \S+ failed:\s*)?(?:Fatal error: )?"
)
#: It has no kernel (or one that does not know all attributes, which its constructor reports), is older than the model,
#: or ran out of memory.
_GAP = re.compile(
    r"NOT_IMPLEMENTED|Exception during initialization|Could not find an implementation|is under development|"
    r"Unsupported model IR version|"
    r"out of memory|bad_alloc|Failed to allocate memory",
    re.I,
)
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : (\w+)")
_UNREGISTERED = re.compile(
    r"No Op registered for (?P<op>\S+) with domain_version of|(?P<full>\S+) is not a registered function/op"
)
_ATTRIBUTE = re.compile(r"Unrecognized attribute: (?P<name>\w+) for operator (?P<op>\w+)")
_TYPE = "Type Error"
_NAMES = (
    re.compile(r"Name:'([^']*)'"),
    re.compile(r"in node \(([^)]*)\)"),
    re.compile(r"of node \(([^)]*)\)"),
    re.compile(r"In Node, \(\"([^\"]*)\""),
    re.compile(r"Node ?\(([^)]*)\) Op ?\("),
    re.compile(r"Node:\s?(\S*)\s"),
)
_OUTPUTS = (re.compile(r"output arg \(([^)]*)\)"), re.compile(r"-> \(\"([^\"]*)\""))
_OPERATORS = (
    re.compile(r"running (\w+) node"),
    re.compile(r"operator \((\w+)\)"),
    re.compile(r"Op ?\((\w+)\)"),
    re.compile(r"No Op registered for (\w+)"),
    re.compile(r"Fatal error: \S*?(\w+)\(-?\d+\) is not a registered"),
)
#: Errors that outlast the call that met them: a lost device, an illegal address, a failed assertion (cudaError_t), and
#: what cuBLAS and cuDNN call these.
_DEVICE_FAILURE = re.compile(r"\bCUDA failure (?:46|7\d\d|999)\b|EXECUTION_FAILED|INTERNAL_ERROR")
_NO_GPU_MEMORY = re.compile(r"BFCArena|ALLOC_FAILED")
#: After what a CUDA call returned, ONNX Runtime names the host and a source file.
_HOST = re.compile(r"\s*;\s*GPU=.*", re.S)


@dataclass(frozen=True)
class Clues:
    """What a message says about the node that it is about: its ``names``, ``outputs`` and ``operators``, each as often
    as the message has a form for it."""

    names: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


def plain(text: str) -> str:
    """The text without files and functions of ONNX Runtime's source."""
    return _OWN.sub("", text)


def reason(text: str) -> str:
    """Only what a node reports, without status and name; the text as it is where no node reports anything."""
    return _BEFORE.sub("", plain(text), count=1)


def without_status(text: str) -> str:
    """The text without the status and the path at its beginning."""
    return _STATUS.sub("", text, count=1) or text


def status(text: str) -> str:
    """ONNX Runtime's name of the error: FAIL, INVALID_ARGUMENT, NOT_IMPLEMENTED, ...; "" where the text has none."""
    match = _CODE.search(text)
    return match[1] if match is not None else ""


def node(text: str) -> tuple[str, str] | None:
    """Operator and name ("" for none) of the node that was running; None where the text names none."""
    match = _AT.search(text)
    return (match["op"], match["name"]) if match is not None else None


def clues(text: str) -> Clues:
    """What the text says about a node, in all forms that ONNX Runtime has."""
    found = ((form.search(text) for form in forms) for forms in (_NAMES, _OUTPUTS, _OPERATORS))
    return Clues(*(tuple(match[1] for match in matches if match is not None) for matches in found))


def is_gap(text: str) -> bool:
    """Whether ONNX Runtime lacks something, and the model is not at fault: a kernel, a newer version, or memory."""
    return _GAP.search(text) is not None


def is_unregistered(text: str) -> bool:
    """Whether it does not know an operator."""
    return _UNREGISTERED.search(text) is not None


def is_type_error(text: str) -> bool:
    """Whether it objects to element types."""
    return _TYPE in text


def unknown_attribute(text: str) -> tuple[str, str] | None:
    """Operator and name of an attribute that it does not know; None where the text is about something else."""
    match = _ATTRIBUTE.search(text)
    return (match["op"], match["name"]) if match is not None else None


def without_host(text: str) -> str:
    """The text of a CUDA error without the host and the source file."""
    return _HOST.sub("", text)


def gpu_failure(text: str) -> Literal["memory", "device", ""]:
    """What a CUDA error means: the GPU's memory ran out, or the "device" failed for the rest of the process."""
    if NO_MEMORY.search(text) or _NO_GPU_MEMORY.search(text):
        return "memory"
    return "device" if _DEVICE_FAILURE.search(text) else ""
