"""The site, without mkdocs: every page is in the navigation once, generated pages are complete, nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml

import onnxfix
from onnxfix.cli.app import app
from onnxfix.rewrite.registry import BUILT_IN, rules_of
from support.paths import ROOT
from support.scripts import script

pytestmark = pytest.mark.xdist_group("docs")
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
