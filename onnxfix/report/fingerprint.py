"""What identifies a finding from one run to the next, for baselines and for tools that track findings.

A fingerprint depends on the rule and on the place by name: the graphs around it, the node, its first output, or
TensorRT's layer. It does not depend on positions, messages, severities or versions, so that it stands while other parts
of the model, the target, or the wording change. What is about no place, such as a warning of TensorRT's about the model
as a whole, is told apart by its message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from onnxfix.place import Place

LENGTH = 32
"""Hexadecimal digits of a fingerprint."""
VERSION = 1
"""Increases when what goes into a fingerprint changes, so that old ones match nothing by accident."""


class Located(Protocol):
    """A finding, an applied fix, or anything else that a rule says about a place."""

    @property
    def code(self) -> str: ...

    @property
    def place(self) -> Place: ...


def fingerprints(findings: Iterable[Located], path: str = "") -> tuple[str, ...]:
    """The fingerprint of each finding of one model, in order; all differ.

    ``path`` names the model where several share one document; with "", they say nothing of the file. Several findings
    of a rule at one place are counted: the first keeps its fingerprint when another one comes after it.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for finding in findings:
        key = _key(finding, path)
        found.append(_digest((*key, str(seen[key]))))
        seen[key] += 1
    return tuple(found)


def _key(finding: Located, path: str) -> tuple[str, ...]:
    place = finding.place
    node = "" if place.node == place.output else place.node
    return (
        path.replace("\\", "/"),
        finding.code,
        *(f"graph {name}" for name in place.graph),
        f"output {place.label}",
        f"node {node}",
        f"layer {place.layer}",
        *(() if place.known else (f"message {getattr(finding, 'message', '')}",)),
    )


def _digest(parts: tuple[str, ...]) -> str:
    import hashlib  # lazy: start-up (loads OpenSSL, which small runs do not need)

    # Lengths keep the parts apart, whatever is in a name; names may be no valid Unicode.
    text = "".join(f"{len(part)}:{part}" for part in (str(VERSION), *parts))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH]
