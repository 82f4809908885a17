"""What ONNX Runtime says, without the places in its own source."""

from __future__ import annotations

import re

_OWN = re.compile(
    r"/onnxruntime_src/\S+?:\d+ "
    # The signature of a function: its arguments may hold parentheses of their own.
    r"(?:[\w:<>~ ,*&=]+\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? )?"
)
_NODE = re.compile(
    r"\A.*Non-zero status code returned while running (?P<op>\w+) node\. Name:'[^']*' Status Message: "
)


def plain(words: str) -> str:
    """The words without files and functions of ONNX Runtime's source."""
    return _OWN.sub("", words)


def reason(words: str) -> str:
    """Only what a node says, without status and name; the words as they are where no node speaks."""
    return _NODE.sub("", plain(words), count=1)
