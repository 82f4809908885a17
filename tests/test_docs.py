"""The docs say what the rules say: nothing stale, no dead link, every hazard and every rule in its place. The site,
without mkdocs: every page is in the navigation once, generated pages are complete, nothing is loaded.

What docs/make.py writes is compared with what stands in docs/; the rest looks at the Markdown itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

import onnxfix
from onnxfix.cli.app import app
from onnxfix.report.catalogue import quotes_of
from onnxfix.rewrite.registry import BUILT_IN, rules_of
from onnxfix.rule import Rule
from support.models import model
from support.paths import ROOT
from support.scripts import script

pytestmark = pytest.mark.xdist_group(
    "docs"
)  # two seconds for the facts of all rules: once, not once a worker

DOCS = ROOT / "docs"
RULES = sorted(rules_of(BUILT_IN), key=lambda rule: rule.code)
ENTRIES = 75
COMMAND = "run `python docs/make.py`"
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]


@cache
def maker() -> ModuleType:
    """docs/make.py, which is no module of a package."""
    module = script(DOCS / "make.py")
    module.facts_of = cache(module.facts_of)
    return module


@cache
def contents() -> dict[Path, str]:
    return maker().contents()  # type: ignore[no-any-return]


@cache
def catalogue() -> str:
    return (DOCS / "hazards.md").read_text(encoding="utf-8")


def sections(text: str) -> dict[int, str]:
    """The catalogue's entries: number to text."""
    parts = re.split(r"^###? (?:(\d+)\. )?.*$", text, flags=re.MULTILINE)
    return {int(number): body for number, body in zip(parts[1::2], parts[2::2], strict=True) if number}


def table_rows(text: str) -> dict[int, list[str]]:
    """Number to codes, by the catalogue's table."""
    rows = re.findall(r"^\| (\d+) \| (.*)$", text, re.MULTILINE)
    return {int(number): re.findall(r"rules/(\w+)\.md", rest) for number, rest in rows}


@cache
def parsed(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def inline(tokens: list[Token]) -> Iterator[list[Token]]:
    yield from (token.children for token in tokens if token.children)


def faults(text: str) -> list[str]:
    """What is wrong with a page as Markdown: headings, fences, tables, accidental emphasis and HTML."""
    tokens = parsed(text)
    found = []
    levels = [int(token.tag[1]) for token in tokens if token.type == "heading_open"]
    if levels.count(1) != 1 or levels[0] != 1:
        found.append("not one title, at the top")
    found += [f"heading of level {b} under {a}" for a, b in itertools.pairwise(levels) if b > a + 1]
    found += ["a fence without a language" for t in tokens if t.type == "fence" and not t.info]
    found += ["an indented block, which is code" for t in tokens if t.type == "code_block"]
    found += [
        f"HTML: {t.content!r}" for t in tokens if t.type == "html_block" and not t.content.startswith("<!--")
    ]
    for children in inline(tokens):
        found += [f"HTML: {t.content!r}" for t in children if t.type == "html_inline" and t.content != "<br>"]
        found += list(accidents(children))
    found += list(uneven_tables(text))
    return found


def accidents(children: list[Token]) -> Iterator[str]:
    """Emphasis within a word, such as two powers in a line make of ``2**24``."""
    for before, mark, after in zip(children, children[1:], children[2:], strict=False):
        opens = mark.type in ("strong_open", "em_open") and before.content[-1:].isalnum()
        closes = mark.type in ("strong_close", "em_close") and after.content[:1].isalnum()
        if opens or closes:
            yield f"emphasis inside of a word: {before.content!r} {after.content!r}"


def uneven_tables(text: str) -> Iterator[str]:
    """Rows of a table that have more or fewer cells than its head."""
    wide = 0
    for line in re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        if cells and wide and cells != wide:
            yield f"{cells - 1} cells under {wide - 1}: {line[:60]}"
        wide = cells and (wide or cells)


@cache
def anchors(path: Path) -> set[str]:
    """The headings of a page as GitHub names them."""
    tokens = parsed(path.read_text(encoding="utf-8"))
    titles = [after.content for token, after in itertools.pairwise(tokens) if token.type == "heading_open"]
    return {maker().slug(title.replace("`", "")) for title in titles}


def dead_links(path: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    found = []
    for children in inline(parsed(path.read_text(encoding="utf-8"))):
        for token in children:
            target = str(token.attrGet("href") or "") if token.type == "link_open" else ""
            place, _, anchor = target.partition("#")
            if not target or re.match(r"https?://\S+$", target):
                continue
            other = (path.parent / place).resolve() if place else path
            if not other.exists() or (anchor and anchor not in anchors(other)):
                found.append(target)
    return found


def test_docs_are_what_the_rules_say() -> None:
    written = contents().items()
    stale = [
        str(p.relative_to(ROOT)) for p, text in written if not p.exists() or p.read_text("utf-8") != text
    ]
    assert not stale, f"stale: {stale}; {COMMAND}"


def test_there_is_a_page_for_each_rule_and_no_other() -> None:
    codes = {path.stem for path in (DOCS / "rules").glob("*.md")} - {"README", "families", "messages"}
    assert codes == {rule.code for rule in RULES}, COMMAND


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert dead_links(path) == []


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_pages_are_markdown(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8")) == []


def test_the_page_that_a_report_names_exists() -> None:
    """Pages are committed for this: a report is read where onnxfix's sources are not."""
    text = "g (float[N] x) => (float[N] y) { a = Cast<to = 1>(x)  y = Neg(a) }"
    report = onnxfix.check(model(text))
    assert [found.code for found in report.findings] == ["CST002"]
    assert [found.rule_url for found in report.findings] == ["docs/rules/CST002.md"]
    assert all((ROOT / found.rule_url).is_file() for found in report.findings)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_has_evidence(rule: Rule) -> None:
    facts = maker().facts_of(rule)
    assert facts.links or facts.measured or facts.quote, (
        "no link, issue, message or measurement in the docstring"
    )
    assert any(facts.severities.values()), "finds nothing under any target"


def test_the_catalogue_is_complete() -> None:
    titles = maker().titles_of(catalogue())
    assert sorted(titles) == list(range(1, ENTRIES + 1))
    rows, texts = table_rows(catalogue()), sections(catalogue())
    assert list(rows) == list(titles)
    assert sorted(texts) == sorted(titles)
    for number, text in texts.items():
        assert len(text.split()) > 10, f"entry {number} says nothing"
        assert rows[number] or "\nNo rule: " in text, (
            f"entry {number} has neither a rule nor a reason for none"
        )


def test_the_catalogue_knows_every_rule_once() -> None:
    rows = table_rows(catalogue())
    beyond = re.findall(r"rules/(\w+)\.md", catalogue().partition("<!-- beyond")[2])
    assert sorted({code for codes in rows.values() for code in codes} | set(beyond)) == [
        r.code for r in RULES
    ]
    assert beyond == [rule.code for rule in RULES if not rule.hazards]
    for known in RULES:
        assert {number for number, codes in rows.items() if known.code in codes} == set(known.hazards)


def test_the_index_of_messages_leads_from_a_message_to_the_rules_that_quote_it() -> None:
    page = (DOCS / "rules" / "messages.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    for one, message in [(each, said) for each in RULES for said in quotes_of(each)]:
        quote = message.replace("|", "\\|")
        [row] = [row for row in rows if row.strip("| ").lstrip("`").startswith(f"{quote}`")]
        assert f"[{one.code}]({one.code}.md)" in row


def test_every_code_that_the_docs_name_exists() -> None:
    families = "|".join(sorted({rule.code[:3] for rule in RULES}))
    codes = {rule.code for rule in RULES}
    for path in PAGES:
        named = re.findall(rf"\b(?:{families})\d{{3}}\b", path.read_text(encoding="utf-8"))
        assert set(named) <= codes, path


WEBSITE = script(ROOT / "docs" / "website.py")


@cache
def settings() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return found


def pages(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        below = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(below, list):
            yield from pages(below)
        else:
            yield below


def test_every_page_is_in_the_navigation_once() -> None:
    named = [*pages(list(WEBSITE.filled(settings()["nav"])))]
    assert sorted(named) == sorted(WEBSITE.texts())


def test_the_families_in_the_navigation_hold_every_rule() -> None:
    families = list(WEBSITE.rule_pages())
    names = [name for one in families for name in one]
    assert names == sorted(names)
    named = [page for one in families for those in one.values() for page in those]
    assert named == [f"docs/rules/{code}.md" for code in sorted(rule.code for rule in rules_of(BUILT_IN))]


def test_nothing_is_configured_to_load_from_the_network() -> None:
    assert settings()["theme"]["font"] is False
    assert settings()["strict"] is True
    assert not {"extra_javascript", "extra_templates"} & set(settings())
    assert not any("://" in one for one in settings()["extra_css"])


@pytest.mark.parametrize(
    ("html", "count"),
    [
        ('<script src="https://cdn.example/x.js"></script>', 1),
        ("<link href=//fonts.example/css rel=stylesheet>", 1),
        ('<img alt="a" src="http://example/x.png">', 1),
        ('<link rel="canonical" href="https://example/x">', 0),
        ('<a href="https://example/">text</a><script src="assets/x.js"></script>', 0),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(tmp_path: Path, html: str, count: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "page.html").write_text(html)
    found = list(WEBSITE.outside(tmp_path))
    assert len(found) == count
    assert all(one.startswith("a/page.html: ") or one.startswith("a\\page.html: ") for one in found)


def test_links_to_other_files_of_the_repository_lead_to_copies(tmp_path: Path) -> None:
    text = (
        "[rule](../../rules/onnxfix_rules/cst/casts.py#L1) [page](../proof.md) [folder](../../tests) "
        "[site](https://x.y/z.py) [`a` [1]](#here) ![no](gone.png)\n\n```text\n[kept](../../tests)\n```\n"
    )
    assert WEBSITE.rewritten(text, "docs/rules/CST002.md", tmp_path) == text.replace(
        "[folder](../../tests)", "folder"
    )
    copied = tmp_path / "rules" / "onnxfix_rules" / "cst" / "casts.py"
    assert copied.read_bytes() == (ROOT / copied.relative_to(tmp_path)).read_bytes()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [copied]


def test_the_command_reference_has_every_command_and_option() -> None:
    page = WEBSITE.commands_page()
    sections = {part.partition("\n")[0]: part for part in page.split("\n## onnxfix ")[1:]}
    group: Any = typer.main.get_command(app)
    shown = {name: command for name, command in group.commands.items() if not command.hidden}
    assert set(sections) == set(shown)
    for name, command in shown.items():
        for param in command.params:
            for option in [one for one in param.opts if one.startswith("--") and not param.hidden]:
                assert f"`{option}" in sections[name], f"{name} {option}"
    assert "| `--fail-on SEVERITY` |" in sections["check"]
    assert "(`info`, `warning`, `error`, `never`)" in sections["check"]
    assert "onnxfix check model.onnx --trt\n" in sections["check"]


def test_the_python_reference_has_everything_that_is_exported() -> None:
    page = WEBSITE.python_page()
    for name in onnxfix.__all__:
        thing = getattr(onnxfix, name)
        if not name.startswith("_") and not isinstance(thing, ModuleType):
            assert f"::: {thing.__module__}.{thing.__qualname__}\n" in page
    assert page.index("## Functions") < page.index(".apply\n") < page.index("## Records")
    assert page.index("## Errors") < page.index("UsageError") < page.index("## For rule packs")
