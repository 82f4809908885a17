"""Elements as nested calls. Whatever is not an element is text, and is escaped: there is no other way to put it in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import Union

from onnxfix.report.render.stream import LONGEST, printable

Content = Union["Html", str, int, float, None, Iterable["Content"]]
"""What an element may hold: elements, text, numbers, nothing, and any of these in a row."""

_VOID = frozenset(("meta", "link", "br", "hr", "input", "col"))
_PLAIN = re.compile(f"[ !#-%(-;=?-~]{{0,{LONGEST}}}")  # what escaping leaves as it is, which most text is
_SURROGATES = re.compile("[\ud800-\udfff]")


class Html(str):
    """Text that is markup already. Only this module and the drawings make it."""

    __slots__ = ()


def text(value: object) -> str:
    """A name or message as it may stand in a page: control and direction characters are spelled out, and what is no
    valid Unicode, too."""
    given = str(value)
    if _PLAIN.fullmatch(given):
        return given
    shown = _SURROGATES.sub(lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", given)
    return escape(printable(shown), quote=True)


def tag(name: str, /, *content: Content, **attributes: str | int | float | bool | None) -> Html:
    """An element. An attribute that is None or False is left out, True has no value; ``class_`` is ``class``, and other
    underscores are hyphens."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = key.rstrip("_").replace("_", "-")
        # Long paths of drawings are markup, which is not shortened.
        shown = value if isinstance(value, Html) else text(value)
        parts.append(f" {spelled}" if value is True else f' {spelled}="{shown}"')
    if name in _VOID:
        return Html("".join((*parts, ">")))
    return Html("".join((*parts, ">", *_flat(content), f"</{name}>")))


def join(*content: Content) -> Html:
    """Several elements in a row, without one around them."""
    return Html("".join(_flat(content)))


def _flat(content: Iterable[Content]) -> Iterator[str]:
    for one in content:
        if isinstance(one, Html):
            yield one
        elif isinstance(one, (str, int, float)):
            yield text(one)
        elif one is not None:
            yield from _flat(one)
