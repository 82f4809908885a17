"""Writes docs/rules/ and the tables of docs/hazards.md from the rules: ``python docs/make.py``.

What a page says comes from the rule's file: its docstring, its examples, what it finds in them under each target, and
the numbers of hazards that its decorator names. ``tests/test_docs.py`` fails where the files here are not what this
script would write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnxfix.catalogue import Facts, facts_of
from onnxfix.registry import BUILT_IN, rules_of
from onnxfix.render.rules import TABLE_HEAD, fixes, rule_markdown, rule_row, rules_markdown
from onnxfix.rule import Rule

DOCS = Path(__file__).resolve().parent
HAZARDS = DOCS / "hazards.md"
PAGES = DOCS / "rules"
MOST_EXAMPLES = 16
"""Examples on a page; the rule's file has them all."""
_TITLE = re.compile(r"^### (\d+)\. (.+)$", re.MULTILINE)


def main() -> None:
    """Write what has changed, and remove the pages of rules that are gone."""
    files = contents()
    PAGES.mkdir(exist_ok=True)
    for path in PAGES.glob("*.md"):
        if path not in files:
            path.unlink()
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def contents() -> dict[Path, str]:
    """Every file that is written here, with its text."""
    rules = sorted(rules_of(BUILT_IN), key=lambda rule: rule.code)
    facts = {rule.code: facts_of(rule) for rule in rules}
    catalogue = HAZARDS.read_text(encoding="utf-8")
    titles = titles_of(catalogue)
    files = {PAGES / "README.md": rules_markdown(rules, [facts[rule.code] for rule in rules])}
    for rule in rules:
        files[PAGES / f"{rule.code}.md"] = page(rule, facts[rule.code], titles)
    files[HAZARDS] = filled(catalogue, titles, rules, facts)
    return files


def titles_of(catalogue: str) -> dict[int, str]:
    """The entries of the catalogue, number and title, in the order of the text."""
    return {int(number): title for number, title in _TITLE.findall(catalogue)}


def page(rule: Rule, facts: Facts, titles: Mapping[int, str]) -> str:
    """What ``onnxfix explain`` prints, with the rule's row of the table and its hazards under the title.

    Raises:
        ValueError: the rule names a hazard that is not in the catalogue.
    """
    unknown = sorted(set(rule.hazards) - set(titles))
    if unknown:
        raise ValueError(f"{rule.code} names hazards that docs/hazards.md has not: {unknown}")
    title, _, rest = rule_markdown(rule, MOST_EXAMPLES).partition("\n\n")
    places = [
        f"[{number}. {titles[number]}](../hazards.md#{anchor(number, titles)})" for number in rule.hazards
    ]
    hazards = f"Hazards: {', '.join(places)}\n\n" if places else ""
    source = f"../../rules/{rule.module.replace('.', '/')}.py"
    hidden = len(rule.examples) - MOST_EXAMPLES
    more = (
        f"\n## {hidden} more example{'s' if hidden > 1 else ''}\n\nThey are in [the rule's file]({source}).\n"
        if hidden > 0
        else ""
    )
    return f"{title}\n\n{TABLE_HEAD}\n{rule_row(rule, facts)}\n\n{hazards}{rest}{more}"


def anchor(number: int, titles: Mapping[int, str]) -> str:
    """How GitHub names a heading: lower case, without punctuation, a hyphen for each space."""
    return slug(f"{number}. {titles[number]}")


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@dataclass(frozen=True)
class Rows:
    """Rules as the lines of one cell each, so that codes, safety and examples stand side by side."""

    codes: str
    fixes: str
    examples: str

    @classmethod
    def of(cls, rules: Iterable[Rule], facts: Mapping[str, Facts]) -> Rows:
        """The three cells for these rules."""
        known = [(rule, facts[rule.code]) for rule in rules]
        return cls(
            "<br>".join(f"[{rule.code}](rules/{rule.code}.md)" for rule, _ in known) or "–",
            "<br>".join(fixes(facts) for _, facts in known) or "–",
            "<br>".join(f"{facts.found} found, {facts.silent} left alone" for _, facts in known) or "–",
        )


def filled(
    catalogue: str, titles: Mapping[int, str], rules: Iterable[Rule], facts: Mapping[str, Facts]
) -> str:
    """The catalogue with its two tables written anew."""
    lines = ["| # | hazard | rules | fix | examples |", "|---|---|---|---|---|"]
    for number, title in titles.items():
        rows = Rows.of((rule for rule in rules if number in rule.hazards), facts)
        link = f"[{title}](#{anchor(number, titles)})"
        lines.append(f"| {number} | {link} | {rows.codes} | {rows.fixes} | {rows.examples} |")
    beyond = ["| rule | what it finds | fix | examples |", "|---|---|---|---|"]
    for rule in rules:
        if not rule.hazards:
            rows = Rows.of([rule], facts)
            beyond.append(f"| {rows.codes} {rule.name} | {rule.summary} | {rows.fixes} | {rows.examples} |")
    return between(between(catalogue, "table", lines), "beyond", beyond)


def between(text: str, name: str, lines: Iterable[str]) -> str:
    """``text`` with the lines between the two comments of that name.

    Raises:
        ValueError: the comments are not there.
    """
    start, end = f"<!-- {name}: written by docs/make.py -->\n", f"<!-- end of {name} -->\n"
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"docs/hazards.md has lost the comments around its {name}")
    head, _, rest = text.partition(start)
    return head + start + "\n".join(["", *lines, "", ""]) + end + rest.partition(end)[2]


if __name__ == "__main__":
    main()
