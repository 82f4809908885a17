"""Writes docs/rules/, docs/schema/, docs/options.md, docs/releases.md, docs/releases/, docs/misimports.md,
docs/faults.md, docs/conformance.md, the tables of docs/hazards.md and the catalog of the rules,
rules/onnxfix_rules/catalog.json: ``python docs/make.py``.

With ``--check`` it writes nothing, names what is stale, and ends with 1 where anything is.

What a page says comes from the rule's file: its docstring, its first examples, what it finds in them under each target,
and the numbers of hazards that its decorator names. What was seen on executed engines comes from
benchmarks/gpu/hazards.json, which ``benchmarks/gpu/hazards.py table`` writes. ``tests/test_docs.py`` fails where the
files here are not what this script would write.

The pages are committed because reports lead to them (``rule_url``). So they hold little that stands elsewhere: the
evidence is in the table of docs/rules/README.md, and all examples are in the rule's file and in ``onnxfix explain``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxfix.report.render.rules import rule_markdown
from onnxfix.rewrite import catalog
from onnxfix.rewrite.registry import BUILT_IN, rules_of
from onnxfix.rule import Rule
from onnxfix.targets.documented import faults, version_of

DOCS = Path(__file__).resolve().parent
for _folder in (DOCS.parent / "benchmarks", DOCS):
    if str(_folder) not in sys.path:  # where another program loads this file
        sys.path.insert(0, str(_folder))

from making.conformance import conformance_page  # noqa: E402
from making.facts import Facts, facts_of, fixes, rules_markdown  # noqa: E402
from making.families import families_page  # noqa: E402
from making.messages import messages_page  # noqa: E402
from making.misimports import misimports_page  # noqa: E402
from making.options import options_page  # noqa: E402
from making.releases import release_pages, releases_page  # noqa: E402
from making.schemas import schemas  # noqa: E402
from making.tables import cell  # noqa: E402

HAZARDS = DOCS / "hazards.md"
OPTIONS = DOCS / "options.md"
RELEASES = DOCS / "releases.md"
PAGES = DOCS / "rules"
SCHEMAS = DOCS / "schema"
MISIMPORTS = DOCS / "misimports.md"
MEASURED = DOCS.parent / "benchmarks" / "gpu" / "hazards.json"
FAULTS = DOCS / "faults.md"
CONFORMANCE = DOCS / "conformance.md"
RECORDED = DOCS.parent / "benchmarks" / "conformance" / "results.json"
VARIANTS = DOCS.parent / "benchmarks" / "misimports" / "found.md"
CATALOG = DOCS.parent / "rules" / BUILT_IN / catalog.NAME
MOST_EXAMPLES = 6
"""Examples on a page; the rule's file and ``onnxfix explain`` have them all."""
_FAULTS = """\
# Known faults of TensorRT's releases

From public reports, release notes and the parser's source, which change: each row has the day on which its source was
read, and its words. What onnxfix executed is on the pages of [releases](releases.md) and rules. `onnxfix check --target
10.12` reports what a release has of it. A dash in the column of rules: the pattern is not precise enough to be found in
a graph. A dash in the column "fixed": no source says so.

| fault | releases | fixed | GPUs | pattern | effect | workaround | certainty | rule | source |
|---|---|---|---|---|---|---|---|---|---|"""
_TITLE = re.compile(r"^### (\d+)\. (.+)$", re.MULTILINE)

#: A verdict of hazards.py -> what the table says of the rule, and what a page says of such examples.
VERDICTS = {
    "contradicted": ("contradicted", "better before the fix than after it"),
    "wrong-confirmed": ("confirmed", "wrong before the fix and right after it"),
    "refused-confirmed": ("confirmed", "without a working engine before the fix and right after it"),
    "finding-confirmed": ("confirmed", "wrong or without a working engine, with no fix that could be judged"),
    "not-repaired": (
        "confirmed, not repaired",
        "wrong or without a working engine before the fix and after it",
    ),
    "not-confirmed": ("not confirmed", "right without a fix"),
    "not-runnable": ("not runnable", "shown neither right nor wrong"),
}


@dataclass(frozen=True)
class Engines:
    """What executed engines showed; ``known`` is what hazards.json holds, None where there is none."""

    known: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, path: Path = MEASURED) -> Engines:
        """What was measured, if anything was."""
        return cls(json.loads(path.read_text(encoding="utf-8")) if path.exists() else None)

    @property
    def machine(self) -> str:
        """``TensorRT-RTX 1.6.1.120, NVIDIA H200``."""
        assert self.known is not None
        setting = self.known["setting"]
        package, _, version = setting["TensorRT"].partition(" ")
        product = {"tensorrt-rtx": "TensorRT-RTX", "tensorrt": "TensorRT"}.get(package, package)
        return f"{product} {version}, {setting['GPU'].partition(',')[0]}"

    def cell(self, rule: Rule) -> str:
        """For the table: the verdict, and of how many examples it is."""
        found = self._of(rule)
        if found is None:
            return "not run yet" if self.known is None else "not run"
        word, total = VERDICTS[found["verdict"]][0], len(found["examples"])
        count = sum(VERDICTS[one["verdict"]][0] == word for one in found["examples"])
        return f"{word} ({count} of {total})" if total else word

    def line(self, rule: Rule) -> str:
        """For the rule's page: every verdict with the number of its examples."""
        found = self._of(rule)
        if found is None:
            return "On an executed engine: not run yet." if self.known is None else "Not run on an engine."
        counts = Counter(one["verdict"] for one in found["examples"])
        total = sum(counts.values())
        parts = [
            f"{counts[verdict]}{'' if place else _of_examples(total)} "
            f"{'is' if counts[verdict] == 1 else 'are'} {text}"
            for place, (verdict, text) in enumerate((v, t) for v, (_, t) in VERDICTS.items() if v in counts)
        ]
        what = "; ".join(parts) or "the rule has no models as examples"
        return (
            f"On an executed engine ({self.machine}): **{VERDICTS[found['verdict']][0]}**. {_sentence(what)}"
        )

    def paragraph(self) -> list[str]:
        """For the head of the catalogue."""
        if self.known is None:
            return ["**No engine was executed** for this table yet."]
        return [
            "*On an engine* is what the rules' own examples did on engines that were built and executed, before and",
            f"after the rule's own fix ({self.machine}): **confirmed** where engines are wrong or there",
            "is none, in brackets for how many examples; **not confirmed** where all are right, for the hazard",
            "is of other versions, of speed, or of other values; **not runnable** where no engine could show it. All",
            "examples, with TensorRT's words, are in",
            "[benchmarks/gpu](../benchmarks/gpu/README.md#the-rules-own-examples-executed).",
        ]

    def _of(self, rule: Rule) -> Mapping[str, Any] | None:
        return self.known["rules"].get(rule.code) if self.known is not None else None


def _of_examples(total: int) -> str:
    return f" of {total} example{'' if total == 1 else 's'}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def main() -> int:
    """Write what has changed, and remove the pages of rules that are gone; with ``--check``, only say so."""
    parser = argparse.ArgumentParser(
        description="Write docs/rules/, docs/schema/, docs/options.md, docs/releases.md, docs/misimports.md, "
        "docs/faults.md, docs/conformance.md, the tables of docs/hazards.md and the catalog of the rules."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    check = parser.parse_args().check
    files = contents()
    gone = sorted(set(PAGES.glob("*.md")) - set(files))
    stale = [
        path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for paths, word in ((gone, "no longer a rule"), (stale, "stale" if check else "written")):
        for path in paths:
            sys.stdout.write(f"{path.relative_to(DOCS.parent)}: {word}\n")
    if not gone and not stale:
        sys.stdout.write(
            f"nothing to write: the pages agree with the rules in {catalog.path_of(BUILT_IN).parent}\n"
        )
    if check:
        return int(bool(gone or stale))
    PAGES.mkdir(exist_ok=True)
    SCHEMAS.mkdir(exist_ok=True)
    RELEASES.with_suffix("").mkdir(exist_ok=True)
    for path in gone:
        path.unlink()
    for path in stale:
        path.write_text(files[path], encoding="utf-8")
    return 0


def contents() -> dict[Path, str]:
    """Every file that is written here, with its text."""
    rules = sorted(rules_of(BUILT_IN), key=lambda rule: rule.code)
    facts = {rule.code: facts_of(rule) for rule in rules}
    hazards = HAZARDS.read_text(encoding="utf-8")
    titles = titles_of(hazards)
    engines = Engines.read()
    files = {PAGES / "README.md": rules_markdown(rules, [facts[rule.code] for rule in rules])}
    for rule in rules:
        files[PAGES / f"{rule.code}.md"] = page(rule, facts[rule.code], titles, engines)
    files[PAGES / "families.md"] = families_page(rules, facts)
    files[PAGES / "messages.md"] = messages_page(rules, facts)
    files[OPTIONS] = options_page()
    files[RELEASES] = releases_page()
    files |= {RELEASES.with_suffix("") / f"{name}.md": text for name, text in release_pages(rules).items()}
    files[MISIMPORTS] = misimports_page(
        VARIANTS.read_text(encoding="utf-8"), {number: anchor(number, titles) for number in titles}
    )
    files[FAULTS] = faults_page()
    files[CONFORMANCE] = conformance_page(json.loads(RECORDED.read_text(encoding="utf-8")))
    files[HAZARDS] = filled(hazards, titles, rules, facts, engines)
    files[CATALOG] = catalog.text_of(rules)
    files |= {SCHEMAS / name: text for name, text in schemas().items()}
    return files


def faults_page() -> str:
    """The page of known faults, from the table of onnxfix/targets."""
    rows = []
    for fault in sorted(faults().values(), key=lambda fault: version_of(fault.first)):
        span = fault.first if fault.first == fault.last else f"{fault.first} to {fault.last or 'the newest'}"
        rule = f"[{fault.rule}](rules/{fault.rule}.md)" if fault.rule != "-" else "–"
        texts = (fault.pattern, fault.effect, fault.workaround or "–", fault.certainty)
        source = f"{cell(fault.source)}, read on {fault.read}: “{cell(fault.words)}”"
        cells = (f"`{fault.id}`", span, fault.fixed or "–", fault.where, *map(cell, texts), rule, source)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([_FAULTS, *rows]) + "\n"


def titles_of(catalogue: str) -> dict[int, str]:
    """The entries of the catalogue, number and title, in the order of the text."""
    return {int(number): title for number, title in _TITLE.findall(catalogue)}


def page(rule: Rule, facts: Facts, titles: Mapping[int, str], engines: Engines) -> str:
    """What ``onnxfix explain`` prints, with severities by target, what engines showed, and hazards under the title, and
    with few of the examples.

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
        f"\n## {hidden} more example{'s' if hidden > 1 else ''}\n\n"
        f"`onnxfix explain {rule.code} -v` prints all of them; they are in [the rule's file]({source}).\n"
        if hidden > 0
        else ""
    )
    shown = f"{severities(facts)} Fix: {fixes(facts)}. [All rules](README.md)"
    return f"{title}\n\n{shown}\n\n{engines.line(rule)}\n\n{hazards}{rest}{more}"


def severities(facts: Facts) -> str:
    """``Severity: error for trt11 and rtx, none for trt8.4, trt8.6 and trt10.``"""
    by_words: dict[str, list[str]] = {}
    for target, found in facts.severities.items():
        words = " or ".join(one.name.lower() for one in found) or "none"
        by_words.setdefault(words, []).append(target)
    if len(by_words) == 1:
        return f"Severity: {next(iter(by_words))} for every target."
    ordered = sorted(by_words.items(), key=lambda item: item[0] == "none")
    return f"Severity: {', '.join(f'{words} for {_listed(targets)}' for words, targets in ordered)}."


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


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
    engine: str

    @classmethod
    def of(cls, rules: Iterable[Rule], facts: Mapping[str, Facts], engines: Engines) -> Rows:
        """The cells for these rules."""
        known = [(rule, facts[rule.code]) for rule in rules]
        return cls(
            "<br>".join(f"[{rule.code}](rules/{rule.code}.md)" for rule, _ in known) or "–",
            "<br>".join(fixes(facts) for _, facts in known) or "–",
            "<br>".join(f"{facts.found} found, {facts.silent} left alone" for _, facts in known) or "–",
            "<br>".join(engines.cell(rule) for rule, _ in known) or "–",
        )


def filled(
    catalogue: str,
    titles: Mapping[int, str],
    rules: Iterable[Rule],
    facts: Mapping[str, Facts],
    engines: Engines,
) -> str:
    """The catalogue with its two tables written anew, and what it says of engines."""
    lines = ["| # | hazard | rules | fix | examples | on an engine |", "|---|---|---|---|---|---|"]
    for number, title in titles.items():
        rows = Rows.of((rule for rule in rules if number in rule.hazards), facts, engines)
        link = f"[{title}](#{anchor(number, titles)})"
        cells = (rows.codes, rows.fixes, rows.examples, rows.engine)
        lines.append(f"| {number} | {link} | {' | '.join(cells)} |")
    beyond = ["| rule | what it finds | fix | examples | on an engine |", "|---|---|---|---|---|"]
    for rule in rules:
        if not rule.hazards:
            rows = Rows.of([rule], facts, engines)
            cells = (rule.summary, rows.fixes, rows.examples, rows.engine)
            beyond.append(f"| {rows.codes} {rule.name} | {' | '.join(cells)} |")
    catalogue = between(catalogue, "engine", engines.paragraph())
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
    sys.exit(main())
