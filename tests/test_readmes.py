"""The two READMEs are in step: the same sections, code, tables, links and figures; and the English one is short."""

from __future__ import annotations

import re
from collections import Counter
from itertools import zip_longest

from support.paths import ROOT

MOST_LINES = 130
ENGLISH, CHINESE = (ROOT / "README.md", ROOT / "README.zh-CN.md")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`]+`")
LINK = re.compile(r"\]\(([^)]*)\)")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)*")


def sections(text: str) -> list[str]:
    """The parts of a page, one for each heading, without code blocks."""
    return re.split(r"^(?=#+ )", FENCE.sub("", text), flags=re.MULTILINE)[1:]


def differences(one: str, other: str) -> list[str]:
    """Where two pages are not in step."""
    found = ["code blocks"] if FENCE.findall(one) != FENCE.findall(other) else []
    for left, right in zip_longest(sections(one), sections(other), fillvalue=""):
        place = left.partition("\n")[0]
        if len(left.split(" ")[0]) != len(right.split(" ")[0]):
            found.append(f"{place}: headings")
        facts = {
            "code": lambda text: Counter(CODE.findall(text)),
            "links": lambda text: Counter(LINK.findall(text)) - Counter(dict.fromkeys(PAGES, 1)),
            "figures": lambda text: Counter(NUMBER.findall(LINK.sub("]", CODE.sub("", text)))),
            "rows": lambda text: re.findall(r"^(?:\||\d+\.|-|>) ?", text, re.MULTILINE),
        }
        found += [f"{place}: {name}" for name, fact in facts.items() if fact(left) != fact(right)]
    return found


PAGES = ("README.md", "README.zh-CN.md")


def test_the_readmes_are_in_step() -> None:
    assert differences(ENGLISH.read_text(encoding="utf-8"), CHINESE.read_text(encoding="utf-8")) == []


def test_the_readme_is_short() -> None:
    assert len(ENGLISH.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_set_up_commands_are_near_the_top() -> None:
    lines = ENGLISH.read_text(encoding="utf-8").splitlines()
    assert lines.index("```sh") < 12
    assert lines[lines.index("```sh") + 3] == "```"
