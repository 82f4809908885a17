"""What ONNX Runtime says, without the places in its own source."""

from __future__ import annotations

import re

_OWN = re.compile(
    r"/onnxruntime_src/\S+?:\d+ "
    # The signature of a function: its arguments may hold parentheses of their own.
    r"(?:[\w:<>~ ,*&=]+\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? )?"
)
_STOP = r"running (?P<op>\w+) node\. Name:'(?P<name>[^']*)'"
_AT = re.compile(_STOP)
_BEFORE = re.compile(rf"\A.*Non-zero status code returned while {_STOP} Status Message: ")


def plain(words: str) -> str:
    """The words without files and functions of ONNX Runtime's source."""
    return _OWN.sub("", words)


def reason(words: str) -> str:
    """Only what a node says, without status and name; the words as they are where no node speaks."""
    return _BEFORE.sub("", plain(words), count=1)


def node(words: str) -> tuple[str, str] | None:
    """Operator and name ("" for none) of the node that the words are about; None where they name none."""
    match = _AT.search(words)
    return (match["op"], match["name"]) if match is not None else None
