"""Builds the site: ``python docs/website.py`` (``pip install -e ".[cpu,docs]"``), into build/site.

The pages keep their places of the repository, so that links lead to the same pages here and there. Two are written for
the site alone: the references of the command line and of Python. Other files that pages link to are copied, and
mkdocs.yml's entries ``FAMILIES`` and ``RELEASES`` become the pages of all rules and releases. Neither the build nor a
finished page loads anything from the network. The pages also open from disk, but their search needs ``python -m
http.server``. ``--pages`` writes the pages and the configuration only.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
if str(DOCS) not in sys.path:  # where another program loads this file
    sys.path.insert(0, str(DOCS))

from making.commands import commands_page  # noqa: E402
from making.python import python_page  # noqa: E402

from onnxfix.report.catalogue import families  # noqa: E402
from onnxfix.rewrite.registry import BUILT_IN, rules_of  # noqa: E402
from onnxfix.targets.documented import RELEASES, text_of  # noqa: E402

CONFIGURATION = ROOT / "mkdocs.yml"
BUILD = ROOT / "build"
SOURCES = ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "fixtures/**/*.md")
STYLE = "docs/site.css"
GENERATED = {"docs/reference/commands.md": commands_page, "docs/reference/python.md": python_page}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]*(?:\([^()]*\)[^()\s]*)*)\)")
_SLUGS = "slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=[\"']?(?:https?:)?//[^\"'\s>]*"
    r"|<link\b(?=[^>]*rel=[\"']?(?:stylesheet|preconnect|preload|icon))[^>]*?href=[\"']?(?:https?:)?//[^\"'\s>]*",
    re.IGNORECASE,
)


def main() -> int:
    """Write the pages, build the site, and look at what it would load."""
    parser = argparse.ArgumentParser(description="Build the site into build/site.")
    parser.add_argument("--pages", action="store_true", help="write the pages and the configuration only")
    only_pages = parser.parse_args().pages
    configuration = staged(BUILD)
    if only_pages:
        return 0
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", configuration],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},  # an advertisement
        check=False,
    )
    if done.returncode:
        return done.returncode
    loaded = sorted(set(outside(BUILD / "site")))
    for page in loaded:
        sys.stderr.write(f"loads from the network: {page}\n")
    sys.stdout.write(f"{BUILD / 'site' / 'index.html'}\n")
    return int(bool(loaded))


def staged(folder: Path) -> Path:
    """Write all pages below ``folder``/pages, and the configuration, whose path is returned."""
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    for name, text in texts().items():
        target = pages / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rewritten(text, name, pages), encoding="utf-8")
    shutil.copyfile(ROOT / STYLE, pages / STYLE)
    settings = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
    settings |= {"docs_dir": str(pages), "site_dir": str(folder / "site")}
    settings["nav"] = list(filled(settings["nav"]))
    path = folder / "mkdocs.yml"
    text = yaml.safe_dump(settings, allow_unicode=True, sort_keys=False)
    path.write_text(text.replace("slugify: GITHUB", _SLUGS), encoding="utf-8")
    return path


def texts() -> dict[str, str]:
    """Every page by its place in the repository."""
    found = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for pattern in SOURCES
        for path in sorted(ROOT.glob(pattern))
    }
    return found | {name: page() for name, page in GENERATED.items()}


def rewritten(text: str, name: str, pages: Path) -> str:
    """A page whose links lead somewhere on the site: files that are linked are copied to ``pages``, and a link to a
    folder becomes its text."""

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        place = target.partition("#")[0]
        if not place or re.match(r"[a-z]+:", place) or place.endswith(".md"):
            return found[0]
        source = (ROOT / name).parent / place
        if source.is_dir():
            return f"{mark}{label}"
        if not source.is_file():
            return found[0]  # mkdocs complains
        copied = pages / source.resolve().relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copied)
        return found[0]

    parts = _FENCE.split(text)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def filled(nav: list[Any]) -> Iterator[Any]:
    """The navigation with the rules and releases in their places, and without pages that are not there."""
    for entry in nav:
        if entry == "FAMILIES":
            yield from rule_pages()
        elif entry == "RELEASES":
            yield {"Each release": [f"docs/releases/{text_of(version)}.md" for version in RELEASES]}
        elif isinstance(entry, str):
            yield entry
        else:
            [(title, below)] = entry.items()
            if isinstance(below, list):
                yield {title: list(filled(below))}
            elif (ROOT / below).exists() or below in GENERATED:
                yield entry


def rule_pages() -> Iterator[dict[str, list[str]]]:
    """``{"CST: casts": ["docs/rules/CST001.md", ...]}``, one family after the other."""
    rules = sorted(rules_of(BUILT_IN), key=lambda rule: rule.code)
    for family in families(rules):
        yield {family.name: [f"docs/rules/{rule.code}.md" for rule in family.rules]}


def outside(site: Path) -> Iterator[str]:
    """What the pages of a site load from elsewhere: page and address."""
    for path in sorted(site.rglob("*.html")):
        for found in _LOADED.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: {found}"


if __name__ == "__main__":
    sys.exit(main())
