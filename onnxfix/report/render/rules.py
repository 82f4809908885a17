"""The rules: their list, a page, and how many findings each has in the models of a run; and the targets."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfix.names import TARGETS as NAMES
from onnxfix.report.findings import SEVERITIES, AppliedFix, Finding
from onnxfix.report.pytorch import describe_pair
from onnxfix.report.render import ui
from onnxfix.report.render.findings import KINDS, NOUNS
from onnxfix.report.render.lines import Line, console, labeled, line, styled
from onnxfix.report.render.stream import as_json, output
from onnxfix.report.render.terminal import table_lines
from onnxfix.rewrite import catalog
from onnxfix.rule import Example, Rule, Safety
from onnxfix.targets import TARGETS, Support, Target
from onnxfix.targets.documented import RELEASES, text_of

if TYPE_CHECKING:
    from onnxfix.report.catalogue import Family, Hit
    from onnxfix.report.report import Errors, Report


def rules_lines(rules: Sequence[Rule]) -> Iterator[Line]:
    """One line a rule: code, name, severity, safety, summary."""
    width = max((len(rule.name) for rule in rules), default=0)
    for rule in rules:
        safety = rule.safety.name.lower() if rule.safety is not None else "detect"
        off = "" if rule.default else " (off by default)"
        facts = f"  {rule.name:<{width}}  {rule.severity.name.lower():<8}{safety:<8}{rule.summary}{off}"
        yield line((rule.code, "bold"), facts, hang=8)


def rules_json(rules: Sequence[Rule]) -> str:
    """The same as JSON, documentation included."""
    rows = [
        {
            "code": rule.code,
            "name": rule.name,
            "severity": rule.severity.name.lower(),
            "safety": rule.safety.name.lower() if rule.safety is not None else None,
            "default": rule.default,
            "hazards": rule.hazards,
            "proof": describe_proofs(rule) or None,
            "summary": rule.summary,
            "documentation": rule.doc,
            "pytorch": describe_pair(rule.code) or None,
        }
        for rule in rules
    ]
    return json.dumps(rows, indent=2)


PROOFS = "proofs.json"
"""Beside the catalog: the exact fixes of examples that are not proven for all values, and the numeric ones that are."""


def describe_proofs(rule: Rule) -> str:
    """On how many examples the rule's fix is proven for all values; empty where its package does not say, and where no
    example has an exact or numeric fix."""
    try:
        table = json.loads(catalog.path_of(rule.module.partition(".")[0]).with_name(PROOFS).read_bytes())
    except (OSError, ValueError):
        return ""
    fixed = {
        safety: [e for e in rule.examples if e.after is not None and e.safety == safety] for safety in Safety
    }
    exact, numeric = len(fixed[Safety.EXACT]), len(fixed[Safety.NUMERIC])
    unproven = {name for codes in table["undecided"].values() for name in codes.get(rule.code, ())}
    proven = sum(not unproven & {"*", example.why} for example in fixed[Safety.EXACT])
    parts = [f"proven for all values on {proven} of {exact} {'exact ' * bool(numeric)}examples"] * bool(exact)
    which = "numeric ones" if exact else "examples"
    parts += [f"exact in {len(table['exact'].get(rule.code, ()))} of {numeric} {which}"] * bool(numeric)
    return "; ".join(parts)


def rule_markdown(rule: Rule, most: int | None = None, more: str = "") -> str:
    """The rule's page as Markdown: docstring, then the examples that its tests run, at most ``most`` of them. ``more``
    is how to see the others."""
    from jinja2 import Template  # lazy: start-up

    shown = _some(rule.examples, most)
    template = Template(Path(__file__).with_name("rule.md.j2").read_text("utf-8"), trim_blocks=True)
    text = template.render(
        it=rule,
        proofs=describe_proofs(rule),
        pair=describe_pair(rule.code),
        shown=shown,
        left=len(rule.examples) - len(shown),
        more=more,
        opset=Example.opset,
        fenced=lambda text: f"```text\n{inspect.cleandoc(text)}\n```",
    )
    return str(text).rstrip("\n") + "\n"


def _some(examples: Sequence[Example], most: int | None) -> Sequence[Example]:
    """The first ones of those that are found and of those that are left alone, in their order."""
    if most is None or len(examples) <= most:
        return examples
    found = [example for example in examples if example.found]
    silent = [example for example in examples if not example.found]
    few = min(len(silent), max(most // 2, most - len(found)))
    chosen = [*found[: most - few], *silent[:few]]
    return [example for example in examples if example in chosen]


def family_lines(family: Family) -> Iterator[Line]:
    """The page of a family: its subject, and its rules."""
    yield line((family.name, "bold"), f"  {family.about}" if family.about else "")
    for rule in family.rules:
        yield line("")
        yield from _entry(rule)
    yield line("")
    yield line(f"Why, and how it is fixed: onnxfix explain {family.rules[0].code}", style="dim")


def _entry(rule: Rule) -> Iterator[Line]:
    """A rule in two lines: what it is called, and what it finds."""
    fix = f"{rule.safety.name.lower()} fix" if rule.safety is not None else "no fix"
    off = "" if rule.default else ", off by default"
    facts = f"  {rule.severity.name.lower()}, {fix}{off}"
    yield line("  ", (rule.code, "bold"), f" {rule.name}", (facts, "dim"), hang=4)
    yield line(f"    {rule.summary}", hang=4)


def hits_lines(query: str, hits: Sequence[Hit]) -> Iterator[Line]:
    """What a search found, the best first, with the message that was searched for where a page quotes it."""
    if not hits:
        yield line(f"no rule is about {query!r}; 'onnxfix rules' lists all of them")
        return
    for hit in hits:
        yield from _entry(hit.rule)
        if hit.said:
            yield line(("    TensorRT or ONNX Runtime: ", "dim"), hit.said, hang=6)
        yield line("")
    yield line(f"Why, and how it is fixed: onnxfix explain {hits[0].rule.code}", style="dim")


def print_rule(rule: Rule, most: int | None = None, more: str = "") -> None:
    """The page, laid out on a terminal and as plain Markdown elsewhere; for the arguments see ``rule_markdown``."""
    text = rule_markdown(rule, most, more)
    if not (styled() and (target := console()).is_terminal):
        output().write(text)
        return
    from rich.markdown import Markdown  # lazy: start-up

    target.print(Markdown(text), soft_wrap=False)


def statistics(reports: Iterable[Report]) -> list[dict[str, Any]]:
    """The findings of each rule, the most frequent first: how many are ``left`` and how many are ``fixed``, together
    (``count``), and in how many ``models``. Findings that are accepted do not count.

    ``severity`` is that of the worst; ``safety`` has each safety that its fixes have, empty where there is no fix.
    """
    items: dict[str, list[Finding | AppliedFix]] = {}
    models: Counter[str] = Counter()
    for report in reports:
        found: list[Finding | AppliedFix] = [*report.findings, *report.applied]
        models.update({item.code for item in found})
        for item in found:
            items.setdefault(item.code, []).append(item)
    rows = [
        {
            "code": code,
            "name": same[0].name,
            "severity": min((item.severity for item in same), key=SEVERITIES.index),
            "safety": sorted({item.safety for item in same if item.safety}),
            "left": sum(isinstance(item, Finding) for item in same),
            "fixed": sum(isinstance(item, AppliedFix) for item in same),
            "models": models[code],
            "count": len(same),
        }
        for code, same in items.items()
    ]
    return sorted(rows, key=lambda row: (-row["count"], row["code"]))


def statistics_json(reports: Sequence[Report], errors: Errors, warnings: Sequence[str]) -> str:
    """One document: the counts, and what could not be read. In ASCII."""
    document = {
        "statistics": statistics(reports),
        "errors": [{"path": path, "message": message} for path, message in errors],
        "warnings": list(warnings),
    }
    return as_json(document)


def statistics_lines(reports: Sequence[Report]) -> Iterator[Line]:
    """A line for each rule, the most frequent first; with a column for what is fixed where something is."""
    counts = statistics(reports)
    if not counts:
        yield line("no findings")
        return
    fixing = any(row["fixed"] for row in counts)
    rows = []
    for row in counts:
        fix = f"{'/'.join(row['safety'])} fix" if row["safety"] else "no fix"
        chip = ui.Chip(KINDS[row["severity"]], NOUNS[row["severity"]])
        fixed = [row["fixed"]] if fixing else []
        rows.append((*fixed, row["left"], ui.strong(row["code"]), row["name"], chip, fix))
    head = ("#Fixed", "#Left", "", "", "", "") if fixing else ("#", "", "", "", "")
    yield from table_lines(ui.Table(head, rows, "Findings by rule"), verbose=True, indent=0)


_LABEL = 19


def targets_lines() -> Iterator[Line]:
    """A line for each release: newest opset, element types that came with it, JetPacks, source; then other names."""
    known: frozenset[str] = frozenset()
    for version, release in RELEASES.items():
        target = TARGETS[f"trt{text_of(version)}"]
        added = sorted(release.types - known) if known else ()
        facts = [f"opset {release.opset}", f"also {' '.join(added)}" if added else ""]
        facts += [f"JetPack {', '.join(release.jetpacks)}" if release.jetpacks else "", target.source]
        yield line((f"{target.name:<10}", "bold"), "; ".join(filter(None, facts)), hang=10)
        known = release.types
    for name in [name for name in NAMES if "." not in name]:
        yield line((f"{name:<10}", "bold"), f"{TARGETS[name].title}; {TARGETS[name].source}", hang=10)


def difference_lines(old: Target, new: Target) -> Iterator[Line]:
    """Operators, element types and restrictions that differ."""
    yield line((f"{old.title}, {new.title}", "bold"))
    for one, other in ((new, old), (old, new)):
        alone = sorted(name for name in one.operators if not other.imports(name))
        yield labeled(f"only {one.name}", ", ".join(alone) or "–", columns=_LABEL)
    both = sorted(old.operators.keys() & new.operators.keys())
    for (lost, more), names in _differences(old.operators, new.operators, both).items():
        words = [
            f"{word} {' '.join(types)}" for word, types in (("also", more), ("no longer", lost)) if types
        ]
        yield labeled("types", f"{', '.join(names)}: {', '.join(words)}", columns=_LABEL)
    for name in both:
        texts = [(target.name, target.operators[name].notes) for target in (old, new)]
        if texts[0][1] != texts[1][1]:
            said = "; ".join(f"{target}: {text or 'none'}" for target, text in texts)
            yield labeled(name, said, columns=_LABEL)


def _differences(
    old: Mapping[str, Support], new: Mapping[str, Support], names: list[str]
) -> dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]]:
    """The types that are known to be taken by one alone -> the operators."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for name in names:
        before, after = (side[name].types - {"DOUBLE"} for side in (old, new))  # read as FLOAT by all
        if before != after:
            found.setdefault((tuple(sorted(before - after)), tuple(sorted(after - before))), []).append(name)
    return found
